"""Reports of a run: collected verdicts, JSON, and texts for people."""

import json
import re
import runpy
import sys
from dataclasses import replace
from html import unescape
from importlib import resources
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import pytest
from rich.console import Console

from attnspec import reference
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.corners import corners
from attnspec.conformance.judging import declaration
from attnspec.conformance.judging.attempt import stable_seed
from attnspec.conformance.judging.cases import Case
from attnspec.conformance.judging.comparison import Comparisons
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.extent import ORDER, widen
from attnspec.conformance.judging.profiles import PROFILES, Effort, Profile
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.reporting import table
from attnspec.conformance.reporting.limits import excluded_inputs
from attnspec.conformance.reporting.report import Report, in_common
from attnspec.conformance.reporting.table import closing_line, print_report, remarks, violations
from attnspec.conformance.reporting.verdict_page import as_html
from attnspec.conformance.running.planning import Plan
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.verdicts import Collector, Verdicts, case_of, record, recorded
from attnspec.spec import OPERATIONS, Limits

SCHEMA = json.loads(resources.files("attnspec.conformance.reporting").joinpath("report.schema.json").read_text())
SETTINGS = Settings(operations=("softmax",), laws=("operation.oracle", "semantics.fully_masked"))
COUNTEREXAMPLE = {
    "arguments": {"parameters.w_hz": [[1.0]], "layers[0].w_q": None},
    "expected": [1.0],
    "got": ["nan"],
    "budget": [1e-9],
    "index": [0],
    "snippet": "sys.exit(1)",
}
FAILED = Result(
    "softmax", "operation.oracle", "float64", Status.FAILED, "value", "1 is not 2", examples=3, not_judged=1,
    error_ratio=float("inf"), observed="this", counterexample=COUNTEREXAMPLE,
)  # fmt: skip


def contract(**declared: Any) -> Contract:
    return Contract.of(SimpleNamespace(name="mine", softmax=reference.softmax, **declared), "mine.py")


def report(*results: Result, causes: dict[str, str] | None = None, **declared: Any) -> Report:
    plan = Plan.of(contract(**declared), SETTINGS)
    verdicts = Verdicts(causes=causes or {})
    for r in results:
        verdicts.results.setdefault(f"{r.operation}-{r.dtype}", []).append(r)
    return Report.of(plan, verdicts, SETTINGS, 1.25)


def passed_result(law: str, dtype: str = "float64", **more: Any) -> Result:
    return Result("softmax", law, dtype, Status.PASSED, examples=5, **more)


def all_passed(**more: Any) -> list[Result]:
    return [passed_result(law, dtype, **more) for law in SETTINGS.laws for dtype in ("float64", "float32")]


def test_a_formula_whose_budgets_are_too_wide_has_no_verdict() -> None:
    def dot_scores(query: Numbers, key: Numbers) -> Numbers:
        return np.zeros_like(query @ key.mT)

    declared = {"precision": {"bfloat16": "mxfp8-bfloat16+truncating+short-sums"}}
    limits = {"dtypes": ("bfloat16",), "head_sizes": (256,)}
    zeros = SimpleNamespace(name="zeros", dot_scores=dot_scores, limits=limits, **declared)
    settings = Settings(laws=("operation.oracle", "operation.shape"))
    plan = Plan.of(Contract.of(zeros), settings)
    (case,) = plan.cases
    results = judge(zeros, plan.contract, case, PROFILES["quick"])
    run_report = Report.of(plan, Verdicts({case.id: results}), settings, 1.0)
    assert [str(r.status) for r in results] == ["lost", "passed"]
    assert (run_report.verdict, run_report.exit_status) == ("unusable", 2)
    assert any(note.startswith("no number was judged: ") for note in run_report.notes)


