"""Trials: one mutant or honest variant, judged at one seed."""

import time
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import attnspec.conformance.laws  # noqa: F401 - the modules of the laws register their checks
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import BOOLEAN, DEFAULT, Case, cases, judge
from attnspec.conformance.judging.profiles import PROFILES, Profile
from attnspec.conformance.judging.results import Result, Status, checked
from attnspec.conformance.mutants.registry import Mutant
from attnspec.conformance.variants.registry import Variant

Key: TypeAlias = tuple[str, str, int, bool]
"""Subject, profile, seed, and whether it is judged by every law."""

LOST = "hung or died"
"""Listed in place of a law for a trial whose process hung or died."""


@dataclass(frozen=True)
class Task:
    """One mutant or variant at one seed.

    ``law`` and ``operation`` restrict judging to one; empty for all. A variant, and a mutant with ``every``, is judged
    to the end; any other mutant until its first violation.
    """

    subject: Mutant | Variant
    profile: str
    seed: int
    law: str = ""
    operation: str = ""
    every: bool = False

    @property
    def key(self) -> Key:
        """Key among the tasks that judge by all laws of all operations."""
        return self.subject.name, self.profile, self.seed, self.every

    @property
    def effort(self) -> Profile:
        """The profile of the task, or the mutant's own if that needs more examples."""
        own = self.subject.profile if isinstance(self.subject, Mutant) else self.profile
        return max(PROFILES[self.profile], PROFILES[own], key=lambda profile: profile.single.corners)


class Failure(NamedTuple):
    """A law that failed, and how."""

    operation: str
    dtype: str
    law: str
    reason: str
    message: str


@dataclass(frozen=True)
class Outcome:
    """Outcome of a task.

    ``evaluations`` counts checks of a law on an example; ``largest`` is the largest error ratio of the laws that held;
    ``lost`` means that the process hung or died; ``powerless`` are assigned laws that do not kill the mutant.
    ``assigned`` means that the laws assigned to a mutant killed it, so that no other law ran.
    """

    failures: tuple[Failure, ...]
    evaluations: int
    seconds: float
    largest: float = 0.0
    lost: bool = False
    powerless: tuple[str, ...] = ()
    assigned: bool = False

    @property
    def convicts(self) -> bool:
        """Return whether a law failed or the process was lost: mutant killed, variant harmed."""
        return self.lost or bool(self.failures)


def perform(task: Task) -> Outcome:
    """Judge a mutant by its assigned laws, else by all; judge a variant by all.

    A law alone sees the same examples as in the whole run. At seed 0 every assigned law runs, and one that misses the
    mutant at seeds 0, 1 and 2 is powerless. At other seeds judging stops at the first law that kills it.
    """
    if not isinstance(task.subject, Mutant) or task.every or task.law:
        return _performed(task)
    done: list[Outcome] = []
    powerless: list[str] = []
    for law in task.subject.breaks:
        done.append(_performed(replace(task, law=law)))
        if task.seed == 0 and not (done[-1].failures or _kills_later(task, law)):
            powerless.append(law)
        if task.seed > 0 and done[-1].failures:
            break
    assigned = any(outcome.failures for outcome in done)
    if not assigned:
        done.append(_performed(task))
    return Outcome(
        tuple(failure for outcome in done for failure in outcome.failures),
        sum(outcome.evaluations for outcome in done),
        sum(outcome.seconds for outcome in done),
        powerless=tuple(powerless),
        assigned=assigned,
    )


def _kills_later(task: Task, law: str) -> bool:
    """Return whether a law kills a mutant at one of the next two seeds."""
    later = (task.seed + 1, task.seed + 2)
    return any(_performed(replace(task, law=law, seed=seed)).failures for seed in later)


def _performed(task: Task) -> Outcome:
    start = time.perf_counter()
    subject = task.subject
    every = task.every or isinstance(subject, Variant)
    contract = Contract.of(subject.backend())
    dtypes = (subject.dtype,) if isinstance(subject, Mutant) else subject.dtypes
    operations = (task.operation,) if task.operation else subject.operations
    found = cases(contract, operations=operations, laws=(task.law,) if task.law else ())
    # As in a run at all dtypes: a selection of dtypes would make its first one the leading dtype.
    chosen = [case for case in found if case.dtype in (*dtypes, BOOLEAN, DEFAULT)]
    failures: list[Failure] = []
    evaluations, largest = 0, 0.0
    for case in chosen:
        results = _judge(contract, case, task, every)
        evaluations += sum(r.examples for r in results)
        largest = max((largest, *(r.error_ratio for r in results if r.status is Status.PASSED)))
        failures += [
            Failure(r.operation, r.dtype, r.law, r.reason or "", r.message)
            for r in results
            if r.status is Status.FAILED
        ]
        if failures and not every:
            break
    return Outcome(tuple(failures), evaluations, time.perf_counter() - start, largest)


def _judge(contract: Contract, case: Case, task: Task, every: bool) -> list[Result]:
    """Return verdicts without counterexamples; with ``every``, repeat without failed laws until no new one fails."""
    failed: dict[str, Result] = {}
    while True:
        results = checked(
            judge(
                task.subject.backend(),
                contract,
                case,
                task.effort,
                seed=task.seed,
                skip=failed,
                stop_at_first=True,
            )
        )
        now = {r.law: r for r in results if r.status is Status.FAILED}
        if not every or len(now) == len(failed):
            return results
        failed = now
