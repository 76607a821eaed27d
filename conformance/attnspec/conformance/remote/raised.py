"""Exceptions of another process (class name, message, traceback), and the error for malformed answers."""

import sys
import traceback
from collections.abc import Iterator
from functools import cache, lru_cache
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

from attnspec.conformance.judging.foreign_calls import printable


class MalformedReply(Exception):
    """A malformed answer."""


@lru_cache(maxsize=4096)
def type_name(text: Any) -> str:
    """Return a class name in printable characters, at most 200."""
    if not isinstance(text, str):
        raise MalformedReply("a name that is none")
    return printable(text[:200])


MAX_FRAMES, MAX_LENGTH = 24, 10_000
"""Limits of a sent exception: innermost frames, and characters of the message."""

OWN = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""Exceptions that end a process or a generator; they must not end the judge's."""


def told(error: BaseException) -> list[Any]:
    """Return an exception as plain JSON."""
    kind = type(error)
    base = next((c for c in type.mro(kind) if c.__module__ == "builtins" and not issubclass(c, OWN)), BaseException)
    try:
        text = str(error)[:MAX_LENGTH]
    except BaseException:  # noqa: BLE001 - an exception of a backend may do anything
        text = None
    frames = [(f.f_code, line) for f, line in traceback.walk_tb(error.__traceback__)][-MAX_FRAMES:]
    places = [[code.co_filename, line, code.co_name] for code, line in frames]
    return [kind.__name__, base.__name__, text, places]


def as_told(given: Any) -> BaseException:
    """Return an exception to raise, with the same class name and, if harmless, the same base."""
    name, base, text, places = given
    if not isinstance(text, str | None) or not isinstance(places, list) or len(places) > MAX_FRAMES:
        raise MalformedReply("an exception that is none")
    error: BaseException = _class(type_name(name), type_name(base))(text)
    return error.with_traceback(_traceback(places))


@cache
def _class(name: str, base: str) -> type[BaseException]:
    """Return the class of exceptions with this name and base."""
    found = getattr(sys.modules["builtins"], base, BaseException)
    usable = isinstance(found, type) and issubclass(found, BaseException)
    if not usable or issubclass(found, (*OWN, BaseExceptionGroup)):
        found = BaseException
    # Some classes require arguments that are unknown here.
    new = {"__new__": lambda kind, text: found.__new__(kind)}
    return type(name, (found,), {"__init__": _remember, "__str__": _text, **new})


def _remember(self: Any, text: str | None) -> None:
    self.text = text


def _text(self: Any) -> str:
    if self.text is None:
        raise ValueError("its message cannot be read")
    return str(self.text)


def _traceback(places: list[Any]) -> TracebackType | None:
    """Return a traceback that names these places; their code does not exist here."""
    found: TracebackType | None = None
    for file, line, name in reversed([*_checked(places)]):
        found = TracebackType(found, _frame(file, name), 0, line)
    return found


def _checked(places: list[Any]) -> Iterator[tuple[str, int, str]]:
    for file, line, name in places:
        if not (isinstance(file, str) and isinstance(name, str) and type(line) is int and 0 < line < 1 << 30):
            raise MalformedReply("a place that is none")
        yield file.replace("\0", "?")[:1000], line, name[:200]


def _here() -> FrameType:
    return sys._getframe()


@cache
def _frame(file: str, name: str) -> FrameType:
    """Return a frame of a function with this name in this file."""
    code: CodeType = _here.__code__.replace(co_filename=file, co_name=name, co_firstlineno=1)
    frame: FrameType = FunctionType(code, {"sys": sys})()
    return frame
