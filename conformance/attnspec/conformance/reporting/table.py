"""Reports as people read them: a table by chapter, deviations, and every violation with its smallest input."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from attnspec.conformance.judging.results import Result
from attnspec.conformance.reporting.messages import consequences, ordered, repair, told
from attnspec.conformance.reporting.report import deviations
from attnspec.spec.contract.operation import CHAPTERS, OPERATIONS

ORDINARY = {"head_sizes": None, "multiple_of": 1, "max_length": None, "broadcasting": True}
"""Limits that are worth no remark."""

COLOURS = {"conforms": "green", "violates": "red", "unusable": "yellow"}
SHOWN = 4
"""Violations that are shown in full, none of them a consequence; the others are listed by name."""


def print_report(report: Mapping[str, Any], console: Console) -> None:
    """The whole report; code is not wrapped, so that it can be copied."""
    console.print(chapters(report))
    for line in remarks(report):
        console.print(line, highlight=False)
    for text in violations(report):
        console.print(text, soft_wrap=True)
    console.print(closing(report), highlight=False)


def chapters(report: Mapping[str, Any]) -> Table:
    """Laws, examples and budget used, by chapter and operation."""
    by_operation: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for r in report["results"]:
        if r["status"] != "not-provided":
            by_operation[r["operation"]].append(r)
    table = Table(
        title=escape(f"{report['backend']['name']} · {report['profile']} · seed {report['seed']}"),
        title_style="bold",
        box=SIMPLE_HEAD,
    )
    not_judged = any(r["not_judged"] for r in report["results"])
    table.add_column("chapter", overflow="fold")
    table.add_column("operation", min_width=max(map(len, by_operation), default=0), no_wrap=True)
    for title in ("laws", "failed", "examples", *(["not judged"] if not_judged else []), "budget used"):
        table.add_column(title, justify="right", overflow="fold")
    for chapter in CHAPTERS:
        first = True
        for name in (n for n, o in OPERATIONS.items() if o.chapter == chapter and n in by_operation):
            table.add_row(chapter if first else "", name, *_row(by_operation[name], not_judged))
            first = False
    return table


def _row(results: list[Mapping[str, Any]], not_judged: bool) -> list[str]:
    judged = [r for r in results if r["status"] in ("passed", "failed", "lost")]
    passed = sum(r["status"] == "passed" for r in judged)
    failed = len(judged) - passed
    ratio = max((float(r["error_ratio"]) for r in judged), default=0.0)
    return [
        f"{passed}/{len(judged)}",
        f"[red]{failed}[/]" if failed else "",
        f"{sum(r['examples'] for r in judged):,}",
        *([f"{sum(r['not_judged'] for r in judged):,}"] if not_judged else []),
        f"[red]{ratio:.3g}[/]" if ratio > 1 else f"{ratio:.0%}",
    ]


def remarks(report: Mapping[str, Any]) -> list[str]:
    """Limits, notes, and what differs from the normative choices."""
    backend, limits = report["backend"], report["backend"]["limits"]
    lines = [
        f"limits: {', '.join(limits['dtypes'])} on {report['device']}"
        + "".join(
            f", {name.replace('_', ' ')} {limits[name]}"
            for name, default in ORDINARY.items()
            if limits[name] != default
        )
    ]
    if not backend["differentiable"]:
        lines.append("gradients: not judged, the backend has no vjp")
    lines += [escape(f"{name}: {text}") for name, text in backend["notes"].items()]
    absent = sorted({r["operation"] for r in report["results"] if r["status"] == "not-provided"})
    if absent:
        lines.append(f"not provided: {', '.join(absent)}")
    for question, declared in deviations(report).items():
        told_as = declared if isinstance(declared, str) else ", ".join(f"{k}: {v}" for k, v in declared.items())
        lines.append(f"[yellow]deviation[/] {question}: {told_as}")
    return lines


def violations(report: Mapping[str, Any]) -> list[Text]:
    """Every violation; the first few in full, each law of an operation once, and what may follow from them last."""
    bad = ordered(Result.from_json(r) for r in report["results"] if r["status"] in ("failed", "lost"))
    later = consequences(bad)
    shown: dict[tuple[str, str], Result] = {}
    for r in bad:
        if len(shown) < SHOWN and r not in later:
            shown.setdefault((r.operation, r.law), r)
    parts = []
    for r in shown.values():
        head, _, snippet = told(r).partition("\n\n")
        parts.append(Text("\n" + head, style="red"))
        if snippet:
            parts.append(Text("\n" + snippet))
    others = [r for r in bad if r not in later and not any(r is s for s in shown.values())]
    parts += [_named(r) for r in others]
    if later:
        parts += [Text(f"\n{repair(later)}"), *map(_named, later)]
    return parts


def _named(r: Result) -> Text:
    return Text(f"{r.status}: {r.law} by {r.operation} ({r.dtype}): {r.message}", style="red")


def closing(report: Mapping[str, Any]) -> str:
    """The verdict in one line."""
    s, colour = report["summary"], COLOURS[report["verdict"]]
    judged = s["passed"] + s["failed"] + s["lost"]
    deviating = ", ".join(deviations(report))
    return (
        f"\n[bold {colour}]{escape(report['backend']['name'])} {report['verdict']}[/]"
        + (f" (deviations declared: {deviating})" if deviating else "")
        + f": {s['passed']} of {judged} laws hold on {s['examples']:,} examples, "
        + f"largest error ratio {float(s['error_ratio']):.3g}, {report['seconds']:.1f} s"
    )


def as_html(report: Mapping[str, Any]) -> str:
    """The report as a page."""
    with open_null() as sink:
        console = Console(record=True, width=120, file=sink)
        print_report(report, console)
        return console.export_html()


def open_null() -> Any:
    """Where a recording console may write."""
    import os
    from pathlib import Path

    return Path(os.devnull).open("w")
