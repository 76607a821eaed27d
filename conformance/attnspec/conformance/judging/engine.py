"""Judging of one operation at one dtype: all laws over shared examples, one verdict each."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import hypothesis

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.corners import corners, multiply_adds
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.inputs.strategies import examples
from attnspec.conformance.judging.attempt import Outcome, attempt, attempt_once, stable_seed
from attnspec.conformance.judging.checks import CHECKS, Check
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.extent import Extent
from attnspec.conformance.judging.own_errors import Containment, contained, joined
from attnspec.conformance.judging.profiles import FORMULA, GRADIENT, MACHINERY, REMEMBERING, Effort, Profile
from attnspec.conformance.judging.reduction import reduced, simplest
from attnspec.conformance.judging.results import OWN_ERROR, TOO_VAGUE, Result, Status
from attnspec.conformance.judging.snippet import snippet, without_snippet
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.contract.semantics import ASKED_BY

Mark = Callable[[str, Any], None]
"""Called with a law and its input before each check, to attribute crashes."""

AFFORDED = 2.0**26
"""Most multiply-adds for recomputing the formula on arrays that violate another law."""

Choice = Callable[[list[Result]], Sequence[Result]]
"""Selects the violations of a case that get counterexamples."""

UNTOLD = (
    "no number could be told right from wrong: {} of them have budgets that are too large. Declare a precision class "
    "that rounds less or limits that leave more, or judge another dtype"
)
"""Message of the formula's verdict if every budget is too wide to judge."""

FURTHER = 16
"""Most extra examples of the formula, if the profile's examples judge no number."""

NOTHING: Outcome = (None, False, 0.0, 0)
"""Outcome of a check that an error of attnspec ended."""

BOOLEAN, DEFAULT = "bool", "default"
"""Dtype names for operations with boolean results, and for those without float inputs."""


@dataclass(frozen=True)
class Case:
    """One operation at one dtype, and the laws to judge it by.

    ``leading``: at this dtype ``quick`` runs the checks that need only one dtype. ``named``: the user named the laws,
    so slow checks run too.
    """

    operation: str
    dtype: str
    laws: tuple[str, ...]
    leading: bool = True
    named: bool = False

    @property
    def id(self) -> str:
        """An identifier that is unique within a run."""
        return f"{self.operation}-{self.dtype}"


def dtypes_of(operation: Operation, dtypes: Iterable[str]) -> tuple[str, ...]:
    """The dtypes at which an operation is judged."""
    if not operation.float_result and not operation.floats:
        return (BOOLEAN,)
    return tuple(dtypes) if operation.floats else (DEFAULT,)


def leading(dtypes: Sequence[str]) -> str:
    """The dtype for checks that need only one: float32, or else the first."""
    return "float32" if "float32" in dtypes else next(iter(dtypes), "")


@lru_cache(maxsize=1024)
def governing_laws(operation: Operation) -> tuple[str, ...]:
    """All laws that govern an operation, selected or not."""
    return tuple(i for i, x in LAWS.items() if x.concerns(operation))


def cases(
    contract: Contract,
    *,
    operations: Sequence[str] = (),
    laws: Sequence[str] = (),
    dtypes: Sequence[str] = (),
) -> list[Case]:
    """The cases of a backend, float64 first, most laws first; empty selections select everything."""
    chosen = [
        o for o in OPERATIONS.values() if o.name in contract.operations and (not operations or o.name in operations)
    ]
    result = []
    for operation in chosen:
        governing = tuple(i for i in governing_laws(operation) if not laws or i in laws)
        unproved = [law for law in governing if law not in CHECKS]
        if unproved:
            raise LookupError(f"law {unproved[0]}: expected a check in attnspec.conformance.laws; got none")
        if governing:
            tested = [d for d in contract.limits.dtypes_for(operation.name) if not dtypes or d in dtypes]
            found = dtypes_of(operation, tested)
            first = leading(found)
            result += [Case(operation.name, dtype, governing, dtype == first) for dtype in found]
    # A worker that stays with a dtype reuses the kernels that the backend has compiled for it.
    return sorted(result, key=lambda c: (c.dtype != "float64", c.dtype, -len(c.laws), c.operation))


