"""Judging of one operation at one dtype: all laws over shared examples, one verdict each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import hypothesis

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.corners import corners, multiply_adds
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.inputs.strategies import examples
from attnspec.conformance.judging.attempt import CheckOutcome, attempt, attempt_once, stable_seed
from attnspec.conformance.judging.cases import Case, governing_laws
from attnspec.conformance.judging.checks import CHECKS, Check
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.extent import Extent
from attnspec.conformance.judging.health import BACKWARD, FORWARD
from attnspec.conformance.judging.own_errors import Containment, contained, joined
from attnspec.conformance.judging.profiles import CALLING_CHAPTERS, FORMULA, GRADIENT, STATE_LAWS, Effort, Profile
from attnspec.conformance.judging.reduction import reduce_arguments, reduce_to_zeros
from attnspec.conformance.judging.results import BROKEN, OWN_ERROR, TOO_WIDE, UNJUDGED, Result, Status
from attnspec.conformance.judging.snippet import snippet, without_snippet
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.spec.contract.law import LAWS, Law
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.semantics import ASKED_BY

Mark = Callable[[str, Any], None]
"""Called before each check with its law and input, to which a crash is attributed."""

MAX_FORMULA_WORK = 2.0**26
"""Most multiply-adds for checking the formula, too, on arrays that violate another law."""

ViolationSelector = Callable[[list[Result]], Sequence[Result]]
"""Selects the violations of a case that get counterexamples."""

NOT_JUDGED = (
    "no number was judged: the budgets of {} numbers are too wide to tell right from wrong. Declare a precision class "
    "with fewer roundings, or limits that allow more inputs, or judge another dtype"
)
"""Message of the formula's verdict if every budget is too wide."""

MAX_EXTRA = 16
"""Most extra examples of the formula if those of the profile judge no number."""

MAX_BREAKS = 16
"""Most restarts of a broken process in a case, which is then given up: each imports the backend again."""

BROKEN_BEFORE = f"{UNJUDGED}an earlier call broke the process of the backend: "
BROKEN_OFTEN = f"{UNJUDGED}the operation was stopped after its calls had broken the process {MAX_BREAKS} times"
ROOT_BREAKS = f"{UNJUDGED}its calls break the process of the backend, with arrays on which {{}} does so, too"
"""Messages of laws without a verdict after raises that broke the backend's process."""

NO_OUTCOME: CheckOutcome = (None, False, 0.0, 0)
"""Outcome of a check that ended with an error of attnspec."""


@dataclass
class _LawProgress:
    """The progress of one law.

    ``position`` is its index among all laws of the operation, selected or not: a selection changes no examples.
    ``failure`` holds the violated check, its arguments, the violation and the seed. Counts are as in ``Comparisons``.
    ``broken_by``: the formula or its gradient, if examples were skipped because its plain calls break the process.
    """

    law: str
    checks: tuple[Check, ...]
    position: int
    examples: int = 0
    not_judged: int = 0
    too_wide: int = 0
    informative: int = 0
    ratio: float = 0.0
    failure: tuple[Check, Arguments, Violation, int] | None = None
    own_error: str = ""
    broken_by: str = ""

    @property
    def undecided(self) -> bool:
        return self.failure is None and not self.own_error

    @property
    def breaks(self) -> bool:
        """True if the law failed by a raise that broke the backend's process."""
        return self.failure is not None and self.failure[2].lasting


ViolatedLaws = dict[str, _LawProgress]
"""Violated laws by id; they stay violated when the case is judged again."""


def _roots(law: Law) -> tuple[str, ...]:
    """The laws of which a law's violation may be a consequence: the formula, and for gradients its gradient."""
    roots = (FORMULA, GRADIENT) if law.gradients else (FORMULA,)
    return roots[: roots.index(law.id)] if law.id in roots else roots


