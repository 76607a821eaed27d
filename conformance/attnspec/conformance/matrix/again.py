"""Laws judged a second time, because a tool failed or the profile had no example."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from attnspec.conformance.judging.results import Result
from attnspec.spec.contract.law import LAWS

MORE = {"quick": "full"}
"""Profile with more examples, for cells without any."""


@dataclass(frozen=True)
class Repeat:
    """An operation at a dtype, and its laws to judge again."""

    operation: str
    dtype: str
    laws: tuple[str, ...]


def failed_by(result: Result, tools: Collection[str]) -> bool:
    """Return whether a law fails because of a tool that the row needs, not the library."""
    return result.violates and any(tool in result.message for tool in tools)


def repeats(results: Sequence[Result], tools: Collection[str]) -> list[Repeat]:
    """Return the laws to judge again, per operation and dtype."""
    cases: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for r in results:
        cases[r.operation, r.dtype].append(r)
    found = []
    for (operation, dtype), those in cases.items():
        broken = tuple(r.law for r in those if failed_by(r, tools))
        if broken:
            found.append(Repeat(operation, dtype, broken))
    return found


def replaced(results: Sequence[Result], again: Sequence[Result]) -> list[Result]:
    """Return the verdicts, with those judged again in place of their first versions."""
    known = {(r.operation, r.dtype, r.law) for r in again}
    return [*(r for r in results if (r.operation, r.dtype, r.law) not in known), *again]


def laws_of(direction: str) -> tuple[str, ...]:
    """Return the laws of gradients for ``backward``, all others for ``forward``."""
    return tuple(i for i, law in LAWS.items() if law.gradients == (direction == "backward"))