def test_equal_zeros_do_not_count_as_evidence() -> None:
    comparisons = Comparisons()
    no_arguments: Any = None
    zeros, ones, small = np.zeros(4), np.ones(4), np.full(4, 1e-6)
    comparisons.demand_match(zeros, zeros, small, no_arguments)
    assert (comparisons.informative, comparisons.too_wide) == (0, 0)
    comparisons.demand_match(ones, ones, small, no_arguments)
    comparisons.demand_match(ones, ones, ones, no_arguments)
    assert (comparisons.informative, comparisons.too_wide, comparisons.not_judged) == (4, 4, 4)


@pytest.mark.parametrize(
    "result",
    [FAILED, passed_result("operation.oracle"), replace(FAILED, error_ratio=0.25)],
    ids=["failed", "passed", "finite"],
)
def test_a_verdict_comes_back_from_json(result: Result) -> None:
    text = json.dumps(result.as_json(), allow_nan=False)
    assert Result.from_json(json.loads(text)) == result
    assert type(result.as_json()["status"]) is str


def test_numbers_that_are_not_finite_are_texts_in_json() -> None:
    assert [replace(FAILED, error_ratio=x).as_json()["error_ratio"] for x in (0.5, float("inf"), float("nan"))] == [
        0.5,
        "inf",
        "nan",
    ]


def test_the_collector_gets_the_verdicts_of_the_tests() -> None:
    properties: list[tuple[str, object]] = [("of somebody else", [1])]
    record([FAILED], lambda name, value: properties.append((name, value)), {"queries": 3})
    verdicts = Verdicts()
    reports: tuple[tuple[str, list[tuple[str, object]], bool, str], ...] = (
        ("a.py::t[softmax-float64]", properties, False, ""),
        ("a.py::t[softmax-float32]", [], True, "there\nE  no such thing\nhere"),
        ("a.py::t[dot_scores-float32]", [], True, "worker 'gw0' crashed"),
        ("a.py::t[dot_scores-float64]", [], True, ""),
    )
    for nodeid, user_properties, failed, text in reports:
        test: Any = SimpleNamespace(nodeid=nodeid, user_properties=user_properties, failed=failed, longreprtext=text)
        Collector(verdicts).pytest_runtest_logreport(test)
    assert verdicts.results == {"softmax-float64": [FAILED]}
    assert verdicts.extents == {"softmax-float64": {"queries": 3}}
    assert verdicts.causes == {
        "softmax-float32": "no such thing",
        "dot_scores-float32": "worker 'gw0' crashed",
        "dot_scores-float64": "its process ended",
    }
    other_test: Any = SimpleNamespace(user_properties=[("of somebody else", [1])])
    assert recorded(other_test) is None
    assert case_of("a.py::TestMine::test_conforms[softmax-float64]") == Case("softmax", "float64", ()).id


def test_a_law_without_a_verdict_is_lost_and_violates() -> None:
    unknown, cause = "the test ended without a verdict", "ZeroDivisionError: division by zero"
    for causes, message in (({"softmax-float64": cause}, cause), ({"softmax-float32": cause}, unknown)):
        run_report = report(*all_passed()[1:], causes=causes)
        (lost,) = [r for r in run_report.results if r.status is Status.LOST]
        assert lost == Result("softmax", "operation.oracle", "float64", Status.LOST, unknown, message)
        assert (run_report.verdict, run_report.exit_status) == ("violates", 1)


@pytest.mark.parametrize(
    ("results", "verdict", "status"),
    [
        (all_passed(), "conforms", 0),
        ([FAILED, *all_passed()[1:]], "violates", 1),
        ([replace(r, status=Status.NOT_APPLICABLE) for r in all_passed()], "unusable", 2),
    ],
    ids=["conforms", "violates", "unusable"],
)
def test_the_verdict_is_that_of_all_laws(results: list[Result], verdict: str, status: int) -> None:
    run_report = report(*results)
    document = json.loads(run_report.as_text())
    jsonschema.validate(document, SCHEMA)
    assert (run_report.verdict, run_report.exit_status) == (verdict, status)
    assert (document["verdict"], document["exit_status"]) == (verdict, status)
    assert document["results"] == [{**r.as_json(), "expected": None, "explained_by": None} for r in run_report.results]
    assert sum(document["summary"][s] for s in Status) == len(run_report.results)
    assert f"mine {verdict}" in closing_line(run_report)