@dataclass
class _Run:
    """The judging of one case: its laws, their progress, and which checks run.

    ``formula_guides``: the formula's error ratio steers Hypothesis; not if its check ended the process before.
    """

    subject: Subject
    effort: Effort
    mark: Mark
    stop_at_first: bool
    violated: ViolatedLaws
    blames_formula: bool = True
    formula_guides: bool = True
    laws_selected: bool = False
    laws: dict[str, _LawProgress] = field(default_factory=dict)

    @property
    def undecided(self) -> list[_LawProgress]:
        return [p for p in self.laws.values() if p.undecided]

    @property
    def finished(self) -> bool:
        stopped = self.stop_at_first and any(p.failure for p in self.laws.values())
        return not self.undecided or stopped or self.given_up

    @property
    def given_up(self) -> bool:
        """True if the backend's process is broken, or was restarted too often."""
        return bool(self.subject.health.broken) or self.subject.health.breaks >= MAX_BREAKS

    def formula_breaks(self, example: Example, arguments: Arguments) -> bool:
        """Return whether the formula, which has broken the process, breaks it on this example."""
        formula = self.laws.get(FORMULA)
        if formula is None or formula.failure is None or not formula.breaks:
            return False
        self.mark(FORMULA, example)
        violation, *_ = attempt_once(self.subject, formula.failure[0], arguments, example.seed)
        return violation is not None and violation.lasting

    def includes(self, check: Check) -> bool:
        """Return whether the profile runs a check at this dtype.

        A law that the user selected always runs: with its slow checks only if it has no others.
        """
        if self.effort.slow:
            return True
        if check.slow:
            return self.laws_selected and all(other.slow for other in CHECKS[check.law.id])
        return not check.leading_dtype_only or self.subject.is_leading_dtype

    def check(self, progress: _LawProgress, check: Check, arguments: Arguments, seed: int) -> None:
        """Run one check on one example and record the outcome for its law."""
        step = partial(attempt, self.subject, check, arguments, seed)
        outcome, progress.own_error = contained(f"checking {progress.law}", step, NO_OUTCOME)
        violation, applies, ratio, not_judged = outcome
        if violation is not None and violation.lasting and self._formula_breaks_too(progress, check, violation, seed):
            return
        progress.examples += applies
        progress.ratio = max(progress.ratio, ratio)
        progress.not_judged += not_judged
        progress.too_wide += self.subject.too_wide
        progress.informative += self.subject.informative
        if violation is not None:
            self._fail(progress, check, arguments, violation, seed)
            if self.blames_formula:
                self._blame_formula(check, violation, seed)

    def _blame_formula(self, check: Check, violation: Violation, seed: int) -> None:
        """Fail the formula, too, if it is wrong on the arrays that violate another law.

        Only for laws about how calls are made. Reports then show the formula as the cause, the law as its consequence.
        """
        if check.law.chapter not in CALLING_CHAPTERS or check.law.id in STATE_LAWS or violation.reason != Reason.VALUE:
            return
        for progress, plain in self._formula_calls(check, violation):
            if progress.failure is not None:
                return
            formula = progress.checks[0]
            failure, _, ratio, _ = attempt(self.subject, formula, plain, seed)
            if failure is not None and failure.reason == Reason.VALUE:
                progress.ratio = max(progress.ratio, ratio)
                self._fail(progress, formula, plain, failure, seed)
                return

    def _formula_breaks_too(self, progress: _LawProgress, check: Check, violation: Violation, seed: int) -> bool:
        """Fail the formula, not the law, if a plain call breaks the process as well."""
        for root, plain in self._formula_calls(check, violation):
            formula = root.checks[0]
            failure, *_ = attempt_once(self.subject, formula, plain, seed)
            if failure is not None and failure.lasting:
                if root.failure is None:
                    self._fail(root, formula, plain, failure, seed)
                progress.broken_by = root.law
                return True
        return False

    def _formula_calls(self, check: Check, violation: Violation) -> Iterator[tuple[_LawProgress, Arguments]]:
        """Yield the formula's laws, each with a plain call on the arrays of a violation.

        They are the formula and its gradient, up to the one that is violated itself.
        """
        plain = self.plain_call(violation.arguments)
        for law in _roots(check.law):
            progress = self.laws.get(law)
            if plain is not None and progress is not None:
                self.mark(law, f"the arrays on which {check.law.id} fails")
                yield progress, plain

    def _fail(
        self, progress: _LawProgress, check: Check, arguments: Arguments, violation: Violation, seed: int
    ) -> None:
        progress.failure = (check, arguments, violation, seed)
        self.violated[progress.law] = progress

    def plain_call(self, arguments: Arguments | None) -> Arguments | None:
        """A copy of the arguments without cached results, on which the formula can be judged.

        None if its dtype differs, the backend refuses it, or it exceeds :data:`MAX_FORMULA_WORK`.
        """
        subject = self.subject
        if arguments is None or any(x.dtype.name != subject.data_dtype for _, x in arguments.floats):
            return None
        if multiply_adds(arguments.sizes, arguments.batch, arguments.operation) > MAX_FORMULA_WORK:
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
    counterexamples_for: ViolationSelector | None = None,
    violated: ViolatedLaws | None = None,
    contain: Containment = contained,
) -> list[Result]:
    """The verdicts of every law of a case.

    ``skip``: known verdicts, of laws that crashed the process before; they are not checked. ``stop_at_first``: end at
    the first violation. ``extent``: widened to the largest sizes of all calls. ``counterexamples_for``: selects the
    violations that get counterexamples; by default all, or none with ``stop_at_first``. Counterexamples are made after
    all verdicts and change none; ``contain`` wraps their calls of the backend. ``violated``: receives violations
    immediately; laws that it already holds count as violated and are not checked again.
    """
    subject = Subject(backend, contract, OPERATIONS[case.operation], case.dtype, device, profile)
    subject.is_leading_dtype = case.is_leading_dtype
    if extent is not None:
        subject.extent = extent
    violated = {} if violated is None else violated
    # A run that stops at the first violation and makes no counterexample needs no cause.
    blames_formula = counterexamples_for is not None or not stop_at_first
    run = _Run(subject, subject.effort, mark, stop_at_first, violated, blames_formula)
    settled = dict(skip or {})
    run.formula_guides, run.laws_selected = FORMULA not in settled, case.laws_selected
    positions = {law: position for position, law in enumerate(governing_laws(OPERATIONS[case.operation]))}
    for law in case.laws:
        if law in settled:
            continue
        if LAWS[law].gradients and not subject.has_gradients:
            reason = "left out by limits gradients" if contract.differentiable else "the backend has no vjp"
            settled[law] = Result(case.operation, law, case.dtype, Status.NOT_APPLICABLE, reason)
        else:
            law_checks = tuple(check for check in CHECKS[law] if check.concerns(OPERATIONS[case.operation]))
            run.laws[law] = violated.get(law) or _LawProgress(law, law_checks, positions[law])
    # Without a restart, a lasting raise is recognised only by a call that worked before.
    if device != "cpu" and subject.health.restart is None:
        mark(FORMULA, "calls with the smallest arrays")
        kinds = (FORWARD, BACKWARD) if subject.has_gradients else (FORWARD,)
        subject.health.try_smallest({kind: subject.smallest_calls[kind] for kind in kinds})
    explore = partial(_explore, run, stable_seed(seed, case.operation, case.dtype))
    _, own_error = contained(f"judging {case.id}", explore, None)
    for law, progress in run.laws.items():
        if own_error and progress.undecided:
            progress.own_error = own_error
        lost = Result(case.operation, law, case.dtype, Status.LOST, OWN_ERROR)
        verdict, note = contained(f"reaching the verdict on {law}", partial(_verdict, run, case, law, progress), lost)
        settled[law] = replace(verdict, message=note) if note else verdict
    failed = [settled[law] for law in run.laws if settled[law].status is Status.FAILED]
    for result in counterexamples_for(failed) if counterexamples_for else () if stop_at_first else failed:
        describe = partial(_with_counterexample, run, run.laws[result.law], result, contain)
        verdict, note = contained(f"describing the violation of {result.law}", describe, result)
        settled[result.law] = replace(verdict, note=joined(verdict.note, note))
    return [settled[law] for law in case.laws]


