"""Diagnoses name a known defect only if it gives the same wrong numbers."""

import io
import json
import runpy
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from rich.console import Console

from attnspec.conformance import judge
from attnspec.conformance.explaining import inquiry
from attnspec.conformance.explaining.choices import VISIBLE_EFFECTS
from attnspec.conformance.explaining.explanations import Diagnosis, Explanation
from attnspec.conformance.explaining.inquiry import diagnosis_of_result
from attnspec.conformance.explaining.undeclarable_precisions import undeclarable_precision
from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason
from attnspec.conformance.mutants import MUTANTS
from attnspec.conformance.mutants.correct import Formulas, Library
from attnspec.conformance.rediscovered import REDISCOVERED
from attnspec.conformance.reporting.report import Report
from attnspec.conformance.reporting.table import print_report
from attnspec.conformance.reporting.verdict_page import as_html
from attnspec.conformance.running import suite
from attnspec.conformance.running.messages import diagnosis_lines, failure_message
from attnspec.conformance.running.planning import Plan
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.verdicts import Collector, Verdicts, record, record_explanation
from attnspec.reference import REFERENCE
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.contract.semantics import choices_of_formula

from .mistaken import MISTAKEN
from .test_declaring import attention, tf32

ROOT = Path(__file__).parents[2]
MAKING: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "diagnosis.py"))
"""Functions of the page of diagnoses: ``start_inquiry`` by the name of a wrong backend, ``is_right_diagnosis``."""

