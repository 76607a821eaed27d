"""Work in a child process that may crash or hang."""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from attnspec.conformance.judging.violation import Reason

FINISHED = 113
"""Exit status of a child that finished its work, also by an exception; a crash has another."""

CAN_FORK = hasattr(os, "fork")
"""True if processes can fork, so that a child need not import the backend again."""


def forks(device: str) -> bool:
    """Return whether a fork can use a device; CUDA, for one, refuses forks of a process that has used it."""
    return CAN_FORK and device.partition(":")[0] == "cpu"


class AbnormalEnd(NamedTuple):
    """Crash or timeout of a child process."""

    reason: Reason
    description: str


def abnormal_end(work: Callable[[], object], seconds: float) -> AbnormalEnd | None:
    """Do the work in a fork; return its crash or timeout, None if it finished.

    Needs :data:`CAN_FORK`, and a backend that has not been called yet: a fork does not copy threads.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(FINISHED)
    deadline, pause = time.monotonic() + seconds, 1e-4
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return crash_of(os.waitstatus_to_exitcode(status))
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return hang_of(seconds)


def hang_of(seconds: float) -> AbnormalEnd:
    """The end of a child that took longer than its time limit."""
    return AbnormalEnd(Reason.HUNG, f"the backend did not answer within {seconds:g} s")


def crash_of(status: int) -> AbnormalEnd | None:
    """The crash that an exit status means; None if the child finished its work."""
    if status == FINISHED:
        return None
    how = f"with status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
    return AbnormalEnd(Reason.CRASHED, f"the backend ended the process {how}")
