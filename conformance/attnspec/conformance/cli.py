"""The command line ``attnspec``."""

import dataclasses
import os
import signal
import sys
import traceback
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

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

UNCUT = 10_000
"""Columns of output to files and pipes: wider than any table, so that no line is cut."""

PAGE = 132
"""Columns of running text where the output is no terminal."""

EXITS = (
    "Exit status: 0 conforms, 1 violates or an expected failure passed, 2 the call or the backend cannot be used, the "
    "run ended early, or a report could not be written."
)
WORKERS = "worker processes; one for each core if not given"
IN_PROCESS = f"{HELP['in_process']}; or in another one, as all but attnspec's own backends are by default"

AS_REPORTED = "as in the report"
"""Default shown for the options of ``replay`` that the report itself sets."""


def _unusable(message: str) -> NoReturn:
    """End with status 2 and one line that names the cause."""
    from attnspec.conformance.judging.foreign_calls import printable

    sys.stderr.write(f"attnspec: {printable(message)}\n")
    raise typer.Exit(2)


def _console(width: int = UNCUT, *, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal or ``COLUMNS``; without either, ``width`` columns."""
    console = Console(stderr=stderr)
    if not console.file.isatty() and not os.environ.get("COLUMNS", "").isdigit():
        console.width = width
    return console


def _known(what: str, name: str, known: Iterable[str]) -> str:
    """Return a known name; for an unknown one end with status 2."""
    from attnspec.conformance.running.selection import unknown_name

    names = list(known)
    return name if name in names else _unusable(unknown_name(what, name, names))


def _say(errors: Iterable[str]) -> None:
    for error in errors:
        sys.stderr.write(f"attnspec: {error}\n")


def _files(**paths: Path | None) -> dict[str, OutputFile]:
    """Return the output files by option; end with status 2 if two options name the same file."""
    files = {name: OutputFile(path, f"--{name}") for name, path in paths.items() if path is not None}
    for file in files.values():
        twin = next((f for f in files.values() if f is not file and f.path.resolve() == file.path.resolve()), None)
        if twin is not None:
            _unusable(f"{twin.option}: expected another file than that of {file.option}; got {str(twin.path)!r}")
        file.check()
    return files


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_workers(workers: int | None) -> None:
    """End with status 2 if ``--workers`` is below 1."""
    if workers is not None and workers < 1:
        _unusable(f"--workers: expected at least 1; got {workers}")


def _processes(workers: int | None) -> int:
    """Return the number of worker processes: one per core by default, at most four per core."""
    return min(workers or _cores(), WORKERS_PER_CORE * _cores())


def _interrupt(signum: int, frame: object) -> NoReturn:
    """Treat signals like Ctrl-C, so that verdicts reached before them are reported."""
    raise KeyboardInterrupt


def _check_time_limit(seconds: float) -> None:
    if not 0 <= seconds <= MAX_TIME_LIMIT:
        _unusable(f"--time-limit: expected at least 0 and at most {MAX_TIME_LIMIT:,} seconds; got {seconds:g}")


@app.callback()
def _signals(context: typer.Context) -> None:
    """Restore Python's signal handling, except for ``check`` and ``replay``, which report what interrupted them."""
    if context.invoked_subcommand not in ("check", "replay"):
        INTERRUPTION.disarm()


@app.command(help=f"Judge a backend by every law that governs its operations. {EXITS}")
def check(
    backend: Annotated[
        str, typer.Argument(help="a registered name, package.module[:attribute], or path/to/file.py[:attribute]")
    ],
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
    in_process: Annotated[bool | None, typer.Option("--in-process/--isolated", help=IN_PROCESS)] = None,
    sandbox: Annotated[str, typer.Option(help=HELP["sandbox"])] = Settings.sandbox,
    json: Annotated[Path | None, typer.Option(help="write the report as JSON")] = None,
    html: Annotated[Path | None, typer.Option(help="write the report as a page")] = None,
    junit: Annotated[Path | None, typer.Option(help="write the report as JUnit XML")] = None,
) -> None:
    """Judge a backend by every law that governs its operations."""
    from attnspec.conformance.remote.loading import comes_with_attnspec

    operations, laws, dtypes = (tuple(dict.fromkeys(names or ())) for names in (operation, law, dtype))
    here = comes_with_attnspec(backend) if in_process is None else in_process
    settings = Settings(
        profile, seed, device, operations, laws, dtypes, expect, here, sandbox, hang_after, fail_fast, time_limit
    )
    _check_workers(workers)
    if not 0 < hang_after <= MAX_HANG_AFTER:
        _unusable(f"--hang-after: expected more than 0 and at most {MAX_HANG_AFTER:,} seconds; got {hang_after:g}")
    _check_time_limit(time_limit)
    files = _files(json=json, html=html, junit=junit)
    INTERRUPTION.hold()
    from attnspec.conformance.reporting.command_run import report_of_run

    report = report_of_run(backend, settings, _processes(workers), _console(stderr=True), shown=in_process is True)
    errors = write_report(report, files, _console())
    INTERRUPTION.disarm()
    if report.reason is not None:
        sys.stderr.write(f"attnspec: {report.reason}{'; the report has what was judged' if report.results else ''}\n")
    _say(errors)
    raise typer.Exit(report.exit_status or (2 if errors else 0))


@app.command(
    help="Judge again what failed in a report that --json wrote, with its backend and settings. "
    "Exit status: 1 if any of it is still violated, 0 if none is, 2 the report or its backend cannot be used."
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

    _check_workers(workers)
    _check_time_limit(time_limit or 0.0)
    try:
        before = FailedBefore.read(report)
    except BackendError as error:
        _unusable(f"replay: {error}")
    if not before.failures:
        _console().print(f"{report}: no failures", markup=False, highlight=False)
        raise typer.Exit(0)
    chosen = {"operation": operation or (), "law": law or (), "dtype": dtype or ()}
    for what, names in chosen.items():
        for name in names:
            _known(f"--{what}", name, dict.fromkeys(getattr(r, what) for r in before.failures))
    before = before.selected(**chosen)
    if not before.failures:
        _unusable(f"replay: expected a selection that has failed in {report}; got none that has")
    INTERRUPTION.hold()
    with TemporaryFolder() as folder:
        only = Path(folder, "failures of the report")
        only.write_text(before.as_lines(), encoding="utf-8")
        options = {"time_limit": time_limit, "in_process": in_process, "sandbox": sandbox}
        changed: dict[str, Any] = {name: x for name, x in options.items() if x is not None}
        settings = dataclasses.replace(before.settings, only=str(only), **changed)
        again = report_of_run(before.backend, settings, _processes(workers), _console(stderr=True))
    if not again.results:
        _unusable(str(again.reason))
    if again.reason is not None:
        sys.stderr.write(f"attnspec: {again.reason}; the report has what was judged\n")
    raise typer.Exit(print_new_verdicts(before, again, _console()))


@app.command(
    help="Judge, without an adapter, everything that a library offers: every way to call it, at every dtype, forward "
    "and backward. Exit status: 0 the matrix was made, whatever it shows, 2 it could not be made, or not to its end."
)
def matrix(
    library: Annotated[str, typer.Argument(help="a library that has a matrix: torch")],
    profile: Annotated[str, typer.Option(help=HELP["profile"])] = Settings.profile,
    device: Annotated[str, typer.Option(help=HELP["device"])] = Settings.device,
    seed: Annotated[int, typer.Option(help=HELP["seed"])] = Settings.seed,
    workers: Annotated[int | None, typer.Option(help=WORKERS)] = None,
    json: Annotated[Path | None, typer.Option(help="write the matrix as JSON")] = None,
    markdown: Annotated[Path | None, typer.Option(help="write the matrix as Markdown")] = None,
    html: Annotated[Path | None, typer.Option(help="write the matrix as a page")] = None,
) -> None:
    """Judge everything that a library offers, without an adapter."""
    from attnspec.conformance.judging.profiles import PROFILES

    _known("--profile", profile, PROFILES)
    _check_workers(workers)
    files = _files(json=json, markdown=markdown, html=html)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    from attnspec.conformance.matrix.making import Maker
    from attnspec.conformance.matrix.rows import library as library_named

    settings = Settings(profile=profile, seed=seed, device=device)
    try:
        made = Maker(library_named(library), settings, _processes(workers), _console(stderr=True)).make()
    except BackendError as error:
        _unusable(str(error))
    from attnspec.conformance.matrix.cells import Matrix
    from attnspec.conformance.matrix.page import as_page
    from attnspec.conformance.matrix.rendering import as_markdown, print_matrix

    known = f"the matrix of {library} was made"
    errors = write_files(made, {"json": Matrix.as_text, "markdown": as_markdown, "html": as_page}, files, known)
    errors += guarded("table", partial(print_matrix, made, _console()), known)
    _say(errors)
    if made.interrupted:
        sys.stderr.write("attnspec: interrupted; the matrix has what was judged\n")
    if made.interrupted or errors:
        raise typer.Exit(2)


@app.command(name="list")
def list_(
    what: Annotated[str, typer.Argument(help="operations, laws, backends or mutants")] = "operations",
) -> None:
    """List the operations, laws, backends or mutants."""
    from attnspec.conformance.reporting.catalogue import CATALOGUES

    _console().print(CATALOGUES[_known("list", what, CATALOGUES)]())


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="an operation, a law, a chapter, or a question such as fully_masked", metavar="NAME")
    ],
) -> None:
    """Show an operation (formula, sources, shapes, edges, laws), a law, a chapter, or the choices of a question."""
    from attnspec.conformance.reporting.catalogue import described, names

    _console(PAGE).print(described(_known("show", name, names())))


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
        _console(PAGE).print(Markdown(as_markdown(sections)))


