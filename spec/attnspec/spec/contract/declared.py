"""Declarations of a backend that are an object of the specification, a mapping of some of its fields, or nothing."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def declared_as(kind: type[T], declared: Any, of: str, parts: str) -> T:
    """An instance of a dataclass from what a backend declares; fields that are not declared have their defaults.

    ``of`` and ``parts`` name what is declared and what it consists of in the ``ValueError`` for anything else.
    """
    if isinstance(declared, kind):
        return declared
    if declared is None:
        return kind()
    if not isinstance(declared, Mapping):
        raise ValueError(f"{of}: expected {kind.__name__} or a mapping; got {type(declared).__name__}")
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]  # a dataclass, which no TypeVar can say
    unknown = sorted(map(str, set(declared) - set(known)))
    if unknown:
        raise ValueError(f"{of}: expected {parts} among {', '.join(known)}; got {', '.join(unknown)}")
    return kind(**declared)
