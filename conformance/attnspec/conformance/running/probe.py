"""The first import of a backend, in its own process, for its declarations.

This module imports nothing heavy, so that the backend is imported while this process imports the rest.
"""

import errno
import json
import os
import subprocess
import threading
from typing import Any

from attnspec.conformance.remote.command import PREFIX, late_line
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.processes import adopt_orphans, children, end_children
from attnspec.conformance.remote.sandbox import files_of, launch

IMPORT_SECONDS = float(os.environ.get("ATTNSPEC_IMPORT_SECONDS", "120"))
"""Seconds that the import of a backend may take, here and in the workers."""

KEPT_BYTES = 1 << 14
"""Last bytes that are kept of a backend's output during its import."""

MAX_DECLARATION = 1 << 24
"""Largest declaration, in bytes."""

READ_ONLY = os.strerror(errno.EROFS)
READ_ONLY_HINT = "; a sandboxed backend may write only to its temporary folder; --sandbox off judges without a sandbox"


class Probe:
    """The process that imports the backend."""

    def __init__(self, backend: str, device: str, *, sandbox: bool = False) -> None:
        self.backend = backend
        self.left: list[str] = []
        # Descendants that clear their environment and leave the group can be found only as children of this process.
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
            threading.Thread(target=_keep, args=(number, buffer, max_bytes), daemon=True)
            for number, buffer, max_bytes in (
                (os.dup(printed.fileno()), self._printed, KEPT_BYTES),
                (answer, self._answer, MAX_DECLARATION),
            )
        ]
        printed.close()
        for reader in self._readers:
            reader.start()

    def close(self) -> None:
        """End the import, and all processes that it or the run left running."""
        self.left += [*self._end(), *end_children(self._children)]
        self._await_readers()

    def _end(self) -> list[str]:
        return self.process.end(has_program=self.backend.startswith(PREFIX))

    def _await_readers(self) -> None:
        for reader in self._readers:
            reader.join(1.0)

    def description(self) -> dict[str, Any]:
        """Return the backend's declarations; :class:`BackendError` if it cannot be imported or used."""
        try:
            self.process.wait(IMPORT_SECONDS)
        except subprocess.TimeoutExpired:
            slow = f"expected its import to end within {IMPORT_SECONDS:g} s; it did not"
            slow = late_line(self.backend, IMPORT_SECONDS) or slow
            raise BackendError(f"backend {self.backend!r}: {slow}") from None
        # Processes that it left running must not affect the run that follows.
        self.left += self._end()
        self._await_readers()
        answer = json_object(self._answer)
        if answer is None:
            printed = self._printed.decode("utf-8", errors="replace").strip().splitlines()
            last = printed[-1] if printed else "nothing was printed"
            raise BackendError(f"backend {self.backend!r}: its import ended the process {self.process.ending}: {last}")
        if "error" in answer:
            error = str(answer["error"])
            raise BackendError(error + (READ_ONLY_HINT if self.process.sandboxed and READ_ONLY in error else ""))
        return answer


def _keep(number: int, buffer: bytearray, max_bytes: int) -> None:
    """Keep the last ``max_bytes`` bytes that come through a pipe."""
    with open(number, "rb", buffering=0) as pipe:
        while part := pipe.read(KEPT_BYTES):
            buffer += part
            del buffer[:-max_bytes]


def json_object(text: str | bytes | bytearray) -> dict[str, Any] | None:
    """Parse a JSON object; return None for anything else."""
    try:
        answer = json.loads(text)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
