"""Words of a matrix: without the places in files that differ from machine to machine."""

import re

_PLACES = re.compile(r",? ?(?:in|called by) \S+ \([^()]*:\d+\)|,? ?at \"[^\"]*\":\d+")
_FOLDERS = re.compile(r"(?<![\w.])(?:/[\w.+-]+)+/(?=[\w.+-])")


def without_places(text: str) -> str:
    """A message without the files and lines at which a library raised, and without the folders of other files."""
    return _FOLDERS.sub("", _PLACES.sub("", text))