def test_operations_that_are_not_provided_are_counted() -> None:
    settings = replace(SETTINGS, operations=())
    run_report = Report.of(Plan.of(contract(), settings), Verdicts({"softmax-float64": all_passed()}), settings, 0.0)
    absent = {r.operation for r in run_report.results if r.status is Status.NOT_PROVIDED}
    assert "scaled_dot_product_attention" in absent
    assert "softmax" not in absent
    operations = {r.operation for r in run_report.results}
    assert f"not provided: {len(absent)} of the {len(operations)} operations that a backend may provide" in remarks(
        run_report
    )
    assert {r["operation"] for r in run_report.as_json()["results"] if r["status"] == "not-provided"} == absent


def test_a_few_operations_that_are_not_provided_are_named() -> None:
    absent = (
        Result(name, "operation.oracle", "float64", Status.NOT_PROVIDED) for name in ("dot_scores", "additive_scores")
    )
    run_report = Report(contract(), SETTINGS, (passed_result("operation.oracle"), *absent), 0.0)
    assert "not provided: additive_scores, dot_scores" in remarks(run_report)


def test_semantics_are_reported_once_where_all_operations_agree() -> None:
    question = passed_result("semantics.fully_masked", observed="uniform")
    run_report = report(question, replace(question, dtype="float32"), semantics={"fully_masked": "uniform"})
    assert run_report.as_json()["semantics"] == {"fully_masked": {"declared": "uniform", "observed": "uniform"}}
    assert run_report.deviations == {"fully_masked": {"softmax": "uniform"}}
    assert "[yellow]deviation[/] fully_masked: uniform" in remarks(run_report)
    torn = report(question, replace(question, dtype="float32", observed="zero"))
    assert torn.as_json()["semantics"]["fully_masked"] == {"declared": "zero", "observed": "zero and uniform"}
    assert torn.deviations == {}


def test_deviations_are_reported_whichever_laws_are_judged() -> None:
    run_report = Report(
        contract(semantics={"fully_masked": "uniform"}), SETTINGS, (passed_result("operation.oracle"),), 0.0
    )
    assert run_report.as_json()["semantics"] == {"fully_masked": {"declared": "uniform", "observed": None}}
    assert "[yellow]deviation[/] fully_masked: uniform" in remarks(run_report)
    assert Report(contract(), SETTINGS, (passed_result("operation.oracle"),), 0.0).as_json()["semantics"] == {}


def test_choices_that_differ_are_reported_by_operation() -> None:
    assert in_common({}) is None
    assert in_common({"a": "x", "b": "x"}) == "x"
    assert in_common({"a": "x", "b": "y"}) == {"a": "x", "b": "y"}


def test_limits_other_than_the_default_are_printed() -> None:
    assert next(remarks(report(*all_passed()))) == "limits: float64, float32 on cpu"
    narrow = report(*all_passed(), limits={"head_sizes": (4,), "multiple_of": 8, "broadcasting": False})
    expected = "limits: float64, float32 on cpu, head sizes (4,), multiple of 8, broadcasting False"
    assert next(remarks(narrow)) == expected
    heads = report(*all_passed(), limits={"divided_heads": True, "dtypes_by_operation": {"softmax": ("float32",)}})
    assert next(remarks(heads)) == "limits: float64, float32 on cpu, divided heads True, softmax float32"


