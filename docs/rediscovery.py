"""Generator of ``docs/rediscovery.md``: ``python docs/rediscovery.py``, some minutes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.rediscovered import REDISCOVERED, Rediscovered
from attnspec.conformance.running.trials import Trial, run_trial

HEAD = """# Rediscovery

Defects of attention kernels that somebody found and reported, each transcribed as a few lines from its report, and
judged by the suite as it is. A transcription is a correct backend in NumPy with one step altered to do what the report
says (`conformance/attnspec/conformance/rediscovered/`); nothing of the reported code is in it. The reports are cited;
the sentences are ours. If a report says only where a kernel is wrong, not how, the wrong step is our guess.

A profile convicts a defect if a law fails at each of three seeds, on the operation concerned. The table shows one law
that fails at seed 0, preferably one that judges examples, with the smallest input to which the failing example was
reduced. A law that makes its own inputs, in its own sizes, is shown with the input as it was made. Arrays of more than
four numbers are shown by their shapes, weights of layers and cells not at all.
Made by `python docs/rediscovery.py`, or `nox -s rediscovery`, from `attnspec.conformance.rediscovered`.
"""
CONVICTED = "## Convicted\n"
ESCAPED = """## Not convicted

The inputs that show these defects are not or too rarely among those of `full`, or were not yet tried at three seeds.
"""
SEPARATOR = " | "


class Verdict(NamedTuple):
    """A law that fails, and the smallest input on which it fails."""

    law: str
    counterexample_text: str


def cell(text: object) -> str:
    """Escape a text for a cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def link(r: Rediscovered) -> str:
    """Return a Markdown link to the report, with its title."""
    title = cell(r.title).replace("[", "\\[").replace("]", "\\]").replace("*", "\\*").replace("`", "")
    return f"[{r.source}]({r.address}): {title}"


def report_cells(r: Rediscovered) -> list[str]:
    """Return the cells of a defect: report, framework, statement, operation, dtype."""
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
        *(row(*report_cells(r), r.profile, *verdicts[r.source]) for r in convicted),
        "",
        ESCAPED,
        *table("report", "framework", "defect", "operation", "dtype", "needs"),
        *(row(*report_cells(r), cell(r.needs)) for r in escaped),
    ]
    return "\n".join(lines) + "\n"


def table(*names: str) -> list[str]:
    """Return the header lines of a Markdown table."""
    return [row(*names), "|" + "---|" * len(names)]


def row(*cells: str) -> str:
    """Return a row of a Markdown table."""
    return f"| {SEPARATOR.join(cells)} |"


def verdict(r: Rediscovered) -> Verdict:
    """Judge a defect, and reduce the failing input; ``RuntimeError`` if a seed does not convict."""
    failed = [[f.law for f in run_trial(Trial(r, r.profile, seed)).failures] for seed in range(3)]
    if not all(failed):
        raise RuntimeError(f"{r.source}: expected a conviction in {r.profile} at seeds 0 to 2; got {failed}")
    law = min(failed[0], key=lambda law: all(check.once for check in CHECKS[law]))
    contract = Contract.of(r.backend())
    (case,) = cases(contract, operations=r.operations, laws=(law,), dtypes=(r.dtype,))
    (result,) = judge(r.backend(), contract, case, PROFILES[r.profile])
    return Verdict(f"`{law}`", counterexample_text(result))


def counterexample_text(result: Result) -> str:
    """Return the arguments of the counterexample as text, without the weights in records."""
    if result.status is not Status.FAILED or result.counterexample is None:
        return "only in the whole run"
    arguments = result.counterexample["arguments"].items()
    return cell(", ".join(f"{path} {argument_text(x)}" for path, x in arguments if x is not None and "." not in path))


def argument_text(x: Any) -> str:
    """Return an argument as text: up to four numbers by value, others by shape."""
    shape = x["shape"] if isinstance(x, Mapping) else np.shape(x)
    if 0 < np.prod(shape, dtype=int) <= 4:
        return numbers_text(x)
    return f"({shape[0]})" if len(shape) == 1 else "×".join(map(str, shape))


def numbers_text(x: Any) -> str:
    """Return nested lists of numbers as text, rounded to four digits."""
    if isinstance(x, list):
        return f"[{', '.join(map(numbers_text, x))}]"
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
