"""The command line ``attnspec``."""

import dataclasses
import os
import signal
import sys
import traceback
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console

from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.reporting.writing import (
    OutputFile,
    UnwritableError,
    guarded,
    open_standard_streams,
    write_files,
    write_report,
)
from attnspec.conformance.running.interruption import INTERRUPTION, SIGNALS
from attnspec.conformance.running.settings import HELP, Settings

if TYPE_CHECKING:
    from attnspec.conformance.reporting.report import Report

app = typer.Typer(
    name="attnspec",
    help="The executable specification of attention, and the suite that judges implementations by it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

MAX_HANG_AFTER = 86_400
"""Largest value of ``--hang-after``, in seconds."""

MAX_TIME_LIMIT = 31 * 86_400
"""Largest value of ``--time-limit``, in seconds: 31 days."""

WORKERS_PER_CORE = 4
"""Most workers per core; a larger ``--workers`` is reduced."""

PIPE_WIDTH = 10_000
"""Columns of output without a terminal: wider than any table."""

TEXT_WIDTH = 132
"""Columns of running text without a terminal."""

EXIT_STATUS = (
    "Exit status: 0 conforms, 1 violates, conforms only as declared below, or an expected failure passed, 2 the call "
    "or the backend cannot be used, the run ended early, or a report could not be written."
)
WORKERS = "number of worker processes; by default one per core"
IN_PROCESS = f"{HELP['in_process']}; or isolated from it, the default for all but attnspec's own backends"

AS_REPORTED = "as in the report"
"""Default, in help texts, of options of ``replay`` that the report sets."""


def _unusable(message: str) -> NoReturn:
    """End with status 2 and one line that names the cause."""
    from attnspec.conformance.judging.foreign_calls import printable

    sys.stderr.write(f"attnspec: {printable(message)}\n")
    raise typer.Exit(2)


def _console(width: int = PIPE_WIDTH, *, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal or ``COLUMNS``; else of ``width`` columns."""
    console = Console(stderr=stderr)
    if not console.file.isatty() and not os.environ.get("COLUMNS", "").isdigit():
        console.width = width
    return console


def _known_name(what: str, name: str, known: Iterable[str]) -> str:
    """Return a known name; for an unknown one end with status 2."""
    from attnspec.conformance.running.selection import unknown_name

    names = list(known)
    return name if name in names else _unusable(unknown_name(what, name, names))


def _print_errors(errors: Iterable[str]) -> None:
    for error in errors:
        sys.stderr.write(f"attnspec: {error}\n")


def _exit_with(report: "Report", errors: list[str]) -> NoReturn:
    """Print why a run ended early, and errors of writing; end with the status of the report."""
    if report.reason is not None:
        sys.stderr.write(f"attnspec: {report.reason}{'; the report has what was judged' if report.results else ''}\n")
    _print_errors(errors)
    raise typer.Exit(report.exit_status or (2 if errors else 0))


def _files(**paths: Path | None) -> dict[str, OutputFile]:
    """Return the output files by option; end with status 2 if two are the same."""
    files = {name: OutputFile(path, f"--{name}") for name, path in paths.items() if path is not None}
    for file in files.values():
        twin = next((f for f in files.values() if f is not file and f.path.resolve() == file.path.resolve()), None)
        if twin is not None:
            _unusable(f"{twin.option}: expected another file than that of {file.option}; got {str(twin.path)!r}")
        file.check()
    return files


def _processes(workers: int | None) -> int:
    """Return the number of workers: by default one per core, at most four per core."""
    if workers is not None and workers < 1:
        _unusable(f"--workers: expected at least 1; got {workers}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(workers or cores, WORKERS_PER_CORE * cores)


def _check_time_limit(seconds: float) -> None:
    if not 0 <= seconds <= MAX_TIME_LIMIT:
        _unusable(f"--time-limit: expected at least 0 and at most {MAX_TIME_LIMIT:,} seconds; got {seconds:g}")


def _print_version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        from attnspec.spec import VERSION

        sys.stdout.write(f"attnspec {VERSION}\n")
        raise typer.Exit


@app.callback()
def _signals(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Restore Python's signal handling, except for ``check`` and ``replay``, which report signals."""
    if context.invoked_subcommand not in ("check", "replay"):
        INTERRUPTION.disarm()


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="the file to write, such as mine.py", metavar="FILE")],
    framework: Annotated[str, typer.Option(help="torch, cuda, triton, jax, numpy, c or mlx")] = "torch",
) -> None:
    """Write an adapter that conforms, to put a kernel into."""
    from attnspec.conformance.templates import FRAMEWORKS, write_adapter

    written, build = write_adapter(_known_name("--framework", framework, FRAMEWORKS), file)
    sys.stdout.write(f"wrote: {', '.join(map(str, written))}\n")
    if build:
        sys.stdout.write(f"build: {build}\n")
    sys.stdout.write(f"judge: attnspec check {file}\n")


