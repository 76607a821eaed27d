"""What is judged a second time: what a tool has failed at, what was stopped for other dtypes, what had no example."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from attnspec.conformance.judging.results import UNJUDGED, Result
from attnspec.spec.contract.law import LAWS

MORE = {"quick": "full"}
"""The profile that has more examples, for cells of which one has none."""


@dataclass(frozen=True)
class Repeat:
    """An operation at a dtype, the laws to judge again, all if there are none, and why."""

    operation: str
    dtype: str
    laws: tuple[str, ...]
    why: str


def failed_by(result: Result, tools: Collection[str]) -> bool:
    """Whether a law fails because a tool that the row needs has failed, which says nothing of the library."""
    return result.violates and any(tool in result.message for tool in tools)


def repeats(results: Sequence[Result], tools: Collection[str]) -> list[Repeat]:
    """What of these verdicts is to be judged again, each operation at each dtype alone.

    Crashes at one dtype stop an operation at all of them; alone, each has those that are its own.
    """
    cases: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for r in results:
        cases[r.operation, r.dtype].append(r)
    found = []
    for (operation, dtype), those in cases.items():
        if len(cases) > 1 and any(r.message.startswith(UNJUDGED) for r in those):
            found.append(Repeat(operation, dtype, (), "it was stopped"))
            continue
        broken = tuple(r.law for r in those if failed_by(r, tools))
        if broken:
            found.append(Repeat(operation, dtype, broken, "a tool has failed"))
    return found


def replaced(results: Sequence[Result], again: Sequence[Result]) -> list[Result]:
    """Verdicts, some of which were made again."""
    known = {(r.operation, r.dtype, r.law) for r in again}
    return [*(r for r in results if (r.operation, r.dtype, r.law) not in known), *again]


def laws_of(direction: str) -> tuple[str, ...]:
    """The laws of gradients, or all others."""
    return tuple(i for i, law in LAWS.items() if law.gradients == (direction == "backward"))
