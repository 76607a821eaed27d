"""A case judged by the process that runs the backend, which may end that process or stop it."""

import faulthandler
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Protocol

from attnspec.conformance.diagnosis.finding import Diagnosis, violated_by_numbers
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import Case
from attnspec.conformance.judging.extent import Extent
from attnspec.conformance.judging.own_errors import Containment, contained
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Result
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.running.expectations import expectations
from attnspec.conformance.running.explanation import explained
from attnspec.conformance.running.first_violation import judged_until_violation, unexpected
from attnspec.conformance.running.refusals import refusals
from attnspec.conformance.running.settings import Settings
from attnspec.spec.contract.operation import OPERATIONS

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
    """Ends this process at a check that takes longer than ``seconds``, after it has printed where; never with 0."""

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
        """Stop the timer; one that another program has started goes on."""
        if self._started > -inf:
            faulthandler.cancel_dump_traceback_later()
            self._started = -inf


@dataclass(frozen=True)
class InProcess:
    """A case whose backend runs in this process: if it ends the process, the case has no verdict."""

    judging: Callable[..., list[Result]]
    backend: Any
    contract: Contract
    case: Case
    settings: Settings

    def judged(self, extent: Extent) -> list[Result]:
        """The verdicts of the case."""
        return self.results({}, extent=extent)

    def results(self, recorded: Mapping[str, Result], **given: Any) -> list[Result]:
        """The verdicts of the case, of which some may be ``recorded`` already."""
        with self.marking() as mark:
            here = partial(self.judging, self.contract, mark=mark, contain=self.containment(), **given)
            if self.settings.fail_fast:
                return judged_until_violation(here, self.case, self.settings, recorded)
            return here(self.case, skip=recorded)

    def containment(self) -> Containment:
        """How a step is made that must not cost a verdict."""
        return contained

    @contextmanager
    def marking(self) -> Iterator[Marker]:
        """What is called before every check: in a worker of ``attnspec check`` a timer."""
        timer = HangTimer(self.settings.hang_after if self.settings.crumbs is not None else 0)
        try:
            yield timer
        finally:
            timer.stop()

    def explanation(self, results: Sequence[Result]) -> dict[str, Any]:
        """What only has to be declared; nothing in a user's pytest, and in runs that are to end soon."""
        settings, case = self.settings, self.case
        failed = unexpected(results, expectations(settings.expect))
        if not failed or settings.crumbs is None or settings.fail_fast or settings.only is not None:
            return {}
        subject = Subject(self.backend, self.contract, OPERATIONS[case.operation], case.dtype, settings.device)
        with self.marking() as mark:
            under = partial(self.judging, mark=mark, stop_at_first=True)
            mark(failed[0].law, "looking for what has to be declared")
            return explained(under, self.contract, case, failed, lambda: refusals(subject, mark)).as_json()

    def diagnosis(self, failed: Sequence[Result]) -> Diagnosis | None:
        """The known defect that explains the violations."""
        if not violated_by_numbers(failed):
            return None
        # It loads all mutants, which no run needs that finds nothing wrong.
        from attnspec.conformance.diagnosis.entry import diagnosis_of_case

        settings, profile = self.settings, PROFILES[self.settings.profile]
        with self.marking() as mark:
            return diagnosis_of_case(
                self.backend, self.contract, self.case, profile, failed,
                seed=settings.seed, device=settings.device, watch=mark.during,
            )  # fmt: skip
