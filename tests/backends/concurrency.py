"""Work that several threads of Python do at the same time."""

from collections.abc import Callable
from threading import Thread


def run_on_threads(work: Callable[[], None], threads: int = 4) -> None:
    """Do the work on every thread, and return when all are done."""
    started = [Thread(target=work) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
