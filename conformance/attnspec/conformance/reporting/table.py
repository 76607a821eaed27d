"""Reports as text: a table by chapter, remarks, every violation, and the verdict."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from attnspec.conformance.explaining.declaration import lines
from attnspec.conformance.judging.causes import by_cause
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.reporting.limits import differing
from attnspec.conformance.reporting.report import Report, in_common, key
from attnspec.conformance.running.expectations import Expectation
from attnspec.conformance.running.messages import PASTE, consequences_heading, diagnosis_lines, violation_message
from attnspec.spec.contract.operation import CHAPTERS, OPERATIONS

COLOURS = {"conforms": "green", "violates": "red", "unusable": "yellow"}

IN_FULL = 4
"""Number of violations shown in full, without possible consequences; the others are listed by name."""

NAMED = 12
"""Largest number of absent operations that are named; larger lists are only in the JSON report."""

UNLIMITED = 10_000
"""Columns in which every table fits."""


def print_report(report: Report, console: Console) -> None:
    """Print the whole report; code is not wrapped, so that it can be copied.

    The verdict comes first, and again below the table, since a terminal shows the end.
    """
    console.print(headline(report), highlight=False)
    for line in diagnosis_lines(report.diagnoses):
        console.print(Text(f"\n{line}", style="bold"))
    for text in violations(report):
        console.print(text, soft_wrap=True)
    console.print()
    console.print(chapters(report, console))
    for line in remarks(report):
        console.print(line, highlight=False)
    console.print(f"\n{closing(report)}", highlight=False)
    console.print(f"not tried: {'; '.join(report.not_tried)}", highlight=False)
    if report.declaration:
        console.print(f"\n{PASTE}\n", highlight=False)
        console.print(Text(report.declaration.text), soft_wrap=True)


def chapters(report: Report, console: Console) -> RenderableType:
    """Laws, examples and budget used, by chapter and operation: a table, or lines if too wide."""
    by_operation: dict[str, list[Result]] = defaultdict(list)
    for r in report.results:
        if r.status is not Status.NOT_PROVIDED:
            by_operation[r.operation].append(r)
    title = Text(f"{report.contract.name} · {report.settings.profile} · seed {report.settings.seed}", style="bold")
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False)
    not_judged = report.not_judged > 0
    titles = ("laws", "failed", "examples", *(["not judged"] if not_judged else []), "budget used")
    narrow = [title]
    words = {word for name in by_operation for word in OPERATIONS[name].chapter.split()}
    table.add_column("chapter", overflow="fold", min_width=max(map(len, words), default=0))
    table.add_column("operation", min_width=max(map(len, by_operation), default=0), no_wrap=True)
    for name in titles:
        table.add_column(name, justify="right", overflow="fold", min_width=max(map(len, name.split())))
    for chapter in CHAPTERS:
        first = True
        for name in (n for n, o in OPERATIONS.items() if o.chapter == chapter and n in by_operation):
            row = _row(by_operation[name], not_judged)
            table.add_row(chapter if first else "", name, *row)
            numbers = ", ".join(f"{what} {number}" for what, number in zip(titles, row, strict=True) if number)
            narrow.append(Text.from_markup(f"{chapter}, {name}: {numbers}"))
            first = False
    # Where columns do not fit, rich breaks words and leaves columns out.
    needed = console.measure(table, options=console.options.update(max_width=UNLIMITED)).minimum
    return table if needed <= console.width else Group(*narrow)


def _row(results: Sequence[Result], not_judged: bool) -> list[str]:
    judged = [r for r in results if r.judged]
    failed = sum(r.violates for r in judged)
    ratio = max((r.error_ratio for r in judged), default=0.0)
    return [
        f"{len(judged) - failed}/{len(judged)}",
        f"[red]{failed}[/]" if failed else "",
        f"{sum(r.examples for r in judged):,}",
        *([f"{sum(r.not_judged for r in judged):,}"] if not_judged else []),
        f"[red]{ratio:.3g}[/]" if ratio > 1 else f"{ratio:.0%}",
    ]


def remarks(report: Report) -> Iterator[str]:
    """Yield limits, notes, laws not judged, and declared non-default choices."""
    if report.reason is not None and not report.results:
        return
    if report.settings.in_process:
        yield "[yellow]judged by the process that ran the backend[/], which may have misled it: see --isolated"
    elif report.settings.sandbox == "on":
        yield "sandbox: bubblewrap"
    elif report.settings.sandbox == "off":
        yield "no sandbox: the backend ran as the user who judged it, and could reach all of their files and processes"
    if report.left:
        yield f"[yellow]left behind by the backend, and ended:[/] {escape(', '.join(report.left))}"
    yield from (f"[yellow]note[/] {escape(note)}" for note in report.notes)
    yield from _unjudged(report)
    yield _limits(report)
    yield from _features(report)
    if not report.contract.differentiable:
        yield "gradients: not judged, the backend has no vjp"
    elif report.contract.limits.gradients == ():
        yield "gradients: not judged, limits gradients names no operation"
    for name, text in report.contract.notes.items():
        yield escape(f"{name}: {text}")
    absent = sorted({r.operation for r in report.results if r.status is Status.NOT_PROVIDED})
    if len(absent) > NAMED:
        asked = {r.operation for r in report.results}
        yield f"not provided: {len(absent)} of {len(asked)} operations"
    elif absent:
        yield f"not provided: {', '.join(absent)}"
    for question, declared in report.deviations.items():
        choice = in_common(declared)
        if isinstance(choice, dict):
            choice = ", ".join(f"{operation}: {c}" for operation, c in choice.items())
        yield f"[yellow]deviation[/] {question}: {choice}"


def _unjudged(report: Report) -> Iterator[str]:
    """Yield the reasons if nothing was judged."""
    if not any(r.judged or r.interrupted for r in report.results):
        reasons = Counter(r.reason for r in report.results if r.status is Status.NOT_APPLICABLE)
        yield from (f"nothing was judged: {count} laws: {escape(str(x))}" for x, count in reasons.items())


def _limits(report: Report) -> str:
    limits = report.contract.limits
    parts = [f"limits: {', '.join(limits.dtypes)} on {report.settings.device}"]
    parts += differing(limits)
    provided = {
        name: own for name, own in dict(limits.dtypes_by_operation).items() if name in report.contract.operations
    }
    parts += [f"{name} {' and '.join(own)}" for name, own in provided.items()]
    return ", ".join(parts)


def _features(report: Report) -> Iterator[str]:
    """Yield the features of the judged operations: those provided, and those not covered."""
    limits, judged = report.contract.limits, {r.operation for r in report.results if r.judged}
    optional = dict.fromkeys(f for name, o in OPERATIONS.items() if name in judged for f in o.features)
    if not all(map(limits.has, optional)):
        has, lacking = filter(limits.has, optional), (f for f in optional if not limits.has(f))
        yield f"features: {', '.join(has) or 'none'}; not covered: {', '.join(lacking)}"


def violations(report: Report) -> list[Text]:
    """Every violation: the first few in full, once per operation and law; possible consequences last, folded."""
    explained = report.declaration.explained
    causes, following = by_cause(r for r in report.violations if key(r) not in explained)
    in_full: dict[tuple[str, str], Result] = {}
    for r in causes:
        if len(in_full) < IN_FULL:
            in_full.setdefault((r.operation, r.law), r)
    parts = []
    for r in in_full.values():
        head, _, snippet = violation_message(r).partition("\n\n")
        parts.append(Text("\n" + head, style="red"))
        if snippet:
            parts.append(Text("\n" + snippet))
    parts += _lines(r for r in causes if not any(r is shown for shown in in_full.values()))
    parts += [Text(line, style="yellow") for line in lines(explained)]
    parts += known_failures(report)
    if following:
        parts += [Text(f"\n{consequences_heading(causes, following)}"), *map(Text, folded(following))]
    return parts


def known_failures(report: Report) -> list[Text]:
    """Return lines for the expected failures, then for stale expectations."""
    laws: dict[Expectation, list[Result]] = defaultdict(list)
    for r in report.results:
        if key(r) in report.expected:
            laws[report.expected[key(r)]].append(r)
    parts = [
        Text(f"expected: {line}: {len(found)} of its laws failed{line.reason and f' ({line.reason})'}")
        for line, found in laws.items()
    ]
    return [*parts, *(Text(f"not as expected: {line}", style="red") for line in report.unmet)]


def _lines(results: Iterable[Result]) -> list[Text]:
    """Return one line per operation and message with its laws and dtypes, worded as for the first dtype."""
    dtypes: dict[tuple[str, str, str | None, str], list[Result]] = defaultdict(list)
    for r in results:
        dtypes[r.status, r.operation, r.reason, r.law].append(r)
    laws: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for (status, operation, _, law), found in dtypes.items():
        laws[status, operation, ", ".join(r.dtype for r in found), found[0].message].append(law)
    return [
        Text(f"{status}: {', '.join(names)} by {operation} ({where}): {message}", style="red")
        for (status, operation, where, message), names in laws.items()
    ]


def folded(following: Iterable[Result]) -> Iterator[str]:
    """Yield a line per operation with the names of its laws, over all dtypes."""
    laws: dict[str, dict[str, None]] = defaultdict(dict)
    for r in following:
        laws[r.operation][r.law] = None
    for operation, names in laws.items():
        yield f"{len(names)} law{'s' * (len(names) > 1)} of {operation}: {', '.join(names)}"


def headline(report: Report) -> str:
    """Return the backend's name and the verdict."""
    return f"[bold {COLOURS[report.verdict]}]{escape(report.contract.name)} {report.verdict}[/]"


def closing(report: Report) -> str:
    """Return the verdict in one line."""
    judged = sum(r.judged for r in report.results)
    deviating = ", ".join(report.deviations)
    return (
        headline(report)
        + (f" (deviations declared: {deviating})" if deviating else "")
        + f": {report.counts[Status.PASSED]} of {judged} laws hold on {report.examples:,} examples, "
        + f"largest error ratio {report.error_ratio:.3g}, {report.seconds:.1f} s"
        + (f", expected failures: {len(report.expected):,}" if report.expected else "")
        + (f", expectations not met: {len(report.unmet):,}" if report.unmet else "")
        + (f"; {report.reason}" if report.reason else "")
        + (f", {report.interrupted:,} laws have no verdict" if report.interrupted else "")
    )
