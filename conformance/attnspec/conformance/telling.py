"""A violated law in words."""

import json

from attnspec.conformance.results import Result
from attnspec.spec.law import LAWS

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


def urgency(result: Result) -> int:
    """Where a violation stands among others: the formula first, then what may only want to be declared."""
    return 0 if result.law == "operation.oracle" else 1 if result.law.startswith("semantics.") else 2


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= WIDEST else text[:WIDEST] + " …"