@pytest.mark.parametrize(("limit", "remark", "untested"), [
    ({"min_length": 2}, "min length 2", "lengths below 2"),
    ({"min_batch": 1}, "min batch 1", "dimensions of a batch below 1"),
    ({"max_batch_dims": 0}, "max batch dims 0", "batches"),
    ({"max_batch_dims": 1}, "max batch dims 1", "batches of more than 1 dimension"),
    ({"max_batch_dims": 2}, "max batch dims 2", "batches of more than 2 dimensions"),
    ({"broadcasting": False}, "broadcasting False", "batches that broadcast"),
    ({"mask": False}, "mask False", "masks"),
    ({"contiguous_only": True}, "contiguous only True", "arrays that are not contiguous"),
    ({"head_sizes": (4, 8)}, "head sizes (4, 8)", "sizes of features other than 4, 8"),
    ({"multiple_of": 8}, "multiple of 8", "lengths that are no multiples of 8"),
], ids=lambda x: x if isinstance(x, str) else "")  # fmt: skip
def test_inputs_beyond_limits_are_not_tried(limit: dict[str, Any], remark: str, untested: str) -> None:
    run_report = report(*all_passed(), limits=limit)
    assert next(remarks(run_report)) == f"limits: float64, float32 on cpu, {remark}"
    assert run_report.not_tried[2:] == [untested, "any device but cpu", "calls compiled by a framework"]


def test_limits_leave_out_only_inputs_that_operations_have() -> None:
    limits = Limits(mask=False, causal=False, divided_heads=True)
    names = ("softmax", "dot_scores", "scaled_dot_product_attention", "multi_head_attention")
    assert {name: list(excluded_inputs(limits, [OPERATIONS[name]])) for name in names} == {
        "softmax": ["masks"],
        "dot_scores": [],
        "scaled_dot_product_attention": ["masks", "the causal flag"],
        "multi_head_attention": ["heads that do not divide the width", "masks", "the causal flag"],
    }
    layer = [OPERATIONS["encoder_layer"]]
    assert list(excluded_inputs(Limits(always=("norm=pre",)), layer)) == ["calls without norm=pre"]
    assert list(excluded_inputs(Limits(always=("norm=pre",)), [OPERATIONS["softmax"]])) == []
    assert list(excluded_inputs(limits, [])) == []
    everywhere = [OPERATIONS[name] for name in names]
    assert list(excluded_inputs(Limits(), everywhere)) == []
    gradients_left_out = excluded_inputs(Limits(gradients=("dot_scores", "softmax")), everywhere)
    assert list(gradients_left_out) == ["gradients of scaled_dot_product_attention, multi_head_attention"]


@pytest.mark.parametrize(("names", "limits", "remark"), [
    (("softmax",), "limits: float64, float32 on cpu, gradients of softmax", []),
    ((), "limits: float64, float32 on cpu",
     ["gradients: not judged, because the backend's limits declare gradients of no operation"]),
])  # fmt: skip
def test_gradients_that_limits_leave_out_are_reported(names: tuple[str, ...], limits: str, remark: list[str]) -> None:
    run_report = report(*all_passed(), limits={"gradients": names}, vjp=lambda operation, arguments, cotangent: {})
    lines = list(remarks(run_report))
    assert lines[0] == limits
    assert [line for line in lines if line.startswith("gradients")] == remark
    assert run_report.not_tried[1] == "gradients"


@pytest.mark.parametrize(
    ("features", "remark"),
    [
        (None, []),
        (("softcap", "window", "scale"), []),
        (("scale", "window"), ["features: scale, window; not covered: softcap"]),
        ((), ["features: none; not covered: scale, window, softcap"]),
    ],
)
def test_features_that_are_not_covered_are_printed(
    monkeypatch: pytest.MonkeyPatch, features: tuple[str, ...] | None, remark: list[str]
) -> None:
    optional = replace(OPERATIONS["softmax"], features=("scale", "window", "softcap"))
    for module in (table, declaration):
        monkeypatch.setattr(module, "OPERATIONS", {**OPERATIONS, "softmax": optional})
    lines = remarks(report(*all_passed(), limits={"features": features}))
    assert [line for line in lines if line.startswith("features")] == remark


