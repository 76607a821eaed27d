"""The law that is named as the cause where several fail, and its error ratio."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from attnspec.conformance.judging import reduction
from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.causes import by_cause
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.profiles import FORMULA, GRADIENT, PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.mutants import MUTANTS
from attnspec.conformance.mutants.correct import Formulas, Library
from attnspec.conformance.reporting.heat_maps import over_budget
from attnspec.conformance.running.in_process import judged_until_violation
from attnspec.conformance.running.messages import failure_message
from attnspec.conformance.running.settings import Settings
from attnspec.spec.contract.operation import Operation

KEYS = ("got", "expected", "budget")


class ZeroLogarithm(Formulas):
    """The log-sum-exp of rows without keys is 0, not −∞."""

    def log_sum_exp(self, scores: Any) -> Any:
        logarithms = super().log_sum_exp(scores)
        return np.where(np.isneginf(logarithms), logarithms.dtype.type(0), logarithms)


class LongRows(Library):
    """Rows with more than 150 features are 1 % too large."""

    def finish(self, operation: Operation, result: Any, arguments: Any) -> Any:
        rows = super().finish(operation, result, arguments)
        return rows * rows.dtype.type(1.01) if rows.shape[-1] > 150 else rows


class SmallestBiases(Formulas):
    """NaN where the bias of a query's first 64 keys is the smallest finite number."""

    def grouped_query_attention(self, query: Any, key: Any, value: Any, *, bias: Any = None, **options: Any) -> Any:
        output, logarithms = super().grouped_query_attention(query, key, value, bias=bias, **options)
        tile = bias is not None and key.shape[-2] > 64 and (bias[..., :64] <= np.finfo(query.dtype).min).all(-1).any()
        return (output * output.dtype.type(np.nan) if tile else output), logarithms


class GradientOfUnbatchedQueries(Library):
    """Gradients are 1 % too large where queries have no batch and keys have one."""

    def differentiate(self, operation: Operation, arguments: Any, cotangent: Any) -> Any:
        gradients = super().differentiate(operation, arguments, cotangent)
        queries_have_no_batch = arguments["query"].ndim < arguments["key"].ndim
        return {path: g * g.dtype.type(1.01) if queries_have_no_batch else g for path, g in gradients.items()}


def failures_by_law(backend: Library, operation: str, *laws: str) -> dict[str, Result]:
    contract = Contract.of(backend)
    (case,) = cases(contract, operations=(operation,), dtypes=("float32",), laws=laws)
    results = judge(backend, contract, case, PROFILES["quick"])
    return {r.law: r for r in results if r.status is Status.FAILED}


@pytest.mark.parametrize(("backend", "operation", "root", "other"), [
    (LongRows("long rows"), "layer_norm", FORMULA, "sizes.model-sizes"),
    (Library("least biases", SmallestBiases()), "grouped_query_attention", FORMULA, "sizes.model-sizes"),
    (MUTANTS["gradient of the values doubled beyond 64 queries"].backend(), "scaled_dot_product_attention", GRADIENT,
     "training.strides-do-not-matter"),
    (GradientOfUnbatchedQueries("shared queries"), "scaled_dot_product_attention", GRADIENT,
     "training.broadcast-gradients-sum"),
])  # fmt: skip
def test_the_formula_is_named_as_the_cause_if_another_laws_input_breaks_it(
    backend: Library, operation: str, root: str, other: str
) -> None:
    assert failures_by_law(backend, operation, root) == {}
    failed = failures_by_law(backend, operation, root, other)
    assert failed.keys() == {root, other}
    causes, following = by_cause(failed.values())
    assert [r.law for r in causes] == [root]
    assert [r.law for r in following] == [other]
    assert failed[root].error_ratio > 1
    counterexample = failed[root].counterexample
    assert counterexample is not None
    assert np.shape(counterexample["got"]) or counterexample["got"]["shape"]
    assert f"vanish once {root} holds" in failure_message(failed.values())


def test_the_formula_is_not_named_where_the_plain_call_is_right() -> None:
    backend = MUTANTS["strides ignored"].backend()
    (operation,) = MUTANTS["strides ignored"].operations[:1]
    failed = failures_by_law(backend, operation, FORMULA, "storage.views-equal-copies")
    assert failed
    assert FORMULA not in failed


def test_results_cached_from_an_earlier_call_violate_no_memory_alone() -> None:
    backend = MUTANTS["results cached by shape"].backend()
    (operation,) = MUTANTS["results cached by shape"].operations[:1]
    assert failures_by_law(backend, operation, "operation.independent-of-other-calls").keys() == {
        "operation.independent-of-other-calls"
    }


def test_a_run_that_stops_at_its_first_violation_names_the_formula() -> None:
    backend = LongRows("long rows")
    contract = Contract.of(backend)
    (case,) = cases(contract, operations=("layer_norm",), dtypes=("float32",), laws=(FORMULA, "sizes.model-sizes"))
    judging = partial(judge, backend, contract, profile=PROFILES["quick"])
    results = {r.law: r for r in judged_until_violation(judging, case, Settings())}
    assert results["sizes.model-sizes"].status is Status.LOST
    assert results[FORMULA].status is Status.FAILED
    assert results[FORMULA].counterexample is not None


@pytest.mark.parametrize(
    "name",
    [
        "10⁻⁵ added to the sum of exponentials",
        "masked scores are 0",
        "parts with equal weights",
        "variance 1 % too small",
    ],
)
def test_the_error_ratio_is_at_least_that_of_the_counterexample(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy processor the reduction would stop early, at an input too large to be shown in full.
    monkeypatch.setattr(reduction, "MAX_SECONDS", 600.0)
    m = MUTANTS[name]
    r = failures_by_law(m.backend(), m.operations[0], FORMULA)[FORMULA]
    counterexample = r.counterexample
    assert counterexample is not None
    got, expected, budget = (np.array(counterexample[key], np.float64)[tuple(counterexample["index"])] for key in KEYS)
    assert r.error_ratio >= abs(got - expected) / budget * (1 - 1e-6) > 1
    assert r.as_json()["error_ratio"] == r.error_ratio


def test_a_missing_infinity_has_an_infinite_error_ratio() -> None:
    backend = Library("zero for minus infinity", ZeroLogarithm(), dtypes=("float32",))
    r = failures_by_law(backend, "merge_attention", FORMULA)[FORMULA]
    assert r.error_ratio == np.inf
    assert "expected -inf ± 0" in r.message
    assert np.isinf(over_budget(np.zeros(1), np.array([-np.inf]), np.zeros(1))).all()
    assert (over_budget(np.array([-np.inf]), np.array([-np.inf]), np.zeros(1)) == 0).all()
