"""Reader of a backend's declaration: a dataclass, a mapping of some fields, or None."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from attnspec.spec.contract.close_names import close_names

T = TypeVar("T")


def declared_as(kind: type[T], declared: Any, of: str, parts: str) -> T:
    """Convert a backend's declaration to the dataclass ``kind``; undeclared fields get their defaults.

    ``ValueError`` for any other declaration. Its message names the declaration by ``of`` and the fields by ``parts``:
    "limits: expected fields among dtypes, …; got dtype".
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
        raise ValueError(f"{of}: expected {parts} among {close_names(unknown[0], known)}; got {', '.join(unknown)}")
    return kind(**declared)
