"""What was admitted is what is judged: the contract of a run, which one process reads and all others are held to."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnspec.conformance.running.errors import BackendError

PAUSE = 0.02
"""Seconds between two looks for it."""


def _path(folder: Path) -> Path:
    return folder / "contract.json"


def admit(folder: Path, declared: Mapping[str, Any]) -> None:
    """Tell the workers what the backend declares, or with the key ``error`` why there is nothing to judge."""
    written = folder / "contract.part"
    written.write_text(json.dumps(declared), encoding="utf-8")
    written.replace(_path(folder))


def admitted(folder: Path, seconds: float) -> Mapping[str, Any]:
    """What the backend declares, once that is known; :class:`BackendError` if there is nothing to judge."""
    deadline = time.monotonic() + seconds
    while not _path(folder).exists():
        if time.monotonic() > deadline:
            raise BackendError(f"expected a contract within {seconds:g} s; there was none")
        time.sleep(PAUSE)
    found: Mapping[str, Any] = json.loads(_path(folder).read_text(encoding="utf-8"))
    if "error" in found:
        raise BackendError(str(found["error"]))
    return found
