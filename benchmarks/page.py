"""README.md of a folder of results: tables and pictures of every suite."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.ceilings import CEILING_NOTES, RATES
from benchmarks.comparison import constants, reasons, rows, summary
from benchmarks.growth import MIN_SIZE
from benchmarks.records import FILE
from benchmarks.results import Run
from benchmarks.table import quantity

PAGE = "README.md"


def write(run: Run, folder: Path, console: Console) -> None:
    """Draw a picture of every suite, if matplotlib is installed, and write the page."""
    pictures: list[Path] = []
    try:
        from benchmarks.plot import draw

        pictures = draw(run, folder)
    except ImportError as error:
        console.print(f"no plots: {error.name} is not installed (the extra `bench` has it)", highlight=False)
    page = markdown(run, pictures=[path.name for path in pictures])
    (folder / PAGE).write_text(page, encoding="utf-8")


def markdown(run: Run, *, pictures: Collection[str] = ()) -> str:
    """Return the page: machine, ceilings, a summary of speedups, and each suite's table and picture."""
    machine = run.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    cores = "1 core" if machine["cores"] == 1 else f"{machine['cores']} cores"
    lines = [
        f"# Measured on {machine['device']}",
        "",
        f"{cores}, {machine['instructions']}, {machine['system']}, Python {machine['python']},",
        f"{versions}.",
        f"Started {machine['time']}{load_note(run)}.",
        "",
        "Times are medians of interleaved rounds. Speedups are those of attnspec within one run: over the baseline,",
        "the first subject of a suite, and over the fastest other subject of each case. `of ceiling` is the part of",
        "the rate below that limits the case, `p` the exponent of time ~ workᵖ over sizes from "
        f"{MIN_SIZE} on; peaks are",
        "memory beyond the inputs. `gain of threads` is how many times faster several threads are than one, as a part",
        "of what they gain in a loop of multiply-adds in the same rounds.",
        f"`{FILE}` has a line for each measurement, with quartiles, first call and error;",
        "`python -m benchmarks report FOLDER` prints first calls and rates too, and draws a picture of every suite.",
        "",
        *markdown_table([("threads", *RATES), *_ceilings(run)]),
        "",
        *markdown_table(list(summary(run))),
    ]
    for suite in dict.fromkeys(m.suite for m in run.measurements):
        part = replace(run, measurements=[m for m in run.measurements if m.suite == suite])
        lines += ["", f"## {suite}", ""]
        if f"{suite}.svg" in pictures:
            lines += [f"![{suite}]({suite}.svg)", ""]
        if constant_sizes := constants(part):
            lines += [f"{constant_sizes}.", ""]
        lines += [f"The ceiling is {CEILING_NOTES[suite]}", ""] if suite in CEILING_NOTES else []
        lines += markdown_table(list(rows(part)))
        if untimed := [f"- {reason}" for reason in reasons(part)]:
            lines += ["", "Not timed:", "", *untimed]
    return "\n".join(lines) + "\n"


def markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table; the first row is its header."""
    header, *others = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [header, "|" + "---|" * len(rows[0]), *others]


def _ceilings(run: Run) -> Iterator[Sequence[str]]:
    for threads, rates in run.ceilings.items():
        yield threads, *(f"{quantity(rates[r])}{unit}" if r in rates else "" for r, unit in RATES.items())


def load_note(run: Run) -> str:
    """Return the load before and after a run as text; killed runs lack the latter."""
    loads = [(run.machine.get(f"load_{when}"), when) for when in ("before", "after")]
    texts = [f"{load} {when}" for load, when in loads if load is not None]
    return f", load {' and '.join(texts)}" if texts else ""
