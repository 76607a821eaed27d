"""Run of one stage in a process: ``python -m benchmarks.gpu.stage MODULE:FUNCTION FILE FIRST SECONDS [dry]``.

FILE gets a line of JSON with the machine and the names of all checks, then a line per check, from number FIRST on, as
soon as it is done. After an illegal access the process ends early.
"""

import json
import subprocess
import sys
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
    module, _, function = place.partition(":")
    context = Context("cpu" if dry else "cuda", bool(dry), float(seconds))
    checks = getattr(import_module(module), function)(context)
    with Path(file).open("w", encoding="utf-8", buffering=1) as lines:
        header = {"machine": described(context.device) | gpu(context), "checks": [check.name for check in checks]}
        lines.write(json.dumps(header) + "\n")
        checks = checks[int(first) :]
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
