"""Notices of workers whose backend may be compiling, for the progress of a run."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PREFIX = "compiling-"
PAUSE = 1.0
"""Seconds between two looks at the notices."""


class Notice:
    """This worker's notice: a file in the folder that the processes of a run share."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"{PREFIX}{os.getpid()}"
        self._shown = ""

    def __call__(self, operation: str) -> None:
        """Say that an operation may be compiling; take the notice back if the name is empty."""
        if operation == self._shown:
            return
        self._shown = operation
        with suppress(OSError):  # progress is not worth a verdict
            if operation:
                self._file.write_text(operation, encoding="utf-8")
            else:
                self._file.unlink(missing_ok=True)


def compiling(folder: Path) -> list[str]:
    """Return the operations for whose compilation workers wait."""
    operations = []
    for file in sorted(folder.glob(f"{PREFIX}*")):
        with suppress(OSError):
            operations.append(file.read_text(encoding="utf-8"))
    return list(dict.fromkeys(filter(None, operations)))


class NoticeReader:
    """A thread that passes on the notices of a run until it is closed."""

    def __init__(self, folder: Path, show: Callable[[list[str]], None]) -> None:
        self._folder, self._show, self._end = folder, show, threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while not self._end.wait(PAUSE):
            operations = compiling(self._folder)
            if operations:
                self._show(operations)

    def close(self) -> None:
        """End the thread, after its present look."""
        self._end.set()
