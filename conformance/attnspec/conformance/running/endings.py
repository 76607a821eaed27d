"""The end of a process that judges a backend itself: if the backend ends it, that is no success."""

import os
from collections.abc import Callable
from typing import Any, NoReturn
from unittest.mock import patch

FAILED = 1
"""The status of a process that was ended before its time, where it would have been 0."""


def guarded(say: Callable[[str], None]) -> Callable[[], None]:
    """Have :func:`os._exit`, and what puts another program in the place of this one, end it as a failure.

    ``say`` prints why. What is returned takes that back. A process that is a copy of this one ends as it likes.
    """
    process, leave = os.getpid(), os._exit

    def ended(how: str, status: int) -> NoReturn:
        say(f"attnspec: the backend has ended this process {how}: what was not reported is not judged")
        leave(status or FAILED)

    def exit_(status: int = 0) -> NoReturn:
        if os.getpid() != process:
            leave(status)
        ended(f"with status {status}", status)

    def replaced(call: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        def execute(path: Any, *given: Any) -> NoReturn:
            if os.getpid() != process:
                call(path, *given)
            ended(f"by running {path!s} in its place", FAILED)

        return execute

    changed = patch.multiple(os, _exit=exit_, execv=replaced(os.execv), execve=replaced(os.execve))
    changed.start()

    def undo() -> None:
        changed.stop()

    return undo
