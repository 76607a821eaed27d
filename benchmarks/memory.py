"""Memory that a call takes at its peak, beyond its inputs. On the CPU each is measured in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.case import Case, Thunk

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
SECONDS = 300.0


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
            [sys.executable, "-m", "benchmarks.memory", order], capture_output=True, text=True, timeout=SECONDS
        )
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
    """The high water of one subject, after it has run on a small case, for what is made once."""
    for run_first in (small,):
        next(s for s in run_first.subjects if s.name == subject).make()()
    return high_water(next(s for s in case.subjects if s.name == subject).make())


def main() -> None:
    """Do what the parent process ordered."""
    from benchmarks.suites import SUITES, Settings

    order = json.loads(sys.argv[1])
    torch.set_num_threads(order["threads"])
    suite = SUITES[order["suite"]]
    settings = Settings(device="cpu", sizes=tuple(order["sizes"]), quick=order["quick"])
    (case,) = [c for c in suite(settings) if c.key == order["key"]]
    like = Settings(device="cpu", sizes=(16,), quick=order["quick"])
    (small,) = [c for c in suite(like) if (c.name, c.mode) == (case.name, case.mode)]
    print(measure(small, case, order["subject"]))


if __name__ == "__main__":
    main()
