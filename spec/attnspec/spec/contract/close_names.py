"""Known names that are listed in a message about an unknown one."""

import difflib
from collections.abc import Iterable, Sequence

MAX_LISTED = 6
"""Most names that are listed; of more names only close ones are."""

MAX_CLOSE = 3
"""Most close names that are listed."""


def close_names(name: str, known: Iterable[str]) -> str:
    """List the known names that are closest to an unknown one."""
    names = list(known)
    near = names if len(names) <= MAX_LISTED else _closest(name, names) or names[:MAX_LISTED]
    return f"{', '.join(near)}{', …' if len(near) < len(names) else ''}"


def _closest(name: str, names: Sequence[str]) -> list[str]:
    """Return names with these initials (SDPA), or similar ones, in any case."""
    folded_name = name.casefold()
    abbreviated = [n for n in names if "".join(word[:1] for word in n.casefold().split("_")) == folded_name]
    folded = {n.casefold(): n for n in names}
    close = difflib.get_close_matches(folded_name, folded, MAX_CLOSE, 0.4)
    return list(dict.fromkeys([*abbreviated, *(folded[n] for n in close)]))[:MAX_CLOSE]