@dataclass
class _Progress:
    """The progress of one law; ``place`` is its index among all laws of the operation."""

    law: str
    checks: tuple[Check, ...]
    place: int
    examples: int = 0
    not_judged: int = 0
    vague: int = 0
    informative: int = 0
    ratio: float = 0.0
    failure: tuple[Check, Arguments, Violation, int] | None = None
    own_error: str = ""

    @property
    def open(self) -> bool:
        """True if the law is undecided."""
        return self.failure is None and not self.own_error


Violated = dict[str, _Progress]
"""Progress of violated laws by id; a violation stands even if judging again passes."""


@dataclass
class _Run:
    subject: Subject
    effort: Effort
    mark: Mark
    stop_at_first: bool
    violated: Violated
    blames_formula: bool = True
    guided: bool = True
    named: bool = False
    laws: dict[str, _Progress] = field(default_factory=dict)

    @property
    def open(self) -> list[_Progress]:
        return [p for p in self.laws.values() if p.open]

    @property
    def ended(self) -> bool:
        """True if no further example is needed."""
        return not self.open or (self.stop_at_first and any(p.failure for p in self.laws.values()))

    def affords(self, check: Check) -> bool:
        """Return whether a check runs at this dtype, by the profile or a named law.

        A law that the user named always runs: its slow checks only if it has no others.
        """
        if self.effort.slow:
            return True
        if check.slow:
            return self.named and all(other.slow for other in CHECKS[check.law.id])
        return not check.at_leading or self.subject.leading

    def check(self, progress: _Progress, check: Check, arguments: Arguments, seed: int) -> None:
        """Run one check on one example and record the outcome for its law."""
        outcome, progress.own_error = contained(
            f"checking {progress.law}",
            lambda: attempt(self.subject, check, arguments, seed),
            NOTHING,
        )
        violation, concerned, ratio, vague = outcome
        progress.examples += concerned
        progress.ratio = max(progress.ratio, ratio)
        progress.not_judged += vague
        progress.vague += self.subject.vague
        progress.informative += self.subject.informative
        if violation is not None:
            progress.failure = (check, arguments, violation, seed)
            self.violated[progress.law] = progress
            if self.blames_formula:
                self._blame_formula(check, violation, seed)

    def _blame_formula(self, check: Check, violation: Violation, seed: int) -> None:
        """Fail the formula too if a plain call on the violating arrays is wrong.

        Only for laws about how calls are made: reports then show the formula as cause, the law as its consequence.
        """
        law = check.law.id
        if check.law.chapter not in MACHINERY or law in REMEMBERING or violation.reason != Reason.VALUE:
            return
        given = self._plain_call(violation.arguments)
        for plain in (FORMULA, GRADIENT) if check.law.gradients else (FORMULA,):
            progress = self.laws.get(plain)
            if given is None or progress is None:
                continue
            if plain == law or progress.failure is not None:
                return
            self.mark(plain, f"the arrays on which {law} fails")
            formula = progress.checks[0]
            found, _, ratio, _ = attempt(self.subject, formula, given, seed)
            if found is not None and found.reason == Reason.VALUE:
                progress.ratio, progress.failure = max(progress.ratio, ratio), (formula, given, found, seed)
                self.violated[plain] = progress
                return

    def _plain_call(self, arguments: Arguments | None) -> Arguments | None:
        """A copy without cached results, for judging a plain call.

        None if its dtype differs, the backend refuses it, or it exceeds :data:`AFFORDED` multiply-adds.
        """
        subject = self.subject
        if arguments is None or any(x.dtype.name != subject.data_dtype for _, x in arguments.floats):
            return None
        if multiply_adds(arguments.sizes, arguments.batch, arguments.operation) > AFFORDED:
            return None
        fresh = arguments.replaced({})
        try:
            subject.oracles(fresh)
        except (Violation, ValueError):
            return None  # a shape that the Protocol refuses, or an index that is too large
        return None if subject.refuses(fresh) else fresh


