"""The early end of a run: a signal, or a time limit.

It imports nothing heavy: the command holds signals before its own imports, which take a while.
"""

import signal
import sys

from attnspec.conformance.judging.results import INTERRUPTED, TIME_LIMIT

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a run early; the run then reports the verdicts so far."""

EARLIEST = 1e-3
"""Seconds of the shortest timer: 0 would set none."""

REPEAT = 0.5
"""Seconds until an unacknowledged signal is raised again."""


class Interruption:
    """Raise ``KeyboardInterrupt`` in the main thread when a signal arrives or time runs out.

    While held, it raises nothing. It raises again until ``heard`` is called: code that runs at the first time may
    swallow the exception, as callbacks of the garbage collector do. It raises none while another is handled: on a busy
    machine the handler may need longer than ``REPEAT`` to call ``heard``. After that it ignores signals, so that
    processes are ended and reports written. ``reason`` is why the run ends early, None if it does not.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._held = self._heard = False

    def hold(self) -> None:
        """Hold signals from now on, except those that this process inherited as ignored."""
        self._held = True
        for number in (*SIGNALS, signal.SIGALRM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._ring)

    def release(self, seconds: float | None = None) -> None:
        """Raise if a signal arrived while held; also raise after ``seconds``."""
        self._held = False
        self._raise()
        if seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, EARLIEST), REPEAT)

    def heard(self) -> None:
        """Stop raising: the interruption has been handled."""
        self._heard = True
        signal.setitimer(signal.ITIMER_REAL, 0)

    def disarm(self) -> None:
        """Restore Python's signal handlers, and raise if a signal arrived while held."""
        self._held = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in (*SIGNALS, signal.SIGALRM):
            if signal.getsignal(number) == self._ring:
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        self._raise()

    def _ring(self, number: int, frame: object) -> None:
        if not self._heard:
            self.reason = self.reason or (TIME_LIMIT if number == signal.SIGALRM else INTERRUPTED)
            signal.setitimer(signal.ITIMER_REAL, REPEAT, REPEAT)
            if not isinstance(sys.exception(), KeyboardInterrupt):
                self._raise()

    def _raise(self) -> None:
        if self.reason is not None and not (self._held or self._heard):
            raise KeyboardInterrupt(self.reason)


INTERRUPTION = Interruption()
"""The interruption of this process: signals and timers belong to the whole process."""