@app.command(help="Judge the suite itself: every mutant must be killed, no honest variant harmed.")
def mutants(
    profile: Annotated[str, typer.Option(help=HELP["profile"])] = Settings.profile,
    seeds: Annotated[int, typer.Option(min=1, help="how many seeds, from 0")] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(help="only this mutant or honest variant, or those of a pattern: 'base *'; may be repeated"),
    ] = None,
    matrix: Annotated[bool, typer.Option(help="run every law against every mutant")] = False,
    workers: Annotated[int | None, typer.Option(help=WORKERS)] = None,
    json: Annotated[Path | None, typer.Option(help="write the kill matrix as JSON")] = None,
    keep: Annotated[
        Path | None, typer.Option(help="keep ended trials in this file, and repeat only those whose code has changed")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="end after these minutes; --keep goes on later")] = None,
) -> None:
    """Judge the suite by its mutants and honest variants, and print the kill matrix."""
    from attnspec.conformance.judging.profiles import PROFILES
    from attnspec.conformance.mutants import MUTANTS
    from attnspec.conformance.reporting.kills import judge_mutants
    from attnspec.conformance.running.kept_trials import KeptTrials
    from attnspec.conformance.running.selection import matching
    from attnspec.conformance.variants import VARIANTS

    _known("--profile", profile, PROFILES)
    files = _files(json=json)
    known = [*MUTANTS, *VARIANTS]
    patterns = only or ["*"]
    for pattern in patterns:
        if not matching([pattern], known):
            _known("--only", pattern, known)
    chosen = matching(patterns, known)
    judged = {name: m for name, m in MUTANTS.items() if name in chosen}
    spared = {name: v for name, v in VARIANTS.items() if name in chosen}
    try:
        kept = None if keep is None else KeptTrials(keep)
    except (OSError, ValueError) as error:
        _unusable(f"--keep: {error}")
    status = judge_mutants(
        profile, seeds, matrix, workers, files.get("json"), _console(),
        mutants=judged, variants=spared, kept=kept, minutes=minutes,
    )  # fmt: skip
    raise typer.Exit(status)


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
        full = getattr(sys.stdout, "error", None)
        if full is None:
            raise
        sys.stderr.write(f"attnspec: standard output could not be written: {full.strerror}\n")
        sys.exit(end.code or 2)
    except (BackendError, UnwritableError) as error:
        sys.stderr.write(f"attnspec: {error}\n")
        sys.exit(2)
    except Exception:  # noqa: BLE001 - Python would exit with 1, which says that a backend violates
        traceback.print_exc()
        sys.stderr.write("attnspec: an error of its own, and no verdict; please report it with the lines above\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
