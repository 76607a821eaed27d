"""Containment of attnspec's own errors: each costs at most one law's verdict."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from attnspec.conformance.judging.foreign_calls import printable

T = TypeVar("T")

MAX_LENGTH = 300
"""Most characters of an error's message."""

PACKAGE = Path(__file__).parents[1]


class Containment(Protocol):
    """Signature of :func:`contained`, and of variants that also survive crashes."""

    def __call__(self, stage: str, step: Callable[[], T], otherwise: T, /) -> tuple[T, str]:
        """The step's result, or ``otherwise`` with a note of what went wrong."""
        ...


def contained(stage: str, step: Callable[[], T], otherwise: T, /) -> tuple[T, str]:
    """The step's result and an empty note; after an exception, ``otherwise`` and a note.

    ``KeyboardInterrupt`` propagates: Ctrl-C, or the end of the backend's process.
    """
    try:
        return step(), ""
    except Exception as error:  # noqa: BLE001 - no error of ours may cost a verdict that is known
        return otherwise, own_error(stage, error)


def own_error(stage: str, error: Exception) -> str:
    """A note with the stage, the error of attnspec, and the line that raised it."""
    text = " ".join(str(error).split())[:MAX_LENGTH]
    kind = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if Path(f.filename).is_relative_to(PACKAGE)][-1:]
    place = "".join(f" in {Path(f.filename).relative_to(PACKAGE)}:{f.lineno}" for f in own)
    return printable(f"attnspec's own error while {stage}: {kind}{place}; please report it")


def joined(*notes: str) -> str:
    """The non-empty notes, each once, joined by semicolons."""
    return "; ".join(dict.fromkeys(filter(None, notes)))
