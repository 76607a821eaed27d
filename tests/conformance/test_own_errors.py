"""Errors of attnspec itself change no verdict, and are reported as its own."""

import html
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import jsonschema
import numpy as np
import pytest
from rich.console import Console

from attnspec import reference
from attnspec.conformance.inputs.arguments import take
from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.judging import engine
from attnspec.conformance.judging.cases import Case, cases, governing_laws
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.profiles import PROFILES, Effort, Profile
from attnspec.conformance.judging.results import OWN_ERROR, Result, Status
from attnspec.conformance.judging.snippet import _same_value
from attnspec.conformance.judging.violation import Violation
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.reporting.report import Report
from attnspec.conformance.reporting.writing import OutputFile, write_report
from attnspec.conformance.running.planning import Plan
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.suite import run_case
from attnspec.conformance.running.verdicts import Collector, Verdicts
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import OPERATIONS

from .test_cli import run_check
from .test_report import SCHEMA

pytestmark = pytest.mark.slow

OWN_NOTE = "attnspec's own error while "
FORMULA = "operation.oracle"
FEW_EXAMPLES = Effort(corners=2, drawn=0, stride=1, slow_stride=1, work=2.0**8, slow=False, ensemble=16)
SHORT_PROFILE = Profile(FEW_EXAMPLES, FEW_EXAMPLES, FEW_EXAMPLES)


def raise_error(*arguments: Any, **options: Any) -> NoReturn:
    raise TypeError("injected")


def kept_fields(r: Result) -> tuple[Any, ...]:
    """The fields that later stages keep; the message may change with the smallest input."""
    return r.law, r.status, r.reason, r.examples, r.not_judged, r.error_ratio, r.observed


# Every law ------------------------------------------------------------------------------------------------------------


