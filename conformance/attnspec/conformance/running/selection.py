"""Selection by name: patterns, and the message for an unknown name."""

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

MAX_LISTED = 6
"""Most names that are listed; of more names only close ones are."""

MAX_CLOSE = 3
"""Most close names that are listed."""


def unknown_name(what: str, name: str, known: Iterable[str], why: str = "") -> str:
    """Return the message for an unknown name: expected known names, ``why`` these, and the name."""
    names = list(known)
    near = names if len(names) <= MAX_LISTED else _closest(name, names) or names[:MAX_LISTED]
    return f"{what}: expected one of {', '.join(near)}{', …' if len(near) < len(names) else ''}{why}; got {name!r}"


def _closest(name: str, names: Sequence[str]) -> list[str]:
    """Return names with these initials (SDPA), or similar ones, in any case."""
    folded_name = name.casefold()
    abbreviated = [n for n in names if "".join(word[:1] for word in n.casefold().split("_")) == folded_name]
    folded = {n.casefold(): n for n in names}
    close = difflib.get_close_matches(folded_name, folded, MAX_CLOSE, 0.4)
    return list(dict.fromkeys([*abbreviated, *(folded[n] for n in close)]))[:MAX_CLOSE]


def matching(patterns: Iterable[str], known: Sequence[str]) -> list[str]:
    """Return the known names that are listed or match a listed pattern (``*``, ``?``, ``[…]``)."""
    patterns_ = list(patterns)
    return [name for name in known if any(name == p or (p not in known and fnmatchcase(name, p)) for p in patterns_)]