def _explore(run: _Run, seed: int) -> None:
    subject, effort = run.subject, run.effort
    rows = corners(subject.operation, subject.limits, seed=seed, most=effort.corners, work=effort.work)
    for i, example in enumerate(rows):
        _check_example(run, example, i, first=i == 0)
        # Checks that run once per case have run on the first example.
        if run.finished or all(check.once for p in run.undecided for check in p.checks):
            return
    if effort.drawn and subject.limits.new_shapes == "cheap":  # drawn examples have shapes of their own
        _draw(run, seed, len(rows))
    _check_formula_further(run, seed)


def _check_formula_further(run: _Run, seed: int) -> None:
    """Check the formula on extra examples if those of the profile judged no number."""
    subject, formula = run.subject, run.laws.get(FORMULA)
    if formula is None or not formula.examples or formula.informative:
        return
    extra = corners(subject.operation, subject.limits, seed=seed + 1, most=MAX_EXTRA, work=run.effort.work)
    for example in extra:
        if formula.informative or not formula.undecided or run.finished:
            return
        candidate, _ = contained("making an input", partial(_arguments_in_domain, subject, example), None)
        if candidate is not None and candidate[1]:
            run.mark(FORMULA, example)
            run.check(formula, formula.checks[0], candidate[0], example.seed)


