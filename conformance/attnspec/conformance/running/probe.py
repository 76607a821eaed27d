"""The first import of a backend, in a process of its own: whether it can be imported at all, and what it declares.

This module imports nothing heavy, so that the import is under way while this process makes its own.
"""

import errno
import json
import os
import subprocess
import threading
from typing import Any

from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.processes import adopt_orphans, children, end_children
from attnspec.conformance.remote.sandbox import files_of, launch

IMPORT_SECONDS = float(os.environ.get("ATTNSPEC_IMPORT_SECONDS", "120"))
"""Seconds that the import of a backend may take, here and in the workers."""

KEPT_BYTES = 1 << 14
"""What is kept of what a backend prints while it is imported."""

MOST = 1 << 24
"""Bytes of a declaration."""

READ_ONLY = os.strerror(errno.EROFS)


class Probe:
    """The process that imports the backend."""

    def __init__(self, backend: str, device: str, *, sandbox: bool = False) -> None:
        self.backend = backend
        self.left: list[str] = []
        # Whoever clears its environment and leaves its group becomes a child of this process when its parent ends.
        adopt_orphans()
        self._children = children()
        answer, theirs = os.pipe()
        self.process = launch(
            "attnspec.conformance.remote.description",
            *(backend, device, str(theirs)),
            sandbox=sandbox,
            readable=files_of(backend),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs],
        )
        os.close(theirs)
        self._printed, self._answer = bytearray(), bytearray()
        assert self.process.stdout is not None
        printed = self.process.stdout
        self._readers = [
            threading.Thread(target=_keep, args=(number, kept, most), daemon=True)
            for number, kept, most in (
                (os.dup(printed.fileno()), self._printed, KEPT_BYTES),
                (answer, self._answer, MOST),
            )
        ]
        printed.close()
        for reader in self._readers:
            reader.start()

    def close(self) -> None:
        """End the import if it is still under way, and whoever it or the run has left behind."""
        self.left += [*self.process.end(), *end_children(self._children)]
        self._await_readers()

    def _await_readers(self) -> None:
        for reader in self._readers:
            reader.join(1.0)

    def description(self) -> dict[str, Any]:
        """What the backend declares; :class:`BackendError` if it cannot be imported or used."""
        try:
            self.process.wait(IMPORT_SECONDS)
        except subprocess.TimeoutExpired:
            raise BackendError(
                f"backend {self.backend!r}: expected its import to end within {IMPORT_SECONDS:g} s; it did not"
            ) from None
        # Nobody whom it has left behind has a say in the run that follows.
        self.left += self.process.end()
        self._await_readers()
        answer = _read(self._answer)
        if answer is None:
            printed = self._printed.decode("utf-8", errors="replace").strip().splitlines()
            last = printed[-1] if printed else "nothing was printed"
            raise BackendError(f"backend {self.backend!r}: its import ended the process {self.process.ending}: {last}")
        if "error" in answer:
            raise BackendError(str(answer["error"]) + self._hint(str(answer["error"])))
        return answer

    def _hint(self, error: str) -> str:
        if self.process.sandboxed and READ_ONLY in error:
            return "; in the sandbox it may write to its temporary folder alone: --sandbox off judges without one"
        return ""


def _keep(number: int, kept: bytearray, most: int) -> None:
    """Keep the end of what comes through a pipe, however much that is."""
    with open(number, "rb", buffering=0) as pipe:
        while part := pipe.read(KEPT_BYTES):
            kept += part
            del kept[:-most]


def _read(written: bytearray) -> dict[str, Any] | None:
    """An answer; None if there is none, or something else."""
    try:
        found = json.loads(bytes(written))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