@app.command(help=f"Judge a backend by every law that governs its operations. {EXIT_STATUS}")
def check(
    backend: Annotated[
        str | None, typer.Argument(help="a registered name, package.module[:attribute], or path/to/file.py[:attribute]")
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(help="in place of BACKEND: the command of a program in any language, such as ./mine"),
    ] = None,
    profile: Annotated[str, typer.Option(help=HELP["profile"])] = Settings.profile,
    operation: Annotated[list[str] | None, typer.Option(help=HELP["operations"])] = None,
    law: Annotated[list[str] | None, typer.Option(help=HELP["laws"])] = None,
    dtype: Annotated[list[str] | None, typer.Option(help=HELP["dtypes"])] = None,
    device: Annotated[str, typer.Option(help=HELP["device"])] = Settings.device,
    seed: Annotated[int, typer.Option(help=HELP["seed"])] = Settings.seed,
    workers: Annotated[int | None, typer.Option(help=WORKERS)] = None,
    hang_after: Annotated[float, typer.Option(help=HELP["hang_after"])] = Settings.hang_after,
    time_limit: Annotated[float, typer.Option(help=HELP["time_limit"])] = Settings.time_limit,
    expect: Annotated[str | None, typer.Option(help=HELP["expect"])] = Settings.expect,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help=HELP["fail_fast"])] = Settings.fail_fast,
    accept_observed: Annotated[
        bool, typer.Option("--accept-observed", help=HELP["accept_observed"])
    ] = Settings.accept_observed,
    shard: Annotated[str | None, typer.Option(metavar="I/N", help=HELP["shard"])] = Settings.shard,
    in_process: Annotated[bool | None, typer.Option("--in-process/--isolated", help=IN_PROCESS)] = None,
    sandbox: Annotated[str, typer.Option(help=HELP["sandbox"])] = Settings.sandbox,
    json: Annotated[Path | None, typer.Option(help="write the report as JSON")] = None,
    html: Annotated[Path | None, typer.Option(help="write the report as a page")] = None,
    junit: Annotated[Path | None, typer.Option(help="write the report as JUnit XML")] = None,
) -> None:
    """Judge a backend by every law that governs its operations."""
    from attnspec.conformance.remote.command import PREFIX
    from attnspec.conformance.remote.loading import comes_with_attnspec

    if (backend is None) == (command is None):
        _unusable("check: expected a backend or --command; got " + ("neither" if backend is None else "both"))
    backend = backend or f"{PREFIX}{command}"
    operations, laws, dtypes = (tuple(dict.fromkeys(names or ())) for names in (operation, law, dtype))
    inside = comes_with_attnspec(backend) if in_process is None else in_process
    settings = Settings(
        profile, seed, device, operations, laws, dtypes, expect, inside, sandbox, hang_after, fail_fast, time_limit,
        accept_observed=accept_observed, shard=shard,
    )  # fmt: skip
    processes = _processes(workers)
    if not 0 < hang_after <= MAX_HANG_AFTER:
        _unusable(f"--hang-after: expected more than 0 and at most {MAX_HANG_AFTER:,} seconds; got {hang_after:g}")
    _check_time_limit(time_limit)
    files = _files(json=json, html=html, junit=junit)
    INTERRUPTION.hold()
    from attnspec.conformance.reporting.command_run import report_of_run

    report = report_of_run(backend, settings, processes, _console(stderr=True), shown=in_process is True)
    errors = write_report(report, files, _console())
    INTERRUPTION.disarm()
    _exit_with(report, errors)


@app.command(help=f"Merge the reports of all shards of a run into one. {EXIT_STATUS}")
def merge(
    reports: Annotated[list[Path], typer.Argument(help="the JSON reports of 'attnspec check --shard'")],
    json: Annotated[Path | None, typer.Option(help="write the report as JSON")] = None,
    html: Annotated[Path | None, typer.Option(help="write the report as a page")] = None,
    junit: Annotated[Path | None, typer.Option(help="write the report as JUnit XML")] = None,
) -> None:
    """Merge the reports of all shards of a run into one."""
    from attnspec.conformance.reporting.reading import merged

    files = _files(json=json, html=html, junit=junit)
    report = merged(reports)
    _exit_with(report, write_report(report, files, _console()))


