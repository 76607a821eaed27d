"""A case judged in the process that runs the backend; a crash or hang of the backend ends both."""

import faulthandler
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Protocol

from attnspec.conformance.explaining.explanation import Explanation, explained
from attnspec.conformance.judging.causes import by_cause
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import Case, judge
from attnspec.conformance.judging.extent import Extent
from attnspec.conformance.judging.own_errors import Containment, contained
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import INTERRUPTED, STOPPED, Result, Status
from attnspec.conformance.running.expectations import expectations, unexpected
from attnspec.conformance.running.settings import Settings

LENIENCE = 0.1
"""Fraction by which a check may exceed its time. Checks share a timer, which is a thread and slow to start."""


class Marker(Protocol):
    """Called with a law and its input before every check."""

    def __call__(self, law: str, given: Any) -> None:
        """A check begins."""
        ...

    def during(self, law: str, given: Any) -> AbstractContextManager[None]:
        """A check begins, and lasts until this ends."""
        ...


class HangTimer:
    """Timer that ends this process at a check of more than ``seconds``, after printing where it is; none with 0.

    A check may take up to a fifth more, since a timer is not restarted for each.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self._started = seconds, -inf

    def __call__(self, law: str, given: Any) -> None:
        """Restart the timer, unless it has just been started."""
        now = time.monotonic()
        if self.seconds and now - self._started >= LENIENCE * self.seconds:
            self._started = now
            faulthandler.dump_traceback_later((1 + LENIENCE) * self.seconds, exit=True, file=2)

    @contextmanager
    def during(self, law: str, given: Any) -> Iterator[None]:
        """Time what is done until this ends, and nothing after it."""
        self(law, given)
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        """Stop the timer if this object started it."""
        if self._started > -inf:
            faulthandler.cancel_dump_traceback_later()
            self._started = -inf


@dataclass(frozen=True)
class InProcess:
    """A case whose backend runs in this process: if it ends the process, the case has no verdict."""

    backend: Any
    contract: Contract
    case: Case
    settings: Settings

    def judged(self, extent: Extent) -> list[Result]:
        """The verdicts of the case."""
        return self.results({}, extent=extent)

    def results(self, recorded: Mapping[str, Result], **given: Any) -> list[Result]:
        """The verdicts of the case, of which some may be ``recorded`` already."""
        settings, profile = self.settings, PROFILES[self.settings.profile]
        with self.marking() as mark:

            def here(case: Case, **chosen: Any) -> list[Result]:
                return judge(
                    self.backend, self.contract, case, profile, seed=settings.seed, device=settings.device,
                    mark=mark, contain=self.containment(), **given, **chosen,
                )  # fmt: skip

            if settings.fail_fast:
                return judged_until_violation(here, self.case, settings, recorded)
            return here(self.case, skip=recorded)

    def containment(self) -> Containment:
        """Containment for steps whose errors must not cost a verdict."""
        return contained

    @contextmanager
    def marking(self) -> Iterator[Marker]:
        """Yield a timer, called before every check; it runs only in workers of ``attnspec check``."""
        timer = HangTimer(self.settings.hang_after if self.settings.shared_folder is not None else 0)
        try:
            yield timer
        finally:
            timer.stop()

    def explanation(self, failed: Sequence[Result], *, diagnosable: bool = True) -> Explanation:
        """Explain the violations; with ``fail_fast`` or ``only``, look for a known defect alone."""
        settings = self.settings
        soon = settings.fail_fast or settings.only is not None
        with self.marking() as mark:
            return explained(
                self.backend, self.contract, self.case, PROFILES[settings.profile], failed,
                seed=settings.seed, device=settings.device, mark=mark, watch=mark.during,
                contain=self.containment(), declarable=not soon, diagnosable=diagnosable,
            )  # fmt: skip


def judged_until_violation(
    judging: Callable[..., list[Result]], case: Case, settings: Settings, known: Mapping[str, Result] | None = None
) -> list[Result]:
    """The verdicts of a case up to its first violation that is not expected, and ``lost`` for the rest.

    ``judging`` judges a case; ``known`` are the verdicts of laws that ended the process before. The violation that is
    found is the verdict: nothing is judged again for it.
    """
    skip, lines = dict(known or {}), expectations(settings.expect)

    def first(results: Iterable[Result]) -> list[Result]:
        return by_cause(unexpected(results, lines))[0][:1]

    found = unexpected(skip.values(), lines)
    if not found:
        failing = {x for x in case.laws if any(e.concerns(case.operation, x, case.dtype) for e in lines)}
        hopeful = replace(case, laws=tuple(x for x in case.laws if x not in failing))
        results = judging(hopeful, skip=skip, stop_at_first=True, described=first)
        found = first(results)
        if not found:
            skip |= {r.law: r for r in results}
            return judging(case, skip=skip)
    seen = {r.law: r for r in found}
    return [
        seen.get(law) or Result(case.operation, law, case.dtype, Status.LOST, INTERRUPTED, STOPPED) for law in case.laws
    ]
