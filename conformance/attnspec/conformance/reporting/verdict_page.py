"""A report as one self-contained HTML page: verdict, causes with pictures, then consequences."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import log2
from typing import Any

import numpy as np
from rich.text import Text

from attnspec.conformance.judging.causes import by_cause
from attnspec.conformance.judging.own_errors import contained
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.reporting.heat_maps import (
    MAX_RATIO,
    MIN_RATIO,
    heat_maps,
    largest_of,
    levels_of_numbers,
    levels_of_ratios,
    over_budget,
)
from attnspec.conformance.reporting.report import Report, key, versions
from attnspec.conformance.reporting.table import MAX_IN_FULL, closing_line, known_failures, remarks
from attnspec.conformance.reporting.templating import rendered
from attnspec.conformance.running.messages import (
    MAX_SNIPPET,
    argument_lines,
    consequences_heading,
    diagnoses_by_place,
    shortened,
)
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import CHAPTERS, OPERATIONS, Operation

Figure = tuple[str, str, str]
"""Name of an array, its shape, and its picture as HTML."""

Lane = tuple[str, float, float]
"""A dtype, its largest error over budget, and its bar's length from 0 to 1."""


def as_html(report: Report) -> str:
    """Return the report as an HTML page."""
    causes, following = by_cause(r for r in report.violations if key(r) not in report.declaration.explained)
    settings = report.settings
    run_remarks = [
        *(Text.from_markup(x).plain for x in remarks(report.shown)),
        f"profile: {settings.profile}, seed {settings.seed}, on {settings.device}",
        f"versions: {', '.join(f'{name} {version}' for name, version in versions().items())}",
    ]
    return rendered(
        "verdict.html",
        title=f"{report.contract.name} {report.verdict_text}",
        report=report,
        closing=Text.from_markup(closing_line(report)).plain.strip(),
        diagnoses=diagnoses_by_place(report.shown_diagnoses),
        causes=list(_violations(causes, MAX_IN_FULL)),
        known=[text.plain for text in known_failures(report)],
        budgets=_budgets(report.shown.results),
        remarks=run_remarks,
        following=list(_violations(following)),
        heading=f"{consequences_heading(causes, following).removesuffix(':')} ({len(following):,})",
        max_snippet=MAX_SNIPPET,
    )


# Causes ---------------------------------------------------------------------------------------------------------------


def _violations(violations: Sequence[Result], in_full: int = 0) -> Iterator[dict[str, Any]]:
    """Yield each violated law once per operation, with the first counterexample; ``in_full`` of them unfolded."""
    results_by_law: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for r in violations:
        results_by_law[r.operation, r.law].append(r)
    for i, ((operation, law), results) in enumerate(results_by_law.items()):
        example = next((r.counterexample for r in results if r.counterexample is not None), None)
        draw = partial(_drawing, OPERATIONS[operation], example)
        drawn, note = contained(f"drawing the counterexample of {law} by {operation}", draw, None)
        notes = filter(None, dict.fromkeys([*(r.note for r in results), note]))
        yield {
            "law": law,
            "where": f"{operation} ({', '.join(r.dtype for r in results)})",
            "statement": LAWS[law].statement,
            "messages": [*_messages(results), *notes],
            "drawing": drawn,
            "open": i < in_full,
        }


def _messages(results: Sequence[Result]) -> Iterator[str]:
    """Yield the messages of violations, once for all dtypes with the same message."""
    dtypes: dict[str, list[str]] = defaultdict(list)
    for r in results:
        dtypes[r.message].append(r.dtype)
    for message, names in dtypes.items():
        yield f"{', '.join(names)}: {message}" if len(dtypes) > 1 else message


def _drawing(operation: Operation, example: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if example is None:
        return None
    arguments = example["arguments"]
    options = {option.path for option in operation.options}
    drawn = {name: x for name, y in arguments.items() if name not in options and (x := _array(y)) is not None}
    scalars = {k: x for k, x in arguments.items() if k not in drawn and x is not None and not isinstance(x, Mapping)}
    arrays = {**arguments, **{name: example[name] for name in ("expected", "got", "budget")}}
    return {
        "arguments": [_figure(name, x, levels_of_numbers(x, largest_of(x))) for name, x in drawn.items()],
        "scalars": argument_lines(operation.name, scalars),
        "results": list(_result_figures(example)),
        "undrawn": [f"{name}, {shortened(value)}" for name, value in arrays.items() if isinstance(value, Mapping)],
        "numbers": argument_lines(operation.name, {k: x for k, x in arguments.items() if x is not None}),
        "snippet": example["snippet"],
    }


def _result_figures(example: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield pictures of expected and actual results on one scale, then of error over budget."""
    expected, got, budget = (_array(example[name]) for name in ("expected", "got", "budget"))
    index = None if example["index"] is None else tuple(example["index"])
    largest = largest_of(*(x for x in (expected, got) if x is not None))
    for name, x in (("expected", expected), ("got", got)):
        if x is not None:
            yield _figure(name, x, levels_of_numbers(x, largest), index if index and len(index) == x.ndim else None)
    if expected is not None and got is not None and budget is not None and expected.shape == got.shape:
        ratios = over_budget(got, expected, budget)
        yield _figure("error over budget", ratios, levels_of_ratios(ratios), index or None)


def _figure(name: str, x: Any, levels: Any, index: tuple[int, ...] | None = None) -> Figure:
    return name, " × ".join(map(str, x.shape)) or "one number", heat_maps(x, levels, name, index)


def _array(value: Any) -> Any:
    """Return an array from a report's JSON; None for other values and omitted arrays."""
    if isinstance(value, bool | int | str | Mapping) or value is None:
        return None
    array = np.array(value)
    return array if array.dtype == bool else array.astype(np.float64)


# Budgets --------------------------------------------------------------------------------------------------------------


def _budgets(results: Sequence[Result]) -> dict[str, list[tuple[str, int, str, list[Lane]]]]:
    """Return, by chapter, each operation's counts of laws that hold and largest error per dtype."""
    by_operation: dict[str, list[Result]] = defaultdict(list)
    for r in results:
        if r.judged:
            by_operation[r.operation].append(r)
    chapters = {c: [n for n, o in OPERATIONS.items() if o.chapter == c and n in by_operation] for c in CHAPTERS}
    return {c: [_budget(name, by_operation[name]) for name in names] for c, names in chapters.items() if names}


def _budget(operation: str, judged: Sequence[Result]) -> tuple[str, int, str, list[Lane]]:
    """Return an operation's name, number of failures, counts as text, and bars."""
    largest_ratios: dict[str, float] = {}
    for r in judged:
        largest_ratios[r.dtype] = max(largest_ratios.get(r.dtype, 0.0), r.error_ratio)
    failed, lost = sum(r.violates for r in judged), sum(r.status is Status.LOST for r in judged)
    counts = f"{len(judged) - failed} of {len(judged)} laws hold, {sum(r.examples for r in judged):,} examples"
    counts += f", {lost} lost" if lost else ""
    return operation, failed, counts, [(dtype, ratio, _share(ratio)) for dtype, ratio in largest_ratios.items()]


def _share(ratio: float) -> float:
    """Return the length of a bar, from 0 to 1; at 0.5 the budget is used up."""
    return log2(min(max(ratio, MIN_RATIO), MAX_RATIO) / MIN_RATIO) / log2(MAX_RATIO / MIN_RATIO)