def judge(
    backend: Any,
    contract: Contract,
    case: Case,
    profile: Profile,
    *,
    seed: int = 0,
    device: str = "cpu",
    mark: Mark = lambda law, example: None,
    skip: Mapping[str, Result] | None = None,
    stop_at_first: bool = False,
    extent: Extent | None = None,
    described: Choice | None = None,
    violated: Violated | None = None,
    contain: Containment = contained,
) -> list[Result]:
    """The verdicts of every law of a case.

    ``skip``: verdicts already known (laws that crashed the process before). ``stop_at_first``: end at the first
    violation. ``extent``: widened to the largest sizes of all calls. ``described``: selects the violations that get
    counterexamples; by default all, or none with ``stop_at_first``. Counterexamples are made after all verdicts and
    change none. ``contain``: survives errors while the backend is called for them. ``violated``: receives violations as
    they are seen; laws already in it stand violated and are not checked again.
    """
    subject = Subject(backend, contract, OPERATIONS[case.operation], case.dtype, device, profile)
    subject.leading = case.leading
    if extent is not None:
        subject.extent = extent
    violated = {} if violated is None else violated
    # If the run stops at a violation and makes no counterexample, only the existence of one matters.
    blames_formula = described is not None or not stop_at_first
    run = _Run(subject, subject.effort, mark, stop_at_first, violated, blames_formula)
    settled = dict(skip or {})
    run.guided, run.named = FORMULA not in settled, case.named
    places = {law: place for place, law in enumerate(governing_laws(OPERATIONS[case.operation]))}
    for law in case.laws:
        if law in settled:
            continue
        if LAWS[law].gradients and not subject.learns:
            reason = "left out by limits gradients" if contract.differentiable else "the backend has no vjp"
            settled[law] = Result(case.operation, law, case.dtype, Status.NOT_APPLICABLE, reason)
        else:
            concerned = tuple(check for check in CHECKS[law] if check.concerns(OPERATIONS[case.operation]))
            run.laws[law] = violated.get(law) or _Progress(law, concerned, places[law])
    explore = partial(_explore, run, stable_seed(seed, case.operation, case.dtype))
    _, ended = contained(f"judging {case.id}", explore, None)
    for law, progress in run.laws.items():
        if ended and progress.open:
            progress.own_error = ended
        lost = Result(case.operation, law, case.dtype, Status.LOST, OWN_ERROR)
        found, note = contained(f"reaching the verdict on {law}", partial(_verdict, run, case, law, progress), lost)
        settled[law] = replace(found, message=note) if note else found
    failed = [settled[law] for law in run.laws if settled[law].status is Status.FAILED]
    for result in described(failed) if described else () if stop_at_first else failed:
        describe = partial(_described, run, run.laws[result.law], result, contain)
        found, note = contained(f"describing the violation of {result.law}", describe, result)
        settled[result.law] = replace(found, note=joined(found.note, note))
    return [settled[law] for law in case.laws]


def _explore(run: _Run, seed: int) -> None:
    subject, effort = run.subject, run.effort
    rows = corners(subject.operation, subject.limits, seed=seed, most=effort.corners, work=effort.work)
    for i, example in enumerate(rows):
        _try(run, example, i, first=i == 0)
        if run.ended or all(check.once for p in run.open for check in p.checks):
            return
    if effort.drawn:
        _draw(run, seed, len(rows))
    _look_further(run, seed)


def _look_further(run: _Run, seed: int) -> None:
    """Check the formula on extra examples if the profile's examples judged no number."""
    subject, formula = run.subject, run.laws.get(FORMULA)
    if formula is None or not formula.examples or formula.informative:
        return
    others = corners(subject.operation, subject.limits, seed=seed + 1, most=FURTHER, work=run.effort.work)
    for example in others:
        if formula.informative or not formula.open or run.ended:
            return
        found, _ = contained("making an input", partial(_made, subject, example), None)
        if found is not None and found[1]:
            run.mark(FORMULA, example)
            run.check(formula, formula.checks[0], found[0], example.seed)


def _draw(run: _Run, seed: int, count: int) -> None:
    """Check examples that Hypothesis draws, steered towards larger error ratios.

    They are numbered from ``count``. Only the formula's ratio steers: examples do not depend on the selected laws.
    """

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=run.effort.drawn,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.target),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(examples(run.subject.operation, run.subject.limits, work=run.effort.work))
    def explore(example: Example) -> None:
        nonlocal count
        if run.ended:
            return
        arguments = _try(run, example, count)
        count += 1
        hypothesis.target(min(_formula_ratio(run, example, arguments), 1e6), label="error ratio")

    explore()


