"""Generator of ``docs/rediscovery.md``: ``python docs/rediscovery.py`` judges all convicted defects, in minutes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import cases, judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.rediscovered import REDISCOVERED, Rediscovered
from attnspec.conformance.running.trials import Task, perform

HEAD = """# Rediscovery

Defects of attention kernels that somebody found and reported, each transcribed as a few lines from its report, and
judged by the suite as it is. A transcription is a correct backend in NumPy with one step altered to do what the report
says (`conformance/attnspec/conformance/rediscovered/`); nothing of the reported code is in it. The reports are cited;
the sentences are ours, and where a report does not say how a kernel went wrong, only where, what goes wrong there is
ours too.

A profile convicts a defect if it does at each of three seeds, on the operation concerned. The law is one that fails at
seed 0 on the first example on which any does, preferably one that takes its input from there; the input is what that is
reduced to. A law that makes its inputs itself does so in sizes of its own; such an input is shown as it was made, not
reduced. Arrays of more than four numbers are given by their shapes, weights of layers and cells not at all.
Made by `python docs/rediscovery.py`, or `nox -s rediscovery`, from `attnspec.conformance.rediscovered`.
"""
CONVICTED = "## Convicted\n"
ESCAPED = """## Not convicted

What these defects need is not among the inputs of `full`, or too rarely, or was not yet tried at three seeds.
"""
SEPARATOR = " | "


class Verdict(NamedTuple):
    """A law that fails, and the smallest input on which it fails."""

    law: str
    smallest: str


def cell(text: object) -> str:
    """Escape a text for a cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def link(r: Rediscovered) -> str:
    """Link to the report, with its title."""
    title = cell(r.title).replace("[", "\\[").replace("]", "\\]").replace("*", "\\*").replace("`", "")
    return f"[{r.source}]({r.address}): {title}"


def described(r: Rediscovered) -> list[str]:
    """Cells from the transcription: report, framework, defect, operation, dtype."""
    return [link(r), cell(r.framework), cell(r.statement), f"`{r.operations[0]}`", r.dtype]


def page(verdicts: Mapping[str, Verdict]) -> str:
    """Return the whole page; ``verdicts`` are by report."""
    convicted = [r for r in REDISCOVERED.values() if r.convicted]
    escaped = [r for r in REDISCOVERED.values() if not r.convicted]
    lines = [
        HEAD,
        f"{len(REDISCOVERED)} defects, of which {len(convicted)} are convicted.\n",
        CONVICTED,
        *table("report", "framework", "defect", "operation", "dtype", "profile", "law", "smallest input"),
        *(row(*described(r), r.profile, *verdicts[r.source]) for r in convicted),
        "",
        ESCAPED,
        *table("report", "framework", "defect", "operation", "dtype", "needs"),
        *(row(*described(r), cell(r.needs)) for r in escaped),
    ]
    return "\n".join(lines) + "\n"


def table(*names: str) -> list[str]:
    """Header lines of a Markdown table."""
    return [row(*names), "|" + "---|" * len(names)]


def row(*cells: str) -> str:
    """Row of a Markdown table."""
    return f"| {SEPARATOR.join(cells)} |"


def verdict(r: Rediscovered) -> Verdict:
    """Judge a defect in its profile and reduce the failing input; ``RuntimeError`` if a seed convicts nothing."""
    failed = [[f.law for f in perform(Task(r, r.profile, seed)).failures] for seed in range(3)]
    if not all(failed):
        raise RuntimeError(f"{r.source}: expected a conviction in {r.profile} at seeds 0 to 2; got {failed}")
    law = min(failed[0], key=lambda law: all(check.once for check in CHECKS[law]))
    contract = Contract.of(r.backend())
    (case,) = cases(contract, operations=r.operations, laws=(law,), dtypes=(r.dtype,))
    (result,) = judge(r.backend(), contract, case, PROFILES[r.profile])
    return Verdict(f"`{law}`", smallest(result))


def smallest(result: Result) -> str:
    """Arguments of a counterexample, without the weights in records."""
    if result.status is not Status.FAILED or result.counterexample is None:
        return "only in the whole run"
    given = result.counterexample["arguments"].items()
    return cell(", ".join(f"{path} {shown(x)}" for path, x in given if x is not None and "." not in path))


def shown(x: Any) -> str:
    """Text of an argument: the value of up to four numbers, else the shape."""
    shape = x["shape"] if isinstance(x, Mapping) else np.shape(x)
    if 0 < np.prod(shape, dtype=int) <= 4:
        return written(x)
    return f"({shape[0]})" if len(shape) == 1 else "×".join(map(str, shape))


def written(x: Any) -> str:
    """Text of nested lists of numbers, rounded to four digits."""
    if isinstance(x, list):
        return f"[{', '.join(map(written, x))}]"
    return f"{x + 0.0:.4g}" if isinstance(x, float) else str(x)


def main() -> None:
    """Judge all convicted defects and write the page beside this file."""
    verdicts = {}
    for r in REDISCOVERED.values():
        if r.convicted:
            verdicts[r.source] = verdict(r)
            print(r.source, *verdicts[r.source], sep=": ", flush=True)
    Path(__file__).with_suffix(".md").write_text(page(verdicts), encoding="utf-8")


if __name__ == "__main__":
    main()