def test_printed_arguments_have_their_paths(tmp_path: Path) -> None:
    run_report = report(FAILED, *all_passed()[1:], notes={"path": "[b]plain[/]"})
    with (tmp_path / "out").open("w") as file:
        console = Console(record=True, width=200, file=file)
        print_report(run_report, console)
        text = console.export_text()
    assert "  parameters.w_hz = [[1.0]]\n  layers[0].w_q = None\n" in text
    assert "path: [b]plain[/]" in text
    assert "1 of 4" not in text
    assert text.startswith("mine violates\n")
    assert text.index("operation.oracle is violated") < text.index("chapter") < text.rindex("mine violates")
    assert "3 of 4 laws hold on 18 examples, largest error ratio inf, 1.2 s" in text
    assert "parameters.w_hz" in as_html(run_report)


def test_equal_violations_of_several_laws_and_dtypes_are_one_line() -> None:
    def failed(law: str, dtype: str, message: str) -> Result:
        return Result("softmax", law, dtype, Status.FAILED, "raised", message)

    both = ("float32", "float64")
    oracle = [failed("operation.oracle", dtype, "raised X") for dtype in both]
    alike = [failed(law, dtype, "raised X") for law in ("operation.shape", "operation.dtype") for dtype in both]
    unlike = [failed("operation.empty-batch", dtype, f"raised {dtype}") for dtype in both]
    run_report = Report(contract(), SETTINGS, (*oracle, *alike, *unlike), 1.0)
    lines = [part.plain for part in violations(run_report)]
    assert lines[1] == "failed: operation.oracle by softmax (float64): raised X"
    assert lines[3:] == ["3 laws of softmax: operation.empty-batch, operation.shape, operation.dtype"]
    causes = [part.plain for part in violations(replace(run_report, results=(*alike, *unlike)))]
    assert causes[3:] == [
        "failed: operation.empty-batch by softmax (float64): raised float64",
        "failed: operation.shape, operation.dtype by softmax (float64): raised X",
    ]


def test_a_report_lists_what_was_not_tried() -> None:
    plan = Plan.of(contract(), SETTINGS)
    extents = {
        "softmax-float64": {"queries": 3, "keys": 1300, "elements of a batch": 6},
        "softmax-float32": {"queries": 5, "keys": 7},
        "of another run-float32": {"queries": 9999},
    }
    results = {f"softmax-{d}": [passed_result(law, d) for law in SETTINGS.laws] for d in ("float64", "float32")}
    verdicts = Verdicts(results, extents=extents)
    run_report = Report.of(plan, verdicts, SETTINGS, 1.0)
    assert run_report.tried == {"softmax": {"queries": 5, "keys": 1300, "elements of a batch": 6}}
    assert run_report.not_tried == [
        "more than 5 queries, 1,300 keys or 6 elements of a batch",
        "bfloat16, float16",
        "gradients",
        "any device but cpu",
        "calls compiled by a framework",
    ]
    document = run_report.as_json()
    jsonschema.validate(document, SCHEMA)
    assert (document["tried"], document["not_tried"]) == (run_report.tried, run_report.not_tried)
    page = unescape(as_html(run_report))
    assert page[page.index("<h2>Not tried</h2>") :].split("<li>")[1:6] == [
        *(f"{text}</li>" for text in run_report.not_tried[:-1]),
        f"{run_report.not_tried[-1]}</li></ul>\n<h2>The run</h2>\n<ul>",
    ]
    assert report(*all_passed()).not_tried[0] == "bfloat16, float16"


