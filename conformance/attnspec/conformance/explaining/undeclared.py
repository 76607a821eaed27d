"""Missing declarations: the choices, limits and precision classes under which violations vanish.

Nothing is guessed. A change of the declaration counts only if the failed laws were judged again under it and hold.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attnspec.conformance.explaining.classes import LEAST_USED, explaining_classes, widest
from attnspec.conformance.explaining.refusals import REFUSED, Refusals, says_refused
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import ANSWERED_OTHERWISE, Case, governing_laws
from attnspec.conformance.judging.profiles import FORMULA
from attnspec.conformance.judging.results import UNJUDGED, Result, Status, checked
from attnspec.conformance.judging.violation import Reason
from attnspec.conformance.laws import CHECKS
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.precision import DEFAULTS
from attnspec.spec.contract.semantics import QUESTIONS, Semantics

ENDED = {Reason.CRASHED, Reason.HUNG}

EXACTLY_SCALED = (64, 256, 16, 4)
"""Head sizes d with 1/√d a power of 2; sizes whose scores have many digits come first."""

OF_NUMBERS = {Reason.VALUE, Reason.DECLARED}
"""Reasons of violations that numbers outside of their budgets may have."""


Judging = Callable[[Contract, Case], list[Result]]
"""Judges a case under a contract, up to its first example that violates a law."""


@dataclass(frozen=True)
class Undeclared:
    """Changes of one case's declaration, and the laws that fail without them, by kind.

    ``semantics`` maps questions to choices, ``precision`` is a class or empty, ``limits`` maps fields to values; the
    field :data:`REFUSED` means that the dtype is not supported.
    """

    semantics: Mapping[str, Any] = field(default_factory=dict)
    precision: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)
    laws: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the explanation as plain JSON."""
        return {name: dict(x) if isinstance(x, Mapping) else x for name, x in vars(self).items()}


@dataclass
class Search:
    """Laws of a case that are still violated under the declarations so far."""

    judging: Judging
    contract: Contract
    case: Case
    refusals: Callable[[], Refusals]
    left: dict[str, Result]
    found: dict[str, Any] = field(default_factory=dict)
    laws: dict[str, str] = field(default_factory=dict)

    def judged(self, contract: Contract, laws: Iterable[str]) -> dict[str, Result]:
        """Return the verdicts of these laws under a contract; violations are not reduced."""
        found: dict[str, Result] = {}
        left = list(laws)
        while left:
            results = checked(self.judging(contract, replace(self.case, laws=tuple(left))))
            failed = {r.law: r for r in results if r.violates}
            found |= failed or {r.law: r for r in results}
            left = [law for law in left if failed and law not in failed]
        return found

    def take(self, kind: str, change: Any, contract: Contract, again: Mapping[str, Result]) -> bool:
        """Adopt a change of the declaration if a violated law holds under it."""
        gone = [law for law in self.left if not again[law].violates and not again[law].unchecked]
        if gone:
            self.contract, self.found[kind] = contract, change
            self.laws |= dict.fromkeys(gone, kind)
            self.left = {law: again[law] for law in self.left if law not in gone}
        return bool(gone)


def undeclared(
    judging: Judging, contract: Contract, case: Case, failed: Iterable[Result], refusals: Callable[[], Refusals]
) -> Undeclared:
    """Find the declarations under which a case's violations vanish, as far as they can be observed.

    ``refusals`` tries which inputs the backend refuses.
    """
    # A violation that did not recur in the second call would be explained by any declaration.
    seen = [r for r in failed if r.reason not in ENDED and ANSWERED_OTHERWISE not in r.note]
    left = {r.law: r for r in seen if not r.message.startswith(UNJUDGED)}
    if not left or any(r.law == FORMULA and r.law not in left for r in failed):
        return Undeclared()
    search = Search(judging, contract, case, refusals, left)
    for step in (_limits, _semantics, _precision, _limits):
        if search.left:
            step(search)
    return Undeclared(**search.found, laws=search.laws)


def _limits(search: Search) -> None:
    """Declare the inputs that the backend reports as unsupported."""
    if not any(r.reason == Reason.RAISED and says_refused(r.message) for r in search.left.values()):
        return
    refused = search.refusals()
    if refused.everything:
        search.found["limits"] = {REFUSED: True}
        search.laws |= dict.fromkeys(search.left, "limits")
        search.left = {}
    elif refused.limits and "limits" not in search.found:
        changed = replace(search.contract, limits=narrowed(search.contract.limits, refused.limits))
        search.take("limits", refused.limits, changed, search.judged(changed, search.left))


def narrowed(limits: Limits, change: Mapping[str, Any]) -> Limits:
    """Return limits with some fields changed; dtypes of single operations are restricted to the remaining ones."""
    dtypes = change.get("dtypes", limits.dtypes)
    own = {name: tuple(d for d in ds if d in dtypes) for name, ds in dict(limits.dtypes_by_operation).items()}
    return replace(limits, **change, dtypes_by_operation={name: ds for name, ds in own.items() if ds})


