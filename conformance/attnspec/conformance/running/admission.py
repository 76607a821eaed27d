"""Admission: the contract of a run, which one process reads and all others are held to.

It lies in a file, which a backend may find. So it is signed with a key that is in the memory of judges alone.
"""

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnspec.conformance.remote.errors import BackendError

PAUSE = 0.02
"""Seconds between two looks for it."""


def _path(folder: Path) -> Path:
    return folder / "contract.json"


def _signature(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def admit(folder: Path, declared: Mapping[str, Any], key: str) -> None:
    """Tell the workers what the backend declares, or with the key ``error`` why there is nothing to judge."""
    written = folder / "contract.part"
    text = json.dumps(declared)
    written.write_text(f"{_signature(key, text)}\n{text}", encoding="utf-8")
    written.replace(_path(folder))


def admitted(folder: Path, seconds: float, key: str) -> Mapping[str, Any]:
    """What the backend declares, once that is known; :class:`BackendError` if there is nothing to judge."""
    deadline = time.monotonic() + seconds
    while not _path(folder).exists():
        if time.monotonic() > deadline:
            raise BackendError(f"expected a contract within {seconds:g} s; there was none")
        time.sleep(PAUSE)
    signature, _, text = _path(folder).read_text(encoding="utf-8").partition("\n")
    if not hmac.compare_digest(signature.encode(), _signature(key, text).encode()):
        raise BackendError("expected the contract as the run wrote it; another process has changed it")
    found: Mapping[str, Any] = json.loads(text)
    if "error" in found:
        raise BackendError(str(found["error"]))
    return found
