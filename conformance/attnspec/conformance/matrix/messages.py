"""Messages with paths stripped, since paths differ from machine to machine."""

import re

_PLACES = re.compile(r",? ?(?:in|called by) \S+ \([^()]*:\d+\)|,? ?at \"[^\"]*\":\d+")
_FOLDERS = re.compile(r"(?<![\w.])(?:/[\w.+-]+)+/(?=[\w.+-])")


def without_paths(text: str) -> str:
    """Return a message without names and lines of source files, and without the folders of other files."""
    return _FOLDERS.sub("", _PLACES.sub("", text))