def operations_with_all_laws() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Operations that together have all laws; each comes with the laws that no earlier one has."""
    missing = {law for law in LAWS if any(LAWS[law].concerns(o) and not o.reference_only for o in OPERATIONS.values())}
    while missing:
        name = max(
            (o.name for o in OPERATIONS.values() if not o.reference_only),
            key=lambda name: len(missing.intersection(governing_laws(OPERATIONS[name]))),
        )
        yield name, tuple(law for law in governing_laws(OPERATIONS[name]) if law in missing)
        missing -= set(governing_laws(OPERATIONS[name]))


def violates(subject: Any, arguments: Any, rng: Any) -> NoReturn:
    raise Violation("1 is not 2", expected=np.float64(2), got=np.float64(1), budget=np.float64(0.1), index=())


@pytest.mark.parametrize("stage", ["reduce_arguments", "without_snippet", "snippet"])
def test_every_law_keeps_its_verdict_and_its_input(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = {law: tuple(replace(c, function=violates) for c in of_law) for law, of_law in CHECKS.items()}
    monkeypatch.setattr(engine, "CHECKS", checks)
    # inputs stay as they are, except in the stage that is broken next
    for reduction in ("reduce_arguments", "reduce_to_zeros"):
        monkeypatch.setattr(engine, reduction, lambda s, check, x, violation, seed, mark: (x, violation))
    for broken_stage in ("reduce_arguments", "reduce_to_zeros") if stage == "reduce_arguments" else (stage,):
        monkeypatch.setattr(engine, broken_stage, raise_error)
    for operation, laws in operations_with_all_laws():
        backend = SimpleNamespace(name="any", vjp=raise_error, **{operation: getattr(reference, operation)})
        contract = Contract.of(backend)
        for r in judge(backend, contract, Case(operation, "float32", laws, laws_selected=True), SHORT_PROFILE):
            assert (r.status, r.reason, r.message) == (Status.FAILED, "value", "1 is not 2"), (r.law, r.reason)
            assert r.note.startswith(OWN_NOTE)
            assert "TypeError: injected" in r.note
            assert r.law in r.note
            counterexample = r.counterexample
            if stage == "without_snippet":
                assert counterexample is None
            else:
                assert counterexample is not None
                assert counterexample["arguments"]
                assert bool(counterexample["snippet"]) == (stage != "snippet")


@pytest.mark.parametrize("law", [FORMULA, "operation.shape"])
def test_an_error_in_a_check_loses_its_law_alone(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SimpleNamespace(name="right", softmax=reference.softmax)
    case = Case("softmax", "float32", governing_laws(OPERATIONS["softmax"]))
    undisturbed = judge(backend, Contract.of(backend), case, SHORT_PROFILE)
    monkeypatch.setattr(engine, "CHECKS", {**CHECKS, law: (replace(CHECKS[law][0], function=raise_error),)})
    results = judge(backend, Contract.of(backend), case, SHORT_PROFILE)
    (lost,) = [r for r in results if r.unchecked]
    assert (lost.law, lost.status, lost.reason, lost.violates) == (law, Status.LOST, OWN_ERROR, False)
    assert lost.message.startswith(f"{OWN_NOTE}checking {law}: TypeError: injected")
    assert [kept_fields(r) for r in results if r.law != law] == [kept_fields(r) for r in undisturbed if r.law != law]
    settings = Settings(operations=("softmax",), dtypes=("float32",))
    plan = Plan.of(Contract.of(backend), settings)
    report = Report.of(plan, Verdicts({case.id: results}), settings, 1.0)
    assert (report.verdict, report.exit_status, report.notes) == ("unusable", 2, (lost.message,))


# The stages of a case -------------------------------------------------------------------------------------------------


def softmax(scores: Any, *, mask: Any = None) -> Any:
    """Softmax times 2, which overwrites part of its input and refuses two batch dimensions."""
    if scores.ndim > 3:
        raise NotImplementedError("more than one batch dimension is not supported")
    result = 2 * reference.softmax(scores, mask=mask)
    scores[..., :1] = 0
    return result


WRONG = SimpleNamespace(name="wrong", softmax=softmax)
FAILING, HOLDING = (FORMULA, "operation.shape", "operation.no-mutation"), "operation.result-owns-memory"
SETTINGS = Settings(operations=("softmax",), dtypes=("float32",), laws=(*FAILING, HOLDING))


def judge_case(backend: Any = WRONG) -> tuple[Verdicts, str]:
    """The verdicts of a worker, and the message of its failing test."""
    contract = Contract.of(backend, backend.name)
    plan = Plan.of(contract, SETTINGS)
    recorded: list[tuple[str, Any]] = []
    with pytest.raises(pytest.fail.Exception) as failure:
        run_case(backend, contract, plan.cases[0], SETTINGS, lambda name, value: recorded.append((name, value)))
    verdicts = Verdicts()
    test: Any = SimpleNamespace(
        nodeid=f"[{plan.cases[0].id}]", user_properties=recorded, failed=True, longreprtext="E  failed"
    )
    Collector(verdicts).pytest_runtest_logreport(test)
    return verdicts, str(failure.value)


@pytest.fixture(scope="module")
def undisturbed() -> Verdicts:
    """The verdicts of a run without injected errors."""
    verdicts, _ = judge_case()
    assert {r.law: str(r.status) for r in verdicts.results["softmax-float32"]} == {
        **dict.fromkeys(FAILING, "failed"),
        HOLDING: "passed",
    }
    assert not any(r.note for r in verdicts.results["softmax-float32"])
    return verdicts


EXPLAINING, RUNNING = "attnspec.conformance.explaining.", "attnspec.conformance.running."
STAGES = {
    "declarations": RUNNING + "in_process.missing_declarations",
    "refusals": RUNNING + "in_process.refusals",
    "what is left to diagnose": RUNNING + "in_process.unexplained",
    "diagnosis": EXPLAINING + "inquiry.inquiry",
    "candidates of a diagnosis": EXPLAINING + "diagnosing.candidate_kinds",
    "message of the test": RUNNING + "suite.failure_message",
}


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_no_stage_of_a_case_changes_a_verdict(
    stage: str, undisturbed: Verdicts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, raise_error)
    verdicts, message = judge_case()
    assert not verdicts.causes
    (case,) = verdicts.results
    assert [*map(kept_fields, verdicts.results[case])] == [*map(kept_fields, undisturbed.results[case])]
    assert message.count("TypeError: injected") == 1, message
    assert OWN_NOTE in message
    contract = Contract.of(WRONG, "wrong")
    report = Report.of(Plan.of(contract, SETTINGS), verdicts, SETTINGS, 1.0)
    document = report.as_json()
    jsonschema.validate(document, SCHEMA)
    assert (report.verdict, len(document["notes"])) == ("violates", 0 if "message" in stage else 1)


JUDGING = ("engine._explore", "engine.corners", "engine._Run.includes", "engine._verdict", "engine._LawProgress")


@pytest.mark.parametrize("stage", JUDGING)
def test_an_error_between_checks_is_no_violation(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SimpleNamespace(name="right", softmax=reference.softmax)
    monkeypatch.setattr(f"attnspec.conformance.judging.{stage}", raise_error)
    verdicts, message = judge_case(backend)
    results = verdicts.results["softmax-float32"]
    assert {(r.law, r.status, r.reason) for r in results} == {
        (law, Status.LOST, OWN_ERROR) for law in (*FAILING, HOLDING)
    }
    assert all(r.message.startswith(OWN_NOTE) and "injected" in r.message for r in results)
    assert OWN_NOTE in message
    report = Report.of(Plan.of(Contract.of(backend, "right"), SETTINGS), verdicts, SETTINGS, 1.0)
    assert (report.verdict, report.exit_status) == ("unusable", 2)


def test_an_error_after_a_violation_leaves_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second example raises: violations of the first one stand, and other laws are lost."""
    try_example = engine._check_example

    def first_only(run: Any, example: Example, index: int, **more: Any) -> Any:
        return try_example(run, example, index, **more) if index == 0 else raise_error()

    monkeypatch.setattr(engine, "_check_example", first_only)
    twice = SimpleNamespace(name="twice", softmax=lambda scores, *, mask=None: 2 * reference.softmax(scores, mask=mask))
    case = Case("softmax", "float32", (FORMULA, "operation.shape"))
    results = {r.law: r for r in judge(twice, Contract.of(twice), case, SHORT_PROFILE)}
    assert results[FORMULA].status is Status.FAILED
    assert results["operation.shape"].message.startswith(f"{OWN_NOTE}judging softmax-float32: TypeError: injected")


