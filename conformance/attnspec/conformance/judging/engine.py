"""Judging: all laws of one operation at one dtype, over shared examples, with a verdict for each law."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import hypothesis

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.corners import corners, multiply_adds
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.inputs.strategies import examples
from attnspec.conformance.judging.attempt import attempt, attempt_once, stable_seed
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.extent import Extent
from attnspec.conformance.judging.profiles import FORMULA, GRADIENT, Effort, Profile
from attnspec.conformance.judging.reduction import reduced, simplest
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.snippet import counterexample
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.laws.common import data_dtype
from attnspec.conformance.laws.registry import Check
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.contract.semantics import ASKED_BY

Mark = Callable[[str, Any], None]
"""Called with a law and its input before each check, so that a crash can be named."""

MACHINERY = frozenset({"operation", "sizes", "storage", "training"})
"""Chapters of laws about how a call is made, whose numbers may be wrong because the formula is."""

REMEMBERING = frozenset(
    {
        *("operation.no-memory", "operation.own-memory", "training.no-memory", "training.own-memory"),
        *("storage.rewritten-inputs", "training.later-writes", "training.interleaved"),
    }
)
"""Laws of what an earlier call leaves behind, which makes a plain call wrong that would be right in a new process."""

AFFORDED = 2.0**26
"""Multiply-adds up to which the formula is computed for the arrays of another law."""

BOOLEAN, DEFAULT = "bool", "default"
"""The dtypes of operations whose result is boolean, and of those without float inputs."""


@dataclass(frozen=True)
class Case:
    """One operation at one dtype, and the laws to judge it by.

    ``leading`` says that what shows at any dtype is tried at this one, where there is no time for all.
    """

    operation: str
    dtype: str
    laws: tuple[str, ...]
    leading: bool = True

    @property
    def id(self) -> str:
        """A name that is unique within a run."""
        return f"{self.operation}-{self.dtype}"


def dtypes_of(operation: Operation, dtypes: Iterable[str]) -> tuple[str, ...]:
    """The dtypes at which an operation is judged."""
    if not operation.float_result and not operation.floats:
        return (BOOLEAN,)
    return tuple(dtypes) if operation.floats else (DEFAULT,)


def leading(dtypes: Sequence[str]) -> str:
    """The dtype at which is tried first what shows at any: float32, or the first of these."""
    return "float32" if "float32" in dtypes else next(iter(dtypes), "")


@lru_cache(maxsize=1024)
def governing_laws(operation: Operation) -> tuple[str, ...]:
    """The laws that govern an operation, whether a run selects them or not."""
    return tuple(i for i, x in LAWS.items() if x.concerns(operation))


def cases(
    contract: Contract,
    *,
    operations: Sequence[str] = (),
    laws: Sequence[str] = (),
    dtypes: Sequence[str] = (),
) -> list[Case]:
    """The cases of a backend, the most expensive of every dtype first; empty selections select everything."""
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
    """What has become of one law so far; ``place`` is that of the law among all that govern the operation."""

    check: Check
    place: int
    examples: int = 0
    not_judged: int = 0
    ratio: float = 0.0
    failure: tuple[Arguments, Violation, int] | None = None


@dataclass
class _Run:
    subject: Subject
    effort: Effort
    mark: Mark
    stop_at_first: bool
    guided: bool = True
    laws: dict[str, _Progress] = field(default_factory=dict)

    @property
    def open(self) -> list[_Progress]:
        return [p for p in self.laws.values() if p.failure is None]

    @property
    def ended(self) -> bool:
        """Whether no further example is needed."""
        return not self.open or (self.stop_at_first and len(self.open) < len(self.laws))

    def affords(self, check: Check) -> bool:
        """Whether the profile has time for a check at this dtype."""
        return self.effort.dear or not (check.dear or (check.at_leading and not self.subject.leading))

    def check(self, progress: _Progress, arguments: Arguments, seed: int) -> None:
        """Check one law on one example, and remember what became of it."""
        violation, concerned, ratio, vague = attempt(self.subject, progress.check, arguments, seed)
        progress.examples += concerned
        progress.ratio = max(progress.ratio, ratio)
        progress.not_judged += vague
        if violation is not None:
            progress.failure = (arguments, violation, seed)
            if not self.stop_at_first:
                self._blame_formula(progress.check.law.id, violation, seed)

    def _blame_formula(self, law: str, violation: Violation, seed: int) -> None:
        """Let the formula fail too where a law about machinery fails on arrays on which the plain call is wrong.

        The formula is then what is named and explained, and the other law is a consequence.
        """
        if LAWS[law].chapter not in MACHINERY or law in REMEMBERING or violation.reason != Reason.VALUE:
            return
        given = self._plain_call(violation.arguments)
        for plain in (FORMULA, GRADIENT) if LAWS[law].gradients else (FORMULA,):
            progress = self.laws.get(plain)
            if given is None or progress is None:
                continue
            if plain == law or progress.failure is not None:
                return
            self.mark(plain, f"the arrays on which {law} fails")
            found, _, ratio, _ = attempt(self.subject, progress.check, given, seed)
            if found is not None and found.reason == Reason.VALUE:
                progress.ratio, progress.failure = max(progress.ratio, ratio), (given, found, seed)
                return

    def _plain_call(self, arguments: Arguments | None) -> Arguments | None:
        """The same arrays for a call by itself; None outside of the dtype or the domain, and for more than is afforded.

        What was computed of them before is not kept.
        """
        subject = self.subject
        if arguments is None or any(x.dtype.name != data_dtype(subject) for _, x in arguments.floats):
            return None
        if multiply_adds(arguments.sizes, arguments.batch, arguments.operation) > AFFORDED:
            return None
        fresh = arguments.replaced({})
        try:
            return fresh if subject.in_domain(fresh) else None
        except (Violation, ValueError):
            return None  # a shape that the Protocol refuses, or an index that is too large


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
) -> list[Result]:
    """The verdicts of every law of a case.

    ``skip`` holds verdicts that are known already (laws that crashed the process before). ``stop_at_first`` ends at the
    first violation, without reducing it. ``extent`` is widened to the largest sizes of all calls.
    """
    subject = Subject(backend, contract, OPERATIONS[case.operation], case.dtype, device, profile)
    subject.leading = case.leading
    if extent is not None:
        subject.extent = extent
    run = _Run(subject, subject.effort, mark, stop_at_first)
    settled = dict(skip or {})
    run.guided = FORMULA not in settled
    places = {law: place for place, law in enumerate(governing_laws(OPERATIONS[case.operation]))}
    for law in case.laws:
        if law in settled:
            continue
        if LAWS[law].gradients and not contract.differentiable:
            settled[law] = Result(case.operation, law, case.dtype, Status.NOT_APPLICABLE, "the backend has no vjp")
        elif LAWS[law].gradients and not contract.limits.gives_gradients(case.operation):
            reason = "left out by limits gradients"
            settled[law] = Result(case.operation, law, case.dtype, Status.NOT_APPLICABLE, reason)
        else:
            run.laws[law] = _Progress(CHECKS[law], places[law])
    _explore(run, stable_seed(seed, case.operation, case.dtype))
    for law, progress in run.laws.items():
        settled[law] = _verdict(run, case, law, progress)
    return [settled[law] for law in case.laws]


def _explore(run: _Run, seed: int) -> None:
    subject, effort = run.subject, run.effort
    rows = corners(subject.operation, subject.limits, seed=seed, most=effort.corners, work=effort.work)
    for i, example in enumerate(rows):
        _try(run, example, i, first=i == 0)
        if run.ended or all(p.check.once for p in run.open):
            return
    if effort.drawn:
        _draw(run, seed, len(rows))


def _draw(run: _Run, seed: int, count: int) -> None:
    """Let Hypothesis look for examples after the first ``count``, in the direction of larger error ratios.

    The ratio is that of the formula alone, selected or not: the examples are the same whatever laws are selected.
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
    """Check the laws that are due on an example; its arguments, or None if they are outside the domain."""
    subject = run.subject
    arguments = example.arguments(subject.operation, data_dtype(subject))
    try:
        judgeable = subject.in_domain(arguments)
    except Violation:
        judgeable = True
    for progress in run.open:
        check, law = progress.check, progress.check.law.id
        always = check.ensemble and subject.dtype in NARROW
        due = first if check.once else judgeable and (always or run.effort.due(law, index, progress.place))
        if due and run.affords(check):
            run.mark(law, example)
            run.check(progress, arguments, example.seed)
    return arguments if judgeable else None


