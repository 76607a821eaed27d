"""The signed file by which worker processes get the contract of a run.

A backend may find the file and change it. Therefore it is signed, with a key that only judging processes hold.
"""

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnspec.conformance.remote.errors import BackendError

FILE = "contract.json"

PAUSE = 0.02
"""Seconds between two looks for the file."""


def _signature(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def write_contract(folder: Path, declared: Mapping[str, Any], key: str) -> None:
    """Write the backend's declarations, or an ``error`` if nothing can be judged."""
    part = folder / "contract.part"
    text = json.dumps(declared)
    part.write_text(f"{_signature(key, text)}\n{text}", encoding="utf-8")
    part.replace(folder / FILE)


def read_contract(folder: Path, seconds: float, key: str) -> Mapping[str, Any]:
    """Wait for the declarations; :class:`BackendError` if they are missing or were changed."""
    deadline = time.monotonic() + seconds
    while not (folder / FILE).exists():
        if time.monotonic() > deadline:
            raise BackendError(f"expected a contract within {seconds:g} s; there was none")
        time.sleep(PAUSE)
    signature, _, text = (folder / FILE).read_text(encoding="utf-8").partition("\n")
    if not hmac.compare_digest(signature.encode(), _signature(key, text).encode()):
        raise BackendError("expected the contract as the run wrote it; another process has changed it")
    contract: Mapping[str, Any] = json.loads(text)
    if "error" in contract:
        raise BackendError(str(contract["error"]))
    return contract
