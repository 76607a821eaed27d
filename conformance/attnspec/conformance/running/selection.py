"""Selection by name: patterns, and the message for an unknown name."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from attnspec.spec.contract.close_names import close_names
from attnspec.spec.contract.law import LAWS


def unknown_name(what: str, name: str, known: Iterable[str], why: str = "") -> str:
    """Return the message for an unknown name: expected known names, ``why`` these, and the name."""
    return f"{what}: expected one of {close_names(name, known)}{why}; got {name!r}"


def matching(patterns: Iterable[str], known: Sequence[str]) -> list[str]:
    """Return the known names that are listed or match a listed pattern (``*``, ``?``, ``[…]``)."""
    patterns_ = list(patterns)
    return [name for name in known if any(name == p or (p not in known and fnmatchcase(name, p)) for p in patterns_)]


def selected_laws(patterns: Iterable[str]) -> list[str]:
    """Return the laws that are listed or match a listed pattern."""
    return matching(patterns, tuple(LAWS))