MUTANT_NAMES = (
    "attention without scale", "mask added as 0 and 1", "gradient of the queries not scaled",
    "heads merged without a transpose", "unbiased variance", "tokens from 1", "interpolation weights of eight bits",
    "causal mask allows only the future", "strides ignored", "NaN under the mask reaches the result",
    "features of queries beyond the 128th ignored", "pairs of halves, undeclared",
)  # fmt: skip
"""Mutants of results, gradients, memory layouts, non-finite numbers and sizes."""


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each diagnosis enough time even on a busy processor."""
    monkeypatch.setattr(inquiry, "SECONDS", 120)


def diagnosis_of_case(*arguments: Any) -> Diagnosis | None:
    inquiry_of_case = inquiry.inquiry(*arguments)
    return None if inquiry_of_case is None else inquiry_of_case.diagnosis()


@pytest.mark.parametrize("name", MUTANT_NAMES)
def test_a_known_defect_is_named(name: str) -> None:
    diagnosis = MAKING["start_inquiry"](name).diagnosis()
    assert diagnosis is not None
    assert name in diagnosis.same
    assert MUTANTS[diagnosis.same[0]].statement in diagnosis.sentence


@pytest.mark.parametrize(
    "name",
    ["unbiased variance", "head outputs divided by the number of heads", "variance 1 % too small"],
)
def test_an_unknown_defect_is_not_named(name: str) -> None:
    assert MAKING["start_inquiry"](name).diagnosis(without={name}) is None


@pytest.mark.parametrize(("end", "count"), [("first", 8), ("last", 1), ("last", 16)])
def test_judge_names_ignored_keys(end: str, count: int) -> None:
    query, key, value = np.random.default_rng(0).standard_normal((3, 2, 40, 8)).astype(np.float32)
    kept = slice(count, None) if end == "first" else slice(-count)
    output = attention(query, key[:, kept], value[:, kept])
    ignored = "key is" if count == 1 else f"{count} keys are"
    assert judge("scaled_dot_product_attention", output, query, key, value).diagnosis == f"The {end} {ignored} ignored."


@pytest.mark.parametrize(("factor", "cause"), [(np.log(2), "0.693147 = ln 2"), (1 / np.log(2), "1.4427 = log₂e")])
def test_judge_names_a_wrong_base_of_exponentials(factor: float, cause: str) -> None:
    query, key, value = np.random.default_rng(0).standard_normal((3, 2, 40, 8)).astype(np.float32)
    output = attention(query * np.float32(factor), key, value)
    diagnosis = judge("scaled_dot_product_attention", output, query, key, value).diagnosis
    assert diagnosis.startswith(f"The scores are multiplied by {cause}")


def test_a_result_whose_squares_overflow_has_no_diagnosis() -> None:
    query, key = np.random.default_rng(0).standard_normal((2, 5, 4))
    verdict = judge("dot_scores", np.full((5, 5), 1e300), query, key)
    assert not verdict
    assert verdict.diagnosis == ""


@pytest.mark.parametrize("in_single", [True, False])
def test_judge_names_intermediate_results_in_16_bits(in_single: bool) -> None:
    scores = (3 * np.random.default_rng(0).standard_normal((16, 512))).astype(ml_dtypes.bfloat16)
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    terms = exponentials.astype(np.float32) if in_single else exponentials
    weights = exponentials / terms.sum(-1, keepdims=True).astype(scores.dtype)
    expected = "Every intermediate result is rounded to bfloat16, as by operations without fusion."
    assert judge("softmax", weights, scores).diagnosis == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", [*REDISCOVERED, *MISTAKEN])
def test_no_wrong_cause_is_named(name: str) -> None:
    diagnosis = MAKING["start_inquiry"](name).diagnosis()
    assert diagnosis is None or MAKING["is_right_diagnosis"](name, diagnosis.as_json())


@pytest.mark.parametrize("name", ["divided by d", "scores doubled", "bfloat16 in float32"])
def test_the_cause_of_an_independent_mistake_is_named(name: str) -> None:
    diagnosis = MAKING["start_inquiry"](name).diagnosis()
    assert MAKING["is_right_diagnosis"](name, diagnosis.as_json())


def test_a_precision_class_that_can_be_declared_is_no_diagnosis() -> None:
    """Products in TF32 can be declared, so no other precision is named as a defect."""
    backend = SimpleNamespace(name="mine", scaled_dot_product_attention=partial(attention, rounded=tf32))
    contract = Contract.of(backend)
    (case,) = cases(contract, dtypes=("float32",))
    wrong = [Result(case.operation, "operation.oracle", "float32", Status.FAILED, Reason.VALUE)]
    inquiry_of_case = inquiry.inquiry(backend, contract, case, PROFILES["quick"], wrong)
    assert inquiry_of_case is not None
    assert any(probe.wrong for probe in inquiry_of_case.probes)
    assert undeclarable_precision(inquiry_of_case.subject, inquiry_of_case.probes, inquiry_of_case.call) is None


def test_a_diagnosis_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    inquiry_of_mutant = MAKING["start_inquiry"]("scores doubled")
    monkeypatch.setattr(inquiry, "SECONDS", 0)
    assert inquiry_of_mutant.diagnosis() is None


@pytest.mark.parametrize("factor", MAKING["FACTORS"])
def test_an_additional_factor_changes_the_diagnosis(factor: str) -> None:
    assert MAKING["start_inquiry"]("divided by d", factor).diagnosis() is None
    diagnosis = MAKING["start_inquiry"]("dropout of a tenth", factor).diagnosis()
    assert diagnosis.sentence == f"The results are multiplied by {0.9 * float(factor):g}."


class InvertedUpdate(Formulas):
    """A GRU of torch's reset gate whose update gate is inverted."""

    def gru_update(self, update: Any, h: Any, candidate: Any) -> Any:
        return Formulas.gru_update(self, 1 - update, h, candidate)

    def gru_candidate(self, x: Any, h: Any, reset: Any, p: Any) -> Any:
        return self.state_activation(self.reset_after_product(x, h, reset, p))


class ReflectedHalves(Formulas):
    """A rotary embedding of halves that reflects where it should rotate."""

    def split_pairs(self, x: Any) -> Any:
        return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]

    def join_pairs(self, first: Any, second: Any) -> Any:
        return np.concatenate([first, second], axis=-1)

    def rotate(self, first: Any, second: Any, cosine: Any, sine: Any) -> Any:
        reflected: Any = MUTANTS["reflection in place of a rotation"].alteration
        return reflected(self, first, second, cosine, sine)


