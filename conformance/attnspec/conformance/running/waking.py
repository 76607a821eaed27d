"""Continuation of judges that a signal stopped.

A backend without a sandbox may send SIGSTOP to the process that judges it, which would then never end.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from attnspec.conformance.remote.processes import KNOWN, Process, processes

PAUSE = 1.0
"""Seconds between two checks. A process stopped at both is continued; Ctrl-Z stops all judges within one."""


def wake(is_judge: Callable[[Process], bool]) -> None:
    """Start a thread that continues stopped judges among this machine's processes."""
    if KNOWN:
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
            sys.stderr.write(f"attnspec: process {number} of the judge was stopped; it goes on\n")
            with suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGCONT)
        stopped = now
