"""Peak memory of a call beyond its inputs, on the CPU in a separate process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.case import Call, Case, Subject

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
ROOT = Path(__file__).parents[1]
TIMEOUT_SECONDS = 300.0
MALLOC_SETTINGS = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""Settings that make glibc free memory. By default it keeps blocks up to 32 MiB, so that a second call seems free."""


def peak_on_cuda(call: Call) -> int:
    """Return the bytes that a call adds at its peak in PyTorch's allocator."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def peak_on_cpu(suite: str, key: str, subject: str, threads: int, arguments: dict[str, Any]) -> int | str:
    """Return the bytes that a call adds at its peak, or why they are unknown."""
    if not RESET.exists():
        return "needs Linux"
    request = json.dumps({"suite": suite, "key": key, "subject": subject, "threads": threads, **arguments})
    try:
        process = subprocess.run(
            [sys.executable, "-m", "benchmarks.memory", request],
            capture_output=True, text=True, timeout=TIMEOUT_SECONDS, cwd=ROOT, env=os.environ | MALLOC_SETTINGS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"took more than {TIMEOUT_SECONDS:g} s"
    if process.returncode:
        return (process.stderr.strip().splitlines() or [f"status {process.returncode}"])[-1]
    return int(process.stdout.splitlines()[-1])


def status_bytes(name: str) -> int:
    """Return a field of this process's ``/proc`` status, in bytes."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def high_water_mark(call: Call) -> int:
    """Return the bytes of resident memory that a call adds at its peak."""
    RESET.write_text("5")  # 5 resets VmHWM, the peak of resident memory
    before = status_bytes("VmRSS")
    call()
    return status_bytes("VmHWM") - before


def measure(small: Case, case: Case, subject: str) -> int:
    """Measure the peak of a subject, after a setup run on a small case.

    A subject that compiles also runs on the case itself first, since compiling for its size takes memory.
    """
    subject_named(small, subject).make()()
    measured = subject_named(case, subject)
    call = measured.make()
    if measured.compiles:
        call()
    return high_water_mark(call)


def subject_named(case: Case, subject: str) -> Subject:
    """Return the subject of a case with this name."""
    return next(s for s in case.subjects if s.name == subject)


def main() -> None:
    """Measure the parent process's request and print the bytes."""
    from benchmarks.suites import SUITES, Settings

    request = json.loads(sys.argv[1])
    torch.set_num_threads(request["threads"])
    suite = SUITES[request["suite"]]
    case = next(c for c in suite(Settings(sizes=tuple(request["sizes"]))) if c.key == request["key"])
    small = next(c for c in suite(Settings(sizes=(16,))) if (c.name, c.mode) == (case.name, case.mode))
    print(measure(small, case, request["subject"]))


if __name__ == "__main__":
    main()