class UnscaledBottomRight(Formulas):
    """Attention without scale, whose causal mask is aligned at the bottom right."""

    def scale_scores(self, scores: Any, d: int) -> Any:
        return scores

    def causal_mask(self, n: int, m: int, **options: Any) -> Any:
        return np.tri(n, m, m - n).astype(bool)


@pytest.mark.parametrize(("formulas", "operation", "choices", "defect"), [
    (InvertedUpdate(), "gru_cell", {"gru_reset": "after"}, "gru_update candidate"),
    (InvertedUpdate(), "gru", {"gru_reset": "after"}, "gru_update candidate"),
    (InvertedUpdate(), "stacked_gru", {"gru_reset": "after"}, "gru_update candidate"),
    (ReflectedHalves(), "rotary_embedding", {"rotary_pairs": "halves"}, "reflection in place of a rotation"),
    (UnscaledBottomRight(), "scaled_dot_product_attention", {"causal_alignment": "bottom-right"},
     "attention without scale"),
])  # fmt: skip
def test_a_known_defect_is_named_under_declared_choices(
    formulas: Formulas, operation: str, choices: dict[str, str], defect: str
) -> None:
    backend = Library("chosen", formulas, dtypes=("float32",), semantics={**choices, "rejection": "unchecked"})
    contract = Contract.of(backend)
    (case,) = cases(contract, operations=(operation,))
    wrong = [Result(operation, "operation.oracle", "float32", Status.FAILED, Reason.VALUE)]
    diagnosis = diagnosis_of_case(backend, contract, case, PROFILES["quick"], wrong)
    assert diagnosis is not None
    assert defect in diagnosis.same


def test_without_a_violation_of_numbers_there_is_no_diagnosis() -> None:
    backend = Library("correct")
    contract = Contract.of(backend)
    (case,) = cases(contract, operations=("softmax",), dtypes=("float32",))
    for status, reason in ((Status.PASSED, None), (Status.FAILED, "raised"), (Status.FAILED, "shape")):
        results = [Result("softmax", "operation.oracle", "float32", status, reason)]
        assert diagnosis_of_case(backend, contract, case, PROFILES["quick"], results) is None
    wrong = [Result("softmax", "operation.oracle", "float32", Status.FAILED, Reason.VALUE)]
    assert diagnosis_of_case(backend, contract, case, PROFILES["quick"], wrong) is None
    crashed = [*wrong, replace(wrong[0], reason=Reason.CRASHED)]
    assert diagnosis_of_case(MISTAKEN["divided by d"], contract, case, PROFILES["quick"], crashed) is None


# One result ---------------------------------------------------------------------------------------------------------


def mistaken_call(name: str, **sizes: Any) -> tuple[Subject, Arguments, dict[str, Any]]:
    backend = MISTAKEN[name]
    operation = OPERATIONS[backend.operation]
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, n, d)).astype(np.float32) for n, d in ((5, 9), (7, 9), (7, 4)))
    arguments = Arguments(operation, {"query": q, "key": k, "value": v, **sizes})
    subject = Subject(backend, Contract.of(backend), operation, "float32", "cpu")
    return subject, arguments, subject.results(arguments)


@pytest.mark.parametrize("name", ["divided by d", "causal from the end", "scores doubled", "bfloat16 in float32"])
def test_one_result_may_be_enough_for_a_diagnosis(name: str) -> None:
    subject, arguments, results = mistaken_call(name, causal=True)
    diagnosis = diagnosis_of_result(subject, arguments, results)
    assert diagnosis is not None
    assert MAKING["is_right_diagnosis"](name, diagnosis.as_json())


def test_one_result_that_several_defects_explain_has_no_diagnosis() -> None:
    mask = np.random.default_rng(1).random((5, 7)) < 0.7
    for options in ({"mask": mask}, {}):
        subject, arguments, results = mistaken_call("causal never", causal=True, **options)
        # One call cannot tell whether the causal mask is left out always, or only with or without a mask.
        assert diagnosis_of_result(subject, arguments, results) is None


