"""The HTML report: verdict, causes with heat maps, budgets, and folded consequences."""

import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnspec import reference
from attnspec.conformance.explaining.declaration import Declaration
from attnspec.conformance.explaining.explanations import Diagnosis
from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.profiles import Effort, Profile
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.reporting.heat_maps import (
    LEVELS,
    MAX_RATIO,
    MOST_MATRICES,
    NOT_A_NUMBER,
    colour,
    heat_maps,
    levels_of_numbers,
    levels_of_ratios,
    over_budget,
)
from attnspec.conformance.reporting.report import Report, key
from attnspec.conformance.reporting.verdict_page import _drawing, as_html
from attnspec.conformance.running.messages import MAX_SNIPPET
from attnspec.conformance.running.settings import Settings
from attnspec.spec import OPERATIONS

VOID_ELEMENTS = {"path", "rect", "meta"}
"""Elements without an end tag."""


class Outline(HTMLParser):
    """The tags of a page, all of which must be closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID_ELEMENTS:
            assert self.open.pop() == tag


def doubled(query: Any, key: Any, value: Any, *, mask: Any = None, causal: bool = False) -> Any:
    return reference.scaled_dot_product_attention(2 * query, key, value, mask=mask, causal=causal)


@pytest.fixture(scope="module")
def report() -> Report:
    """The report of four laws on a backend with doubled scores."""
    backend = SimpleNamespace(name="<mine>", scaled_dot_product_attention=doubled, dot_scores=reference.dot_scores)
    contract = Contract.of(backend)
    laws = ("operation.oracle", "operation.broadcast-equals-repeat", "sizes.model-sizes", "operation.shape")
    effort = Effort(corners=6, drawn=4, stride=1, slow_stride=2, work=2.0**10)
    results: list[Result] = []
    for case in cases(contract, laws=laws, dtypes=("float32", "float64")):
        results += judge(backend, contract, case, Profile(effort, effort, effort))
    return Report(contract, Settings(), tuple(results), 1.0, {"dot_scores": {"keys": 7}})


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return as_html(report)


def test_the_page_is_well_formed_and_loads_nothing(page: str) -> None:
    outline = Outline(page.partition("<!DOCTYPE html>")[2])
    assert [x for x in outline.attributes if x[1] in {"src", "href", "srcset", "action"}] == []
    assert [text for text in ("url(", "@import", "http:", "https:", "<script") if text in page] == []
    assert "&lt;mine&gt; violates" in page


def test_the_verdict_comes_first_and_consequences_last(page: str) -> None:
    body = page[page.index("<body>") :]
    places = [body.index(f"<h{n}{end}") for n, end in ((1, ' class="violates"'), (2, ">Causes"), (2, ">Budget used"))]
    places += [body.index(f"<h2>{title}") for title in ("Not tried", "The run", "Consequences")]
    assert places == sorted(places)
    causes = body[places[1] : places[2]]
    assert 'violation" open><summary><code>operation.oracle</code> by scaled_dot_product_attention' in causes
    folded = body[places[-1] :]
    assert "<details><summary>Possible consequences" in folded
    assert "sizes.model-sizes" in folded
    assert " open>" not in folded


def test_every_counterexample_has_its_matrices_and_the_error_over_budget(report: Report, page: str) -> None:
    shown = {r.law: r.counterexample for r in reversed(report.results) if r.counterexample is not None}
    drawn = [{n for n, x in (c["arguments"] | c).items() if isinstance(x, list)} for c in shown.values()]
    assert len(drawn) == 3
    for name in ("query", "key", "value", "expected", "got"):
        assert page.count(f"<figcaption>{name} ") == sum(name in names for names in drawn), name
    assert "Not drawn" not in page
    assert page.count("<figcaption>error over budget ") == len(drawn)
    assert page.count('<rect class="here"') == 3 * len(drawn)


def test_the_budget_of_every_operation_is_drawn(page: str) -> None:
    budgets = page[page.index("<h2>Budget used") : page.index("<h2>Not tried")]
    used = re.findall(r'<i( class="over")? style="width:([\d.]+)%"', budgets)
    assert len(used) == 4
    assert [bool(over) for over, _ in used] == [float(width) > 50 for _, width in used]
    assert {bool(over) for over, _ in used} == {True, False}
    assert budgets.index("dot_scores") < budgets.index("scaled_dot_product_attention")


def test_the_page_of_a_conforming_backend_has_no_causes() -> None:
    passed = Result("softmax", "operation.oracle", "float64", Status.PASSED, examples=5, error_ratio=0.25)
    contract = Contract.of(SimpleNamespace(name="mine", softmax=reference.softmax))
    page = as_html(Report(contract, Settings(), (passed,), 1.0))
    assert '<h1 class="conforms">mine conforms</h1>' in page
    assert "<p>None.</p>" in page[page.index("<h2>Causes</h2>") : page.index("<h2>Budget used</h2>")]
    assert "Consequences" not in page
    assert '<span class="used">25%</span>' in page


def test_the_page_shows_notes_declarations_and_diagnoses_escaped(report: Report) -> None:
    cause = next(r for r in report.violations if r.law == "operation.oracle")
    results = [replace(r, note="a <note>") if r.violates else r for r in report.results]
    for i, r in enumerate(results):
        if r.counterexample is not None:
            results[i] = replace(r, counterexample={**r.counterexample, "snippet": "x" * (MAX_SNIPPET + 1)})
    page = as_html(
        replace(
            report,
            results=tuple(results),
            declaration=Declaration({"semantics": "<s>"}, {key(cause): "<why>"}),
            diagnoses=(Diagnosis(cause.operation, cause.dtype, "the <scale> is wrong"),),
        )
    )
    Outline(page.partition("<!DOCTYPE html>")[2])
    for text in ("a <note>", "semantics = ", "<s>", "<why>", "the <scale> is wrong"):
        assert escape(text) in page, text
    assert "<p>The script is long (4 kB): it is in the JSON report.</p>" in page


# Heat maps ------------------------------------------------------------------------------------------------------------


def test_errors_beyond_the_budget_have_levels_above_0() -> None:
    ratios = np.array([0.0, 0.5, 1.0, 1.0001, 2.0, MAX_RATIO, np.inf])
    assert list(levels_of_ratios(ratios)) == [-LEVELS, -1, 0, 1, 1, LEVELS, LEVELS]


def test_the_ratio_of_error_and_budget() -> None:
    results, expected = np.array([1.5, 0.0, np.nan, 7.0, 1.0]), np.array([1.0, 0.0, 1.0, np.nan, 1.0 + 2**-40])
    assert list(over_budget(results, expected, np.array(0.25))) == [2.0, 0.0, np.inf, 0.0, 2**-38]
    assert list(over_budget(np.array([True, False]), np.array([True, True]), np.zeros(2))) == [0.0, np.inf]


def test_numbers_are_coloured_by_their_size_and_sign() -> None:
    x = np.array([-2.0, 0.0, 1.0, np.inf, -np.inf, np.nan])
    assert list(levels_of_numbers(x, 2.0)) == [-LEVELS, 0, LEVELS // 2, LEVELS, -LEVELS, NOT_A_NUMBER]
    assert colour(-LEVELS) == "#3b4cc0"
    assert colour(LEVELS) == "#b40426"
    assert len({colour(level) for level in (*range(-LEVELS, LEVELS + 1), NOT_A_NUMBER)}) == 2 * LEVELS + 2


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 2, 3), (5, 2, 2, 3)], ids=str)
def test_the_worst_number_is_marked_in_arrays_of_any_rank(shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    last = tuple(n - 1 for n in shape)
    pictures = heat_maps(x, levels_of_numbers(x, 100.0), "it", last)
    assert pictures.count("<svg") == min(int(np.prod(shape[:-2])), MOST_MATRICES)
    assert pictures.count('class="here"') == 1
    assert ("and 4 more" in pictures) == (shape == (5, 2, 2, 3))


def test_matrices_of_zeros_come_last() -> None:
    x = np.zeros((9, 1, 1))
    x[7] = 1
    pictures = heat_maps(x, levels_of_numbers(x, 1.0), "it")
    assert pictures.index("it[7]") < pictures.index("it[0]")


def test_flags_and_single_numbers_stand_with_the_pictures() -> None:
    arguments = {"query": [[0.0]], "key": [[0.0], [1.0]], "value": [[0.0], [1.0]], "causal": True, "key_lengths": 2}
    example = {"arguments": arguments, "expected": None, "got": None, "budget": None, "index": None, "snippet": ""}
    drawing = _drawing(OPERATIONS["grouped_query_attention"], example)
    assert drawing is not None
    assert drawing["scalars"] == ["causal = True", "key_lengths = 2"]


def test_arrays_too_large_for_a_picture_are_named(report: Report) -> None:
    results = list(report.results)
    shown = next(i for i, r in enumerate(results) if r.counterexample is not None)
    example = results[shown].counterexample
    assert example is not None
    arguments = {**example["arguments"], "key": {"shape": [64, 32], "dtype": "float32"}}
    results[shown] = replace(results[shown], counterexample={**example, "arguments": arguments})
    page = as_html(replace(report, results=tuple(results)))
    assert page.count("<p>Not drawn: key, an array of shape (64, 32)") == 1


def test_large_matrices_are_drawn_without_numbers() -> None:
    x = np.zeros((20, 20))
    assert "<text" not in heat_maps(x, levels_of_numbers(x, 1.0), "it")