def _draw(run: _Run, seed: int, count: int) -> None:
    """Check examples that Hypothesis draws and steers towards larger error ratios; number them from ``count``.

    Only the formula's ratio steers, so that examples do not depend on the selected laws.
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
        if run.finished:
            return
        arguments = _check_example(run, example, count)
        count += 1
        hypothesis.target(min(_formula_ratio(run, example, arguments), 1e6), label="error ratio")  # only finite

    explore()


def _check_example(run: _Run, example: Example, index: int, *, first: bool = False) -> Arguments | None:
    """Run the checks due on an example; return its arguments, None outside the domain."""
    subject = run.subject
    candidate, note = contained("making an input", lambda: _arguments_in_domain(subject, example), None)
    if candidate is None:
        for progress in run.undecided:
            progress.own_error = note
        return None
    arguments, usable = candidate
    # Other laws call the backend with the same arrays: they would only repeat the formula's violation.
    breaks = usable and run.formula_breaks(example, arguments)
    # The formula comes first: a call that breaks the process is blamed on it if it is the formula's own.
    for progress in sorted(run.undecided, key=lambda p: p.law != FORMULA):
        for check in progress.checks:
            always = check.ensemble and subject.dtype in NARROW
            due = first if check.once else usable and (always or run.effort.due(progress.law, index, progress.position))
            if not (due and run.includes(check) and progress.undecided):
                continue
            if breaks and not check.once:
                progress.broken_by = FORMULA
                continue
            run.mark(progress.law, example)
            run.check(progress, check, arguments, example.seed)
            breaks = breaks or (progress.law == FORMULA and progress.breaks)
    return arguments if usable and not breaks else None


def _arguments_in_domain(subject: Subject, example: Example) -> tuple[Arguments, bool]:
    arguments = subject.arguments(example)
    return arguments, subject.in_domain(arguments)


def _formula_ratio(run: _Run, example: Example, arguments: Arguments | None) -> float:
    """The formula's error ratio on an example; 0 outside the domain or after a crash."""
    if arguments is None or not run.formula_guides:
        return 0.0
    run.mark(FORMULA, example)
    # An error of attnspec is not reported here: the formula's own check reports it.
    check = partial(attempt_once, run.subject, CHECKS[FORMULA][0], arguments, example.seed)
    (_, _, ratio, _), _ = contained("guiding the search by the formula", check, NO_OUTCOME)
    return ratio


def _verdict(run: _Run, case: Case, law: str, progress: _LawProgress) -> Result:
    result = Result(
        case.operation,
        law,
        case.dtype,
        Status.PASSED,
        examples=progress.examples,
        not_judged=progress.not_judged,
        error_ratio=progress.ratio,
        observed=run.subject.observed.get(ASKED_BY[law].name) if law in ASKED_BY else None,
        note=run.subject.not_tried.get(law, ""),
    )
    if progress.own_error:
        return replace(result, status=Status.LOST, reason=OWN_ERROR, message=progress.own_error)
    skipped = progress.broken_by and not progress.examples
    if progress.failure is None and (skipped or run.given_up):
        broken = run.subject.health.broken
        given_up = f"{BROKEN_BEFORE}{broken}" if broken else BROKEN_OFTEN
        message = ROOT_BREAKS.format(progress.broken_by) if skipped else given_up
        return replace(result, status=Status.LOST, reason=BROKEN, message=message)
    if progress.failure is None:
        if law == FORMULA and progress.examples and not progress.informative:
            return replace(result, status=Status.LOST, reason=TOO_WIDE, message=NOT_JUDGED.format(progress.too_wide))
        if progress.examples:
            return result
        too_slow = not any(run.includes(check) for check in progress.checks)
        reason = "only the profiles full and release try it" if too_slow else "no example concerned it"
        if law in run.subject.left_out:
            reason = f"left out by {run.subject.left_out[law]}"
        return replace(result, status=Status.NOT_APPLICABLE, reason=reason)
    _, _, violation, _ = progress.failure
    return replace(result, status=Status.FAILED, reason=violation.reason, message=violation.message)


