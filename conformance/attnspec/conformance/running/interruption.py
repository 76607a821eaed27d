"""The early end of a run: a signal, or a time limit.

It imports nothing heavy: the command holds signals before its own imports, which take a while.
"""

import signal
import sys

from attnspec.conformance.judging.results import INTERRUPTED, TIME_LIMIT

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a run; it then reports what was judged."""

EARLIEST = 1e-3
"""Seconds of the shortest timer: 0 would set none."""

REPEAT = 0.5
"""Seconds until an unheard signal is raised again."""


class Interruption:
    """Raise ``KeyboardInterrupt`` in the main thread when a signal arrives or the time is over.

    While it is ``held`` it raises nothing. It raises again until it is ``heard``: code that runs at the first time may
    swallow the exception, as callbacks of the garbage collector do. While one is handled it raises no other: on a busy
    machine whoever catches it needs longer than ``REPEAT`` to say so. Once heard, it ignores further signals, so that
    processes are ended and reports are written. ``reason`` is why the run ends early, None if it does not.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._held = self._heard = False

    def hold(self) -> None:
        """Hold signals from now on, except for those that whoever started this process has it ignore."""
        self._held = True
        for number in (*SIGNALS, signal.SIGALRM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._ring)

    def release(self, seconds: float | None = None) -> None:
        """Raise what has arrived while it was held; raise also after so many seconds."""
        self._held = False
        self._raise()
        if seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, EARLIEST), REPEAT)

    def heard(self) -> None:
        """Raise no more."""
        self._heard = True
        signal.setitimer(signal.ITIMER_REAL, 0)

    def disarm(self) -> None:
        """Leave signals to what Python does with them; raise now what has arrived while it was held."""
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
"""That of this process: signals and timers are those of the whole process."""
