"""Environment variables of the processes that a run starts."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMBA_NUM_THREADS",
    ),
    "1",
)
"""One thread of linear algebra in each process: there is a process for every core."""

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Processes do not look for modules in the current folder first, where a file may have the name of a standard module.

Backends there are found all the same, after everything else.
"""


def own_folders() -> list[str]:
    """The folders of attnspec's portions; a namespace package has no module of its own to import."""
    return [*sys.modules["attnspec"].__path__]


OF_PYTEST = dict.fromkeys(("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DEBUG", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"))
"""What the user's own runs of pytest may be told, and ours are not."""


@contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set these variables, or unset those that are None, for processes started meanwhile; restore them afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