def _try(run: _Run, example: Example, index: int, *, first: bool = False) -> Arguments | None:
    """Run the checks due on an example; return its arguments, or None outside the domain."""
    subject = run.subject
    found, note = contained("making an input", lambda: _made(subject, example), None)
    if found is None:
        for progress in run.open:
            progress.own_error = note
        return None
    arguments, judgeable = found
    for progress in run.open:
        for check in progress.checks:
            always = check.ensemble and subject.dtype in NARROW
            due = first if check.once else judgeable and (always or run.effort.due(progress.law, index, progress.place))
            if due and run.affords(check) and progress.open:
                run.mark(progress.law, example)
                run.check(progress, check, arguments, example.seed)
    return arguments if judgeable else None


def _made(subject: Subject, example: Example) -> tuple[Arguments, bool]:
    """The arguments of an example, and whether they are in the domain."""
    arguments = subject.arguments(example)
    try:
        return arguments, subject.in_domain(arguments)
    except Violation:
        return arguments, True


def _formula_ratio(run: _Run, example: Example, arguments: Arguments | None) -> float:
    """The formula's error ratio on an example; 0 if its check crashed an earlier process."""
    if arguments is None or not run.guided:
        return 0.0
    run.mark(FORMULA, example)
    # An error of attnspec is not reported here: the formula's own check reports it.
    outcome, _ = contained(
        "guiding the search by the formula",
        lambda: attempt_once(run.subject, CHECKS[FORMULA][0], arguments, example.seed),
        NOTHING,
    )
    return outcome[2]


def _verdict(run: _Run, case: Case, law: str, progress: _Progress) -> Result:
    result = Result(
        case.operation,
        law,
        case.dtype,
        Status.PASSED,
        examples=progress.examples,
        not_judged=progress.not_judged,
        error_ratio=progress.ratio,
        observed=run.subject.observed.get(ASKED_BY[law].name) if law in ASKED_BY else None,
    )
    if progress.own_error:
        return replace(result, status=Status.LOST, reason=OWN_ERROR, message=progress.own_error)
    if progress.failure is None:
        if law == FORMULA and progress.examples and not progress.informative:
            return replace(result, status=Status.LOST, reason=TOO_VAGUE, message=UNTOLD.format(progress.vague))
        if progress.examples:
            return result
        left = not any(run.affords(check) for check in progress.checks)
        reason = "the profiles full and release try it" if left else "no example concerned it"
        if law in run.subject.left_out:
            reason = f"left out by {run.subject.left_out[law]}"
        return replace(result, status=Status.NOT_APPLICABLE, reason=reason)
    _, _, violation, _ = progress.failure
    return replace(result, status=Status.FAILED, reason=violation.reason, message=violation.message)


ANSWERED_OTHERWISE = "called again with the same input the backend answered otherwise, and the law held (repeatability)"
"""Note of a violation that a repeated call did not show."""


def _described(run: _Run, progress: _Progress, result: Result, contain: Containment) -> Result:
    """A violation with the smallest counterexample that could be made, and notes on failures."""
    assert progress.failure is not None
    check, arguments, violation, seed = progress.failure
    subject, law = run.subject, result.law
    of = f"the counterexample of {law} by {result.operation} ({result.dtype})"
    (arguments, violation, seen), reducing = contain(
        f"reducing {of}", lambda: _reduced(run, check, arguments, violation, seed), (arguments, violation, "")
    )
    run.mark(law, "describing the counterexample")
    shown, writing = contained(f"writing {of}", lambda: without_snippet(arguments, violation), None)
    script, scripting = contained(
        f"writing the snippet for {of}", lambda: snippet(subject, check, arguments, violation, seed), ""
    )
    return replace(
        result,
        message=violation.message,
        # The reduced input may have a larger ratio, and readers can recompute that one.
        error_ratio=max(progress.ratio, violation.ratio),
        counterexample=None if shown is None else {**shown, "snippet": script},
        note=joined(seen, reducing, writing, scripting),
    )


def _reduced(
    run: _Run, check: Check, arguments: Arguments, violation: Violation, seed: int
) -> tuple[Arguments, Violation, str]:
    """The smallest violating input, or the original one if a second call shows no violation."""
    run.mark(check.law.id, "checking the counterexample once more")
    again, *_ = attempt(run.subject, check, arguments.replaced({}), seed)
    if again is None:
        return arguments, violation, ANSWERED_OTHERWISE
    reduction = simplest if check.once else reduced
    return *reduction(run.subject, check, arguments, violation, seed, run.mark), ""
