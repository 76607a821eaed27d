"""The command ``attnspec``."""

import io
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

app = typer.Typer(
    name="attnspec",
    help="The executable specification of attention, and the suite that judges implementations by it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

LONGEST_CHECK = 86_400
"""Seconds that one check may be given."""

WORKERS_PER_CORE = 4

UNCUT = 10_000
"""Columns of what is no terminal: no table is as wide, so that nothing is cut in a file or a pipe."""

PAGE = 110
"""Columns of running text there, and on the page of ``attnspec spec --html``."""

EXITS = "Exit status: 0 conforms, 1 violates, 2 the call or the backend cannot be used."


def _unusable(message: str) -> NoReturn:
    """End with status 2 and one line that names the cause."""
    sys.stderr.write(f"attnspec: {message}\n")
    raise typer.Exit(2)


def _console(elsewhere: int = UNCUT, *, stderr: bool = False) -> Console:
    """Where people read: as wide as the terminal, or as COLUMNS says; elsewhere of this width."""
    console = Console(stderr=stderr)
    if not console.file.isatty() and not os.environ.get("COLUMNS", "").isdigit():
        console.width = elsewhere
    return console


def _among(what: str, given: list[str], known: list[str]) -> tuple[str, ...]:
    from attnspec.conformance.running.selection import misnamed

    for name in given:
        if name not in known:
            _unusable(misnamed(what, name, known))
    return tuple(dict.fromkeys(given))


def _writable(path: Path | None, option: str) -> None:
    if path is None:
        return
    existed = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        _unusable(f"{option}: expected a file that can be written; got {str(path)!r}: {error.strerror}")
    if not existed:
        path.unlink()


def _write(text: str, path: Path, option: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        _unusable(f"{option}: {str(path)!r} could not be written: {error.strerror}")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _terminate(signum: int, frame: object) -> NoReturn:
    """Being told to end is like Ctrl-C: what was judged is reported."""
    raise KeyboardInterrupt


@app.command(help=f"Judge a backend by every law that governs its operations. {EXITS}")
def check(
    backend: Annotated[
        str, typer.Argument(help="a registered name, package.module[:attribute], or path/to/file.py[:attribute]")
    ],
    profile: Annotated[str, typer.Option(help="how much is tried: quick, full or release")] = "quick",
    operation: Annotated[list[str] | None, typer.Option(help="only this operation; may be repeated")] = None,
    law: Annotated[list[str] | None, typer.Option(help="only this law; may be repeated")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="only this dtype; may be repeated")] = None,
    device: Annotated[str, typer.Option(help="the device to run on")] = "cpu",
    seed: Annotated[int, typer.Option(help="the seed of all examples; the same seed gives the same verdicts")] = 0,
    workers: Annotated[int | None, typer.Option(help="worker processes; one for each core if not given")] = None,
    hang_after: Annotated[float, typer.Option(help="seconds that one check may take before it counts as hung")] = 20.0,
    json: Annotated[Path | None, typer.Option(help="write the report as JSON")] = None,
    html: Annotated[Path | None, typer.Option(help="write the report as a page")] = None,
    junit: Annotated[Path | None, typer.Option(help="write the report as JUnit XML")] = None,
) -> None:
    """Judge a backend."""
    from attnspec.conformance.running.checking import Probe

    _among("--profile", [profile], ["quick", "full", "release"])
    if workers is not None and workers < 1:
        _unusable(f"--workers: expected at least 1; got {workers}")
    if not 0 < hang_after <= LONGEST_CHECK:
        _unusable(f"--hang-after: expected more than 0 and at most {LONGEST_CHECK:,} seconds; got {hang_after:g}")
    for path, option in ((json, "--json"), (html, "--html"), (junit, "--junit")):
        _writable(path, option)
    started = time.monotonic()
    signal.signal(signal.SIGTERM, _terminate)
    probe = Probe(backend, device)
    try:
        status = _check(
            probe,
            {"operation": operation or [], "law": law or [], "dtype": dtype or []},
            (profile, seed, device, hang_after),
            min(workers or _cores(), WORKERS_PER_CORE * _cores()),
            (json, html, junit),
            started,
        )
    finally:
        probe.close()
    raise typer.Exit(status)


def _check(
    probe: "object",
    chosen: dict[str, list[str]],
    how: tuple[str, int, str, float],
    workers: int,
    files: tuple[Path | None, Path | None, Path | None],
    started: float,
) -> int:
    from attnspec.conformance.reporting.report import all_results, as_text, document, missing_results
    from attnspec.conformance.reporting.table import as_html, print_report
    from attnspec.conformance.running.checking import Admission, Probe, run
    from attnspec.conformance.running.loading import BackendError
    from attnspec.conformance.running.probe import rebuilt
    from attnspec.conformance.running.suite import Settings, planned
    from attnspec.spec.contract.law import LAWS
    from attnspec.spec.contract.operation import OPERATIONS
    from attnspec.spec.contract.precision import DEFAULTS

    assert isinstance(probe, Probe)
    operations = _among("--operation", chosen["operation"], [o for o in OPERATIONS if not OPERATIONS[o].reference_only])
    laws = _among("--law", chosen["law"], list(LAWS))
    dtypes = _among("--dtype", chosen["dtype"], list(DEFAULTS))
    profile, seed, device, hang_after = how
    settings = Settings(profile, seed, device, operations, laws, dtypes, hang_after)

    def admitted() -> Admission:
        contract = rebuilt(probe.answer(), probe.backend)
        return Admission(contract, planned(contract, settings))

    json, html, junit = files
    most = len(operations or OPERATIONS) * len(dtypes or DEFAULTS)
    try:
        done = run(
            probe.backend,
            settings,
            workers=max(1, min(workers, most)),
            console=_console(stderr=True),
            admitted=admitted,
        )
    except BackendError as error:
        _unusable(str(error))
    contract = done.admission.contract
    results = all_results(done.admission.cases, done.results, done.causes) + missing_results(contract, settings)
    report = document(contract, results, settings, time.monotonic() - started)
    print_report(report, _console())
    if done.interrupted:
        sys.stderr.write("attnspec: interrupted; laws without a verdict are lost\n")
    if json is not None:
        _write(as_text(report), json, "--json")
    if html is not None:
        _write(as_html(report), html, "--html")
    if junit is not None and done.junit is not None:
        _write(done.junit, junit, "--junit")
    return int(report["exit_status"])


@app.command(name="list")
def list_(
    what: Annotated[str, typer.Argument(help="operations, laws, backends or mutants")] = "operations",
) -> None:
    """List what there is."""
    from attnspec.conformance.reporting.catalogue import CATALOGUES

    _among("list", [what], list(CATALOGUES))
    _console().print(CATALOGUES[what]())


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="an operation, a law, a chapter, or a question such as fully_masked", metavar="NAME")
    ],
) -> None:
    """Show an operation (formula, sources, shapes, edges, laws), a law, a chapter, or the choices of a question."""
    from attnspec.conformance.reporting.catalogue import described, names

    _among("show", [name], names())
    _console(PAGE).print(described(name))