def test_a_violation_that_cannot_be_described_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_with_counterexample", raise_error)
    verdicts, _ = judge_case()
    results = verdicts.results["softmax-float32"]
    assert {r.law for r in results if r.violates} == set(FAILING)
    assert all(r.note.startswith(f"{OWN_NOTE}describing the violation of {r.law}") for r in results if r.violates)


# Reports --------------------------------------------------------------------------------------------------------------

REPORTING = "attnspec.conformance.reporting."
WRITERS = {
    "table": (REPORTING + "table.chapters", "table"),
    "json": (REPORTING + "report.Report.as_json", "json"),
    "html": (REPORTING + "verdict_page._budgets", "html"),
    "pictures": (REPORTING + "verdict_page.heat_maps", ""),
    "declaration": (REPORTING + "report.declaration", ""),
    "junit": ("attnspec.conformance.reporting.writing.OutputFile.write", "junit"),
}


@pytest.mark.parametrize(("stage", "lost"), WRITERS.values(), ids=WRITERS)
def test_an_error_in_one_report_does_not_stop_the_others(
    stage: str, lost: str, undisturbed: Verdicts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract = Contract.of(WRONG, "wrong")
    plan = Plan.of(contract, SETTINGS)
    expected = Report.of(plan, undisturbed, SETTINGS, 1.0)
    write = OutputFile.write

    def junit_broken(file: OutputFile, text: str) -> None:
        raise_error() if file.option == "--junit" else write(file, text)

    monkeypatch.setattr(stage, junit_broken if lost == "junit" else raise_error)
    report = Report.of(plan, undisturbed, SETTINGS, 1.0)
    assert (report.exit_status, report.verdict, report.counts) == (1, "violates", expected.counts)
    files = {name: OutputFile(tmp_path / name, f"--{name}") for name in ("json", "html", "junit")}
    console = Console(width=200, record=True)
    errors = write_report(report, files, console)
    assert {name for name in files if not (tmp_path / name).exists()} == {lost} - {"table", ""}
    if lost:
        (message,) = errors
        assert message.startswith(f"{OWN_NOTE}writing the report as {lost}: TypeError: injected")
        assert message.endswith("; please report it; wrong violates all the same")
    else:
        page = (tmp_path / "html").read_text(encoding="utf-8")
        assert OWN_NOTE in html.unescape(page)
    if lost != "json":
        document = json.loads((tmp_path / "json").read_text(encoding="utf-8"))
        assert document["summary"] == expected.as_json()["summary"]


# The process of the backend -------------------------------------------------------------------------------------------

ENDS_AT_SECOND_CALL = """
import os, time
from attnspec import reference
name = "once"
calls = []
def softmax(scores, *, mask=None):
    calls.append(1)
    if len(calls) > 1:
        {end}
    return 2 * reference.softmax(scores, mask=mask)
"""


@pytest.mark.parametrize(
    ("end", "message"), [("os._exit(3)", "ended"), ("time.sleep(60)", "did not answer within 2 s")]
)
def test_a_crash_during_reduction_keeps_the_verdict(end: str, message: str, tmp_path: Path) -> None:
    arguments = ("--law", FORMULA, "--operation", "softmax", "--dtype", "float32", "--hang-after", "2")
    status, report = run_check(tmp_path, ENDS_AT_SECOND_CALL.format(end=end), *arguments)
    (result,) = [r for r in report["results"] if r["operation"] == "softmax"]
    assert (status, result["status"], result["reason"]) == (1, "failed", "value")
    assert message in result["note"]
    assert "reducing the counterexample" in result["note"]
    assert result["counterexample"]["arguments"]
    assert report["notes"] == [result["note"]]


# Backends that met errors of ours -------------------------------------------------------------------------------------

WRONG_AT_FIRST = """
from attnspec import reference
name, calls = "cold", []
def softmax(scores, *, mask=None):
    calls.append(1)
    return reference.softmax(scores, mask=mask) * (2 if len(calls) == 1 else 1)
"""
IGNORES_SOFTCAP = """
from attnspec import reference
name = "nocap"
def grouped_query_attention(query, key, value, *, softcap=None, **options):
    return reference.grouped_query_attention(query, key, value, **options)
"""


def test_a_violation_that_does_not_repeat_is_the_verdict(tmp_path: Path) -> None:
    arguments = ("--law", FORMULA, "--operation", "softmax", "--dtype", "float32")
    for option in ((), ("--fail-fast",)):
        status, report = run_check(tmp_path, WRONG_AT_FIRST, *arguments, *option)
        (result,) = [r for r in report["results"] if r["operation"] == "softmax"]
        assert (status, report["verdict"], result["status"], result["reason"]) == (1, "violates", "failed", "value")
        assert result["note"] == engine.NOT_REPRODUCED
        assert result["counterexample"]["arguments"]["scores"]


def test_an_ignored_option_is_no_error_of_attnspec(tmp_path: Path) -> None:
    name, laws = "grouped_query_attention", (FORMULA, "operation.options-have-effect")
    selection = [x for law in laws for x in ("--law", law)]
    status, report = run_check(tmp_path, IGNORES_SOFTCAP, "--operation", name, "--dtype", "float32", *selection)
    assert (status, report["notes"]) == (1, [])
    results = {r["law"]: r for r in report["results"]}
    assert [(results[law]["status"], results[law]["reason"]) for law in laws] == [("failed", "value")] * 2
    assert results[FORMULA]["counterexample"]["arguments"]["softcap"] is not None


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (2.0, None, False), (None, 2.0, False), (None, None, True), (True, 1, False), (2, 2.0, False), (2, 2, True),
        ("a", "a", True), ("a", None, False), (np.nan, np.nan, True), (0.5, np.ones(1), False),
        (np.array([np.nan, 1]), np.array([np.nan, 1]), True), (np.array([1]), np.array([1.0]), False),
        (np.array([True]), np.array([True]), True), (np.ones(2), np.ones((2, 1)), False), (np.ones(2), None, False),
    ],
)  # fmt: skip
def test_leaves_of_every_kind_are_compared(left: Any, right: Any, equal: bool) -> None:
    assert _same_value(left, right) is equal


