"""Selection by name: patterns, and the message for an unknown name."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from attnspec.spec.contract.close_names import MAX_LISTED, close_names
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import OPERATIONS

LISTED_BY: Mapping[str, Mapping[str, Any]] = {"attnspec list": OPERATIONS, "attnspec list laws": LAWS}
"""Commands that list names."""


def unknown_name(what: str, name: str, known: Iterable[str], why: str = "") -> str:
    """Return the message for an unknown name: expected known names, ``why`` these, and the name.

    Of operations and laws it names the closest, and the command that lists all.
    """
    names = list(known)
    message = f"{what}: expected one of {close_names(name, names)}{why}; got {name!r}"
    if why or len(names) <= MAX_LISTED:
        return message
    command = next((c for c, listed in LISTED_BY.items() if listed.keys() >= set(names)), "")
    return f"{message}. '{command}' lists all" if command else message


def matching(patterns: Iterable[str], known: Sequence[str]) -> list[str]:
    """Return the known names that are listed or match a listed pattern (``*``, ``?``, ``[…]``)."""
    patterns_ = list(patterns)
    return [name for name in known if any(name == p or (p not in known and fnmatchcase(name, p)) for p in patterns_)]


def selected_laws(patterns: Iterable[str]) -> list[str]:
    """Return the laws that are listed or match a listed pattern."""
    return matching(patterns, tuple(LAWS))
