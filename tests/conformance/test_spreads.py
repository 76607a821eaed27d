"""Errors together: what their laws say of backends that are wrong, and that no honest variant is accused by them."""

import re
from typing import Any

import pytest

from attnspec.conformance.inputs.corners import corners
from attnspec.conformance.judging.attempt import Outcome, attempt
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import cases
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.laws.common import data_dtype
from attnspec.conformance.mutants import MUTANTS
from attnspec.conformance.variants import VARIANTS, Variant
from attnspec.spec.contract.operation import OPERATIONS

LAWS = ("pooling.ensemble-spread", "pooling.ensemble-mean", "pooling.ensemble-keys")
NUMBER = r"-?\d[\d.e+-]*"


def judged(backend: Any, operation: str, dtype: str, law: str) -> Outcome:
    """What becomes of a law in ``full``, on its own inputs."""
    subject = Subject(backend, Contract.of(backend), OPERATIONS[operation], dtype, "cpu")
    (example,) = corners(subject.operation, subject.limits, seed=0, most=1, work=subject.effort.work)[:1]
    return attempt(subject, CHECKS[law][0], example.arguments(subject.operation, data_dtype(subject)), 0)


@pytest.mark.parametrize("v", VARIANTS.values(), ids=VARIANTS)
def test_no_honest_variant_is_accused(v: Variant) -> None:
    backend = v.backend()
    for case in cases(Contract.of(backend), laws=LAWS, operations=v.operations[:1], dtypes=v.dtypes[:1]):
        for law in case.laws:
            violation, *_ = judged(backend, case.operation, case.dtype, law)
            assert violation is None, f"{case.operation} {case.dtype} {law}: {violation}"


@pytest.mark.parametrize(
    ("mutant", "law", "says"),
    [
        (
            "weighted sums accumulated in bfloat16",
            "pooling.ensemble-spread",
            f"the root mean square of error/σ with 133 keys is {NUMBER} over 512 independent elements, "
            f"roundings leave at most {NUMBER}",
        ),
        (
            "last feature rounded down to bfloat16",
            "pooling.ensemble-mean",
            f"the mean of error/σ in feature 7 is {NUMBER} over 1024 independent elements, "
            f"roundings leave at most {NUMBER}",
        ),
        (
            "the first masked key beyond a tile counts in bfloat16",
            "pooling.ensemble-keys",
            f"a relative error of {NUMBER} in the weight of key 128 of 128 and 5 masked ones shows over 512 "
            f"independent elements, roundings leave at most {NUMBER}",
        ),
    ],
)
def test_messages(mutant: str, law: str, says: str) -> None:
    wrong = MUTANTS[mutant]
    violation, concerned, ratio, _ = judged(wrong.backend(), wrong.operations[0], wrong.dtype, law)
    assert concerned
    assert ratio > 1
    assert violation is not None
    assert re.fullmatch(says, violation.message)


def test_a_formula_that_is_not_odd_has_no_mean_to_judge() -> None:
    _, concerned, _, _ = judged(VARIANTS["sums in pairs"].backend(), "bahdanau_context", "float32", LAWS[1])
    assert not concerned
