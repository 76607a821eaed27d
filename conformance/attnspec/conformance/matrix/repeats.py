"""Choice of laws to judge again, after a tool failed or without an example.

A *tool* is what a row needs besides its library, such as a compiler; ``tools`` are texts in its errors' messages.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from attnspec.conformance.judging.results import Result
from attnspec.spec.contract.law import LAWS

LARGER_PROFILE = {"quick": "full"}
"""Profile with more examples, for cells for which the matrix's profile has none."""


@dataclass(frozen=True)
class Repeat:
    """An operation at a dtype, and its laws to judge again."""

    operation: str
    dtype: str
    laws: tuple[str, ...]


def failed_by(result: Result, tools: Collection[str]) -> bool:
    """Return True if a law failed because of a tool, such as a compiler."""
    return result.violates and any(tool in result.message for tool in tools)


def repeats(results: Sequence[Result], tools: Collection[str]) -> list[Repeat]:
    """Return the laws that failed because of a tool, per operation and dtype."""
    cases: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for r in results:
        cases[r.operation, r.dtype].append(r)
    to_repeat = []
    for (operation, dtype), group in cases.items():
        broken = tuple(r.law for r in group if failed_by(r, tools))
        if broken:
            to_repeat.append(Repeat(operation, dtype, broken))
    return to_repeat


def replaced(results: Sequence[Result], new_results: Sequence[Result]) -> list[Result]:
    """Return the verdicts, with the first ones replaced by those that were judged again."""
    repeated = {(r.operation, r.dtype, r.law) for r in new_results}
    return [*(r for r in results if (r.operation, r.dtype, r.law) not in repeated), *new_results]


def laws_of(direction: str) -> tuple[str, ...]:
    """Return the laws of gradients for ``backward``, all others for ``forward``."""
    return tuple(i for i, law in LAWS.items() if law.gradients == (direction == "backward"))
