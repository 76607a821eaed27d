"""Messages with paths stripped, since paths differ from machine to machine."""

import re

_PLACES = re.compile(r",? ?(?:in|called by) \S+ \([^()]*:\d+\)|,? ?at \"[^\"]*\":\d+")
_FOLDERS = re.compile(r"(?<![\w.])(?:/[\w.+-]+)+/(?=[\w.+-])")


def without_paths(text: str) -> str:
    """Remove names and lines of source files, and folders of other files, from a message."""
    return _FOLDERS.sub("", _PLACES.sub("", text))