def test_a_right_result_has_no_diagnosis() -> None:
    subject, arguments, results = mistaken_call("causal from the end")
    assert diagnosis_of_result(subject, arguments, results) is None


EMPTY_PARTS = np.full(2, -np.inf, np.float32)


@pytest.mark.parametrize("merged", [(np.nan, np.nan), (np.nan, -np.inf), (0.0, np.nan), (0.0, -1e9), (0.0, 0.0)])
def test_a_wrong_merge_of_empty_parts_has_no_diagnosis(merged: tuple[float, float]) -> None:
    """Many defects give NaN here, so no defect may be named."""
    output, logarithm = np.full(3, merged[0], np.float32), np.array(merged[1], np.float32)
    verdict = judge("merge_attention", (output, logarithm), np.zeros((2, 3), np.float32), EMPTY_PARTS)
    assert not verdict
    assert verdict.left_open == 0
    assert "equal weights" not in verdict.diagnosis
    right_merge = np.zeros(3, np.float32), np.array(-np.inf, np.float32)
    assert judge("merge_attention", right_merge, np.zeros((2, 3), np.float32), EMPTY_PARTS)


def test_finite_numbers_beside_nan_suffice_to_name_a_defect() -> None:
    operation = OPERATIONS["merge_attention"]
    backend = MUTANTS["parts with equal weights"].backend()
    subject = Subject(backend, Contract.of(backend), operation, "float32", "cpu")
    rng = np.random.default_rng(0)
    outputs, logarithms = rng.standard_normal((3, 2, 4)), rng.standard_normal((3, 2))
    logarithms[0] = -np.inf
    arguments = Arguments(operation, {"outputs": outputs.astype("f4"), "log_sum_exps": logarithms.astype("f4")})
    diagnosis = diagnosis_of_result(subject, arguments, subject.results(arguments))
    assert diagnosis is not None
    assert diagnosis.same[0] == "parts with equal weights"
    first_part = arguments.replaced({path: x[:1] for path, x in arguments.arrays.items()})
    assert diagnosis_of_result(subject, first_part, subject.results(first_part)) is None


@pytest.mark.parametrize("right", [0, 1])
def test_a_window_without_its_right_end_is_named_if_no_other_defect_fits(right: int) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 6, 4)).astype(np.float32) for _ in range(3))
    result = REFERENCE["grouped_query_attention"](q, k, v, window=(2, None))
    verdict = judge("grouped_query_attention", result, q, k, v, window=(2, right))
    assert not verdict
    # With a right end of 0, the defect that takes 0 for no end gives the same numbers, so neither is named.
    assert ("right end of a window forgotten" in verdict.diagnosis) == (right == 1)
    assert bool(verdict.diagnosis) == (right == 1)


# Reports ------------------------------------------------------------------------------------------------------------


def test_a_diagnosis_comes_back_from_json() -> None:
    diagnosis = Diagnosis("softmax", "float32", "The scores are multiplied by 2.", ("scale",))
    assert Diagnosis.from_json(json.loads(json.dumps(diagnosis.as_json()))) == diagnosis


def test_equal_diagnoses_of_several_operations_and_dtypes_are_one_line() -> None:
    twice, half = "The scores are multiplied by 2.", "The scores are multiplied by 0.5."
    diagnoses = [Diagnosis("a", "float64", twice), Diagnosis("b", "float32", twice), Diagnosis("a", "float32", twice)]
    assert diagnosis_lines([*diagnoses, Diagnosis("c", "float32", half)]) == [
        f"diagnosis of a (float64, float32), b (float32): {twice}",
        f"diagnosis of c (float32): {half}",
    ]
    failed = Result("softmax", "operation.oracle", "float32", Status.FAILED, "value", "what was seen")
    text = failure_message([failed], Diagnosis("softmax", "float32", twice))
    assert text.startswith(f"diagnosis of softmax (float32): {twice}\n\noperation.oracle is violated by softmax")


