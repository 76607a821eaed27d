"""Judges continue each other: a backend without a sandbox may stop the process that judges it."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from attnspec.conformance.remote.processes import KNOWN, Process, processes

PAUSE = 1.0
"""Seconds between two looks; who is stopped at both is continued: Ctrl-Z stops all judges within one."""


def wake(concerns: Callable[[Process], bool]) -> None:
    """Continue, from a thread of this process, those of these processes that something has stopped."""
    if KNOWN:
        threading.Thread(target=_watch, args=(concerns,), daemon=True).start()


def wake_workers() -> None:
    """Continue the workers of this process; those of backends have sessions of their own."""
    own, session = os.getpid(), os.getsid(0)
    wake(lambda one: one.parent == own and one.session == session)


def wake_parent() -> None:
    """Continue the process that controls this worker."""
    parent = os.getppid()
    wake(lambda one: one.number == parent)


def _watch(concerns: Callable[[Process], bool]) -> None:
    stopped: set[int] = set()
    while True:
        time.sleep(PAUSE)
        now = {one.number for one in processes() if one.state == "T" and concerns(one)}
        for number in now & stopped:
            sys.stderr.write(f"attnspec: process {number} of the judge was stopped; it goes on\n")
            with suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGCONT)
        stopped = now
