"""A number beyond its budget is judged again, by a budget from samples."""

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.corners import corners
from attnspec.conformance.judging.attempt import attempt
from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.checks import Check
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Status
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.mutants.correct import Library
from attnspec.reference import REFERENCE
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import OPERATIONS, Operation


class Softmax:
    name = "softmax-alone"
    softmax = staticmethod(REFERENCE["softmax"])


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        pytest.param(repeat(0.5), None, id="within both"),
        pytest.param(repeat(2.0), None, id="within that of samples"),
        pytest.param(repeat(5.0), "the result is 5, expected 0 ± 4", id="within neither"),
        pytest.param(chain([2.0], repeat(0.5)), "the result is 2, expected 0 ± 1", id="once"),
        pytest.param(chain([2.0, 2.0], repeat(3.0)), "the result is 2, expected 0 ± 1", id="other numbers"),
    ],
)
def test_a_number_beyond_its_budget_is_judged_by_samples(results: Iterator[float], verdict: str | None) -> None:
    backend = Softmax()
    subject = Subject(backend, Contract.of(backend), OPERATIONS["softmax"], "float64", "cpu")

    def function(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
        budget = np.asarray(4.0 if subject.sampled else 1.0)
        subject.demand_match(np.asarray(next(results)), np.zeros(()), budget, arguments)
        return True

    check = Check(LAWS["operation.oracle"], function)
    example = corners(subject.operation, subject.limits, seed=0, most=1, work=1e6)[0]
    violation, concerned, ratio, _ = attempt(subject, check, example.arguments(subject.operation, "float64"), 0)
    assert concerned
    assert (None if violation is None else violation.message) == verdict
    assert (ratio <= 1) == (verdict is None)
    assert not subject.sampled


class LargerFinalState(Library):
    """The final state of the backward network is a quarter too large."""

    def finish(self, operation: Operation, result: Any, arguments: Any) -> Any:
        states, (forward, backward) = super().finish(operation, result, arguments)
        return states, (forward, backward * backward.dtype.type(1.25))


@pytest.mark.parametrize("operation", ["bidirectional_gru", "bidirectional_rnn"])
def test_samples_convict_recurrent_networks_without_a_batch(operation: str) -> None:
    backend = LargerFinalState("larger state")
    contract = Contract.of(backend)
    (case,) = cases(contract, operations=(operation,), dtypes=("float16",), laws=("operation.oracle",))
    assert [r.status for r in judge(backend, contract, case, PROFILES["quick"])] == [Status.FAILED]


class GradientsInAnotherDtype(Library):
    """Gradients converted to a dtype that holds no real numbers."""

    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        self.dtype = dtype

    def vjp(self, operation: str, arguments: Any, cotangent: Any) -> dict[str, Any]:
        return {path: g.astype(self.dtype) for path, g in super().vjp(operation, arguments, cotangent).items()}


@pytest.mark.parametrize("dtype", ["object", "complex128", "str"])
def test_gradients_that_are_not_real_numbers_lose_no_law_and_violate_the_gradient(dtype: str) -> None:
    backend = GradientsInAnotherDtype(dtype)
    contract = Contract.of(backend)
    (case,) = cases(contract, operations=("softmax",), dtypes=("float32",))
    results = judge(backend, contract, case, PROFILES["quick"])
    assert [r.message for r in results if r.status is Status.LOST] == []
    (gradient,) = (r for r in results if r.law == "operation.gradient")
    assert (gradient.status, gradient.reason) == (Status.FAILED, "type")
    assert "expected real numbers" in gradient.message
