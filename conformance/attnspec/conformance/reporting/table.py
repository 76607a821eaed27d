"""Reports as text for a terminal: verdict, violations, a table by chapter, and remarks."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from attnspec.conformance.judging.causes import by_cause
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.reporting.limits import non_default_limits
from attnspec.conformance.reporting.report import Report, in_common, key
from attnspec.conformance.running.expectations import Expectation
from attnspec.conformance.running.messages import consequences_heading, diagnosis_lines, violation_message
from attnspec.spec.contract.operation import CHAPTERS, OPERATIONS

COLOURS = {"conforms": "green", "violates": "red", "unusable": "yellow"}

MAX_IN_FULL = 4
"""Number of violations shown in full; the others, and possible consequences of these, are listed by name."""

MAX_NAMED_OPERATIONS = 12
"""Largest number of absent operations that are named; larger lists are only in the JSON report."""

MANY_COLUMNS = 10_000
"""Terminal width, in columns, into which every table fits."""


def print_report(report: Report, console: Console) -> None:
    """Print the whole report.

    The verdict comes first and again near the end, which is what a terminal shows. Code is not wrapped, so that it can
    be copied. If the backend conforms with the proposed declaration, the numbers are those of judging it so.
    """
    shown = report.shown
    console.print(headline(report), highlight=False)
    for line in diagnosis_lines(report.shown_diagnoses):
        console.print(Text(f"\n{line}", style="bold"))
    for text in violations(report):
        console.print(text, soft_wrap=True)
    console.print()
    console.print(chapters(shown, console))
    for line in remarks(shown):
        console.print(line, highlight=False)
    console.print(f"\n{closing_line(report)}", highlight=False)
    longer = " (--profile full tries longer and wider arrays)" if report.settings.profile == "quick" else ""
    console.print(f"not tried: {'; '.join(shown.not_tried)}{longer}", highlight=False)
    if report.declaration:
        console.print(f"\n{report.paste_heading}\n", highlight=False)
        console.print(Text(report.pasted), soft_wrap=True)


def chapters(report: Report, console: Console) -> RenderableType:
    """Return laws, examples and used budget per operation: a table, or lines if it is too wide."""
    by_operation: dict[str, list[Result]] = defaultdict(list)
    for r in report.results:
        if r.status is not Status.NOT_PROVIDED:
            by_operation[r.operation].append(r)
    title = Text(f"{report.contract.name} · {report.settings.profile} · seed {report.settings.seed}", style="bold")
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False)
    not_judged = report.not_judged > 0
    titles = ("laws", "failed", "examples", *(["not judged"] if not_judged else []), "budget used")
    narrow_lines = [title]
    chapter_words = {word for name in by_operation for word in OPERATIONS[name].chapter.split()}
    table.add_column("chapter", overflow="fold", min_width=max(map(len, chapter_words), default=0))
    table.add_column("operation", min_width=max(map(len, by_operation), default=0), no_wrap=True)
    for name in titles:
        table.add_column(name, justify="right", overflow="fold", min_width=max(map(len, name.split())))
    for chapter in CHAPTERS:
        first = True
        for name in (n for n, o in OPERATIONS.items() if o.chapter == chapter and n in by_operation):
            row = _row(by_operation[name], not_judged)
            table.add_row(chapter if first else "", name, *row)
            numbers = ", ".join(f"{column} {number}" for column, number in zip(titles, row, strict=True) if number)
            narrow_lines.append(Text.from_markup(f"{chapter}, {name}: {numbers}"))
            first = False
    # If columns do not fit, rich breaks words and drops columns.
    needed = console.measure(table, options=console.options.update(max_width=MANY_COLUMNS)).minimum
    return table if needed <= console.width else Group(*narrow_lines)


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
    """Yield lines about the run and the backend: sandbox, notes, limits, gradients, deviations."""
    if report.reason is not None and not report.results:
        return
    if report.settings.in_process:
        yield "[yellow]judged in the same process as the backend[/], which could change verdicts: use --isolated"
    elif report.settings.sandbox == "on":
        yield "sandbox: bubblewrap"
    elif report.settings.sandbox == "off":
        yield "no sandbox: the backend ran with your rights, and could reach all your files and processes"
    if report.left:
        yield f"[yellow]processes that the backend left running, ended now:[/] {escape(', '.join(report.left))}"
    yield from (f"[yellow]note[/] {escape(note)}" for note in report.notes)
    yield from _unjudged(report)
    yield _limits(report)
    yield from _features(report)
    if not report.contract.differentiable:
        yield "gradients: not judged, because the backend has no method vjp"
    elif report.contract.limits.gradients == ():
        yield "gradients: not judged, because the backend's limits declare gradients of no operation"
    for name, text in report.contract.notes.items():
        yield escape(f"{name}: {text}")
    absent = sorted({r.operation for r in report.results if r.status is Status.NOT_PROVIDED})
    if len(absent) > MAX_NAMED_OPERATIONS:
        operations = {r.operation for r in report.results}
        everything = sum(not o.reference_only for o in OPERATIONS.values())
        which = "that a backend may provide" if len(operations) == everything else "that the selection concerns"
        yield f"not provided: {len(absent)} of the {len(operations)} operations {which}"
    elif absent:
        yield f"not provided: {', '.join(absent)}"
    for question, declared in report.deviations.items():
        choice = in_common(declared)
        if isinstance(choice, dict):
            choice = ", ".join(f"{operation}: {c}" for operation, c in choice.items())
        yield f"[yellow]deviation[/] {question}: {choice}"


def _unjudged(report: Report) -> Iterator[str]:
    if not any(r.judged or r.interrupted for r in report.results):
        reasons = Counter(r.reason for r in report.results if r.status is Status.NOT_APPLICABLE)
        yield from (f"nothing was judged: {count} laws: {escape(str(x))}" for x, count in reasons.items())


def _limits(report: Report) -> str:
    limits = report.contract.limits
    parts = [f"limits: {', '.join(limits.dtypes)} on {report.settings.device}"]
    parts += non_default_limits(limits)
    dtypes = dict(limits.dtypes_by_operation)
    parts += [f"{name} {' and '.join(x)}" for name, x in dtypes.items() if name in report.contract.operations]
    return ", ".join(parts)


def _features(report: Report) -> Iterator[str]:
    """Yield the features that the backend has and lacks, if it lacks any."""
    limits, judged = report.contract.limits, {r.operation for r in report.results if r.judged}
    optional = dict.fromkeys(f for name, o in OPERATIONS.items() if name in judged for f in o.features)
    if not all(map(limits.has, optional)):
        provided, lacking = filter(limits.has, optional), (f for f in optional if not limits.has(f))
        yield f"features: {', '.join(provided) or 'none'}; not covered: {', '.join(lacking)}"


def violations(report: Report) -> list[Text]:
    """Return every violation as text, the first few in full.

    Other causes follow as lines, then missing declarations, expected failures, and possible consequences by name.
    """
    explained = report.declaration.explained
    causes, following = by_cause(r for r in report.violations if key(r) not in explained)
    in_full: dict[tuple[str, str], Result] = {}
    for r in causes:
        if len(in_full) < MAX_IN_FULL:
            in_full.setdefault((r.operation, r.law), r)
    parts = []
    for r in in_full.values():
        head, _, snippet = violation_message(r).partition("\n\n")
        parts.append(Text("\n" + head, style="red"))
        if snippet:
            parts.append(Text("\n" + snippet))
    parts += _lines(r for r in causes if not any(r is shown for shown in in_full.values()))
    parts += [Text()] * report.conforms_as_observed
    parts += [Text(line, style="yellow") for line in report.proposal]
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
        Text(f"expected failure: {line}: {len(failures)} of its laws failed{line.reason and f' ({line.reason})'}")
        for line, failures in laws.items()
    ]
    return [*parts, *(Text(f"stale expected failure: {line}", style="red") for line in report.unmet)]


def _lines(results: Iterable[Result]) -> list[Text]:
    """Return one line per operation and message (the first dtype's), with laws and dtypes."""
    results_by_law: dict[tuple[str, str, str | None, str], list[Result]] = defaultdict(list)
    for r in results:
        results_by_law[r.status, r.operation, r.reason, r.law].append(r)
    laws: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for (status, operation, _, law), same in results_by_law.items():
        laws[status, operation, ", ".join(r.dtype for r in same), same[0].message].append(law)
    return [
        Text(f"{status}: {', '.join(names)} by {operation} ({names_of_dtypes}): {message}", style="red")
        for (status, operation, names_of_dtypes, message), names in laws.items()
    ]


def folded(following: Iterable[Result]) -> Iterator[str]:
    """Yield one line per operation with the names of its violated laws, over all dtypes."""
    laws: dict[str, dict[str, None]] = defaultdict(dict)
    for r in following:
        laws[r.operation][r.law] = None
    for operation, names in laws.items():
        yield f"{len(names)} law{'s' * (len(names) > 1)} of {operation}: {', '.join(names)}"


def headline(report: Report) -> str:
    """Return the backend's name and the verdict."""
    return f"[bold {COLOURS[report.verdict]}]{escape(report.contract.name)} {report.verdict_text}[/]"


def closing_line(report: Report) -> str:
    """Return the verdict in one line."""
    shown = report.shown
    judged = sum(r.judged for r in shown.results)
    deviating = ", ".join(shown.deviations)
    kind = "deviations below" if shown is not report else "deviations declared"
    return (
        headline(report)
        + (f" ({kind}: {deviating})" if deviating else "")
        + f": {shown.counts[Status.PASSED]} of {judged} laws hold on {shown.examples:,} examples, "
        + f"largest error ratio {shown.error_ratio:.3g}, {report.seconds:.1f} s"
        + (f", expected failures: {len(report.expected):,}" if report.expected else "")
        + (f", stale expected failures: {len(report.unmet):,}" if report.unmet else "")
        + (f"; {report.reason}" if report.reason else "")
        + (f", {report.interrupted:,} laws have no verdict" if report.interrupted else "")
    )
