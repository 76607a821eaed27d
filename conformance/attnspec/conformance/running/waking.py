"""Continuation of judging processes that a signal stopped.

A backend without a sandbox may send SIGSTOP to the process that judges it, and the run would never end.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from attnspec.conformance.remote.processes import HAS_PROC, Process, processes

PAUSE = 1.0
"""Seconds between two looks; a process that is stopped at both is continued."""


def wake(is_judge: Callable[[Process], bool]) -> None:
    """Start a thread that continues processes that are stopped and accepted by ``is_judge``."""
    if HAS_PROC:
        threading.Thread(target=_watch, args=(is_judge,), daemon=True).start()


def wake_workers() -> None:
    """Continue stopped workers of this process; backends' processes have other sessions and stay stopped."""
    own, session = os.getpid(), os.getsid(0)
    wake(lambda process: process.parent == own and process.session == session)


def wake_parent() -> None:
    """Continue the process that controls this worker, if it is stopped."""
    parent = os.getppid()
    wake(lambda process: process.number == parent)


def _watch(is_judge: Callable[[Process], bool]) -> None:
    stopped: set[int] = set()
    while True:
        time.sleep(PAUSE)
        now = {process.number for process in processes() if process.state == "T" and is_judge(process)}
        for number in now & stopped:
            sys.stderr.write(f"attnspec: process {number} of the judge was stopped; it is continued\n")
            with suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGCONT)
        stopped = now
