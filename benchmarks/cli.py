"""Command line of the benchmarks."""

import itertools
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn, cast

import torch
import typer
from rich.console import Console

from attnspec.backends.pytorch.runtime.optional import HAS_TRITON
from benchmarks import calibration, ceilings, floors, page, table
from benchmarks.machine import described, load, usable_cores
from benchmarks.measuring import measure
from benchmarks.progress import CaseProgress
from benchmarks.records import FILE, present, read, write
from benchmarks.results import Measurement, Run, threads_suffix
from benchmarks.suites import SUITES, Settings

app = typer.Typer(
    help="Measure the PyTorch backend against PyTorch's own ways, in the root of a clone.\n\n"
    "All suites take 25 to 40 minutes on 4 cores, one suite at one size about a minute; --suite, --sizes, --threads, "
    "--seconds and --no-memory restrict a run, and --quick tries everything once.",
    add_completion=False,
    pretty_exceptions_enable=False,
)

WIDTH = 140
"""Width in columns of output that does not go to a terminal."""

INTERRUPTED = 130
"""Exit status of a run that was interrupted with Ctrl-C."""

UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__base__)
"""Base class of errors in arguments; Typer does not export it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; report wrong arguments in one line."""
    try:
        # a fresh cache: code compiled by earlier runs would shorten first calls
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            return app(arguments, prog_name="python -m benchmarks", standalone_mode=False) or 0
    except UsageError as error:
        sys.stderr.write(f"benchmarks: {error.format_message()}\n")
        return 2


