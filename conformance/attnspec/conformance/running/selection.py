"""Selection by name: patterns, and the message for an unknown name."""

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

FEW = 6
"""Up to this number, all names are listed; beyond it, only close ones."""

CLOSE = 3
"""Largest number of close names listed."""


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name: setting, closest known names, and the name itself."""
    names = list(known)
    near = names if len(names) <= FEW else _closest(name, names) or names[:FEW]
    return f"{what}: expected one of {', '.join(near)}{', …' if len(near) < len(names) else ''}; got {name!r}"


def _closest(name: str, names: Sequence[str]) -> list[str]:
    """Return names with these initials (SDPA: scaled_dot_product_attention) or similar ones, in any case."""
    wanted = name.casefold()
    abbreviated = [n for n in names if "".join(word[:1] for word in n.casefold().split("_")) == wanted]
    folded = {n.casefold(): n for n in names}
    close = difflib.get_close_matches(wanted, folded, CLOSE, 0.4)
    return list(dict.fromkeys([*abbreviated, *(folded[n] for n in close)]))[:CLOSE]


def matching(patterns: Iterable[str], known: Sequence[str]) -> list[str]:
    """Return the known names that match a pattern (``*``, ``?``, ``[…]``); a known name matches only itself."""
    wanted = list(patterns)
    return [name for name in known if any(name == p or (p not in known and fnmatchcase(name, p)) for p in wanted)]
