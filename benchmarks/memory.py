"""Memory that a call takes at its peak, beyond its inputs. On the CPU each is measured in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.case import Case, Subject, Thunk

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
ROOT = Path(__file__).parents[1]
SECONDS = 300.0
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""glibc keeps freed blocks of up to 32 MiB once it has freed one, and a second call would then seem to need nothing."""


def peak_on_cuda(call: Thunk) -> int:
    """Bytes that PyTorch's allocator handed out at the peak of a call, beyond what was in use before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def peak_on_cpu(suite: str, key: str, subject: str, threads: int, arguments: dict[str, Any]) -> int | str:
    """Bytes of a call at its peak, or why they are not known."""
    if not RESET.exists():
        return "needs Linux"
    order = json.dumps({"suite": suite, "key": key, "subject": subject, "threads": threads, **arguments})
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.memory", order],
            capture_output=True, text=True, timeout=SECONDS, cwd=ROOT, env=os.environ | RETURNED,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"took more than {SECONDS:g} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    return int(done.stdout.splitlines()[-1])


def field(name: str) -> int:
    """A line of the process's status, in bytes."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def high_water(call: Thunk) -> int:
    """Bytes of memory in use at the peak of a call, beyond what was in use before."""
    RESET.write_text("5")
    before = field("VmRSS")
    call()
    return field("VmHWM") - before


def measure(small: Case, case: Case, subject: str) -> int:
    """The high water of one subject, after it has run on a small case, for what is made once.

    What compiles has also run on the case itself: compiling takes memory, and is done for each size.
    """
    made(small, subject).make()()
    chosen = made(case, subject)
    call = chosen.make()
    if chosen.compiles:
        call()
    return high_water(call)


def made(case: Case, subject: str) -> Subject:
    """A subject by its name."""
    return next(s for s in case.subjects if s.name == subject)


def main() -> None:
    """Do what the parent process ordered."""
    from benchmarks.suites import SUITES, Settings

    order = json.loads(sys.argv[1])
    torch.set_num_threads(order["threads"])
    suite = SUITES[order["suite"]]
    case = next(c for c in suite(Settings(sizes=tuple(order["sizes"]))) if c.key == order["key"])
    small = next(c for c in suite(Settings(sizes=(16,))) if (c.name, c.mode) == (case.name, case.mode))
    print(measure(small, case, order["subject"]))


if __name__ == "__main__":
    main()