@app.command(
    help="Judge again the laws that failed in a report of 'attnspec check --json', with its backend and settings. "
    "Exit status: 0 all of them hold now, 1 some are still violated, 2 the report or its backend cannot be used."
)
def replay(
    report: Annotated[Path, typer.Argument(help="a report as JSON", metavar="REPORT")],
    operation: Annotated[list[str] | None, typer.Option(help=HELP["operations"])] = None,
    law: Annotated[list[str] | None, typer.Option(help=HELP["laws"])] = None,
    dtype: Annotated[list[str] | None, typer.Option(help=HELP["dtypes"])] = None,
    workers: Annotated[int | None, typer.Option(help=WORKERS)] = None,
    time_limit: Annotated[float | None, typer.Option(help=HELP["time_limit"], show_default=AS_REPORTED)] = None,
    in_process: Annotated[bool | None, typer.Option("--in-process/--isolated", help=HELP["in_process"])] = None,
    sandbox: Annotated[str | None, typer.Option(help=HELP["sandbox"], show_default=AS_REPORTED)] = None,
) -> None:
    """Judge again the laws that failed in a report."""
    from attnspec.conformance.remote.folder import TemporaryFolder
    from attnspec.conformance.reporting.command_run import report_of_run
    from attnspec.conformance.reporting.failed_before import FailedBefore, print_new_verdicts

    processes = _processes(workers)
    _check_time_limit(time_limit or 0.0)
    try:
        earlier = FailedBefore.read(report)
    except BackendError as error:
        _unusable(f"replay: {error}")
    if not earlier.failures:
        _console().print(f"{report}: no failures", markup=False, highlight=False)
        raise typer.Exit(0)
    chosen = {"operation": operation or (), "law": law or (), "dtype": dtype or ()}
    for what, names in chosen.items():
        for name in names:
            _known_name(f"--{what}", name, dict.fromkeys(getattr(r, what) for r in earlier.failures))
    earlier = earlier.selected(**chosen)
    if not earlier.failures:
        _unusable(f"replay: expected options that together select a failure of {report}; they select none")
    INTERRUPTION.hold()
    with TemporaryFolder() as folder:
        only = Path(folder, "failures of the report")
        only.write_text(earlier.as_lines(), encoding="utf-8")
        options = {"time_limit": time_limit, "in_process": in_process, "sandbox": sandbox}
        changed: dict[str, Any] = {name: x for name, x in options.items() if x is not None}
        settings = dataclasses.replace(earlier.settings, only=str(only), **changed)
        new_report = report_of_run(earlier.backend, settings, processes, _console(stderr=True))
    if not new_report.results:
        _unusable(str(new_report.reason))
    if new_report.reason is not None:
        sys.stderr.write(f"attnspec: {new_report.reason}; the verdicts so far follow\n")
    raise typer.Exit(print_new_verdicts(earlier, new_report, _console()))


@app.command(
    help="Judge all kernels of a library without an adapter: every way to call them, at every dtype, forward and "
    "backward. Exit status: 0 the matrix is complete, whatever its verdicts; 2 it is incomplete or could not be made."
)
def matrix(
    library: Annotated[str, typer.Argument(help="the library: torch")],
    profile: Annotated[str, typer.Option(help=HELP["profile"])] = Settings.profile,
    device: Annotated[str, typer.Option(help="the device to run on")] = "cpu",
    seed: Annotated[int, typer.Option(help=HELP["seed"])] = Settings.seed,
    workers: Annotated[int | None, typer.Option(help=WORKERS)] = None,
    json: Annotated[Path | None, typer.Option(help="write the matrix as JSON")] = None,
    markdown: Annotated[Path | None, typer.Option(help="write the matrix as Markdown")] = None,
    html: Annotated[Path | None, typer.Option(help="write the matrix as a page")] = None,
) -> None:
    """Judge all kernels of a library, without an adapter."""
    from attnspec.conformance.judging.profiles import PROFILES

    _known_name("--profile", profile, PROFILES)
    processes = _processes(workers)
    files = _files(json=json, markdown=markdown, html=html)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            # Any of them is treated like Ctrl-C, so that the verdicts so far are reported.
            signal.signal(number, signal.default_int_handler)
    from attnspec.conformance.matrix.making import Maker
    from attnspec.conformance.matrix.rows import library as library_named

    settings = Settings(profile=profile, seed=seed, device=device)
    try:
        table = Maker(library_named(library), settings, processes, _console(stderr=True)).make()
    except BackendError as error:
        _unusable(str(error))
    from attnspec.conformance.matrix.cells import Matrix
    from attnspec.conformance.matrix.page import as_page
    from attnspec.conformance.matrix.rendering import as_markdown, print_matrix

    progress = f"the matrix of {library} was made"
    errors = write_files(table, {"json": Matrix.as_text, "markdown": as_markdown, "html": as_page}, files, progress)
    errors += guarded("table", partial(print_matrix, table, _console()), progress)
    _print_errors(errors)
    if table.interrupted:
        sys.stderr.write("attnspec: interrupted; the matrix has what was judged\n")
    if table.interrupted or errors:
        raise typer.Exit(2)


