"""Laws about ensembles: messages on wrong backends, and no accusation of honest variants."""

import re
from typing import Any

import pytest

from attnspec.conformance.inputs.corners import corners
from attnspec.conformance.judging.attempt import CheckOutcome, attempt
from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.mutants import MUTANTS
from attnspec.conformance.variants import VARIANTS, Variant
from attnspec.spec.contract.operation import OPERATIONS

ENSEMBLE_CHECKS = {
    check.function.__name__: check
    for law in ("pooling.rounding-spread", "pooling.no-lost-or-extra-keys")
    for check in CHECKS[law]
}
NUMBER = r"-?\d[\d.e+-]*"


def outcome(backend: Any, operation: str, dtype: str, check: str) -> CheckOutcome:
    """The outcome of a check in ``full``, on its own inputs."""
    subject = Subject(backend, Contract.of(backend), OPERATIONS[operation], dtype, "cpu")
    (example,) = corners(subject.operation, subject.limits, seed=0, most=1, work=subject.effort.work)[:1]
    return attempt(subject, ENSEMBLE_CHECKS[check], subject.arguments(example), 0)


@pytest.mark.parametrize("v", VARIANTS.values(), ids=VARIANTS)
def test_no_honest_variant_is_accused(v: Variant) -> None:
    backend = v.backend()
    laws = tuple(dict.fromkeys(check.law.id for check in ENSEMBLE_CHECKS.values()))
    for case in cases(Contract.of(backend), laws=laws, operations=v.operations[:1], dtypes=v.dtypes[:1]):
        for name, check in ENSEMBLE_CHECKS.items():
            if check.law.id in case.laws:
                violation, *_ = outcome(backend, case.operation, case.dtype, name)
                assert violation is None, f"{case.operation} {case.dtype} {name}: {violation}"


@pytest.mark.parametrize(
    ("mutant", "check", "pattern"),
    [
        (
            "weighted sums accumulated in bfloat16",
            "rounding_spread",
            f"the root mean square of error/σ with 133 keys is {NUMBER} over 512 independent elements; "
            f"rounding explains at most {NUMBER}",
        ),
        (
            "last feature rounded down to bfloat16",
            "ensemble_mean",
            f"the mean of error/σ in feature 7 is {NUMBER} over 1024 independent elements; "
            f"rounding explains at most {NUMBER}",
        ),
        (
            "mask of key 128 ignored in bfloat16",
            "no_lost_or_extra_keys",
            f"a relative error of {NUMBER} in the weight of key 128 of 128 and 5 masked keys shows over 512 "
            f"independent elements; rounding explains at most {NUMBER}",
        ),
    ],
)
def test_messages_name_the_statistic_and_its_limit(mutant: str, check: str, pattern: str) -> None:
    wrong = MUTANTS[mutant]
    violation, concerned, ratio, _ = outcome(wrong.backend(), wrong.operations[0], wrong.dtype, check)
    assert concerned
    assert ratio > 1
    assert violation is not None
    assert re.fullmatch(pattern, violation.message)


def test_the_mean_error_is_not_judged_where_the_formula_is_not_odd() -> None:
    _, concerned, _, _ = outcome(VARIANTS["sums in pairs"].backend(), "bahdanau_context", "float32", "ensemble_mean")
    assert not concerned
