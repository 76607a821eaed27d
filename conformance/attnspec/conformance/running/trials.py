"""Trials: a trial judges one mutant or honest variant at one seed."""

import time
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import attnspec.conformance.laws  # noqa: F401 - the modules of the laws register their checks
from attnspec.conformance.judging.cases import BOOLEAN_DTYPE, DEFAULT_DTYPE, Case, cases
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.profiles import PROFILES, Profile
from attnspec.conformance.judging.results import Result, Status, without_own_errors
from attnspec.conformance.mutants.registry import Mutant
from attnspec.conformance.variants.registry import Variant

Key: TypeAlias = tuple[str, str, int, bool]
"""Name of the subject, profile, seed, and whether it is judged by every law."""

LOST = "hung or died"
"""Listed in place of a law for a trial whose process hung or died."""


@dataclass(frozen=True)
class Trial:
    """One mutant or variant at one seed.

    ``law`` and ``operation`` restrict judging to one of them; empty for all. A variant is judged by every law, a mutant
    only until the first violation, unless ``every_law`` is set.
    """

    subject: Mutant | Variant
    profile: str
    seed: int
    law: str = ""
    operation: str = ""
    every_law: bool = False

    @property
    def key(self) -> Key:
        """Key of a trial by all laws of all operations: it omits ``law`` and ``operation``."""
        return self.subject.name, self.profile, self.seed, self.every_law

    @property
    def effort(self) -> Profile:
        """The trial's profile, or the mutant's own if that has more corners at float32."""
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
class TrialOutcome:
    """Outcome of a trial.

    ``evaluations`` counts checks of a law on an example; ``largest`` is the largest error ratio of the laws that held;
    ``lost`` means that the process hung or died; ``powerless`` are assigned laws that do not kill the mutant;
    ``assigned`` means that assigned laws killed the mutant, so that no other law ran.
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


def run_trial(trial: Trial) -> TrialOutcome:
    """Judge a mutant by its assigned laws, else by all; judge a variant by all.

    A law that is judged alone gets the same examples as among all. At seed 0 every assigned law runs; one that kills
    the mutant at none of the seeds 0, 1 and 2 is powerless. At other seeds judging stops at the first law that kills
    it.
    """
    if not isinstance(trial.subject, Mutant) or trial.every_law or trial.law:
        return _judged_trial(trial)
    outcomes: list[TrialOutcome] = []
    powerless: list[str] = []
    for law in trial.subject.breaks:
        outcomes.append(_judged_trial(replace(trial, law=law)))
        if trial.seed == 0 and not (outcomes[-1].failures or _kills_later(trial, law)):
            powerless.append(law)
        if trial.seed > 0 and outcomes[-1].failures:
            break
    assigned = any(outcome.failures for outcome in outcomes)
    if not assigned:
        outcomes.append(_judged_trial(trial))
    return TrialOutcome(
        tuple(failure for outcome in outcomes for failure in outcome.failures),
        sum(outcome.evaluations for outcome in outcomes),
        sum(outcome.seconds for outcome in outcomes),
        powerless=tuple(powerless),
        assigned=assigned,
    )


def _kills_later(trial: Trial, law: str) -> bool:
    """Return whether a law kills a mutant at one of the next two seeds."""
    later = (trial.seed + 1, trial.seed + 2)
    return any(_judged_trial(replace(trial, law=law, seed=seed)).failures for seed in later)


def _judged_trial(trial: Trial) -> TrialOutcome:
    start = time.perf_counter()
    subject = trial.subject
    every_law = trial.every_law or isinstance(subject, Variant)
    contract = Contract.of(subject.backend())
    dtypes = (subject.dtype,) if isinstance(subject, Mutant) else subject.dtypes
    operations = (trial.operation,) if trial.operation else subject.operations
    all_cases = cases(contract, operations=operations, laws=(trial.law,) if trial.law else ())
    # Not selected by ``cases``, which would make the first selected dtype the leading one.
    chosen = [case for case in all_cases if case.dtype in (*dtypes, BOOLEAN_DTYPE, DEFAULT_DTYPE)]
    failures: list[Failure] = []
    evaluations, largest = 0, 0.0
    for case in chosen:
        results = _judge(contract, case, trial, every_law)
        evaluations += sum(r.examples for r in results)
        largest = max((largest, *(r.error_ratio for r in results if r.status is Status.PASSED)))
        failed = [r for r in results if r.status is Status.FAILED]
        failures += [Failure(r.operation, r.dtype, r.law, r.reason or "", r.message) for r in failed]
        if failures and not every_law:
            break
    return TrialOutcome(tuple(failures), evaluations, time.perf_counter() - start, largest)


def _judge(contract: Contract, case: Case, trial: Trial, every_law: bool) -> list[Result]:
    """Judge a case without counterexamples; with ``every_law``, again without the failed laws until no other fails.

    Only judging that stops at the first failure omits counterexamples, which take long.
    """
    failed: dict[str, Result] = {}
    while True:
        backend = trial.subject.backend()
        judged = judge(backend, contract, case, trial.effort, seed=trial.seed, skip=failed, stop_at_first=True)
        results = without_own_errors(judged)
        now = {r.law: r for r in results if r.status is Status.FAILED}
        if not every_law or len(now) == len(failed):
            return results
        failed = now
