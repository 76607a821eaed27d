"""Temporary folders of runs, removed by a later run if their process was killed."""

import errno
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from attnspec.conformance.remote.errors import BackendError

PREFIX = "attnspec-"
"""Prefix of all temporary folders."""

LOCK = "lock"
"""File in each folder, locked by its process until that ends in any way."""

MIN_FREE_BYTES = 1 << 24
"""Free space that a run requires, more than it needs for its files."""


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A temporary folder; :class:`BackendError` if it cannot be created."""

    def __init__(self) -> None:
        try:
            parent = Path(tempfile.gettempdir())
            remove_abandoned(parent)
            free = shutil.disk_usage(parent).free
            if free < MIN_FREE_BYTES:
                # A disk that becomes full during a run would cost verdicts.
                raise OSError(errno.ENOSPC, f"{free:,} bytes free of the {MIN_FREE_BYTES:,} needed in {str(parent)!r}")
            super().__init__(prefix=PREFIX)
            self._lock = _lock(Path(self.name))
        except OSError as error:
            raise BackendError(no_room_message(error)) from error

    def cleanup(self) -> None:
        """Remove the folder."""
        super().cleanup()
        os.close(self._lock)


def no_room_message(error: OSError) -> str:
    """Return the message for a temporary folder or file that cannot be created."""
    return f"TMPDIR: expected a folder with room for temporary files; got: {error.strerror}"


def _lock(folder: Path) -> int:
    """Lock a folder; the file gets its name once locked: nobody finds it unlocked."""
    new = folder / f"{LOCK}.new"
    lock = os.open(new, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(folder / LOCK)
    return lock


def remove_abandoned(parent: Path) -> None:
    """Remove folders whose processes ended without removing them."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            with (folder / LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # in use, another user's, or not a folder of a run