def unusable(message: str) -> NoReturn:
    """Exit with status 2 and one line that names the cause."""
    sys.stderr.write(f"benchmarks: {message}\n")
    raise typer.Exit(2)


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Parse positive integers separated by commas; drop duplicates; exit with status 2 for other text."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() and int(part) for part in parts):
        unusable(f"{option}: expected positive integers separated by commas; got {text!r}")
    return tuple(dict.fromkeys(map(int, parts)))


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    suite: Annotated[list[str] | None, typer.Option(help="only this suite; may be repeated")] = None,
    case: Annotated[str, typer.Option(help="only cases whose names contain this, such as 'dot bf16'")] = "",
    sizes: Annotated[str, typer.Option(help="lengths instead of the usual ones, such as 512,1024")] = "",
    threads: Annotated[str, typer.Option(help="numbers of threads, such as 1,2; default: 1 and all cores")] = "",
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    rounds: Annotated[int, typer.Option(min=3, help="rounds of each case")] = 15,
    seconds: Annotated[float, typer.Option(min=0, help="end a case after these seconds and at least 3 rounds")] = 20,
    memory: Annotated[bool, typer.Option(help="measure peak memory, each in a process of its own")] = True,
    quick: Annotated[
        bool, typer.Option(help="smoke test: small sizes, 3 rounds, no memory, which overrides other options")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help=f"folder for {FILE}, README.md and plots; keeps earlier cases")
    ] = None,
    require: Annotated[bool, typer.Option(help="end with status 1 if a floor is missed")] = False,
) -> None:
    """Measure the suites."""
    if context.invoked_subcommand is not None:
        return
    for name in suite or ():
        if name not in SUITES:
            unusable(f"--suite: expected one of {', '.join(SUITES)}; got {name!r}")
    if device not in ("cpu", "cuda"):
        unusable(f"--device: expected cpu or cuda; got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        unusable("--device: expected a CUDA device on this machine; PyTorch finds none")
    settings = Settings(device, numbers("--sizes", sizes), quick)
    cores = usable_cores()
    counts = numbers("--threads", threads) or ((1,) if quick else tuple(sorted({1, cores})))
    if max(counts) > cores:
        unusable(f"--threads: expected at most {cores}, the cores that this process may use; got {max(counts)}")
    earlier = None if output is None else earlier_results(output, device)
    console = Console(stderr=True)
    progress, results, interrupted = CaseProgress(console), None, False
    try:
        with progress:
            for results in measure_suites(
                tuple(dict.fromkeys(suite or SUITES)), settings, counts if device == "cpu" else (0,),
                3 if quick else rounds, 1.0 if quick else seconds, memory and not quick, earlier, progress, case,
            ):  # fmt: skip
                if output is not None:
                    write(results, output)
    except KeyboardInterrupt:
        interrupted = True
    if results is not None:
        results = replace(results, machine={**results.machine, "load_after": load()})
        if output is not None:
            write(results, output)
            page.write(results, output, console)
        print_tables(results)
    if interrupted:
        sys.stderr.write(f"benchmarks: {interruption_notice(progress, results, output)}\n")
        raise typer.Exit(INTERRUPTED)
    if results is not None:
        check_floors(results, require)


def earlier_results(folder: Path, device: str) -> Run | None:
    """Return the results in the output folder, or None; make a missing folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        unusable(f"--output: expected a folder that can be written; got {folder}, where a file is in the way")
    except OSError as error:
        unusable(f"--output: expected a folder that can be written; got {folder}: {error.strerror}")
    if not os.access(folder, os.W_OK):
        unusable(f"--output: expected a folder that can be written; got {folder}, which is read-only")
    if not present(folder):
        return None
    try:
        earlier = read(folder)
        Run(described(device), device).merged_with(earlier)
    except ValueError as error:
        unusable(f"--output: expected an empty folder or results of this machine; {error}")
    return earlier


def measure_suites(
    suites: Sequence[str],
    settings: Settings,
    threads: Sequence[int],
    rounds: int,
    seconds: float,
    memory: bool,
    earlier: Run | None,
    progress: CaseProgress,
    name_part: str = "",
) -> Iterator[Run]:
    """Measure case by case; after each, yield all results so far, merged with ``earlier``."""
    run_so_far = Run(described(settings.device) | {"load_before": load()}, settings.device)
    results: list[Measurement] = []
    progress.phase("inputs")
    chosen = {name: [i for i, case in enumerate(SUITES[name](settings)) if name_part in case.key] for name in suites}
    if not any(chosen.values()):
        names = list(dict.fromkeys(case.key for name in suites for case in SUITES[name](settings)))
        if not names:
            unusable(f"--suite, --sizes: {', '.join(suites)} has no cases of such sizes")
        unusable(
            f"--case: expected a part of the name of a case; got {name_part!r}, and the chosen suites and sizes have "
            f"{len(names)} others, from {names[0]!r} to {names[-1]!r}"
        )
    progress.expect(len(threads) * sum(map(len, chosen.values())))
    for count in threads:
        if count:
            torch.set_num_threads(count)
        progress.phase("ceilings of the machine" + threads_suffix(count))
        rates = ceilings.measure(settings.device, quick=settings.quick)
        run_so_far = replace(run_so_far, ceilings={**run_so_far.ceilings, str(count): rates})
        for name in suites:
            for i, case in enumerate(SUITES[name](settings)):
                if i not in chosen[name]:
                    continue
                progress.case(f"{name}: {case.key}{threads_suffix(count)}")
                results += measure(
                    case, settings, rounds=rounds, seconds=seconds, memory=memory, step=progress.step
                )  # fmt: skip
                run_so_far = replace(run_so_far, measurements=tuple(results))
                yield run_so_far if earlier is None else run_so_far.merged_with(earlier)


def interruption_notice(progress: CaseProgress, results: Run | None, folder: Path | None) -> str:
    """Return a message on the results that an interrupted run kept, and how to continue."""
    state = f"interrupted in case {progress.started} of {progress.total}" if progress.started else "interrupted"
    if results is None:
        return f"{state}; no case was measured, and the same command starts again"
    if folder is None:
        return f"{state}; the cases before it are kept only with --output FOLDER"
    return (
        f"{state}; {folder} keeps the cases before it (python -m benchmarks report {folder}), and the same command "
        "measures all of them anew, or only the rest with --suite, --sizes and --threads"
    )


def print_tables(run: Run) -> None:
    """Print the tables as wide as the terminal, or ``WIDTH`` columns wide without a terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    for suite_table in table.tables(run, console.width):
        console.print(suite_table)


def check_floors(run: Run, require: bool) -> None:
    """Report missed floors and wrong subjects; with ``require`` they set the exit status to 1."""
    lines = floors.missed(run)
    for line in lines:
        sys.stderr.write(f"missed: {line}\n")
    if require:
        for line in floors.unchecked(run):
            sys.stderr.write(f"not checked: {line}\n")
        if lines:
            raise typer.Exit(1)


@app.command()
def calibrate(
    instructions: Annotated[str, typer.Option(help="avx2 on a processor with AVX-512; default: its own set")] = "",
    seconds: Annotated[float, typer.Option(min=0, help="end a case after these seconds and at least 3 rounds")] = 1.0,
    operation: Annotated[list[str] | None, typer.Option(help="only this operation; may be repeated")] = None,
) -> None:
    """Measure the paths on this machine and print a cost table of the backend."""
    for name in operation or ():
        if name not in calibration.OPERATIONS:
            unusable(f"--operation: expected one of {', '.join(calibration.OPERATIONS)}; got {name!r}")
    if instructions not in ("", "avx2", calibration.instruction_set()):
        unusable(f"--instructions: expected avx2, or left out; got {instructions!r}")
    narrower = instructions == "avx2" != calibration.instruction_set()
    chosen = operation or tuple(calibration.OPERATIONS)
    for line in calibration.as_avx2(seconds, chosen) if narrower else calibration.lines(seconds, chosen):
        print(line, flush=True)


@app.command()
def resources(
    size: Annotated[list[str] | None, typer.Option(help="only this size; may be repeated")] = None,
    capability: Annotated[
        list[int] | None, typer.Option(help="only this architecture, such as 90; may be repeated")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="only fp32, bf16 or fp16; may be repeated")] = None,
    output: Annotated[Path | None, typer.Option(help="write the numbers to this file, as JSON")] = None,
) -> None:
    """Print the resources of additive attention's Triton kernels on five GPUs.

    Needs Triton, and no GPU; all of it takes 23 minutes of processor time. Ends with status 1 if a kernel is over a
    limit of its GPU.
    """
    if not HAS_TRITON:
        unusable("resources: expected Triton; install triton, or attnspec[triton]")
    # these import Triton, which is optional
    from benchmarks import resources as kernels
    from benchmarks.compiled_kernels import DEVICES, SHORT

    chosen = {"--size": (size, kernels.SIZES), "--dtype": (dtype, SHORT.values()),
              "--capability": (capability, [device.capability for device in DEVICES])}  # fmt: skip
    for option, (values, known) in chosen.items():
        for value in values or ():
            if value not in known:
                unusable(f"{option}: expected one of {', '.join(map(str, known))}; got {value}")
    sizes, dtypes, capabilities = (values or known for values, known in chosen.values())
    configurations = ["-".join(map(str, parts)) for parts in itertools.product(capabilities, dtypes, sizes)]
    cores = usable_cores()
    # sizes share kernels, which a process compiles and disassembles once
    together = max(1, min(len(sizes), len(configurations) // cores))
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        rows = [row for part in pool.imap(kernels.configuration, configurations, together) for row in part]
    if output is not None:
        output.write_text(json.dumps(rows, indent=1) + "\n")
    console = Console()
    for made in (kernels.kernel_table(rows), kernels.size_table(rows)):
        (console if console.is_terminal else Console(width=WIDTH)).print(made)
    if any(map(kernels.over_limits, rows)):
        raise typer.Exit(1)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help=f"a folder with {FILE}")],
    require: Annotated[bool, typer.Option(help="end with status 1 if a floor is missed")] = False,
) -> None:
    """Print and draw earlier results."""
    try:
        results = read(folder)
    except ValueError as error:
        unusable(f"{folder}: expected a folder with {FILE}; {error}")
    print_tables(results)
    page.write(results, folder, Console(stderr=True))
    check_floors(results, require)
