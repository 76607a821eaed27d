"""Calling other people's code: whatever it raises is its verdict, not an error of ours."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LONGEST = 300


@dataclass(frozen=True)
class Raised:
    """What a stranger's code raised."""

    error: BaseException

    @property
    def told(self) -> str:
        """Type and message in one line, of characters that can be written down."""
        kind = type(self.error).__name__
        message = guarded(lambda: str(self.error))
        text = "its message cannot be read" if isinstance(message, Raised) else " ".join(message.split())
        text = text if len(text) <= LONGEST else text[:LONGEST] + " …"
        return (f"{kind}: {text}" if text else kind).encode("utf-8", "replace").decode()


def guarded(call: Callable[[], Any]) -> Any:
    """The result of a call, or :class:`Raised`, whatever it raises.

    Only ``KeyboardInterrupt`` is the user's, unless this process has been told to leave the keyboard to another.
    """
    try:
        return call()
    except KeyboardInterrupt as error:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            raise
        return Raised(error)
    except BaseException as error:  # noqa: BLE001 - a stranger's code may raise anything
        return Raised(error)
