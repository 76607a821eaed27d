"""Judging in the process that runs the backend: a crash or hang ends the judge too."""

import faulthandler
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Protocol

from attnspec.conformance.explaining.finding import Diagnosis, Explanation, violated_by_numbers
from attnspec.conformance.explaining.refusals import refusals
from attnspec.conformance.explaining.undeclared import undeclared, unexplained
from attnspec.conformance.judging.causes import by_cause
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import Case, judge
from attnspec.conformance.judging.extent import Extent
from attnspec.conformance.judging.own_errors import Containment, contained, joined
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import INTERRUPTED, STOPPED, Result, Status
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.running.expectations import expectations, unexpected
from attnspec.conformance.running.settings import Settings
from attnspec.spec.contract.operation import OPERATIONS

LENIENCE = 0.1
"""Tolerance of a check's time limit, since checks share a timer thread that starts slowly."""


class Marker(Protocol):
    """Callable that is told the law and the input before every check."""

    def __call__(self, law: str, given: Any) -> None:
        """Mark the beginning of a check."""
        ...

    def during(self, law: str, given: Any) -> AbstractContextManager[None]:
        """Mark the beginning of a check; the context's end is the check's end."""
        ...


class HangTimer:
    """Timer that ends this process if a check exceeds ``seconds``, after printing a traceback; 0 disables it.

    A check may take up to a fifth longer, since the timer is not restarted for each.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self._started = seconds, -inf

    def __call__(self, law: str, given: Any) -> None:
        """Restart the timer, unless less than ``LENIENCE`` of its time has passed."""
        now = time.monotonic()
        if self.seconds and now - self._started >= LENIENCE * self.seconds:
            self._started = now
            faulthandler.dump_traceback_later((1 + LENIENCE) * self.seconds, exit=True, file=2)

    @contextmanager
    def during(self, law: str, given: Any) -> Iterator[None]:
        """Time the body of the context, and nothing after it."""
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
    """A case whose backend runs in this process; ending the process leaves no verdict."""

    backend: Any
    contract: Contract
    case: Case
    settings: Settings

    def judged(self, extent: Extent) -> list[Result]:
        """Return the verdicts of the case."""
        return self.results({}, extent=extent)

    def results(self, recorded: Mapping[str, Result], **given: Any) -> list[Result]:
        """Return the verdicts of the case; laws with ``recorded`` verdicts are not judged again."""
        with self.marking() as mark:

            def here(case: Case, **how: Any) -> list[Result]:
                return self._judge(mark, self.contract, case, contain=self.containment(), **given, **how)

            if self.settings.fail_fast:
                return judged_until_violation(here, self.case, self.settings, recorded)
            return here(self.case, skip=recorded)

    def _judge(self, mark: Marker, contract: Contract, case: Case, **how: Any) -> list[Result]:
        settings, profile = self.settings, PROFILES[self.settings.profile]
        return judge(
            self.backend, contract, case, profile, seed=settings.seed, device=settings.device, mark=mark, **how
        )

    def containment(self) -> Containment:
        """Return a wrapper for steps whose errors must not cost a verdict."""
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
        """Explain the violations: first by declarations under which they vanish, then by a known defect.

        ``fail_fast`` and ``only`` skip the search for declarations; ``diagnosable=False`` skips the one for defects.
        """
        declared: Mapping[str, Any] = {}
        found, declaring, diagnosing = None, "", ""
        soon, contain = self.settings.fail_fast or self.settings.only is not None, self.containment()
        with self.marking() as mark:
            if not soon:
                step = partial(self._undeclared, failed, mark)
                declared, declaring = contain(f"looking for what {self.case.id} has to declare", step, declared)
            if diagnosable:
                diagnosis = partial(self._diagnosis, failed, declared, mark)
                found, diagnosing = contain(f"diagnosing {self.case.id}", diagnosis, None)
        return Explanation(declared, found, joined(declaring, diagnosing))

    def _undeclared(self, failed: Sequence[Result], mark: Marker) -> Mapping[str, Any]:
        case, device = self.case, self.settings.device
        subject = Subject(self.backend, self.contract, OPERATIONS[case.operation], case.dtype, device)
        judging = partial(self._judge, mark, stop_at_first=True)
        with mark.during(failed[0].law, "looking for what has to be declared"):
            return undeclared(judging, self.contract, case, failed, lambda: refusals(subject, mark)).as_json()

    def _diagnosis(self, failed: Sequence[Result], declared: Mapping[str, Any], mark: Marker) -> Diagnosis | None:
        settings, profile = self.settings, PROFILES[self.settings.profile]
        chosen, left = unexplained(self.contract, self.case, failed, declared)
        if not violated_by_numbers(left):
            return None
        # Imported here because it loads all mutants, which a run without violations never needs.
        from attnspec.conformance.explaining.inquiry import inquiry

        begun = inquiry(
            self.backend, chosen, self.case, profile, left,
            seed=settings.seed, device=settings.device, watch=mark.during,
        )  # fmt: skip
        return None if begun is None else begun.diagnosis()


def judged_until_violation(
    judging: Callable[..., list[Result]], case: Case, settings: Settings, known: Mapping[str, Result] | None = None
) -> list[Result]:
    """Return verdicts up to the first unexpected violation, and ``lost`` for the remaining laws.

    ``judging`` judges a case; ``known`` are the verdicts of laws that ended the process before. The first violation is
    not judged again.
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
