"""Search for missing declarations: choices, limits and precision classes under which violations vanish.

Nothing is guessed: a change of the declaration counts only if violated laws, judged again under it, hold.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attnspec.conformance.explaining.explanations import NUMERICAL_REASONS
from attnspec.conformance.explaining.precision_classes import MIN_USED_BUDGET, explaining_classes, widest_class
from attnspec.conformance.explaining.refusals import REFUSED, TRIED_INPUTS, WORK, Refusals, says_refused
from attnspec.conformance.inputs.corners import corners
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.judging.attempt import attempt, stable_seed
from attnspec.conformance.judging.cases import Case, governing_laws
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import NOT_REPRODUCED
from attnspec.conformance.judging.profiles import FORMULA
from attnspec.conformance.judging.results import UNJUDGED, Result, Status, without_own_errors
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.laws.common import sample
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.precision import DEFAULTS
from attnspec.spec.contract.semantics import QUESTIONS, Semantics
from attnspec.spec.laws.operation import INDEPENDENT_OF_OTHER_CALLS

ENDED = {Reason.CRASHED, Reason.HUNG}  # a second try would end the process again

EXACTLY_SCALED = (64, 256, 16, 4)
"""Head sizes d for which 1/√d is a power of 2, preferred ones first."""

UNEQUAL = ((128, 129), (16, 17), (16, 257))
"""Numbers of queries and keys, of which a limit of lengths may exclude one."""

Judge = Callable[[Contract, Case], list[Result]]
"""Judges a case under a contract, up to its first example that violates a law."""


@dataclass(frozen=True)
class MissingDeclarations:
    """Changes of the declaration that explain violations of one case.

    ``semantics`` maps questions to choices, ``precision`` is a class or empty, and ``limits`` maps fields to values;
    the field :data:`REFUSED` means that the dtype is not supported. ``other_dtypes`` are those whose calls violate a
    law of this case: what explains them explains the law. ``laws`` maps each explained law to the kind of change that
    explains it, ``evidence`` each limit to what the backend does beyond it. ``withdrawn`` says which limits are not
    proposed although the backend refuses calls, and why.
    """

    semantics: Mapping[str, Any] = field(default_factory=dict)
    precision: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)
    other_dtypes: tuple[str, ...] = ()
    laws: Mapping[str, str] = field(default_factory=dict)
    evidence: Mapping[str, str] = field(default_factory=dict, compare=False)
    withdrawn: str = field(default="", compare=False)

    def as_json(self) -> dict[str, Any]:
        """Return the explanation as plain JSON."""
        return {name: dict(x) if isinstance(x, Mapping) else x for name, x in vars(self).items()}


@dataclass
class Search:
    """State of the search for one case: changes adopted so far, and laws still violated under them.

    ``counterexample`` is the formula's, which verdicts under other contracts do not have.
    """

    judging: Judge
    contract: Contract
    case: Case
    refusals: Callable[[], Refusals]
    violated: dict[str, Result]
    subject_under: Callable[[Contract], Subject]
    counterexample: Mapping[str, Any] | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    laws: dict[str, str] = field(default_factory=dict)
    evidence: Mapping[str, str] = field(default_factory=dict)

    def judge_again(self, contract: Contract, laws: Iterable[str]) -> dict[str, Result]:
        """Return the verdicts of these laws under a contract, without reducing violations.

        Judging ends at the first violating example, so that the other laws are judged again until none is left.
        """
        verdicts: dict[str, Result] = {}
        laws_left = list(laws)
        while laws_left:
            results = without_own_errors(self.judging(contract, replace(self.case, laws=tuple(laws_left))))
            failed = {r.law: r for r in results if r.violates}
            verdicts |= failed or {r.law: r for r in results}
            laws_left = [law for law in laws_left if failed and law not in failed]
        return verdicts

    def adopt(self, kind: str, change: Any, contract: Contract, new_verdicts: Mapping[str, Result]) -> bool:
        """Adopt a changed declaration, and return True, if a violated law holds under it."""
        explained = [law for law in self.violated if not new_verdicts[law].violates and not new_verdicts[law].unchecked]
        if explained:
            self.contract, self.changes[kind] = contract, change
            self.laws |= dict.fromkeys(explained, kind)
            self.violated = {law: new_verdicts[law] for law in self.violated if law not in explained}
        return bool(explained)


def missing_declarations(
    judging: Judge,
    contract: Contract,
    case: Case,
    failed: Iterable[Result],
    refusals: Callable[[], Refusals],
    subject_under: Callable[[Contract], Subject],
) -> MissingDeclarations:
    """Find the declarations, observable in a run, under which a case's violations vanish.

    ``refusals`` searches for the inputs that the backend refuses. ``subject_under`` makes a subject under a contract,
    with which counterexamples are tried again.
    """
    # Any declaration would seem to explain a violation that did not recur when the call was repeated.
    explainable = [r for r in failed if r.reason not in ENDED and NOT_REPRODUCED not in r.note]
    remaining = {r.law: r for r in explainable if not r.message.startswith(UNJUDGED)}
    if not remaining or any(r.law == FORMULA and r.law not in remaining for r in failed):
        return MissingDeclarations()
    counterexample = remaining[FORMULA].counterexample if FORMULA in remaining else None
    search = Search(judging, contract, case, refusals, remaining, subject_under, counterexample)
    # Limits come last again, since the other declarations change which violations remain.
    _take(search, _limits, _semantics, _precision, _limits, _returned_dtype, _other_dtypes)
    limits, withdrawn = search.changes.get("limits", {}).keys() - {REFUSED, "dtypes"}, ""
    # If a violation is left, the backend is convicted anyhow, and its limits are still worth reporting.
    if limits and not search.violated and (wrong := _wrong_beyond_limits(search, contract.limits)):
        withdrawn = f"limits {', '.join(sorted(limits))} of {case.operation}: not proposed, since {wrong}"
        search = replace(search, contract=contract, violated=remaining, changes={}, laws={}, evidence={})
        _take(search, _semantics, _precision, _returned_dtype, _other_dtypes)
    return MissingDeclarations(**search.changes, laws=search.laws, evidence=search.evidence, withdrawn=withdrawn)


def _take(search: Search, *steps: Callable[[Search], None]) -> None:
    """Take steps of the search until no violation is left."""
    for step in steps:
        if search.violated:
            step(search)


def _limits(search: Search) -> None:
    """Adopt limits that exclude the inputs that the backend reports as unsupported."""
    if not any(r.reason == Reason.RAISED and says_refused(r.message) for r in search.violated.values()):
        return
    refused = search.refusals()
    search.evidence = {name: f"raised {message}" for name, message in refused.exceptions.items() if message}
    if refused.everything:
        search.changes["limits"] = {REFUSED: True}
        search.laws |= dict.fromkeys(search.violated, "limits")
        search.violated = {}
    elif refused.limits and "limits" not in search.changes:
        changed = replace(search.contract, limits=narrowed(search.contract.limits, refused.limits))
        search.adopt("limits", refused.limits, changed, search.judge_again(changed, search.violated))


def _wrong_beyond_limits(search: Search, limits: Limits) -> str:
    """Return a call within ``limits``, those declared before the search, with wrong numbers; empty if there is none.

    A limit tells a user that other calls raise. It may be observed in calls with one option and with as many queries
    as keys, where a backend that forgets its check elsewhere returns numbers.
    """
    under = replace(search.contract, limits=limits)
    if under.semantics[search.case.operation].fully_masked == "zero":
        # Rows without keys, which depend on a choice that refusals may have hidden, are not compared.
        under = with_declared_choices(under, search.case.operation, {"fully_masked": "nan"})
    subject = search.subject_under(under)
    check, operation = CHECKS[FORMULA][0], subject.operation
    seed = stable_seed("beyond limits", operation.name, subject.dtype)
    examples = corners(operation, limits, seed=seed, most=TRIED_INPUTS, work=WORK)
    inputs = [subject.arguments(example) for example in examples]
    if not operation.attends_to_itself:
        unequal = [(n, m) for a, b in UNEQUAL for n, m in ((a, b), (b, a))]
        inputs += [sample(subject, np.random.default_rng(0), queries=n, keys=m, features=16) for n, m in unequal]
    for arguments in inputs:
        violation, *_ = attempt(subject, check, arguments, 0)
        if violation is not None and violation.reason == Reason.VALUE:
            options = [f"{name} = {x}" for name, x in arguments.sizes.items()]
            options += [name for name in arguments.passed if name in operation.defaults]
            return f"a call beyond them, with {', '.join(options)}, raises nothing: {violation.message}"
    return ""


def narrowed(limits: Limits, change: Mapping[str, Any]) -> Limits:
    """Return changed limits; dtypes of single operations are restricted to the remaining dtypes."""
    dtypes = change.get("dtypes", limits.dtypes)
    supported = {name: tuple(d for d in ds if d in dtypes) for name, ds in dict(limits.dtypes_by_operation).items()}
    return replace(limits, **change, dtypes_by_operation={name: ds for name, ds in supported.items() if ds})


def _semantics(search: Search) -> None:
    """Adopt the observed choices; judging under them may reveal further ones, at most one per question."""
    for _ in QUESTIONS:
        known = search.changes.get("semantics", {})
        observed = {q: r.observed for q in QUESTIONS if (r := search.violated.get(QUESTIONS[q].law)) and r.observed}
        choices = {q: choice for q, answer in observed.items() if (choice := _choice(q, answer)) and q not in known}
        if not choices:
            return
        changed = with_declared_choices(search.contract, search.case.operation, choices)
        if not search.adopt("semantics", {**known, **choices}, changed, search.judge_again(changed, search.violated)):
            return


def with_declared_choices(contract: Contract, operation: str, chosen: Mapping[str, Any]) -> Contract:
    """Return a contract that assumes these choices of an operation."""
    declared = contract.semantics
    by_operation = {**declared.per_operation, operation: Semantics.of({**vars(declared[operation]), **chosen})}
    semantics = replace(declared, per_operation=by_operation)
    return replace(contract, semantics=semantics, assumed={**contract.assumed, **chosen})


def unexplained(
    contract: Contract, case: Case, failed: Sequence[Result], explanation: Mapping[str, Any]
) -> tuple[Contract, Sequence[Result]]:
    """Return the contract with the observed choices, and the violations still to be diagnosed.

    A violation that a choice or a limit explains is not diagnosed: a known defect that gives these numbers would say
    less. If declarations explain all violations, those of a precision class are diagnosed, since a class limits the
    size of errors, not their cause.
    """
    laws = explanation.get("laws", {})
    if not explanation:
        return contract, failed
    violated = [r for r in failed if r.law not in laws] or [r for r in failed if laws[r.law] == "precision"]
    return with_declared_choices(contract, case.operation, explanation["semantics"]), violated


def _choice(question: str, observed: str) -> Any:
    """Return an observed choice in the form of a declaration; None if it is unknown."""
    if observed.startswith("{"):
        return json.loads(observed)
    return observed if observed in QUESTIONS[question].choices else None


def _precision(search: Search) -> None:
    """Adopt the narrowest precision class under which the formula's law and all ensemble filters hold.

    Choices that could not be observed under the declared class may become visible under it, and are adopted too.
    """
    if search.case.dtype not in DEFAULTS or not any(r.reason in NUMERICAL_REASONS for r in search.violated.values()):
        return
    governing = governing_laws(OPERATIONS[search.case.operation])
    filters = [law for law in governing if "ensemble" in law or any(check.ensemble for check in CHECKS[law])]
    declared = search.contract.precision.name(search.case.operation, search.case.dtype)
    classes = explaining_classes(declared, search.case.dtype, _violated_at_exact_scales(search))
    if not classes or _search_under(search, widest_class(classes[-1]))[1].violates:
        return
    # The formula may have failed only on another law's inputs. Its own examples then hold under any class and are no
    # evidence: a class has to settle all wrong values.
    holds_alone = FORMULA in search.violated and not search.judge_again(search.contract, [FORMULA])[FORMULA].violates
    for name in classes:
        trial, formula = _search_under(search, name)
        if formula.status is Status.PASSED and formula.error_ratio >= MIN_USED_BUDGET:
            verdicts = search.judge_again(trial.contract, dict.fromkeys([*search.violated, *filters]))
            if holds_alone and any(r.violates and r.reason == Reason.VALUE for r in verdicts.values()):
                continue
            if any(verdicts[law].violates for law in filters) or _counterexample_is_wrong(search, trial.contract):
                continue
            if search.adopt("precision", name, trial.contract, verdicts):
                search.changes |= trial.changes
                search.laws |= {law: kind for law, kind in trial.laws.items() if law in search.laws}
                return


def _returned_dtype(search: Search) -> None:
    """Leave out a dtype whose calls are computed in a narrower one and return that."""
    if "precision" in search.changes and all(r.reason == Reason.DTYPE for r in search.violated.values()):
        search.evidence = {REFUSED: f"returns another dtype: {next(iter(search.violated.values())).message}"}
        search.laws |= dict.fromkeys(search.violated, "limits")
        search.laws = dict.fromkeys(search.laws, "limits")
        search.changes, search.violated = {"limits": {REFUSED: True}}, {}


def _other_dtypes(search: Search) -> None:
    """Set aside violations by calls in other dtypes: what those dtypes declare decides on them."""
    law, dtype = INDEPENDENT_OF_OTHER_CALLS.id, search.case.dtype
    dtypes = search.contract.limits.dtypes_for(search.case.operation)
    if law not in search.violated or dtype not in dtypes:
        return
    # The law calls in the next dtype; without that, in the one after.
    start = dtypes.index(dtype) + 1
    following = (*dtypes[start:], *dtypes[: start - 1])
    for count in range(1, len(following) + 1):
        left = tuple(d for d in dtypes if d not in following[:count])
        changed = replace(search.contract, limits=narrowed(search.contract.limits, {"dtypes": left}))
        verdict = search.judge_again(changed, [law])[law]
        if not verdict.violates and not verdict.unchecked:
            search.adopt("other_dtypes", following[:count], changed, {**search.violated, law: verdict})
            return


def _counterexample_is_wrong(search: Search, contract: Contract) -> bool:
    """Return True if the formula's smallest counterexample still violates it under another contract.

    On the random inputs of a case a defect may be small enough for a wider class, such as one key of many left out;
    its smallest input shows it best. Counterexamples of large arrays are not kept, and not tried.
    """
    shown = search.counterexample["arguments"] if search.counterexample and FORMULA in search.violated else {}
    if not shown or any(isinstance(x, Mapping) for x in shown.values()):
        return False
    subject = search.subject_under(contract)
    template = sample(subject, np.random.default_rng(0))
    if set(shown) != {path for path, _ in template.items()}:
        return False
    floats = {leaf.path for leaf, _ in template.floats}
    arrays = {path: np.asarray(x, np.float64 if path in floats else None) for path, x in shown.items() if x is not None}
    values = {path: subject.exact(x) if path in floats else x if x.ndim else x.item() for path, x in arrays.items()}
    violation, *_ = attempt(subject, CHECKS[FORMULA][0], template.replaced({**shown, **values}), 0)
    # An input that the backend refuses may lie outside of limits that were adopted before.
    return violation is not None and violation.reason == Reason.VALUE


def _violated_at_exact_scales(search: Search) -> bool:
    """Return True if numbers are wrong even where scaling queries by 1/√d rounds nothing.

    Then the cause is not a rounding of scaled queries, which the ``prescaled-*`` classes of 16-bit dtypes allow. The
    case is judged again with the first head size of ``EXACTLY_SCALED`` that the limits allow.
    """
    declared = search.contract.limits.head_sizes
    size = next((size for size in EXACTLY_SCALED if declared is None or size in declared), None)
    if size is None or search.case.dtype not in NARROW:
        return False
    contract = replace(search.contract, limits=replace(search.contract.limits, head_sizes=(size,)))
    laws = [FORMULA, *(law for law, r in search.violated.items() if r.reason == Reason.VALUE)]
    verdicts = search.judge_again(contract, dict.fromkeys(laws)).values()
    return any(r.violates and r.reason == Reason.VALUE for r in verdicts)


def _search_under(search: Search, name: str) -> tuple[Search, Result]:
    """Return the search continued under a precision class, and the formula's verdict there."""
    operation, declared = search.case.operation, search.contract.precision
    classes = {**declared.per_operation.get(operation, {}), search.case.dtype: name}
    precision = replace(declared, per_operation={**declared.per_operation, operation: classes})
    changed = replace(search.contract, precision=precision)
    questions = [law for law in search.violated if law.startswith("semantics.")]
    violated = {law: r for law, r in search.judge_again(changed, questions).items() if r.violates}
    known = {"semantics": search.changes["semantics"]} if "semantics" in search.changes else {}
    trial = replace(search, contract=changed, violated=violated, changes=known, laws={})
    _semantics(trial)
    return trial, trial.judge_again(trial.contract, [FORMULA])[FORMULA]
