"""What is said of a name that does not exist."""

import difflib
from collections.abc import Iterable


def misnamed(what: str, name: str, known: Iterable[str]) -> str:
    """One line: the names that are nearest, or all where there are few, and what was got instead."""
    names = list(known)
    near = names if len(names) <= 6 else difflib.get_close_matches(name, names, 3, 0.4) or names[:6]
    return f"{what}: expected one of {', '.join(near)}{', …' if len(near) < len(names) else ''}; got {name!r}"
