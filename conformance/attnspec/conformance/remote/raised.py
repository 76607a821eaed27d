"""Exceptions of a backend's process as JSON, and as exceptions to raise in the judge's.

Only class name, message and traceback are sent: the classes themselves do not exist in the judge's process.
"""

import sys
import traceback
from collections.abc import Iterator
from functools import cache, lru_cache
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

from attnspec.conformance.judging.foreign_calls import printable


class MalformedReply(Exception):
    """A malformed answer; the message says what was expected."""


@lru_cache(maxsize=4096)
def type_name(text: Any) -> str:
    """Return a class name in printable characters, at most 200."""
    if not isinstance(text, str):
        raise MalformedReply("expected the name of a class as text")
    return printable(text[:200])


MAX_FRAMES, MAX_LENGTH = 24, 10_000
"""Most innermost frames, and most characters of the message, that are sent."""

EXITING = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""Exceptions that would end the judge's process or generator."""


def exception_as_json(error: BaseException) -> list[Any]:
    """Return an exception as plain JSON."""
    kind = type(error)
    base = next((c for c in type.mro(kind) if c.__module__ == "builtins" and not issubclass(c, EXITING)), BaseException)
    try:
        text = str(error)[:MAX_LENGTH]
    except BaseException:  # noqa: BLE001 - an exception of a backend may do anything
        text = None
    frames = [(f.f_code, line) for f, line in traceback.walk_tb(error.__traceback__)][-MAX_FRAMES:]
    places = [[code.co_filename, line, code.co_name] for code, line in frames]
    return [kind.__name__, base.__name__, text, places]


def exception_from_json(data: Any) -> BaseException:
    """Return an exception to raise, with the sent class name and harmless base."""
    name, base, text, places = data
    if not isinstance(text, str | None) or not isinstance(places, list) or len(places) > MAX_FRAMES:
        raise MalformedReply("expected a message and places of an exception")
    error: BaseException = _class(type_name(name), type_name(base))(text)
    return error.with_traceback(_traceback(places))


@cache
def _class(name: str, base: str) -> type[BaseException]:
    base_class = getattr(sys.modules["builtins"], base, BaseException)
    usable = isinstance(base_class, type) and issubclass(base_class, BaseException)
    if not usable or issubclass(base_class, (*EXITING, BaseExceptionGroup)):
        base_class = BaseException
    # Some builtin exceptions cannot be created without arguments, which are unknown here.
    new = {"__new__": lambda kind, text: base_class.__new__(kind)}
    return type(name, (base_class,), {"__init__": _remember, "__str__": _text, **new})


def _remember(self: Any, text: str | None) -> None:
    self.text = text


def _text(self: Any) -> str:
    if self.text is None:
        raise ValueError("its message cannot be read")
    return str(self.text)


def _traceback(places: list[Any]) -> TracebackType | None:
    """Return a traceback that names these places, whose code does not exist in this process."""
    result: TracebackType | None = None
    for file, line, name in reversed([*_valid_places(places)]):
        result = TracebackType(result, _frame(file, name), 0, line)
    return result


def _valid_places(places: list[Any]) -> Iterator[tuple[str, int, str]]:
    for file, line, name in places:
        if not (isinstance(file, str) and isinstance(name, str) and type(line) is int and 0 < line < 1 << 30):
            raise MalformedReply("expected a file, a line and a name")
        yield file.replace("\0", "?")[:1000], line, name[:200]


def _here() -> FrameType:
    return sys._getframe()


@cache
def _frame(file: str, name: str) -> FrameType:
    """Return a frame of :func:`_here`, renamed to another function and file."""
    code: CodeType = _here.__code__.replace(co_filename=file, co_name=name, co_firstlineno=1)
    frame: FrameType = FunctionType(code, {"sys": sys})()
    return frame