@app.command(name="list")
def list_(
    what: Annotated[
        str, typer.Argument(help="operations, laws, questions, precisions, backends or mutants")
    ] = "operations",
) -> None:
    """List the operations, laws, questions, precision classes, backends or mutants."""
    from attnspec.conformance.reporting.catalogue import CATALOGUES

    _console().print(CATALOGUES[_known_name("list", what, CATALOGUES)]())


@app.command()
def show(
    name: Annotated[
        str,
        typer.Argument(
            help="an operation, a law, a chapter, a precision class such as ieee32, or a question such as fully_masked",
            metavar="NAME",
        ),
    ],
) -> None:
    """Show an operation, law, chapter, precision class, or the choices of a question.

    An operation is shown with its formula, sources, shapes, edge cases and laws.
    """
    from attnspec.conformance.reporting.catalogue import described, mentioned, names
    from attnspec.conformance.running.selection import unknown_name

    known = list(names())
    if name not in known:
        _unusable(unknown_name("show", name, known) + mentioned(name))
    _console(TEXT_WIDTH).print(described(name))


@app.command()
def spec(
    markdown: Annotated[Path | None, typer.Option(help="write the specification as Markdown")] = None,
    html: Annotated[Path | None, typer.Option(help="write the specification as a page")] = None,
) -> None:
    """Print the whole specification, or write it to files."""
    from rich.markdown import Markdown

    from attnspec.conformance.reporting.specification import as_markdown, specification

    files = _files(markdown=markdown, html=html)
    sections = specification()
    if "markdown" in files:
        files["markdown"].write(as_markdown(sections))
    if "html" in files:
        from attnspec.conformance.reporting.page import as_page

        files["html"].write(as_page(sections))
    if not files:
        _console(TEXT_WIDTH).print(Markdown(as_markdown(sections)))


@app.command(help="Judge the suite itself: every mutant must be killed, no honest variant harmed.")
def mutants(
    profile: Annotated[str, typer.Option(help=HELP["profile"])] = Settings.profile,
    seeds: Annotated[int, typer.Option(min=1, help="number of seeds, counted from 0")] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(help="only this mutant or honest variant, or pattern such as 'base *'; may be repeated"),
    ] = None,
    matrix: Annotated[bool, typer.Option(help="run every law against every mutant")] = False,
    workers: Annotated[int | None, typer.Option(help=WORKERS)] = None,
    json: Annotated[Path | None, typer.Option(help="write the kill matrix as JSON")] = None,
    keep: Annotated[
        Path | None, typer.Option(help="store finished trials in this file; repeat only those whose code has changed")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="stop after so many minutes; --keep continues")] = None,
) -> None:
    """Judge the suite by its mutants and honest variants, and print the kill matrix."""
    from attnspec.conformance.judging.profiles import PROFILES
    from attnspec.conformance.mutants import MUTANTS
    from attnspec.conformance.reporting.kills import judge_mutants
    from attnspec.conformance.running.kept_trials import KeptTrials
    from attnspec.conformance.running.selection import matching
    from attnspec.conformance.variants import VARIANTS

    _known_name("--profile", profile, PROFILES)
    files = _files(json=json)
    names = [*MUTANTS, *VARIANTS]
    patterns = only or ["*"]
    for pattern in patterns:
        if not matching([pattern], names):
            _known_name("--only", pattern, names)
    matches = matching(patterns, names)
    chosen_mutants = {name: m for name, m in MUTANTS.items() if name in matches}
    chosen_variants = {name: v for name, v in VARIANTS.items() if name in matches}
    try:
        kept = None if keep is None else KeptTrials(keep)
    except (OSError, ValueError) as error:
        _unusable(f"--keep: {error}")
    status = judge_mutants(
        profile, seeds, matrix, workers, files.get("json"), _console(),
        mutants=chosen_mutants, variants=chosen_variants, kept=kept, minutes=minutes,
    )  # fmt: skip
    raise typer.Exit(status)


