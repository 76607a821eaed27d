"""The first import of a backend, in a process of its own: whether it can be imported at all, and what it declares.

This module imports nothing heavy, so that the import is under way while this process makes its own.
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from attnspec.conformance.remote.processes import MARK, end_all, mark
from attnspec.conformance.running.environment import SAFE_PATH
from attnspec.conformance.running.errors import BackendError
from attnspec.conformance.running.folder import TemporaryFolder

IMPORT_SECONDS = float(os.environ.get("ATTNSPEC_IMPORT_SECONDS", "120"))
"""Seconds that the import of a backend may take, here and in the workers."""

KEPT_BYTES = 1 << 14
"""What is kept of what a backend prints while it is imported."""


class Probe:
    """The process that imports the backend."""

    def __init__(self, backend: str, device: str) -> None:
        self.backend = backend
        self.left: list[str] = []
        self._folder = TemporaryFolder()
        self._answer, self._mark = Path(self._folder.name, "answer.json"), mark()
        module = "attnspec.conformance.running.description"
        command = [sys.executable, "-m", module, backend, device, str(self._answer)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **SAFE_PATH, MARK: self._mark},
        )
        self._printed = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Keep the end of what is printed, however much that is."""
        assert self.process.stdout is not None
        with self.process.stdout as printed:
            while part := os.read(printed.fileno(), KEPT_BYTES):
                self._printed = (self._printed + part)[-KEPT_BYTES:]

    def close(self) -> None:
        """End the import if it is still under way, and whoever it has left behind."""
        self.left += end_all(self.process.pid, self._mark)
        self.process.wait()
        self._reader.join(1.0)
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
            self._reader.join(1.0)
            printed = self._printed.decode("utf-8", errors="replace").strip().splitlines()
            last = printed[-1] if printed else "nothing was printed"
            raise BackendError(f"backend {self.backend!r}: its import ended the process with status {status}: {last}")
        answer: dict[str, Any] = json.loads(self._answer.read_text(encoding="utf-8"))
        if "error" in answer:
            raise BackendError(str(answer["error"]))
        return answer