def _formula_ratio(run: _Run, example: Example, arguments: Arguments | None) -> float:
    """The error ratio of the formula on an example; 0 where it has ended the process before."""
    if arguments is None or not run.guided:
        return 0.0
    run.mark(FORMULA, example)
    *_, ratio, _ = attempt_once(run.subject, CHECKS[FORMULA], arguments, example.seed)
    return ratio


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
    if progress.failure is None:
        if progress.examples:
            return result
        left = not run.affords(progress.check)
        reason = "the profiles full and release try it" if left else "no example concerned it"
        if law in run.subject.left_out:
            reason = f"left out by {run.subject.left_out[law]}"
        return replace(result, status=Status.NOT_APPLICABLE, reason=reason)
    arguments, violation, seed = progress.failure
    reduce = not run.stop_at_first
    if reduce:
        reduction = simplest if progress.check.once else reduced
        arguments, violation = reduction(run.subject, progress.check, arguments, violation, seed, run.mark)
    run.mark(law, "describing the counterexample")
    shown = counterexample(run.subject, progress.check, arguments, violation, seed) if reduce else None
    return replace(
        result,
        status=Status.FAILED,
        reason=violation.reason,
        message=violation.message,
        # A smaller input may have a larger ratio, which is the one that can be seen.
        error_ratio=max(progress.ratio, violation.ratio),
        counterexample=shown,
    )