NOT_REPRODUCED = "a second call with the same input satisfies the law: the backend does not repeat its results"
"""Note of a violation that a second call did not show."""


def _with_counterexample(run: _Run, progress: _LawProgress, result: Result, contain: Containment) -> Result:
    """The verdict with its smallest counterexample, and with notes on errors while making it."""
    assert progress.failure is not None
    check, arguments, violation, seed = progress.failure
    subject, law = run.subject, result.law
    title = f"the counterexample of {law} by {result.operation} ({result.dtype})"
    unreduced = _Counterexample(check, arguments, violation)
    (check, arguments, violation, repetition_note), reduction_note = contain(
        f"reducing {title}", lambda: _smallest(run, unreduced, seed), unreduced
    )
    run.mark(law, "describing the counterexample")
    shown_input, writing_note = contained(f"writing {title}", lambda: without_snippet(arguments, violation), None)
    write = partial(snippet, subject, check, arguments, violation, seed)
    script, snippet_note = contained(f"writing the snippet for {title}", write, "")
    return replace(
        result,
        message=violation.message,
        # The reduced input may have a larger ratio; it is the one that readers can recompute.
        error_ratio=max(progress.ratio, violation.ratio),
        counterexample=None if shown_input is None else {**shown_input, "snippet": script},
        note=joined(repetition_note, reduction_note, writing_note, snippet_note),
    )


class _Counterexample(NamedTuple):
    """A violated check and its input; ``note`` says if a second call shows no violation."""

    check: Check
    arguments: Arguments
    violation: Violation
    note: str = ""


def _smallest(run: _Run, unreduced: _Counterexample, seed: int) -> _Counterexample:
    """The smallest violating input, or the original one if a second call shows no violation."""
    check, arguments, violation, _ = unreduced
    if run.subject.health.broken:
        return unreduced
    run.mark(check.law.id, "checking the counterexample once more")
    repeated_violation, *_ = attempt(run.subject, check, arguments.replaced({}), seed)
    if repeated_violation is None:
        return unreduced._replace(note=NOT_REPRODUCED)
    reduction = reduce_to_zeros if check.once else reduce_arguments
    smaller, its_violation = reduction(run.subject, check, arguments, violation, seed, run.mark)
    if violation.lasting and run.subject.health.renew():
        # Earlier candidates may have prepared the raise of the last one.
        again, *_ = attempt(run.subject, check, smaller.replaced({}), seed)
        if again is None or not again.lasting:
            return unreduced
    reduced = _Counterexample(check, smaller, its_violation)
    return (_of_formula(run, check.law, its_violation, seed) if check.once else None) or reduced


def _of_formula(run: _Run, law: Law, violation: Violation, seed: int) -> _Counterexample | None:
    """Find the smallest input that violates the formula, from the input of another law.

    For laws on gradients it may violate the formula's gradient. None if both hold. Other verdicts have no influence.
    """
    plain = run.plain_call(violation.arguments)
    if plain is None or violation.reason != Reason.VALUE:
        return None
    for root in _roots(law):
        check = CHECKS[root][0]
        run.mark(root, f"the arrays on which {law.id} fails")
        its_violation, *_ = attempt(run.subject, check, plain, seed)
        if its_violation is None or its_violation.reason != Reason.VALUE:
            continue
        smaller, its_violation = reduce_arguments(run.subject, check, plain, its_violation, seed, run.mark)
        if its_violation.message != violation.message:
            its_violation.message = f"{violation.message}; on the input below {its_violation.message}"
        return _Counterexample(check, smaller, its_violation)
    return None
