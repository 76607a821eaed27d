"""Keys of attnspec's data in pytest. Every pytest run of every user imports this module."""

from typing import Any

import pytest

JUDGED_BACKENDS: "pytest.StashKey[Any]" = pytest.StashKey()
"""Backends that this pytest process judges."""

LEFT_PROPERTY = "attnspec-left-behind"
"""Output of a pytest-xdist worker: processes that backends left running."""

CONTRACT_KEY = "attnspec-key"
"""Input of a worker: the key that signs the contract."""

IN_PROCESS_SUITES: "pytest.StashKey[dict[str, str]]" = pytest.StashKey()
"""Suites that are judged in the process of their backend, with the reason."""

SUITES_PROPERTY = "attnspec-judged-here"
"""Output of a worker: its suites that were judged in the process of their backend, with the reason."""