def _semantics(search: Search) -> None:
    """Declare the choices that were observed."""
    for _ in QUESTIONS:
        known = search.found.get("semantics", {})
        seen = {q: r.observed for q in QUESTIONS if (r := search.left.get(QUESTIONS[q].law)) and r.observed}
        chosen = {q: choice for q, word in seen.items() if (choice := _choice(q, word)) and q not in known}
        if not chosen:
            return
        changed = choosing(search.contract, search.case.operation, chosen)
        if not search.take("semantics", {**known, **chosen}, changed, search.judged(changed, search.left)):
            return


def choosing(contract: Contract, operation: str, chosen: Mapping[str, Any]) -> Contract:
    """Return a contract that also declares these choices for an operation."""
    declared = contract.semantics
    own = {**declared.per_operation, operation: Semantics.of({**vars(declared[operation]), **chosen})}
    return replace(contract, semantics=replace(declared, per_operation=own))


def unexplained(
    contract: Contract, case: Case, failed: Sequence[Result], explanation: Mapping[str, Any]
) -> tuple[Contract, Sequence[Result]]:
    """Return the violations left to diagnose, and the contract with the observed choices.

    If declarations explain all violations, all are diagnosed under the present declaration.
    """
    left = [r for r in failed if r.law not in explanation.get("laws", ())]
    if not explanation or not left:
        return contract, failed
    return choosing(contract, case.operation, explanation["semantics"]), left


def _choice(question: str, observed: str) -> Any:
    """Return an observed choice to declare, by masking method if given so; None if it is unknown."""
    if observed.startswith("{"):
        return json.loads(observed)
    return observed if observed in QUESTIONS[question].choices else None


def _precision(search: Search) -> None:
    """Declare the narrowest class that explains the numbers: formula and ensemble filters hold under it.

    Choices that could not be observed before may be visible under it.
    """
    if search.case.dtype not in DEFAULTS or not any(r.reason in OF_NUMBERS for r in search.left.values()):
        return
    governing = governing_laws(OPERATIONS[search.case.operation])
    filters = [law for law in governing if "ensemble" in law or any(check.ensemble for check in CHECKS[law])]
    declared = search.contract.precision.name(search.case.operation, search.case.dtype)
    classes = explaining_classes(declared, search.case.dtype, _violated_at_exact_scales(search))
    if not classes or _under(search, widest(classes[-1]))[1].violates:
        return
    # If only another law's arrays show the wrong formula, any class would explain its own examples.
    by_others = FORMULA in search.left and not search.judged(search.contract, [FORMULA])[FORMULA].violates
    for name in classes:
        trial, formula = _under(search, name)
        if formula.status is Status.PASSED and formula.error_ratio >= LEAST_USED:
            again = search.judged(trial.contract, dict.fromkeys([*search.left, *filters]))
            if by_others and any(r.violates and r.reason == Reason.VALUE for r in again.values()):
                continue
            if not any(again[law].violates for law in filters) and search.take(
                "precision", name, trial.contract, again
            ):
                search.found |= trial.found
                search.laws |= {law: kind for law, kind in trial.laws.items() if law in search.laws}
                return


def _violated_at_exact_scales(search: Search) -> bool:
    """Return true if numbers are still wrong for head sizes at which scaling a query rounds nothing."""
    declared = search.contract.limits.head_sizes
    size = next((size for size in EXACTLY_SCALED if declared is None or size in declared), None)
    if size is None or search.case.dtype not in NARROW:
        return False
    contract = replace(search.contract, limits=replace(search.contract.limits, head_sizes=(size,)))
    laws = [FORMULA, *(law for law, r in search.left.items() if r.reason == Reason.VALUE)]
    found = search.judged(contract, dict.fromkeys(laws)).values()
    return any(r.violates and r.reason == Reason.VALUE for r in found)


def _under(search: Search, name: str) -> tuple[Search, Result]:
    """Return the search continued under a class, with the choices observed there, and the formula's verdict."""
    operation, precision_ = search.case.operation, search.contract.precision
    own = {**precision_.per_operation.get(operation, {}), search.case.dtype: name}
    changed = replace(
        search.contract, precision=replace(precision_, per_operation={**precision_.per_operation, operation: own})
    )
    questions = [law for law in search.left if law.startswith("semantics.")]
    left = {law: r for law, r in search.judged(changed, questions).items() if r.violates}
    known = {"semantics": search.found["semantics"]} if "semantics" in search.found else {}
    trial = replace(search, contract=changed, left=left, found=known, laws={})
    _semantics(trial)
    return trial, trial.judged(trial.contract, [FORMULA])[FORMULA]
