"""Calls of backend code: its exceptions and exits are results to judge, not errors of the suite."""

import os
import signal
import sysconfig
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, cast

from attnspec.spec.contract.operation import OPERATIONS

MAX_LENGTH = 300
"""Most characters of a message."""

MAX_FRAMES = 3
"""Most calls that a message names, starting with the one that raised."""

SUITE = str(Path(__file__).parents[1]) + os.sep
LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
"""Folders of libraries. Messages name only that call in a library which raised."""


def printable(text: str) -> str:
    """The text with control characters and unencodable characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(frozen=True)
class Raised:
    """An exception that a backend's code raised."""

    error: BaseException

    @property
    def message(self) -> str:
        """One printable line: the exception's type, its message, and where it was raised."""
        kind = type(self.error).__name__
        text = call_safely(lambda: str(self.error))
        line = "its message cannot be read" if isinstance(text, Raised) else " ".join(text.split())
        line = line if len(line) <= MAX_LENGTH else line[:MAX_LENGTH] + " …"
        return printable((f"{kind}: {line}" if line else kind) + self._place())

    def _place(self) -> str:
        """The backend's calls, innermost first, and the library call that raised."""
        codes = [(f.f_code, line) for f, line in traceback.walk_tb(self.error.__traceback__)]
        # Generated code is in no file.
        frames = [frame for frame in codes if not frame[0].co_filename.startswith((SUITE, "<"))]
        own = [frame for frame in frames if not frame[0].co_filename.startswith(LIBRARIES)]
        shown = own if frames[-1:] == own[-1:] else [*own, frames[-1]]
        names = [f"{code.co_name} ({_path(code)}:{line})" for code, line in (shown if own else frames)[-MAX_FRAMES:]]
        return f", in {', called by '.join(reversed(names))}" if names else ""


def _path(code: CodeType) -> str:
    """The file of a code object, relative to the current folder if inside it."""
    path = os.path.relpath(code.co_filename)
    return code.co_filename if path.startswith(os.pardir) else path


class RemoteOperation:
    """An operation of a backend that runs in another process; ``ask`` sends a request there."""

    def __init__(self, name: str, ask: Callable[..., Any]) -> None:
        self._name, self._ask = name, ask

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it in the main thread of that process."""
        return self._ask("operation", self._name, args, kwargs)

    def in_thread(self, *args: Any, **kwargs: Any) -> Any:
        """Call it in a new thread of that process."""
        return self._ask("in_thread", self._name, args, kwargs)


def placed(backend: Any, operation: str, device: str) -> Callable[..., Any]:
    """Return a function of a backend; an operation without array arguments computes on the device.

    Other results are where their arguments are. The context is that of the thread that calls.
    """
    call, context = getattr(backend, operation), getattr(backend, "default_device", None)
    if context is None or device == "cpu" or operation not in OPERATIONS or OPERATIONS[operation].leaves:
        return cast("Callable[..., Any]", call)

    def on_device(*args: Any, **kwargs: Any) -> Any:
        with context(device):
            return call(*args, **kwargs)

    return on_device


def in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of a call in a new thread; an exception is raised here."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args, **kwargs).result()


def call_safely(call: Callable[[], Any]) -> Any:
    """The result of a call, or :class:`Raised` with whatever it raises.

    Only ``KeyboardInterrupt`` propagates, since the user may have pressed Ctrl-C. A worker process ignores SIGINT:
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


def ending(status: int) -> str:
    """Exit status or signal of an ended process, for messages."""
    return f"with status {status}" if status >= 0 else f"by {signal_name(-status)}"


def signal_name(number: int) -> str:
    """Name of a signal; its number if it has no name, as real-time signals do not."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
