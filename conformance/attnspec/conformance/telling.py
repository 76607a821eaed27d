"""A violated law in words."""

import json

from attnspec.conformance.results import Result
from attnspec.spec.law import LAWS

WIDEST = 160


def told(result: Result) -> str:
    """Law, statement, what was seen, the smallest input, and the snippet that shows it."""
    lines = [
        f"{result.law} is violated by {result.operation} ({result.dtype})",
        f"  {LAWS[result.law].statement}",
        f"  {result.message}",
    ]
    if result.counterexample is not None:
        lines += [f"  {name} = {_short(value)}" for name, value in result.counterexample["arguments"].items()]
        lines += ["", *(f"    {line}" for line in result.counterexample["snippet"].splitlines())]
    return "\n".join(lines)


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= WIDEST else text[:WIDEST] + " …"
