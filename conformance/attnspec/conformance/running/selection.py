"""Names that are chosen, and what is said of one that does not exist."""

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase


def misnamed(what: str, name: str, known: Iterable[str]) -> str:
    """One line: the names that are nearest, or all where there are few, and what was got instead."""
    names = list(known)
    near = names if len(names) <= 6 else difflib.get_close_matches(name, names, 3, 0.4) or names[:6]
    return f"{what}: expected one of {', '.join(near)}{', …' if len(near) < len(names) else ''}; got {name!r}"


def matching(patterns: Iterable[str], known: Sequence[str]) -> list[str]:
    """The known names that are one of the patterns or match one, as file names do: ``*``, ``?`` and ``[…]``."""
    wanted = list(patterns)
    return [name for name in known if any(name == p or (p not in known and fnmatchcase(name, p)) for p in wanted)]
