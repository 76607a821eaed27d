"""Calling other people's code: whatever it raises is its verdict, not an error of ours."""

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
        """Type and message in one line."""
        text = " ".join(str(self.error).split())
        text = text if len(text) <= LONGEST else text[:LONGEST] + " …"
        return f"{type(self.error).__name__}: {text}" if text else type(self.error).__name__


def guarded(call: Callable[[], Any]) -> Any:
    """The result of a call, or :class:`Raised`; ``sys.exit`` counts as raising."""
    try:
        return call()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's code may raise anything
        return Raised(error)
