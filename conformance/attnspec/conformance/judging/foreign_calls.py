"""Calls into a backend: an exception of its code is a finding about the backend, not an error of the suite."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_LENGTH = 300
"""Characters of a message; the rest is cut."""


@dataclass(frozen=True)
class Raised:
    """What a backend's code raised."""

    error: BaseException

    @property
    def message(self) -> str:
        """The exception's type and message on one line, in characters that every encoding of Unicode can write."""
        kind = type(self.error).__name__
        text = call_safely(lambda: str(self.error))
        line = "its message cannot be read" if isinstance(text, Raised) else " ".join(text.split())
        line = line if len(line) <= MAX_LENGTH else line[:MAX_LENGTH] + " …"
        return (f"{kind}: {line}" if line else kind).encode("utf-8", "replace").decode()


def call_safely(call: Callable[[], Any]) -> Any:
    """The result of a call, or :class:`Raised` if it raises anything at all.

    ``KeyboardInterrupt`` alone comes through, since the user may have pressed Ctrl-C. A worker process ignores SIGINT:
    there it can only come from the backend, and is returned like any other exception.
    """
    try:
        return call()
    except KeyboardInterrupt as error:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            raise
        return Raised(error)
    except BaseException as error:  # noqa: BLE001 - a backend's code may raise anything
        return Raised(error)