def test_operations_whose_small_errors_no_law_sees_are_not_tried() -> None:
    laws, dtypes = ("operation.oracle", "attention.unbiased-scale"), ("float32", "bfloat16")
    plan = Plan.of(contract(limits={"dtypes": dtypes}), Settings(operations=("softmax",), laws=laws))

    def not_tried(*judged: str) -> list[str]:
        results = {f"softmax-{d}": [passed_result(law, d) for law in judged] for d in dtypes}
        lines = Report.of(plan, Verdicts(results), SETTINGS, 1.0).not_tried
        return [line for line in lines if "rounding" in line]

    assert not_tried("operation.oracle") == ["errors below a rounding to bfloat16 in softmax"]
    assert not_tried(*laws) == []


def test_values_of_integers_that_were_tried_are_named() -> None:
    extent: dict[str, int] = {}
    rotary, grouped, paged, embed = (
        OPERATIONS[name] for name in ("rotary_embedding", "grouped_query_attention", "paged_attention", "embed")
    )
    rows = np.zeros((3, 4))
    widen(extent, Arguments(rotary, {"x": rows, "positions": np.array([0, 70_000, 9])}))
    widen(extent, Arguments(grouped, dict.fromkeys(("query", "key", "value"), rows[None]) | {"window": (256, None)}))
    pages = np.zeros((300, 1, 64, 4))
    table = {"block_table": np.array([299, 3]), "key_lengths": np.asarray(70)}
    widen(extent, Arguments(paged, {"query": rows[None], "key_pages": pages, "value_pages": pages, **table}))
    widen(extent, Arguments(embed, {"tokens": np.array([32_768, 5]), "table": np.zeros((40_000, 1))}))
    assert (extent["pages of a cache"], extent["rows of a page"]) == (300, 64)
    values = {name: most for name, most in extent.items() if name not in ORDER}
    assert values == {"positions": 70_000, "windows": 256, "entries of a table": 299, "token indices": 32_768}
    results = {"softmax-float64": [passed_result(law, "float64") for law in SETTINGS.laws]}
    verdicts = Verdicts(results, extents={"softmax-float64": values})
    run_report = Report.of(Plan.of(contract(), SETTINGS), verdicts, SETTINGS, 1.0)
    jsonschema.validate(run_report.as_json(), SCHEMA)
    assert (
        run_report.not_tried[0]
        == "entries of a table beyond 299, positions beyond 70,000, token indices beyond 32,768, windows beyond 256"
    )


def test_the_extent_of_a_run_is_that_of_its_calls() -> None:
    backend = SimpleNamespace(name="mine", self_attention=reference.self_attention)
    extent: dict[str, int] = {}
    effort = Effort(corners=3, drawn=0, stride=1, slow_stride=1, work=2.0**12)
    case = Case("self_attention", "float64", ("operation.oracle",))
    judge(backend, Contract.of(backend), case, Profile(effort, effort, effort), extent=extent)
    rows = corners(
        OPERATIONS["self_attention"], Limits(), seed=stable_seed(0, case.operation, case.dtype), most=3, work=2.0**12
    )
    assert extent["queries"] == extent["keys"] == max(row.sizes["n"] for row in rows)
    assert extent["pairs of a query and a key"] == extent["queries"] ** 2
    assert extent["features"] == max(row.sizes["d"] for row in rows)
    assert extent["elements of a batch"] == max(prod(row.batch) for row in rows)
    assert set(extent) <= set(ORDER)


def test_the_script_of_the_page_on_ci_makes_annotations_and_a_badge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(# annotations\.py\n.*?)```", page, re.DOTALL)
    (tmp_path / "annotations.py").write_text(script, encoding="utf-8")
    (tmp_path / "report.json").write_text(report(FAILED, passed_result("operation.shape")).as_text(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["annotations.py", "report.json"])
    runpy.run_path("annotations.py")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"::error title={FAILED.law}::softmax ({FAILED.dtype}): ")
    badge = json.loads((tmp_path / "badge.json").read_text(encoding="utf-8"))
    assert (badge["message"], badge["color"]) == ("violates", "red")
