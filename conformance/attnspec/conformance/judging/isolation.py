"""Work in a child process that may crash or hang."""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from attnspec.conformance.judging.violation import Reason

ENDED = 113
"""Exit status of a child that finished its work; a backend that exits has another."""

POSSIBLE = hasattr(os, "fork")
"""True if processes can fork, which keeps the imported backend."""


class End(NamedTuple):
    """Reason and description of a child's crash or timeout."""

    reason: Reason
    words: str


def end_of(work: Callable[[], object], seconds: float) -> End | None:
    """Do the work in a fork; return its crash or timeout, None if it finished.

    Needs :data:`POSSIBLE`, and a backend that has not been called yet: a fork does not copy threads.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(ENDED)
    deadline, pause = time.monotonic() + seconds, 1e-4
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return _crash(os.waitstatus_to_exitcode(status))
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return End(Reason.HUNG, f"the backend did not answer within {seconds:g} s")


def _crash(status: int) -> End | None:
    if status == ENDED:
        return None
    how = f"with status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
    return End(Reason.CRASHED, f"the backend ended the process {how}")
