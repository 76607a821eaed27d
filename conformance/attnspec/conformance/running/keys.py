"""Keys of the state in pytest's configuration; every pytest run of every user imports this module."""

from typing import Any

import pytest

HOSTS: "pytest.StashKey[Any]" = pytest.StashKey()
"""Backends that a process judges, each in its own process."""

LEFT = "attnspec-left-behind"
"""Processes that backends left running, as a pytest-xdist worker reports them to the controlling process."""

KEY = "attnspec-key"
"""The key that signs the contract, sent by the controlling process to its workers."""

HERE: "pytest.StashKey[dict[str, str]]" = pytest.StashKey()
"""Suites judged by the process that runs their backend, with the reason."""

SUITES_HERE = "attnspec-judged-here"
"""Property by which a pytest-xdist worker reports these suites."""
