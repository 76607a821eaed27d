"""Selecting by name: patterns, and the message for a name that does not exist."""

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

FEW = 6
"""So many names are listed in full; of more, only those that come close."""

CLOSE = 3
"""The most names that are listed as close."""


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """The message for an unknown name, on one line: what it selects, the closest known names, and the name itself."""
    names = list(known)
    near = names if len(names) <= FEW else _closest(name, names) or names[:FEW]
    return f"{what}: expected one of {', '.join(near)}{', …' if len(near) < len(names) else ''}; got {name!r}"


def _closest(name: str, names: Sequence[str]) -> list[str]:
    """The names with these initials, or close to it, whatever the case: SDPA is scaled_dot_product_attention."""
    wanted = name.casefold()
    abbreviated = [n for n in names if "".join(word[:1] for word in n.casefold().split("_")) == wanted]
    folded = {n.casefold(): n for n in names}
    close = difflib.get_close_matches(wanted, folded, CLOSE, 0.4)
    return list(dict.fromkeys([*abbreviated, *(folded[n] for n in close)]))[:CLOSE]


def matching(patterns: Iterable[str], known: Sequence[str]) -> list[str]:
    """The known names that equal or match a pattern (``*``, ``?``, ``[…]``); a known name matches itself alone."""
    wanted = list(patterns)
    return [name for name in known if any(name == p or (p not in known and fnmatchcase(name, p)) for p in wanted)]
