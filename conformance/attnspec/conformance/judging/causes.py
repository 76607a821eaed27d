"""Violations by their likely cause: which of them may be consequences of others."""

from collections.abc import Iterable

from attnspec.conformance.judging.profiles import FORMULA, GRADIENT
from attnspec.conformance.judging.results import UNJUDGED, Result
from attnspec.conformance.judging.violation import Reason
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.semantics import ASKED_BY

ROOTS = (FORMULA, GRADIENT)
"""Laws whose violation explains others: the formula, and its gradient."""


def by_cause(violations: Iterable[Result]) -> tuple[list[Result], list[Result]]:
    """The violations by likelihood of being a cause, and those that may be consequences of others.

    First come the formula and its gradient, then what may only have to be declared, then the rest; of each, those with
    a counterexample come first, and of those the laws that govern the fewest operations, which say most clearly what is
    wrong. Laws that were not judged after crashes are last.
    """
    results = list(violations)
    following = consequences(results)

    def rank(r: Result) -> tuple[int, bool, int]:
        kind = 3 if r.message.startswith(UNJUDGED) else 0 if r.law in ROOTS else 1 if _declarable(r) else 2
        return kind, r.counterexample is None, len(LAWS[r.law].operations)

    causes = [r for r in results if r not in following]
    return sorted(causes, key=rank), sorted(following, key=rank)


def consequences(violations: Iterable[Result]) -> list[Result]:
    """The violations that may vanish once the operation's formula holds; of gradients, once its gradient does.

    These are the laws of its numbers: a budget is what the formula's own result allows, so that results of the backend
    may miss it even among themselves. What was accepted, written to or observed to be another known choice stays.
    """
    results = list(violations)
    broken: dict[tuple[str, str], set[str | None]] = {}
    for r in results:
        if r.law in ROOTS and not r.message.startswith(UNJUDGED):
            broken.setdefault((r.operation, r.law), {Reason.VALUE, Reason.DECLARED}).add(r.reason)

    def follows(r: Result, root: str) -> bool:
        return r.reason in broken.get((r.operation, root), ()) and not _declarable(r)

    return [
        r
        for r in results
        if r.law != FORMULA
        and (follows(r, FORMULA) or (LAWS[r.law].gradients and r.law != GRADIENT and follows(r, GRADIENT)))
    ]


def _declarable(r: Result) -> bool:
    """Whether the backend was seen to make one of the known choices, though not the one that it declares."""
    question = ASKED_BY.get(r.law)
    return question is not None and r.observed in question.choices
