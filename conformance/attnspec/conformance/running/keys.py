"""Where a pytest configuration holds what a run shares; every pytest run of every user imports this."""

from typing import Any

import pytest

HOSTS: "pytest.StashKey[Any]" = pytest.StashKey()
"""The backends that a process judges, each in a process of its own."""

LEFT = "attnspec-left-behind"
"""What a worker of pytest-xdist hands to the process that controls it: the processes that backends left behind."""

KEY = "attnspec-key"
"""The key that the controlling process hands to its workers; it signs the contract."""

HERE: "pytest.StashKey[dict[str, str]]" = pytest.StashKey()
"""The suites that are judged by the process that runs their backend, and why."""

SUITES_HERE = "attnspec-judged-here"
"""What a worker of pytest-xdist hands on of them."""
