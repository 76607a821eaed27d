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
from attnspec.conformance.mutants import MUTANTS
from attnspec.conformance.variants import VARIANTS, Variant
from attnspec.spec.contract.operation import OPERATIONS

JUDGED = {
    check.function.__name__: check
    for law in ("pooling.ensemble-spread", "pooling.ensemble-keys")
    for check in CHECKS[law]
}
NUMBER = r"-?\d[\d.e+-]*"


def judged(backend: Any, operation: str, dtype: str, check: str) -> Outcome:
    """The outcome of a check in ``full``, on its own inputs."""
    subject = Subject(backend, Contract.of(backend), OPERATIONS[operation], dtype, "cpu")
    (example,) = corners(subject.operation, subject.limits, seed=0, most=1, work=subject.effort.work)[:1]
    return attempt(subject, JUDGED[check], subject.arguments(example), 0)


@pytest.mark.parametrize("v", VARIANTS.values(), ids=VARIANTS)
def test_no_honest_variant_is_accused(v: Variant) -> None:
    backend = v.backend()
    laws = tuple(dict.fromkeys(check.law.id for check in JUDGED.values()))
    for case in cases(Contract.of(backend), laws=laws, operations=v.operations[:1], dtypes=v.dtypes[:1]):
        for name, check in JUDGED.items():
            if check.law.id in case.laws:
                violation, *_ = judged(backend, case.operation, case.dtype, name)
                assert violation is None, f"{case.operation} {case.dtype} {name}: {violation}"


@pytest.mark.parametrize(
    ("mutant", "check", "says"),
    [
        (
            "weighted sums accumulated in bfloat16",
            "ensemble_spread",
            f"the root mean square of error/σ with 133 keys is {NUMBER} over 512 independent elements, "
            f"roundings leave at most {NUMBER}",
        ),
        (
            "last feature rounded down to bfloat16",
            "ensemble_mean",
            f"the mean of error/σ in feature 7 is {NUMBER} over 1024 independent elements, "
            f"roundings leave at most {NUMBER}",
        ),
        (
            "the first masked key beyond a tile counts in bfloat16",
            "ensemble_keys",
            f"a relative error of {NUMBER} in the weight of key 128 of 128 and 5 masked ones shows over 512 "
            f"independent elements, roundings leave at most {NUMBER}",
        ),
    ],
)
def test_messages(mutant: str, check: str, says: str) -> None:
    wrong = MUTANTS[mutant]
    violation, concerned, ratio, _ = judged(wrong.backend(), wrong.operations[0], wrong.dtype, check)
    assert concerned
    assert ratio > 1
    assert violation is not None
    assert re.fullmatch(says, violation.message)


def test_a_formula_that_is_not_odd_has_no_mean_to_judge() -> None:
    _, concerned, _, _ = judged(VARIANTS["sums in pairs"].backend(), "bahdanau_context", "float32", "ensemble_mean")
    assert not concerned
