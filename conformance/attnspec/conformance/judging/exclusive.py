"""A lock for work that needs much memory of a device."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no file locks of this kind
    fcntl = None  # type: ignore[assignment]

FILE = "attnspec-large-arrays.lock"


@contextmanager
def alone() -> Iterator[None]:
    """Wait for other judges with large arrays; keep them waiting meanwhile."""
    if fcntl is None:
        yield
        return
    # The lock ends with the process, however that ends.
    with Path(tempfile.gettempdir(), FILE).open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
