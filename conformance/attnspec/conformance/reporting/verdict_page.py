"""A report as one page of HTML: the verdict, its causes with pictures, then what follows; it loads nothing."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from importlib import resources
from math import log2
from typing import Any

import numpy as np
from rich.text import Text

from attnspec.conformance.explaining.declaration import lines
from attnspec.conformance.judging.causes import by_cause
from attnspec.conformance.judging.own_errors import contained
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.reporting.heat_maps import (
    LEAST,
    MOST,
    heat_maps,
    largest_of,
    levels_of_numbers,
    levels_of_ratios,
    over_budget,
)
from attnspec.conformance.reporting.report import Report, key, versions
from attnspec.conformance.reporting.table import IN_FULL, PASTE, closing, known_failures, remarks
from attnspec.conformance.running.messages import MAX_SNIPPET, consequences_heading, diagnoses_by_place, shortened
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import CHAPTERS, OPERATIONS


def as_html(report: Report) -> str:
    """The report as a page."""
    causes, following = by_cause(r for r in report.violations if key(r) not in report.declaration.explained)
    settings = report.settings
    facts = {
        "profile": f"{settings.profile}, seed {settings.seed}, on {settings.device}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }
    parts = {
        "title": escape(f"{report.contract.name} {report.verdict}"),
        "verdict": escape(report.verdict),
        "closing": escape(Text.from_markup(closing(report)).plain.strip()),
        "diagnoses": "".join(_diagnoses(report)),
        "causes": "".join(_violations(causes, IN_FULL)) or "<p>None.</p>",
        "known": "".join(_listed(text.plain for text in known_failures(report))),
        "declaration": _declaration(report),
        "budgets": "".join(_budgets(report.results)),
        "not_tried": "".join(_listed(report.not_tried)),
        "remarks": "".join(_listed([*(Text.from_markup(x).plain for x in remarks(report)), *_facts(facts)])),
        "consequences": _consequences(causes, following),
    }
    template = resources.files("attnspec.conformance.reporting").joinpath("verdict.html").read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda found: parts[found[1]], template)


def _listed(texts: Iterable[str]) -> Iterator[str]:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    if items:
        yield f"<ul>{items}</ul>"


def _facts(facts: Mapping[str, str]) -> Iterator[str]:
    return (f"{name}: {text}" for name, text in facts.items())


def _diagnoses(report: Report) -> Iterator[str]:
    for sentence, places in diagnoses_by_place(report.diagnoses).items():
        yield f'<p class="diagnosis"><strong>{escape(sentence)}</strong> <span>{escape(", ".join(places))}</span></p>'


# Causes ---------------------------------------------------------------------------------------------------------------


def _violations(violations: Sequence[Result], in_full: int = 0) -> Iterator[str]:
    """Each law of an operation once, with the counterexample of its first dtype; the first few open."""
    dtypes: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for r in violations:
        dtypes[r.operation, r.law].append(r)
    for i, ((operation, law), found) in enumerate(dtypes.items()):
        where = f"{operation} ({', '.join(r.dtype for r in found)})"
        head = f"<code>{escape(law)}</code> by {escape(where)}"
        opened = " open" if i < in_full else ""
        said = "".join(f'<p class="said">{escape(text)}</p>' for text in _said(found))
        shown = next((r.counterexample for r in found if r.counterexample is not None), None)
        drawn, note = contained(f"drawing the counterexample of {law} by {operation}", partial(_drawn, shown), "")
        notes = filter(None, dict.fromkeys([*(r.note for r in found), note]))
        said += "".join(f'<p class="said">{escape(text)}</p>' for text in notes)
        yield (
            f'<details class="violation"{opened}><summary>{head}</summary><p>{escape(LAWS[law].statement)}</p>{said}'
            f"{drawn}</details>"
        )


def _said(found: Sequence[Result]) -> Iterator[str]:
    """What the backend did, once for all dtypes of which the same is said."""
    dtypes: dict[str, list[str]] = defaultdict(list)
    for r in found:
        dtypes[r.message].append(r.dtype)
    for message, names in dtypes.items():
        yield f"{', '.join(names)}: {message}" if len(dtypes) > 1 else message


def _drawn(found: Mapping[str, Any] | None) -> str:
    return "" if found is None else _counterexample(found)


def _counterexample(found: Mapping[str, Any]) -> str:
    drawn = {name: x for name, value in found["arguments"].items() if (x := _array(value)) is not None}
    told = [f"{name} = {shortened(value)}" for name, value in found["arguments"].items() if value is not None]
    arrays = {**found["arguments"], **{name: found[name] for name in ("expected", "got", "budget")}}
    large = [f"{name}, {shortened(value)}" for name, value in arrays.items() if isinstance(value, Mapping)]
    undrawn = f"<p>Not drawn: {escape('; '.join(large))}.</p>" if large else ""
    pictures = "".join(_figure(name, x, levels_of_numbers(x, largest_of(x))) for name, x in drawn.items())
    snippet = found["snippet"]
    if len(snippet) > MAX_SNIPPET:
        script = f"<p>The script is long ({len(snippet) / 1000:.0f} kB): it is in the JSON report.</p>"
    else:
        script = f"<details><summary>The script, which exits 1</summary><pre>{escape(snippet)}</pre></details>"
    return (
        f'<div class="figures">{pictures}</div><div class="figures">{"".join(_results(found))}</div>'
        f"{undrawn}<details><summary>The input in numbers</summary><pre>{escape(chr(10).join(told))}</pre></details>"
        f"{script}"
    )


def _results(found: Mapping[str, Any]) -> Iterator[str]:
    """What was expected and got on the same colours, and the error over the budget."""
    expected, got, budget = (_array(found[name]) for name in ("expected", "got", "budget"))
    index = None if found["index"] is None else tuple(found["index"])
    largest = largest_of(*(x for x in (expected, got) if x is not None))
    for name, x in (("expected", expected), ("got", got)):
        if x is not None:
            yield _figure(name, x, levels_of_numbers(x, largest), index if index and len(index) == x.ndim else None)
    if expected is not None and got is not None and budget is not None and expected.shape == got.shape:
        ratios = over_budget(got, expected, budget)
        yield _figure("error over budget", ratios, levels_of_ratios(ratios), index or None)


def _figure(name: str, x: Any, levels: Any, index: tuple[int, ...] | None = None) -> str:
    shape = " × ".join(map(str, x.shape)) or "one number"
    maps = heat_maps(x, levels, name, index)
    return f"<figure><figcaption>{escape(name)} <span>{shape}</span></figcaption>{maps}</figure>"


def _array(value: Any) -> Any:
    """An array of a report; None for what is none, or is there as a shape alone."""
    if isinstance(value, bool | int | str | Mapping) or value is None:
        return None
    array = np.array(value)
    return array if array.dtype == bool else array.astype(np.float64)


# What follows ---------------------------------------------------------------------------------------------------------


def _declaration(report: Report) -> str:
    if not report.declaration:
        return ""
    explained = "".join(_listed(lines(report.declaration.explained)))
    return f"<h2>To be declared</h2>{explained}<p>{escape(PASTE)}</p><pre>{escape(report.declaration.text)}</pre>"


def _consequences(causes: Sequence[Result], following: Sequence[Result]) -> str:
    if not following:
        return ""
    items = "".join(_violations(following))
    heading = escape(f"{consequences_heading(causes, following).removesuffix(':')} ({len(following):,})")
    return f"<h2>Consequences</h2><details><summary>{heading}</summary>{items}</details>"


def _budgets(results: Sequence[Result]) -> Iterator[str]:
    """A line for each operation: how many laws hold, and the largest error over budget in each dtype on one scale."""
    by_operation: dict[str, list[Result]] = defaultdict(list)
    for r in results:
        if r.judged:
            by_operation[r.operation].append(r)
    for chapter in CHAPTERS:
        names = [name for name in OPERATIONS if name in by_operation and OPERATIONS[name].chapter == chapter]
        if names:
            yield f"<h3>{escape(chapter)}</h3>"
        yield from (_budget(name, by_operation[name]) for name in names)


def _budget(operation: str, judged: Sequence[Result]) -> str:
    used: dict[str, float] = {}
    for r in judged:
        used[r.dtype] = max(used.get(r.dtype, 0.0), r.error_ratio)
    failed, lost = sum(r.violates for r in judged), sum(r.status is Status.LOST for r in judged)
    words = f"{len(judged) - failed} of {len(judged)} laws hold, {sum(r.examples for r in judged):,} examples"
    words += f", {lost} lost" if lost else ""
    lanes = "".join(_lane(dtype, ratio) for dtype, ratio in used.items())
    return (
        f'<div class="budget{" failed" if failed else ""}"><div><code>{escape(operation)}</code> <span>{words}</span>'
        f'</div><div class="lanes">{lanes}</div></div>'
    )


def _lane(dtype: str, ratio: float) -> str:
    """A bar from the left end of the scale, 2⁻⁸ of the budget; in its middle the budget is used up."""
    share = log2(min(max(ratio, LEAST), MOST) / LEAST) / log2(MOST / LEAST)
    said = f"{ratio:.0%}" if ratio <= 1 else f"{ratio:.3g} times" if ratio < 1e6 else "far beyond"
    wrong = ' class="over"' if ratio > 1 else ""
    return (
        f'<span class="dtype">{escape(dtype)}</span><span class="track"><i{wrong} style="width:{share:.1%}"></i></span>'
        f'<span class="used">{said}</span>'
    )
