"""Time limit of a check in a backend's process, fair on a busy machine."""

import time
from collections.abc import Callable
from typing import NoReturn

from attnspec.conformance.remote.processes import HAS_PROC, usage

WALL = 8.0
"""Wall time allowed to a process without a processor, in multiples of the limit."""

COMPILING = 8
"""Time limit for declared expensive new shapes, in multiples of the usual one."""

REPORTED = 5.0
"""Seconds after which a first call is reported as compiling."""

INTERVAL = 0.25
"""Seconds between two looks at the clock."""


class Clock:
    """Time that a backend has used for one check.

    It counts processor time, and time in which no process of the backend wants a processor. Time spent waiting for a
    busy processor does not count, up to ``WALL`` times the limit.
    """

    def __init__(self, allowed: float) -> None:
        self.allowed = allowed
        self.spent = self.passed = 0.0

    def reset(self) -> None:
        """Begin a check."""
        self.spent = self.passed = 0.0

    @property
    def over(self) -> bool:
        """True if the check has used up its time."""
        return self.spent >= self.allowed or self.passed >= WALL * self.allowed


class FirstCall(Clock):
    """A limit for the first call with new shapes, which may compile.

    Its time does not count as time of the check. Each look at the clock calls ``report`` once the call takes longer
    than ``REPORTED`` seconds.
    """

    def __init__(self, allowed: float, report: Callable[[], None]) -> None:
        super().__init__(allowed)
        self.report = report

    @property
    def over(self) -> bool:
        """True if the call has used up its time; reports it if it is long."""
        if self.passed >= REPORTED:
            self.report()
        return super().over


class Deadline(Clock):
    """A limit in wall time."""

    @property
    def over(self) -> bool:
        """True if the time is up."""
        return self.passed >= self.allowed


class Watch:
    """Regular looks at a backend's process: has it used up its time?"""

    def __init__(self, process: int, clock: Clock, hung: Callable[[float], NoReturn]) -> None:
        self.process, self.clock, self.hung = process, clock, hung
        self._at, self._used = time.monotonic(), -1.0

    def look_now_and_then(self) -> None:
        """Look if the last look is old: while data trickle in, the socket never waits."""
        if time.monotonic() - self._at >= INTERVAL:
            self.look()

    def look(self) -> None:
        """Add the time since the last look; raise by ``hung``, called with the limit, if it is up."""
        clock, now = self.clock, time.monotonic()
        since, self._at = now - self._at, now
        clock.passed += since
        if HAS_PROC:
            used, wants = usage(self.process)
            # The first look has no usage to compare with; several busy threads count as one.
            gained = since if self._used < 0 else used - self._used
            self._used = used
            clock.spent += min(gained, since) if wants else since
        else:
            clock.spent += since / WALL  # it may have waited for a processor: only wall time limits it
        if clock.over:
            self.hung(clock.allowed)