def test_a_case_has_its_diagnosis_beside_its_verdicts() -> None:
    backend = MISTAKEN["divided by d"]
    contract = Contract.of(backend)
    case = replace(cases(contract)[0], laws=("operation.oracle",))
    properties: dict[str, Any] = {}
    with pytest.raises(pytest.fail.Exception, match="attention scaled by d"):
        suite.run_case(backend, contract, case, Settings(), properties.__setitem__)
    assert properties["attnspec-explanation"]["diagnosis"]["same"] == ["attention scaled by d"]
    assert [r["status"] for r in properties["attnspec"]] == ["failed"]


def test_a_defect_is_named_beside_a_choice_that_is_not_declared(tmp_path: Path) -> None:
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, causal: bool = False) -> Any:
        scores = query @ np.swapaxes(key, -1, -2) / query.dtype.type(query.shape[-1])
        allowed = np.tri(*scores.shape[-2:]).astype(bool) if causal else np.ones(scores.shape[-2:], bool)
        scores = np.where(allowed if mask is None else allowed & mask, scores, scores.dtype.type(-1e30))
        weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        return (weights / weights.sum(-1, keepdims=True)) @ value

    backend = SimpleNamespace(name="mine", scaled_dot_product_attention=attention, limits={"dtypes": ("float32",)})
    contract = Contract.of(backend)
    case = replace(cases(contract)[0], laws=("operation.oracle", "semantics.fully_masked"))
    properties: dict[str, Any] = {}
    with pytest.raises(pytest.fail.Exception, match="attention scaled by d"):
        suite.run_case(backend, contract, case, Settings(shared_folder=str(tmp_path)), properties.__setitem__)
    assert properties["attnspec-explanation"]["diagnosis"]["same"] == ["attention scaled by d"]


def test_a_diagnosis_is_passed_from_the_test_to_the_report() -> None:
    diagnosis = Diagnosis("softmax", "float32", "The scores are multiplied by 2.", ("scale",))
    properties: list[tuple[str, object]] = []
    failed = Result("softmax", "operation.oracle", "float32", Status.FAILED, "value", "what was seen")
    record([failed], lambda name, value: properties.append((name, value)))
    explanation = Explanation(diagnosis=diagnosis)
    record_explanation(explanation, lambda name, value: properties.append((name, value)))
    test: Any = SimpleNamespace(
        nodeid="a.py::t[softmax-float32]", user_properties=properties, failed=True, longreprtext="no"
    )
    Collector(verdicts := Verdicts()).pytest_runtest_logreport(test)
    assert verdicts.explanations == {"softmax-float32": explanation}
    settings = Settings(laws=("operation.oracle",))
    plan = Plan.of(Contract.of(SimpleNamespace(name="mine", softmax=REFERENCE["softmax"])), settings)
    report = Report.of(plan, verdicts, settings, 1.0)
    assert report.diagnoses == (diagnosis,)
    assert report.as_json()["diagnoses"] == [diagnosis.as_json()]
    console = Console(record=True, width=120, file=io.StringIO())
    print_report(report, console)
    text = console.export_text()
    line = "diagnosis of softmax (float32): The scores are multiplied by 2."
    assert 0 <= text.index(line) < text.index("operation.oracle is violated by softmax")
    page = as_html(report)
    assert "<strong>The scores are multiplied by 2.</strong> <span>softmax (float32)</span>" in page


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda operation: operation.name)
def test_every_choice_of_a_formula_has_a_sentence(operation: Operation) -> None:
    choices = {(question, choice) for question, known in choices_of_formula(operation).items() for choice in known}
    assert choices <= VISIBLE_EFFECTS.keys()


def test_every_mutant_has_a_statement_without_quotes() -> None:
    assert [m.name for m in MUTANTS.values() if "“" in m.name or not m.statement.endswith((".", "…"))] == []
