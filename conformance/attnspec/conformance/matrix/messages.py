"""Messages without the places of source files, which differ from machine to machine."""

import re

_PLACES = re.compile(r",? ?(?:in|called by) \S+ \([^()]*:\d+\)|,? ?at \"[^\"]*\":\d+")
"""Places in Python by `foreign_calls.Raised`, and in C++ by PyTorch's assertions.

Examples: ``, in f (a/b.py:3), called by g (c.py:4)`` and `` at "/c10/x.cpp":5``.
"""

_FOLDERS = re.compile(r"(?<![\w.])(?:/[\w.+-]+)+/(?=[\w.+-])")
"""Folders of a file in any other message: ``/a/b/`` of ``g++ /a/b/c.cpp``."""


def without_places(text: str) -> str:
    """Remove names and lines of source files, and folders of other files, from a message."""
    return _FOLDERS.sub("", _PLACES.sub("", text))
