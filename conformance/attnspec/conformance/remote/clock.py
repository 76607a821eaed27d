"""The time that the process of a backend may take: the processor's, and what it lets pass without wanting one."""

import time
from collections.abc import Callable
from typing import NoReturn

from attnspec.conformance.remote.processes import KNOWN, usage

WALL = 8.0
"""How many times as long as allowed a check may take where its process wants a processor and gets none."""


INTERVAL = 0.25
"""Seconds between two looks at the time."""


class Clock:
    """The time that a backend has used for one check.

    It is the processor's, and what its processes let pass without wanting one: a busy machine accuses nobody.
    """

    def __init__(self, allowed: float) -> None:
        self.allowed = allowed
        self.spent = self.passed = 0.0

    def reset(self) -> None:
        """Begin a check."""
        self.spent = self.passed = 0.0

    @property
    def over(self) -> bool:
        """Whether the check has taken too long."""
        return self.spent >= self.allowed or self.passed >= WALL * self.allowed


class Deadline(Clock):
    """A time by the wall alone."""

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self.passed >= self.allowed


class Watch:
    """Looks now and then whether the process of a backend still has time."""

    def __init__(self, process: int, clock: Clock, hung: Callable[[str], NoReturn]) -> None:
        self.process, self.clock, self.hung = process, clock, hung
        self._at, self._used = time.monotonic(), -1.0

    def look_now_and_then(self) -> None:
        """Look where the last look is long ago: a backend that answers byte by byte never lets the socket wait."""
        if time.monotonic() - self._at >= INTERVAL:
            self.look()

    def look(self) -> None:
        """Count the time since the last look; ``hung`` is called, and raises, if there is none left."""
        clock, now = self.clock, time.monotonic()
        since, self._at = now - self._at, now
        clock.passed += since
        if KNOWN:
            used, wants = usage(self.process)
            gained = since if self._used < 0 else used - self._used
            self._used = used
            clock.spent += min(gained, since) if wants else since
        else:
            clock.spent += since / WALL
        if clock.over:
            self.hung(f"did not answer within {clock.allowed:g} s")