@app.command()
def spec(
    markdown: Annotated[Path | None, typer.Option(help="write the specification as Markdown")] = None,
    html: Annotated[Path | None, typer.Option(help="write the specification as a page")] = None,
) -> None:
    """Print the whole specification."""
    from rich.markdown import Markdown

    from attnspec.conformance.reporting.catalogue import specification

    for path, option in ((markdown, "--markdown"), (html, "--html")):
        _writable(path, option)
    text = specification()
    if markdown is not None:
        _write(text, markdown, "--markdown")
    if html is not None:
        with Path(os.devnull).open("w") as sink:
            console = Console(record=True, width=PAGE, file=sink)
            console.print(Markdown(text))
            _write(console.export_html(), html, "--html")
    if markdown is None and html is None:
        _console(PAGE).print(Markdown(text))


@app.command(help="Judge the suite itself: every mutant must be killed, no honest variant harmed.")
def mutants(
    profile: Annotated[str, typer.Option(help="quick, full or release")] = "quick",
    seeds: Annotated[int, typer.Option(min=1, help="how many seeds, from 0")] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(help="only this mutant or honest variant, or those of a pattern: 'base *'; may be repeated"),
    ] = None,
    matrix: Annotated[bool, typer.Option(help="run every law against every mutant")] = False,
    workers: Annotated[int | None, typer.Option(help="worker processes; one for each core if not given")] = None,
    json: Annotated[Path | None, typer.Option(help="write the kill matrix as JSON")] = None,
) -> None:
    """Print the kill matrix."""
    from attnspec.conformance.mutants import MUTANTS
    from attnspec.conformance.running.kill_matrix import main_mutants
    from attnspec.conformance.running.selection import matching
    from attnspec.conformance.variants import VARIANTS

    _among("--profile", [profile], ["quick", "full", "release"])
    _writable(json, "--json")
    known = [*MUTANTS, *VARIANTS]
    patterns = only or ["*"]
    for pattern in patterns:
        if not matching([pattern], known):
            _among("--only", [pattern], known)
    chosen = matching(patterns, known)
    judged = {name: m for name, m in MUTANTS.items() if name in chosen}
    spared = {name: v for name, v in VARIANTS.items() if name in chosen}
    status = main_mutants(profile, seeds, matrix, workers, json, _console(), mutants=judged, variants=spared)
    raise typer.Exit(status)


def main() -> None:
    """Run the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that lacks a character shows another one.
            stream.reconfigure(errors="replace")
    if sys.flags.optimize > 1:
        sys.stderr.write("attnspec: expected Python with docstrings, which hold the formulas; got -OO\n")
        sys.exit(2)
    app()


if __name__ == "__main__":
    main()
