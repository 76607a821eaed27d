"""The page and the pictures beside the results."""

import os
from collections.abc import Collection
from pathlib import Path

from rich.console import Console

from benchmarks.ceilings import LIMITS, RATES
from benchmarks.growth import FROM, growths
from benchmarks.results import Run
from benchmarks.table import COLUMNS, quantity, rows

PAGE = "README.md"
ROOT = Path(__file__).resolve().parents[1]


def written(run: Run, folder: Path, console: Console) -> None:
    """Draw a picture of every suite, where matplotlib is installed, and write the page."""
    pictures: list[Path] = []
    try:
        from benchmarks.plot import drawn

        pictures = drawn(run, folder)
    except ImportError as error:
        console.print(f"no plots: {error.name} is not installed (the extra `bench` has it)", highlight=False)
    page = markdown(run, docs=link(folder), pictures=[p.name for p in pictures])
    (folder / PAGE).write_text(page, encoding="utf-8")


def link(folder: Path) -> str:
    """How it is measured, as seen from a folder of the repository; nothing for one that is elsewhere."""
    folder = folder.resolve()
    if not folder.is_relative_to(ROOT):
        return ""
    return Path(os.path.relpath(ROOT / "docs" / "benchmarks.md", folder)).as_posix()


def markdown(run: Run, *, docs: str = "", pictures: Collection[str] = ()) -> str:
    """The page: machine, ceilings, a table for every suite, with its picture if there is one."""
    machine = run.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [
        f"# Measured on {machine['device']}",
        "",
        f"{machine['cores']} cores, {machine['instructions']}, {machine['system']}, Python {machine['python']},",
        f"{versions}.",
        f"Begun {machine['time']}{loads(run)}.",
        "Medians of interleaved rounds; ratios are within one run: `× baseline` against the first subject of a case,",
        "`× best other` against the fastest other one. `first` is the first call, with compilation and preparation;",
        "`of ceiling` is the part of the rate that limits the case; peaks are memory beyond the inputs.",
        *([f"[How it is measured]({docs})."] if docs else []),
        "",
        "| threads | " + " | ".join(RATES) + " |",
        "|---|" + "---|" * len(RATES),
    ]
    for threads, rates in run.ceilings.items():
        lines.append(f"| {threads} | " + " | ".join(f"{quantity(rates[r])}{u}" for r, u in RATES.items()) + " |")
    for suite in dict.fromkeys(m.suite for m in run.measurements):
        part = Run(run.machine, run.device, run.ceilings, [m for m in run.measurements if m.suite == suite])
        lines += ["", f"## {suite}", ""]
        if f"{suite}.svg" in pictures:
            lines += [f"![{suite}]({suite}.svg)", ""]
        lines += [f"The ceiling is {LIMITS[suite]}", ""] if suite in LIMITS else []
        lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows(part)]
        if grown := growths(part):
            lines += ["", f"Time grows as workᵖ, from {FROM} on:", ""]
            lines += ["| case | mode | threads | subject | sizes | p |", "|" + "---|" * 6]
            lines += [
                f"| {g.case} | {g.mode} | {g.threads or ''} | {g.subject} | {', '.join(map(str, g.sizes))} "
                f"| {g.exponent:.2f} |"
                for g in grown
            ]
    return "\n".join(lines) + "\n"


def loads(run: Run) -> str:
    """The machine's load, as far as it is known: a run that was killed has none for its end."""
    known = [(run.machine.get(f"load_{when}"), when) for when in ("before", "after")]
    said = [f"{load} {when}" for load, when in known if load is not None]
    return f", load {' and '.join(said)}" if said else ""
