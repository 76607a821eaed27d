"""Answers that are none, and names that are printed."""

from functools import lru_cache
from typing import Any

from attnspec.conformance.judging.foreign_calls import printable


class Breach(Exception):
    """What came is no answer."""


@lru_cache(maxsize=4096)
def type_name(text: Any) -> str:
    """The name of a class in printable characters, none of them very many."""
    if not isinstance(text, str):
        raise Breach("a name that is none")
    return printable(text[:200])
