"""The same work on several threads of Python."""

from collections.abc import Callable
from threading import Thread


def at_once(work: Callable[[], None], threads: int = 4) -> None:
    """Returns when every thread has done the work."""
    started = [Thread(target=work) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
