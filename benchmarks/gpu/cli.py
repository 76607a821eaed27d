"""Command line of the checks on a GPU: stages in processes of their own, within a time limit each."""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import report
from benchmarks.gpu.check import FAIL, NOT_REACHED, Outcome

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Stage:
    """Title of a stage, the function that returns its checks, and its environment variables."""

    title: str
    place: str
    environment: Mapping[str, str] = field(default_factory=dict)


STAGES = (
    Stage("a call of every kernel", "benchmarks.gpu.kernels:smoke_calls", {"CUDA_LAUNCH_BLOCKING": "1"}),
    Stage("kernels against the formula", "benchmarks.gpu.kernels:borders"),
    Stage("risks", "benchmarks.gpu.risks:checks"),
    Stage("laws of additive and scaled dot-product attention", "benchmarks.gpu.laws:of_attention"),
    Stage("laws of all operations", "benchmarks.gpu.laws:of_all"),
    Stage("benchmarks", "benchmarks.gpu.speed:checks"),
    Stage("hardware counters", "benchmarks.gpu.counters:checks"),
)


def main(arguments: Sequence[str] | None = None, stages: Sequence[Stage] = STAGES) -> int:
    """Run the command; return 0 if all checks are ok, 1 if any is not, 2 without a CUDA device."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="Check the backend on a GPU.")
    parser.add_argument("--stage", type=int, choices=range(len(stages)), action="append", help="only this stage")
    parser.add_argument("--dry-run", action="store_true", help="without a GPU: everything once, at small sizes")
    parser.add_argument("--seconds", type=float, default=530, help="time limit of a stage (default: 530)")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "benchmarks" / "results" / "gpu",
        help="folder for gpu.json and README.md; keeps stages that are not run (default: benchmarks/results/gpu)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if not options.dry_run and not torch.cuda.is_available():
        sys.stderr.write("benchmarks.gpu: expected a CUDA device; PyTorch finds none. --dry-run needs no GPU\n")
        return 2
    failed = False
    for number in options.stage or range(len(stages)):
        stage = stages[number]
        print(f"stage {number}: {stage.title}", flush=True)
        result = run_stage(stage, dry=options.dry_run, seconds=options.seconds)
        report.write(options.output, number, result, dry=options.dry_run)
        failed |= any(check["status"] in (FAIL, NOT_REACHED) for check in result["checks"])
    print(f"{options.output / report.PAGE} and {report.FILE} have the results", flush=True)
    return int(failed)


def run_stage(stage: Stage, *, dry: bool, seconds: float) -> dict[str, Any]:
    """Run a stage; return its title, machine, seconds, and the outcomes of all checks, even of those not reached.

    After an illegal access, or the end of its process, a new process goes on with the next check.
    """
    start = time.monotonic()
    header: dict[str, Any] = {"machine": {}, "checks": [stage.title]}
    outcomes: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "outcomes")
        while len(outcomes) < len(header["checks"]):
            left = max(seconds - (time.monotonic() - start), 0.0)
            arguments = [stage.place, str(file), str(len(outcomes)), f"{left:g}"]
            command = [sys.executable, "-m", "benchmarks.gpu.stage", *arguments, *(["dry"] if dry else [])]
            status = _status_of(command, environment(stage, dry=dry), left)
            header, *finished = _lines(file) or [header]
            outcomes += finished
            names = header["checks"][len(outcomes) :]
            if status is None:
                unfinished, outcome = names, Outcome(NOT_REACHED, remark=f"time limit of {seconds:g} s")
            elif status:  # the check that was running ended the process
                unfinished, outcome = names[:1], Outcome(FAIL, remark=f"its process ended with status {status}")
            else:
                continue
            for name in unfinished:
                print(outcome.line(name), flush=True)
                outcomes.append(asdict(outcome))
    checks = [{"name": name, **outcome} for name, outcome in zip(header["checks"], outcomes, strict=True)]
    duration = round(time.monotonic() - start, 1)
    return {"title": stage.title, "machine": header["machine"], "seconds": duration, "checks": checks}


def _lines(file: Path) -> list[dict[str, Any]]:
    """Read and remove the lines of a process; none if it ended before it wrote any."""
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
    file.unlink(missing_ok=True)
    return lines


def environment(stage: Stage, *, dry: bool) -> dict[str, str]:
    """Variables of the process of a stage; a dry run interprets Triton's kernels on the CPU."""
    interpreted = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""} if dry else {}
    return {**os.environ, **stage.environment, **interpreted}


def _status_of(command: Sequence[str], variables: Mapping[str, str], seconds: float) -> int | None:
    """Run a command with its children, all of which end with it; return its status, None beyond the time limit."""
    process = subprocess.Popen(command, cwd=ROOT, env=variables, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):  # of a stage whose processes have all ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
