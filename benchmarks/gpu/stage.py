"""Run of one stage in a process: ``python -m benchmarks.gpu.stage MODULE:FUNCTION FILE FIRST SECONDS [dry]``.

FILE gets a line of JSON with the machine and the names of all checks, then a line per check, from number FIRST on, as
soon as it is done. After an illegal access the process ends early.
"""

import json
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.check import Context, outcomes
from benchmarks.machine import described

ROOT = Path(__file__).parents[2]


def main(place: str, file: str, first: str, seconds: str, *dry: str) -> None:
    """Run the checks that a function returns, from a number on; print and write the outcome of each."""
    with pretended_device() if dry else nullcontext():
        run(place, Path(file), int(first), Context("cuda", bool(dry), float(seconds)))


def pretended_device() -> AbstractContextManager[Any]:
    """Pretend to have a GPU: numbers of the CPU that say they are on a CUDA device."""
    from tests.backends.pretended_cuda import pretended_cuda

    return pretended_cuda()


def run(place: str, file: Path, first: int, context: Context) -> None:
    """Run the checks on a device."""
    module, _, function = place.partition(":")
    checks = getattr(import_module(module), function)(context)
    with file.open("w", encoding="utf-8", buffering=1) as lines:
        machine = described("cpu" if context.dry else context.device) | gpu(context)
        lines.write(json.dumps({"machine": machine, "checks": [check.name for check in checks]}) + "\n")
        checks = checks[first:]
        for check, outcome in zip(checks, outcomes(checks, context), strict=False):
            lines.write(json.dumps(asdict(outcome)) + "\n")
            print(outcome.line(check.name), flush=True)


def gpu(context: Context) -> dict[str, Any]:
    """Describe the commit, and the GPU: compute capability, multiprocessors, memory, version of CUDA, driver."""
    commit = {"commit": _output("git", "-C", str(ROOT), "describe", "--always", "--dirty")}
    if context.dry:
        return commit
    properties = torch.cuda.get_device_properties(context.device)
    return commit | {
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory": f"{properties.total_memory / 2**30:.0f} GiB",
        "CUDA": torch.version.cuda,
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
    }


def _output(*command: str) -> str:
    """First line that a command prints; empty if it cannot be run."""
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return lines[0] if lines else ""


if __name__ == "__main__":
    main(*sys.argv[1:])