def test_a_selected_law_is_checked_in_any_profile(tmp_path: Path) -> None:
    backend = SimpleNamespace(name="right", softmax=reference.softmax)
    contract = Contract.of(backend)
    beyond = Settings(operations=("softmax",), dtypes=("float32",), laws=("sizes.large-sizes",))
    everything = replace(beyond, laws=())
    results = {}
    for settings in (beyond, everything):
        (case,) = Plan.of(contract, settings).cases
        assert case.laws_selected == bool(settings.laws)
        case = replace(case, laws=("sizes.large-sizes",))
        (results[case.laws_selected],) = judge(backend, contract, case, PROFILES["quick"])
    assert (results[True].status, results[True].examples) == (Status.PASSED, 1)
    assert (results[False].status, results[False].reason) == (
        Status.NOT_APPLICABLE,
        "only the profiles full and release try it",
    )


def test_a_result_of_another_structure_violates_own_memory() -> None:
    backend = SimpleNamespace(
        name="lists", limits={"dtypes": ("float32",)}, grouped_query_attention=lambda query, *args, **kwargs: [[query]]
    )
    contract = Contract.of(backend)
    (case,) = cases(contract, laws=("operation.result-owns-memory",))
    (result,) = judge(backend, contract, case, PROFILES["quick"])
    assert (result.status, result.reason) == (Status.FAILED, "type"), result.message


def test_an_error_while_making_an_input_is_no_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def arguments(*call: Any) -> Any:
        raise MemoryError("74.5 GiB")

    monkeypatch.setattr("attnspec.conformance.inputs.examples.Example.arguments", arguments)
    right = SimpleNamespace(name="right", softmax=reference.softmax)
    contract = Contract.of(right)
    (case,) = Plan.of(contract, Settings(laws=("operation.shape",), dtypes=("float64",))).cases
    (result,) = judge(right, contract, case, PROFILES["quick"])
    assert (result.status, result.reason) == (Status.LOST, "error of attnspec")
    assert "making an input: MemoryError: 74.5 GiB" in result.message


def test_a_bias_that_all_heads_share_is_kept_when_a_head_is_selected() -> None:
    operation = OPERATIONS["grouped_query_attention"]
    sizes = {"heads_k": 1, "group": 3, "n": 2, "m": 4, "d": 2, "d_v": 2}
    example = Example({**dict.fromkeys(operation.sizes, 2), **sizes}, collapsed={"bias": ("heads_k",)})
    arguments = example.arguments(operation, "float64")
    assert arguments["bias"].shape == (1, 2, 4)
    assert arguments.along("heads_k", take([0]))["bias"].shape == (1, 2, 4)
