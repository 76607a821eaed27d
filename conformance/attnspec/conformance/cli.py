"""The command ``attnspec``."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

if TYPE_CHECKING:
    from attnspec.conformance.engine import Case
    from attnspec.conformance.subject import Contract

app = typer.Typer(
    name="attnspec",
    help="The executable specification of attention, and the suite that judges implementations by it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

EXITS = "Exit status: 0 conforms, 1 violates, 2 the call or the backend cannot be used."


def _unusable(message: str) -> NoReturn:
    """End with status 2 and one line that names the cause."""
    sys.stderr.write(f"attnspec: {message}\n")
    raise typer.Exit(2)


def _among(what: str, given: list[str], known: list[str]) -> tuple[str, ...]:
    import difflib

    for name in given:
        if name not in known:
            near = known if len(known) <= 6 else difflib.get_close_matches(name, known, 3, 0.4) or known[:6]
            _unusable(
                f"{what}: expected one of {', '.join(near)}{', …' if len(near) < len(known) else ''}; got {name!r}"
            )
    return tuple(dict.fromkeys(given))


def _writable(path: Path | None, option: str) -> None:
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        _unusable(f"{option}: expected a file that can be written; got {str(path)!r}")


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
    from attnspec.conformance.checking import Probe

    _among("--profile", [profile], ["quick", "full", "release"])
    if workers is not None and workers < 1:
        _unusable(f"--workers: expected at least 1; got {workers}")
    if hang_after <= 0:
        _unusable(f"--hang-after: expected more than 0 seconds; got {hang_after:g}")
    for path, option in ((json, "--json"), (html, "--html"), (junit, "--junit")):
        _writable(path, option)
    started = time.monotonic()
    probe = Probe(backend, device)
    try:
        status = _check(
            probe,
            {"operation": operation or [], "law": law or [], "dtype": dtype or []},
            (profile, seed, device, hang_after),
            workers or os.cpu_count() or 1,
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
    from attnspec.conformance.checking import Probe, run
    from attnspec.conformance.loading import BackendError
    from attnspec.conformance.probe import rebuilt
    from attnspec.conformance.report import all_results, document, missing_results, written
    from attnspec.conformance.suite import Settings
    from attnspec.conformance.table import as_html, print_report
    from attnspec.spec.law import LAWS
    from attnspec.spec.operation import OPERATIONS
    from attnspec.spec.precision import DEFAULTS

    assert isinstance(probe, Probe)
    operations = _among("--operation", chosen["operation"], [o for o in OPERATIONS if not OPERATIONS[o].reference_only])
    laws = _among("--law", chosen["law"], list(LAWS))
    dtypes = _among("--dtype", chosen["dtype"], list(DEFAULTS))
    profile, seed, device, hang_after = how
    settings = Settings(profile, seed, device, operations, laws, dtypes, hang_after)
    planned: list[Case] = []
    contracts: list[Contract] = []

    def admitted() -> int:
        contracts.append(rebuilt(probe.answer(), probe.backend))
        planned.extend(_planned(contracts[0], operations, laws, dtypes))
        return len(planned)

    json, html, junit = files
    most = len(operations or OPERATIONS) * len(dtypes or DEFAULTS)
    try:
        reported, interrupted = run(
            probe.backend,
            settings,
            workers=max(1, min(workers, most)),
            junit=junit,
            console=Console(stderr=True),
            admitted=admitted,
        )
    except BackendError as error:
        _unusable(str(error))
    (contract,) = contracts
    results = all_results(contract, planned, reported) + missing_results(contract, settings)
    report = document(contract, results, settings, time.monotonic() - started)
    if json is not None:
        written(report, json)
    if html is not None:
        html.write_text(as_html(report))
    print_report(report, Console())
    if interrupted:
        sys.stderr.write("attnspec: interrupted; laws without a verdict are lost\n")
    return int(report["exit_status"])


def _planned(
    contract: "Contract", operations: Sequence[str], laws: Sequence[str], dtypes: Sequence[str]
) -> "list[Case]":
    """The cases to judge; ``BackendError`` for a selection that the backend cannot meet."""
    from attnspec.conformance.engine import cases
    from attnspec.conformance.loading import BackendError

    for dtype in dtypes:
        if dtype not in contract.limits.dtypes:
            known = ", ".join(contract.limits.dtypes)
            raise BackendError(f"--dtype: expected one of {known}, its limits; got {dtype!r}")
    for name in operations:
        if name not in contract.operations:
            known = ", ".join(contract.operations)
            raise BackendError(f"--operation: expected one of {known}, which it provides; got {name!r}")
    planned = cases(contract, operations=operations, laws=laws, dtypes=dtypes)
    if not planned:
        raise BackendError("nothing to judge: no law of the selection governs an operation of the selection")
    return planned


@app.command(name="list")
def list_(
    what: Annotated[str, typer.Argument(help="operations, laws, backends or mutants")] = "operations",
) -> None:
    """List what there is."""
    from attnspec.conformance.catalogue import CATALOGUES

    _among("list", [what], list(CATALOGUES))
    Console().print(CATALOGUES[what]())


@app.command()
def show(name: Annotated[str, typer.Argument(help="an operation or a law", metavar="OPERATION-OR-LAW")]) -> None:
    """Show an operation or a law: formula, sources, shapes, edges, and what it is judged by."""
    from attnspec.conformance.catalogue import described
    from attnspec.spec.law import LAWS
    from attnspec.spec.operation import OPERATIONS

    _among("show", [name], [*OPERATIONS, *LAWS])
    Console().print(described(name))


@app.command()
def spec(
    markdown: Annotated[Path | None, typer.Option(help="write the specification as Markdown")] = None,
    html: Annotated[Path | None, typer.Option(help="write the specification as a page")] = None,
) -> None:
    """Print the whole specification."""
    from rich.markdown import Markdown

    from attnspec.conformance.catalogue import specification

    for path, option in ((markdown, "--markdown"), (html, "--html")):
        _writable(path, option)
    text = specification()
    if markdown is not None:
        markdown.write_text(text)
    if html is not None:
        with Path(os.devnull).open("w") as sink:
            console = Console(record=True, width=110, file=sink)
            console.print(Markdown(text))
            html.write_text(console.export_html())
    if markdown is None and html is None:
        Console().print(Markdown(text))


@app.command(help="Judge the suite itself: every mutant must be killed, no honest variant harmed.")
def mutants(
    profile: Annotated[str, typer.Option(help="quick, full or release")] = "quick",
    seeds: Annotated[int, typer.Option(min=1, help="how many seeds, from 0")] = 1,
    matrix: Annotated[bool, typer.Option(help="run every law against every mutant")] = False,
    workers: Annotated[int | None, typer.Option(help="worker processes; one for each core if not given")] = None,
    json: Annotated[Path | None, typer.Option(help="write the kill matrix as JSON")] = None,
) -> None:
    """Print the kill matrix."""
    from attnspec.conformance.mutation import main_mutants

    _among("--profile", [profile], ["quick", "full", "release"])
    _writable(json, "--json")
    raise typer.Exit(main_mutants(profile, seeds, matrix, workers, json, Console()))


def main() -> None:
    """Run the command."""
    app()


if __name__ == "__main__":
    main()
