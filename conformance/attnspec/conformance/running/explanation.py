"""What a backend may only have to declare: the observed choices, limits and roundings under which violations vanish.

Nothing is guessed. A change of the declaration counts where the laws that failed were judged again under it, and hold.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import Case, governing_laws
from attnspec.conformance.judging.profiles import FORMULA
from attnspec.conformance.judging.results import UNJUDGED, Result, Status
from attnspec.conformance.judging.violation import Reason
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.running.refusals import REFUSED, Refusals, says_unsupported
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.precision import CLASSES, DEFAULTS, MODIFIERS, precision
from attnspec.spec.contract.semantics import QUESTIONS

LEAST_USED = 2.0**-5
"""The part of its budget that an implementation of a precision class uses at least; honest ones use a tenth and more.

Errors far below those that a class allows are no sign of the class.
"""

ENDED = {Reason.CRASHED, Reason.HUNG}


class Judging(Protocol):
    """What judges a case under a contract, up to its first example that violates a law."""

    def __call__(self, contract: Contract, case: Case) -> list[Result]: ...


@dataclass(frozen=True)
class Explanation:
    """Changes of the declaration for one case, and the laws that fail without them, by the kind of change.

    ``semantics`` maps questions to choices, ``precision`` is a class or empty, ``limits`` maps fields to values; that
    of :data:`REFUSED` says that the dtype is not supported.
    """

    semantics: Mapping[str, str] = field(default_factory=dict)
    precision: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)
    laws: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The explanation as plain JSON."""
        return {name: dict(x) if isinstance(x, Mapping) else x for name, x in vars(self).items()}


@dataclass
class Search:
    """The laws of a case that are violated still, under what is declared so far."""

    judging: Judging
    contract: Contract
    case: Case
    refusals: Refusals
    left: dict[str, Result]
    found: dict[str, Any] = field(default_factory=dict)
    laws: dict[str, str] = field(default_factory=dict)

    def judged(self, contract: Contract, laws: Iterable[str]) -> dict[str, Result]:
        """The verdicts of these laws under a contract; violations are not reduced."""
        found: dict[str, Result] = {}
        left = list(laws)
        while left:
            results = self.judging(contract, replace(self.case, laws=tuple(left)))
            failed = {r.law: r for r in results if r.violates}
            found |= failed or {r.law: r for r in results}
            left = [law for law in left if failed and law not in failed]
        return found

    def take(self, kind: str, change: Any, contract: Contract, again: Mapping[str, Result]) -> bool:
        """Take over a change of the declaration if a law that was violated holds under it."""
        gone = [law for law in self.left if not again[law].violates]
        if gone:
            self.contract, self.found[kind] = contract, change
            self.laws |= dict.fromkeys(gone, kind)
            self.left = {law: again[law] for law in self.left if law not in gone}
        return bool(gone)


def explained(
    judging: Judging, contract: Contract, case: Case, failed: Iterable[Result], refusals: Callable[[], Refusals]
) -> Explanation:
    """What has to be declared for a case so that its violations vanish, as far as that can be observed.

    ``refusals`` tries which inputs the backend refuses.
    """
    left = {r.law: r for r in failed if r.reason not in ENDED and not r.message.startswith(UNJUDGED)}
    if not left or any(r.law == FORMULA and r.law not in left for r in failed):
        return Explanation()
    search = Search(judging, contract, case, Refusals(), left)
    if any(r.reason == Reason.RAISED and says_unsupported(r.message) for r in left.values()):
        search.refusals = refusals()
    for step in (_limits, _semantics, _precision):
        if search.left:
            step(search)
    return Explanation(**search.found, laws=search.laws)


def _limits(search: Search) -> None:
    """Declare what the backend refuses, and says so."""
    if search.refusals.everything:
        search.found["limits"] = {REFUSED: True}
        search.laws |= dict.fromkeys(search.left, "limits")
        search.left = {}
    elif search.refusals.limits:
        limits = replace(search.contract.limits, **search.refusals.limits)
        changed = replace(search.contract, limits=limits)
        search.take("limits", search.refusals.limits, changed, search.judged(changed, search.left))


def _semantics(search: Search) -> None:
    """Declare the choices that were observed."""
    for _ in QUESTIONS:
        known = search.found.get("semantics", {})
        seen = {q: r.observed for q in QUESTIONS if (r := search.left.get(f"semantics.{q}")) and r.observed}
        chosen = {q: word for q, word in seen.items() if word in QUESTIONS[q].choices and q not in known}
        if not chosen:
            return
        operation, declared = search.case.operation, search.contract.semantics
        own = {**declared.per_operation, operation: replace(declared[operation], **chosen)}
        changed = replace(search.contract, semantics=replace(declared, per_operation=own))
        if not search.take("semantics", {**known, **chosen}, changed, search.judged(changed, search.left)):
            return


def _precision(search: Search) -> None:
    """Declare the least class that explains the numbers: the formula holds, and no filter finds a common error."""
    if search.case.dtype not in DEFAULTS or not any(r.reason == Reason.VALUE for r in search.left.values()):
        return
    operation, dtype = OPERATIONS[search.case.operation], search.case.dtype
    filters = [law for law in governing_laws(operation) if CHECKS[law].ensemble or "ensemble" in law]
    for name in wider_classes(search.contract.precision.name(operation.name, dtype), dtype):
        declared = search.contract.precision
        own = {**declared.per_operation.get(operation.name, {}), dtype: name}
        changed = replace(
            search.contract, precision=replace(declared, per_operation={**declared.per_operation, operation.name: own})
        )
        formula = search.judged(changed, [FORMULA])[FORMULA]
        if formula.status is Status.PASSED and formula.error_ratio >= LEAST_USED:
            again = search.judged(changed, dict.fromkeys([*search.left, *filters]))
            if not any(again[law].violates for law in filters):
                search.take("precision", name, changed, again)
            return


def wider_classes(declared: str, dtype: str) -> list[str]:
    """The classes of a dtype that allow more than the declared one, alone or with a modifier, the least first.

    Those of 8 bits are left out: most elements are not judged under them, so that they would explain anything.
    """
    base = [name for name, p in CLASSES.items() if p.dtype == dtype and not name.startswith("e4m3")]
    least, wider = _allowed(declared), dict[tuple[float, ...], str]()
    for name in (*base, *(f"{name}+{modifier}" for modifier in MODIFIERS for name in base)):
        allowed = _allowed(name)
        if allowed != least and all(a >= b for a, b in zip(allowed, least, strict=True)):
            wider.setdefault(allowed, name)
    return [wider[allowed] for allowed in sorted(wider, key=sum)]


def _allowed(name: str) -> tuple[float, ...]:
    """How much a class allows of each kind of rounding."""
    p = precision(name)
    one_pass = p.accumulation * p.one_pass
    return (p.accumulation, p.operand, p.inputs, p.stored, p.weights, p.output, p.tanh, p.bias, one_pass)
