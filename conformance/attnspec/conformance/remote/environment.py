"""Environment variables of the processes that a run starts."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

ONE_THREAD = dict.fromkeys(
    (
        *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
        *("NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMBA_NUM_THREADS"),
    ),
    "1",
)
"""One thread of linear algebra per process, since there is a process for every core."""

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Keeps modules in the current folder from replacing standard modules of the same name.

Backends in that folder can still be imported: :func:`~attnspec.conformance.remote.loading.load` appends it to the path.
"""


def own_folders() -> list[str]:
    """Return the folders of attnspec's portions (a namespace package has several)."""
    return [*sys.modules["attnspec"].__path__]


PYTEST_VARIABLES = dict.fromkeys(("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DEBUG", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"))
"""Variables that configure the user's own pytest runs; the suite's runs unset them."""


@contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables (None: unset) for processes started meanwhile; restore them afterwards."""
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
