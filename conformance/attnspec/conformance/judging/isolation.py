"""Work in a child process that may crash or hang."""

import os
import signal
import sys
import time
from collections.abc import Callable
from io import FileIO
from typing import NamedTuple

from attnspec.conformance.judging.foreign_calls import ending
from attnspec.conformance.judging.violation import Reason

FINISHED = b"."
"""Message of a child that finished its work, also by an exception: a backend may end it with any exit status."""

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
    answer, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os.write(theirs, FINISHED)
            os._exit(0)
    os.close(theirs)
    with open(answer, "rb", buffering=0) as pipe:
        return _awaited_end(child, pipe, seconds)


def _awaited_end(child: int, pipe: FileIO, seconds: float) -> AbnormalEnd | None:
    deadline, pause = time.monotonic() + seconds, 1e-4
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return crash_of(os.waitstatus_to_exitcode(status), pipe)
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return hang_of(seconds)


def hang_of(seconds: float) -> AbnormalEnd:
    """The end of a child that took longer than its time limit."""
    return AbnormalEnd(Reason.HUNG, f"the backend did not answer within {seconds:g} s")


def crash_of(status: int, pipe: FileIO) -> AbnormalEnd | None:
    """The crash of an ended child; None if it finished its work, and wrote so to the pipe."""
    os.set_blocking(pipe.fileno(), False)  # processes that it left may still hold the other end
    if pipe.read(1) == FINISHED:
        return None
    return AbnormalEnd(Reason.CRASHED, f"the backend ended the process {ending(status)}")
