"""The command line of the benchmarks."""

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn, cast

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from benchmarks import ceilings, floors, table
from benchmarks.case import Case
from benchmarks.machine import described, load, usable_cores
from benchmarks.measuring import measure
from benchmarks.results import FILE, Measurement, Run, read
from benchmarks.suites import SUITES, Settings

app = typer.Typer(
    help="Measure the PyTorch backend against PyTorch's own ways.", add_completion=False, pretty_exceptions_enable=False
)

WIDTH = 140
"""Columns of output that goes into a file."""

UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__base__)
"""Every complaint about arguments; Typer exports this class under no name of its own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status. What is wrong with the arguments is said in one line."""
    try:
        # what earlier runs have compiled would make the first calls of this one look quick
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            return app(arguments, prog_name="python -m benchmarks", standalone_mode=False) or 0
    except UsageError as error:
        sys.stderr.write(f"benchmarks: {error.format_message()}\n")
        return 2


def unusable(message: str) -> NoReturn:
    """End with status 2 and one line that names the cause."""
    sys.stderr.write(f"benchmarks: {message}\n")
    raise typer.Exit(2)


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Positive integers, separated by commas."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) for part in found):
        unusable(f"{option}: expected positive integers separated by commas; got {text!r}")
    return tuple(map(int, found))


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    suite: Annotated[list[str] | None, typer.Option(help="only this suite; may be repeated")] = None,
    sizes: Annotated[str, typer.Option(help="lengths instead of the usual ones, such as 512,1024")] = "",
    threads: Annotated[str, typer.Option(help="numbers of threads on the CPU; 1 and all of them if not given")] = "",
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    rounds: Annotated[int, typer.Option(min=3, help="rounds of each case")] = 15,
    seconds: Annotated[float, typer.Option(min=0, help="end a case after these seconds and at least 3 rounds")] = 20,
    memory: Annotated[bool, typer.Option(help="measure peak memory, each in a process of its own")] = True,
    quick: Annotated[bool, typer.Option(help="small sizes and few rounds, to see that everything runs")] = False,
    output: Annotated[Path | None, typer.Option(help="folder for results.json, README.md and plots")] = None,
    require: Annotated[bool, typer.Option(help="end with status 1 if a floor is missed")] = False,
) -> None:
    """Measure."""
    if context.invoked_subcommand is not None:
        return
    for name in suite or ():
        if name not in SUITES:
            unusable(f"--suite: expected one of {', '.join(SUITES)}; got {name!r}")
    if device not in ("cpu", "cuda"):
        unusable(f"--device: expected cpu or cuda; got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        unusable("--device: expected a CUDA device on this machine; there is none: not measured on a GPU")
    settings = Settings(device, numbers("--sizes", sizes), quick)
    counts = numbers("--threads", threads) or ((1,) if quick else tuple(sorted({1, usable_cores()})))
    before = None
    if output is not None:
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            unusable(f"--output: expected a folder that can be written; {error}")
        if (output / FILE).exists():
            before = earlier(output, device)
    console = Console(stderr=True)
    found = measured(
        suite or list(SUITES), settings, counts if device == "cpu" else (0,),
        3 if quick else rounds, 1.0 if quick else seconds, memory and not quick, before, output, console,
    )  # fmt: skip
    shown(found)
    if output is not None:
        pictured(found, output, console)
    finish(found, require)


def earlier(folder: Path, device: str) -> Run:
    """Results that are in the folder already, to which new ones are added."""
    try:
        before = read(folder / FILE)
        Run(described(device), device).after(before)
    except ValueError as error:
        unusable(f"--output: expected an empty folder or results of this machine; {error}")
    return before


def measured(
    suites: Sequence[str],
    settings: Settings,
    threads: Sequence[int],
    rounds: int,
    seconds: float,
    memory: bool,
    before: Run | None,
    output: Path | None,
    console: Console,
) -> Run:
    """All cases of the suites, and those of an earlier run besides; written after every case."""
    found = Run(described(settings.device) | {"load_before": load()}, settings.device)
    results: list[Measurement] = []
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        planned = [(count, name) for count in threads for name in suites]
        task = progress.add_task("", total=len(planned))
        for count, name in planned:
            if count:
                torch.set_num_threads(count)
            if str(count) not in found.ceilings:
                rates = ceilings.measured(settings.device, quick=settings.quick)
                found = replace(found, ceilings={**found.ceilings, str(count): rates})
            for case in SUITES[name](settings):
                results += _case(case, settings, rounds, seconds, memory, progress, task)
                found = replace(found, measurements=tuple(results))
                if output is not None:
                    (found if before is None else found.after(before)).written(output / FILE)
            progress.advance(task)
    found = replace(found, machine={**found.machine, "load_after": load()})
    found = found if before is None else found.after(before)
    if output is not None:
        found.written(output / FILE)
    return found


def _case(
    case: Case, settings: Settings, rounds: int, seconds: float, memory: bool, progress: Progress, task: TaskID
) -> list[Measurement]:
    def note(text: str) -> None:
        progress.update(task, description=text)
        if not progress.console.is_terminal:
            progress.console.print(text, highlight=False)

    return measure(case, settings, rounds=rounds, seconds=seconds, memory=memory, note=note)


def shown(run: Run) -> None:
    """The tables; wide where nobody looks at them in a terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    for one in table.printed(run):
        console.print(one)


def pictured(run: Run, folder: Path, console: Console) -> None:
    """The page and the plots beside the results."""
    (folder / "README.md").write_text(table.markdown(run))
    try:
        from benchmarks.plot import drawn

        drawn(run, folder)
    except ImportError as error:
        console.print(f"no plots: {error.name} is not installed (the extra `bench` has it)", highlight=False)


def finish(run: Run, require: bool) -> None:
    """Say which floors are missed, and who was wrong; with ``require`` that is status 1."""
    lines = floors.missed(run)
    for line in lines:
        sys.stderr.write(f"missed: {line}\n")
    if require:
        for line in floors.unchecked(run):
            sys.stderr.write(f"not checked: {line}\n")
        if lines:
            raise typer.Exit(1)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help=f"a folder with {FILE}")],
    require: Annotated[bool, typer.Option(help="end with status 1 if a floor is missed")] = False,
) -> None:
    """Print and draw results that were measured before."""
    try:
        found = read(folder / FILE)
    except (OSError, ValueError) as error:
        unusable(f"{folder}: expected a folder with {FILE}; {error}")
    shown(found)
    pictured(found, folder, Console(stderr=True))
    finish(found, require)