def _operations(count: int) -> str:
    return f"{count} operation{'' if count == 1 else 's'}"


vectors = typer.Typer(help="Golden cases of all operations, for programs in any language.", no_args_is_help=True)
app.add_typer(vectors, name="vectors")


@vectors.command()
def write(
    folder: Annotated[Path, typer.Argument(help="the folder to write to")],
    operation: Annotated[list[str] | None, typer.Option(help="only this operation; may be repeated")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="only this dtype; may be repeated")] = None,
    choice: Annotated[
        list[str] | None,
        typer.Option(help="a choice in place of the normative one, such as fully_masked=nan; may be repeated"),
    ] = None,
) -> None:
    """Write arguments, and an interval for every number of the results, as safetensors and JSON."""
    from rich.progress import Progress

    from attnspec.conformance.harness.vectors import DTYPES, write_vectors
    from attnspec.spec.contract.operation import OPERATIONS
    from attnspec.spec.contract.semantics import QUESTIONS

    known = {name: o for name, o in OPERATIONS.items() if not o.reference_only}
    chosen = [known[_known_name("--operation", name, known)] for name in operation or known]
    dtypes = [_known_name("--dtype", name, DTYPES) for name in dtype or DTYPES]
    choices = dict(text.partition("=")[::2] for text in choice or ())
    for question, answer in choices.items():
        _known_name(f"--choice {question}", answer, QUESTIONS[_known_name("--choice", question, QUESTIONS)].choices)
    with Progress(console=_console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(chosen))

        def started(name: str) -> None:
            progress.update(task, advance=1, description=name)

        try:
            count = write_vectors(folder, chosen, dtypes, choices, started)
        except OSError as error:
            _unusable(f"vectors write: expected a folder that can be written; got {str(folder)!r}: {error.strerror}")
    size = sum(file.stat().st_size for file in folder.iterdir())
    _console().print(f"{count} cases of {_operations(len(chosen))} in {folder}, {size / 1e6:.1f} MB")


@vectors.command(name="check")
def check_vectors_(
    folder: Annotated[Path, typer.Argument(help="the folder of 'attnspec vectors write'")],
    outputs: Annotated[Path, typer.Argument(help="the folder of your results, in files of the same names")],
) -> None:
    """Compare results with their intervals. Exit status: 0 all are right, 1 some are wrong, 2 none can be compared."""
    from attnspec.conformance.harness.vectors import check_vectors

    try:
        cases = list(check_vectors(folder, outputs))
    except ValueError as error:
        _unusable(f"vectors check: {error}")
    if not cases:
        _unusable(f"vectors check: {outputs}: expected files named as in {folder}; got none of them")
    wrong = [case for case in cases if case.fault]
    for case in wrong:
        _console().print(f"wrong: {case.name}: {case.fault}", markup=False, highlight=False)
    operations = _operations(len({case.operation for case in cases}))
    _console().print(f"{len(cases) - len(wrong)} of {len(cases)} cases of {operations} are right")
    raise typer.Exit(1 if wrong else 0)


def main() -> None:
    """Run the command."""
    open_standard_streams()
    if sys.flags.optimize > 1:
        sys.stderr.write("attnspec: expected Python with docstrings, which hold the formulas; got -OO\n")
        sys.exit(2)
    try:
        os.getcwd()
    except OSError as error:
        sys.stderr.write(f"attnspec: expected to be run in a folder that exists; got: {error.strerror}\n")
        sys.exit(2)
    try:
        app()
    except SystemExit as end:
        sys.stdout.flush()
        write_error = getattr(sys.stdout, "error", None)
        if write_error is None:
            raise
        sys.stderr.write(f"attnspec: standard output could not be written: {write_error.strerror}\n")
        sys.exit(end.code or 2)
    except (BackendError, UnwritableError) as error:
        sys.stderr.write(f"attnspec: {error}\n")
        sys.exit(2)
    except Exception:  # noqa: BLE001 - Python's exit status 1 would mean that the backend violates a law
        traceback.print_exc()
        sys.stderr.write("attnspec: an error of attnspec, so no verdict; please report it with the lines above\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
