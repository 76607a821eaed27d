"""The first import of a backend, in a process of its own: whether it can be imported at all, and what it declares.

This module imports nothing heavy, so that the import is under way while this process makes its own.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from attnspec.conformance.running.environment import SAFE_PATH
from attnspec.conformance.running.errors import BackendError

IMPORT_SECONDS = float(os.environ.get("ATTNSPEC_IMPORT_SECONDS", "120"))
"""Seconds that the import of a backend may take, here and in the workers."""


class Probe:
    """The process that imports the backend."""

    def __init__(self, backend: str, device: str) -> None:
        self.backend = backend
        self._folder = tempfile.TemporaryDirectory(prefix="attnspec-probe-")
        self._answer, self._printed = (Path(self._folder.name, name) for name in ("answer.json", "printed.txt"))
        module = "attnspec.conformance.running.description"
        command = [sys.executable, "-m", module, backend, device, str(self._answer)]
        with self._printed.open("wb") as printed:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, env={**os.environ, **SAFE_PATH}
            )

    def close(self) -> None:
        """End the import if it is still under way."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._folder.cleanup()

    def description(self) -> dict[str, Any]:
        """What the backend declares; :class:`BackendError` if it cannot be imported or used."""
        try:
            status = self.process.wait(IMPORT_SECONDS)
        except subprocess.TimeoutExpired:
            raise BackendError(
                f"backend {self.backend!r}: expected its import to end within {IMPORT_SECONDS:g} s; it did not"
            ) from None
        if not self._answer.exists():
            printed = self._printed.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = printed[-1] if printed else "nothing was printed"
            raise BackendError(f"backend {self.backend!r}: its import ended the process with status {status}: {last}")
        answer: dict[str, Any] = json.loads(self._answer.read_text(encoding="utf-8"))
        if "error" in answer:
            raise BackendError(str(answer["error"]))
        return answer
