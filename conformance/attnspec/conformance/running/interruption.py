"""The early end of a run by a signal or a time limit.

It imports nothing heavy: the command holds signals before its slow imports.
"""

import signal
import sys

from attnspec.conformance.judging.results import INTERRUPTED, TIME_LIMIT

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a run early; the run then reports the verdicts so far."""

EARLIEST = 1e-3
"""Shortest timer, in seconds; 0 would disable it."""

REPEAT = 0.5
"""Seconds after which an interruption is raised again unless it was acknowledged."""


class Interruption:
    """Raise ``KeyboardInterrupt`` in the main thread when a signal arrives or time runs out.

    It raises again until ``acknowledge`` is called, since the interrupted code may swallow the exception, as callbacks
    of the garbage collector do. It never raises while such an exception is handled: on a busy machine that may take
    longer than ``REPEAT``. Acknowledged, it ignores signals, so that processes are ended and reports written. While
    held, it raises nothing. ``reason`` is why the run ends early, None if it does not.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._held = self._acknowledged = False

    def hold(self) -> None:
        """Hold signals from now on; signals that are ignored stay ignored."""
        self._held = True
        for number in (*SIGNALS, signal.SIGALRM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def release(self, seconds: float | None = None) -> None:
        """Raise if a signal arrived while held; also raise after ``seconds``."""
        self._held = False
        self._raise()
        if seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, EARLIEST), REPEAT)

    def acknowledge(self) -> None:
        """Stop raising: the interruption is being handled."""
        self._acknowledged = True
        signal.setitimer(signal.ITIMER_REAL, 0)

    def resume(self, seconds: float | None = None) -> None:
        """Raise again from now on, for another part of the run, and after ``seconds``."""
        self._acknowledged = False
        self.release(seconds)

    def disarm(self) -> None:
        """Restore Python's signal handlers, and raise if a signal arrived while held."""
        self._held = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in (*SIGNALS, signal.SIGALRM):
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        self._raise()

    def _on_signal(self, number: int, frame: object) -> None:
        if not self._acknowledged:
            self.reason = self.reason or (TIME_LIMIT if number == signal.SIGALRM else INTERRUPTED)
            signal.setitimer(signal.ITIMER_REAL, REPEAT, REPEAT)
            if not isinstance(sys.exception(), KeyboardInterrupt):
                self._raise()

    def _raise(self) -> None:
        if self.reason is not None and not (self._held or self._acknowledged):
            raise KeyboardInterrupt(self.reason)


INTERRUPTION = Interruption()
"""This process's only interruption, since signals and timers belong to the whole process."""
