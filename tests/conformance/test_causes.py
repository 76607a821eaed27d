"""The law that a report names first where several fail, and the ratio beside the input shown."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from attnspec.conformance.judging.causes import by_cause
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import cases, judge
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
    """The logarithm of no part with keys is 0."""

    def log_sum_exp(self, scores: Any) -> Any:
        found = super().log_sum_exp(scores)
        return np.where(np.isneginf(found), found.dtype.type(0), found)


class LongRows(Library):
    """Rows of more than 150 features are 1 % too large."""

    def finished(self, operation: Operation, result: Any, arguments: Any) -> Any:
        found = super().finished(operation, result, arguments)
        return found * found.dtype.type(1.01) if found.shape[-1] > 150 else found


class LeastBiases(Formulas):
    """NaN where the bias of a whole tile is the least number."""

    def grouped_query_attention(self, query: Any, key: Any, value: Any, *, bias: Any = None, **options: Any) -> Any:
        output, logarithms = super().grouped_query_attention(query, key, value, bias=bias, **options)
        tile = bias is not None and key.shape[-2] > 64 and (bias[..., :64] <= np.finfo(query.dtype).min).all(-1).any()
        return (output * output.dtype.type(np.nan) if tile else output), logarithms


class GradientOfSharedQueries(Library):
    """Gradients are 1 % too large where queries have no batch and keys have one."""

    def differentiated(self, operation: Operation, arguments: Any, cotangent: Any) -> Any:
        found = super().differentiated(operation, arguments, cotangent)
        shared = arguments["query"].ndim < arguments["key"].ndim
        return {path: g * g.dtype.type(1.01) if shared else g for path, g in found.items()}


def failures(backend: Library, operation: str, *laws: str) -> dict[str, Result]:
    """The laws that a backend violates."""
    contract = Contract.of(backend)
    (case,) = cases(contract, operations=(operation,), dtypes=("float32",), laws=laws)
    found = judge(backend, contract, case, PROFILES["quick"])
    return {r.law: r for r in found if r.status is Status.FAILED}


@pytest.mark.parametrize(
    ("backend", "operation", "root", "other"),
    [
        (LongRows("long rows"), "layer_norm", FORMULA, "sizes.features"),
        (Library("least biases", LeastBiases()), "grouped_query_attention", FORMULA, "sizes.features"),
        (
            MUTANTS["gradient of the values twice, beyond 64 queries"].backend(),
            "scaled_dot_product_attention",
            GRADIENT,
            "training.strides",
        ),
        (
            GradientOfSharedQueries("shared queries"),
            "scaled_dot_product_attention",
            GRADIENT,
            "training.broadcast-sum",
        ),
    ],
)
def test_a_formula_that_fails_in_the_call_of_another_law_is_named(
    backend: Library, operation: str, root: str, other: str
) -> None:
    assert failures(backend, operation, root) == {}
    found = failures(backend, operation, root, other)
    assert found.keys() == {root, other}
    causes, following = by_cause(found.values())
    assert [r.law for r in causes] == [root]
    assert [r.law for r in following] == [other]
    assert found[root].error_ratio > 1
    shown = found[root].counterexample
    assert shown is not None
    assert np.shape(shown["got"]) or shown["got"]["shape"]
    assert f"vanish once {root} holds" in failure_message(found.values())


def test_a_law_is_named_by_itself_where_the_plain_call_is_right() -> None:
    backend = MUTANTS["strides ignored"].backend()
    (operation,) = MUTANTS["strides ignored"].operations[:1]
    found = failures(backend, operation, FORMULA, "storage.layouts")
    assert found
    assert FORMULA not in found


def test_what_an_earlier_call_leaves_behind_is_not_laid_to_the_formula() -> None:
    backend = MUTANTS["results cached by shape"].backend()
    (operation,) = MUTANTS["results cached by shape"].operations[:1]
    assert failures(backend, operation, "operation.no-memory").keys() == {"operation.no-memory"}


def test_a_run_that_stops_at_its_first_violation_names_the_formula() -> None:
    backend = LongRows("long rows")
    contract = Contract.of(backend)
    (case,) = cases(contract, operations=("layer_norm",), dtypes=("float32",), laws=(FORMULA, "sizes.features"))
    judging = partial(judge, backend, contract, profile=PROFILES["quick"])
    found = {r.law: r for r in judged_until_violation(judging, case, Settings())}
    assert found["sizes.features"].status is Status.LOST
    assert found[FORMULA].status is Status.FAILED
    assert found[FORMULA].counterexample is not None


@pytest.mark.parametrize(
    "name", ["ε in the denominator", "masked scores are 0", "parts with equal weights", "variance too small by 1 %"]
)
def test_the_largest_ratio_is_no_less_than_that_of_the_input_shown(name: str) -> None:
    m = MUTANTS[name]
    r = failures(m.backend(), m.operations[0], FORMULA)[FORMULA]
    shown = r.counterexample
    assert shown is not None
    got, expected, budget = (np.array(shown[key], np.float64)[tuple(shown["index"])] for key in KEYS)
    assert r.error_ratio >= abs(got - expected) / budget * (1 - 1e-6) > 1
    assert r.as_json()["error_ratio"] == r.error_ratio


def test_an_infinity_that_is_missed_is_hot_in_the_picture_and_infinite_in_the_report() -> None:
    backend = Library("zero for minus infinity", ZeroLogarithm(), dtypes=("float32",))
    r = failures(backend, "merge_attention", FORMULA)[FORMULA]
    assert r.error_ratio == np.inf
    assert "expected -inf ± 0" in r.message
    assert np.isinf(over_budget(np.zeros(1), np.array([-np.inf]), np.zeros(1))).all()
    assert (over_budget(np.array([-np.inf]), np.array([-np.inf]), np.zeros(1)) == 0).all()
