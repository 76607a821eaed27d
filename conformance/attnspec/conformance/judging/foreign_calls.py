"""Calls into a backend: an exception of its code is a finding about the backend, not an error of the suite."""

import os
import signal
import sysconfig
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

MAX_LENGTH = 300
"""Characters of a message; the rest is cut."""

MAX_FRAMES = 3
"""Calls that a message names, from the one that raised outwards."""

SUITE = str(Path(__file__).parents[1]) + os.sep
LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
"""Where the code is that no author of a backend has written: it is named where it raises, and then who called it."""


def printable(text: str) -> str:
    """The text with escapes for all that a terminal would not print but obey, and for what no encoding can write."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(frozen=True)
class Raised:
    """What a backend's code raised."""

    error: BaseException

    @property
    def message(self) -> str:
        """The exception's type and message on one line, and where it was raised, all in printable characters."""
        kind = type(self.error).__name__
        text = call_safely(lambda: str(self.error))
        line = "its message cannot be read" if isinstance(text, Raised) else " ".join(text.split())
        line = line if len(line) <= MAX_LENGTH else line[:MAX_LENGTH] + " …"
        return printable((f"{kind}: {line}" if line else kind) + self._place())

    def _place(self) -> str:
        """The calls that led there, the last one first: of a library only that which raised."""
        frames = [
            (f.f_code, line) for f, line in traceback.walk_tb(self.error.__traceback__) if not _of_suite(f.f_code)
        ]
        own = [frame for frame in frames if not frame[0].co_filename.startswith(LIBRARIES)]
        shown = own if frames[-1:] == own[-1:] else [*own, frames[-1]]
        names = [f"{code.co_name} ({_path(code)}:{line})" for code, line in (shown if own else frames)[-MAX_FRAMES:]]
        return f", in {', called by '.join(reversed(names))}" if names else ""


def _of_suite(code: CodeType) -> bool:
    """Whether code is that of the suite, or was generated and is in no file."""
    return code.co_filename.startswith((SUITE, "<"))


def _path(code: CodeType) -> str:
    """The file of some code, seen from the current folder if it is inside."""
    path = os.path.relpath(code.co_filename)
    return code.co_filename if path.startswith(os.pardir) else path


class OperationElsewhere:
    """An operation of a backend in another process, whose threads are there too; ``ask`` sends a request there."""

    def __init__(self, name: str, ask: Callable[..., Any]) -> None:
        self._name, self._ask = name, ask

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call it in the main thread."""
        return self._ask("operation", self._name, given, named)

    def in_thread(self, *given: Any, **named: Any) -> Any:
        """Call it in a new thread."""
        return self._ask("in_thread", self._name, given, named)


def in_thread(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """The result of a call in a new thread; what it raises is raised here."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *given, **named).result()


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
