"""Continuing judges that were stopped by a signal.

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
"""Seconds between two checks. A process that is stopped at both is continued; Ctrl-Z stops all judges within one."""


def wake(is_judge: Callable[[Process], bool]) -> None:
    """Start a thread that continues the judges among the processes of this machine when they are stopped."""
    if KNOWN:
        threading.Thread(target=_watch, args=(is_judge,), daemon=True).start()


def wake_workers() -> None:
    """Continue the workers of this process. Processes of backends are none: they have sessions of their own."""
    own, session = os.getpid(), os.getsid(0)
    wake(lambda process: process.parent == own and process.session == session)


def wake_parent() -> None:
    """Continue the process that controls this worker."""
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
