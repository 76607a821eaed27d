"""Signals to a process that judges a backend in another one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def deaf(number: int, frame: object) -> None:
    """Do nothing.

    In place of ``SIG_IGN``, which has calls of a backend take a ``KeyboardInterrupt`` for the backend's own.
    """


@contextmanager
def heard() -> Iterator[None]:
    """Have the end of a backend's process come through, also where SIGINT is ignored."""
    own = threading.current_thread() is threading.main_thread()
    if not own or signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, deaf)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
