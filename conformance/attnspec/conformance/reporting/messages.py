"""A violated law in words."""

import json
from collections.abc import Iterable

from attnspec.conformance.judging.results import Result
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.semantics import QUESTIONS

FORMULA = "operation.oracle"

WIDEST = 160
LONGEST = 4000
"""Characters of a snippet that people are shown."""


def told(result: Result) -> str:
    """Law, statement, what was seen, the smallest input, and the snippet that shows it."""
    lines = [
        f"{result.law} is violated by {result.operation} ({result.dtype})",
        f"  {LAWS[result.law].statement}",
        f"  {result.message}",
    ]
    if result.counterexample is not None:
        lines += [f"  {name} = {_short(value)}" for name, value in result.counterexample["arguments"].items()]
        snippet = result.counterexample["snippet"]
        if len(snippet) > LONGEST:
            lines += [f"  The snippet is long ({len(snippet) / 1000:.0f} kB): it is in the JSON report."]
        else:
            lines += ["", *(f"    {line}" for line in snippet.splitlines())]
    return "\n".join(lines)


def ordered(bad: Iterable[Result]) -> list[Result]:
    """Violations by likelihood of cause: the formula, what may only want to be declared, others, consequences."""
    results = list(bad)
    later = consequences(results)

    def urgency(r: Result) -> tuple[int, bool]:
        stage = 3 if r in later else 0 if r.law == FORMULA else 1 if _declarable(r) else 2
        return stage, r.counterexample is None

    return sorted(results, key=urgency)


def consequences(bad: Iterable[Result]) -> list[Result]:
    """The violations that may vanish once the operation's formula holds.

    These are the laws of its numbers: a budget is what the formula's own result allows, so that results of the backend
    may miss it even among themselves. What was accepted, written to or observed to be another known choice stays.
    """
    results = list(bad)
    broken: dict[str, set[str | None]] = {}
    for r in results:
        if r.law == FORMULA:
            broken.setdefault(r.operation, {"value", "declared"}).add(r.reason)
    return [r for r in results if r.law != FORMULA and r.reason in broken.get(r.operation, ()) and not _declarable(r)]


def repair(later: Iterable[Result]) -> str:
    """The line that stands before consequences."""
    names = ", ".join(dict.fromkeys(r.operation for r in later))
    return f"What follows may be a consequence, and vanish once {FORMULA} holds for {names}:"


def _declarable(r: Result) -> bool:
    """Whether one of the known choices was observed, another than was declared."""
    question = QUESTIONS.get(r.law.removeprefix("semantics."))
    return question is not None and r.observed in question.choices


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= WIDEST else text[:WIDEST] + " …"
