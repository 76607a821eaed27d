"""Violations, separated into likely causes and their possible consequences."""

from collections.abc import Iterable

from attnspec.conformance.judging.profiles import FORMULA, GRADIENT
from attnspec.conformance.judging.results import UNJUDGED, Result
from attnspec.conformance.judging.violation import Reason
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.semantics import ASKED_BY

ROOTS = (FORMULA, GRADIENT)
"""Laws whose violation may explain others: the formula and its gradient."""


def by_cause(violations: Iterable[Result]) -> tuple[list[Result], list[Result]]:
    """Return likely causes, most likely first, and violations that may be their consequences.

    The formula and its gradient come first, then violations that a changed declaration may settle, then all others.
    Within a group, violations with a counterexample come first, and among them laws that govern the fewest operations,
    since they are the most specific. Laws left unjudged after crashes come last.
    """
    results = list(violations)
    following = consequences(results)

    def rank(r: Result) -> tuple[int, bool, int]:
        kind = 3 if r.message.startswith(UNJUDGED) else 0 if r.law in ROOTS else 1 if _declarable(r) else 2
        return kind, r.counterexample is None, len(LAWS[r.law].operations)

    causes = [r for r in results if r not in following]
    return sorted(causes, key=rank), sorted(following, key=rank)


def consequences(violations: Iterable[Result]) -> list[Result]:
    """Return the violations that may vanish once the operation's formula or its gradient is right.

    Wrong values and declarations may, since other laws' budgets assume right results. So may violations with that
    violation's reason: an operation that raises may do so under every law. A known choice that the backend makes but
    does not declare is a cause of its own.
    """
    results = list(violations)
    reasons_by_root: dict[tuple[str, str], set[str | None]] = {}
    for r in results:
        if r.law in ROOTS and not r.message.startswith(UNJUDGED):
            reasons_by_root.setdefault((r.operation, r.law), {Reason.VALUE, Reason.DECLARED}).add(r.reason)

    def follows(r: Result, root: str) -> bool:
        return r.reason in reasons_by_root.get((r.operation, root), ()) and not _declarable(r)

    return [
        r
        for r in results
        if r.law != FORMULA
        and (follows(r, FORMULA) or (LAWS[r.law].gradients and r.law != GRADIENT and follows(r, GRADIENT)))
    ]


def _declarable(r: Result) -> bool:
    """Return whether the backend made a known choice that it does not declare."""
    question = ASKED_BY.get(r.law)
    return question is not None and r.observed in question.choices
