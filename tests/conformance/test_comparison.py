"""Messages of comparisons: two different numbers are never printed alike."""

from typing import Any

import numpy as np
import pytest

from attnspec.conformance import judge
from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.comparison import Comparisons, distinct_texts
from attnspec.conformance.judging.violation import Violation
from attnspec.spec import OPERATIONS

ARGUMENTS = Arguments(OPERATIONS["softmax"], {"scores": np.zeros((1, 1))})


@pytest.mark.parametrize(
    ("got", "expected", "texts"),
    [
        (0.5, 0.25, ("0.5", "0.25", "")),
        (np.nan, 1.0, ("nan", "1", "")),
        (True, False, ("True", "False", "")),
        (1 + 2.0**-52, 1.0, ("1.0000000000000002", "1", "2.22e-16 too much")),
        (1 - 2.0**-53, 1.0, ("0.99999999999999989", "1", "1.11e-16 too little")),
        (np.float32(0.5), np.float64(0.5 + 2**-40), ("0.5", "0.50000000000090949", "9.09e-13 too little")),
        (1e300, 1e300 * (1 + 2.0**-50), ("1.0000000000000001e+300", "1.0000000000000009e+300", "8.92e+284 too little")),
    ],
)  # fmt: skip
def test_numbers_are_printed_with_enough_digits_to_differ(got: Any, expected: Any, texts: tuple[str, str, str]) -> None:
    assert distinct_texts(np.asarray(got), np.asarray(expected)) == texts


@pytest.mark.skipif(bool(np.finfo(np.longdouble).eps > 2.0**-60), reason="a long double is a double here")
def test_long_doubles_are_printed_unlike_doubles() -> None:
    expected = np.longdouble(1) + np.longdouble(2) ** -60
    double_text, long_double_text, difference = distinct_texts(np.float64(1), expected)
    assert double_text != long_double_text
    assert difference == "8.67e-19 too little"


def test_a_signaling_nan_is_a_wrong_number() -> None:
    """Memory that was not written may hold one, and casting it warns."""
    scores = np.zeros((1, 2))
    got = np.array([[0.5, 0.0]])
    got.view(np.uint64)[0, 1] = 0x7FF0000000000001
    verdict = judge("softmax", got, scores)
    assert not verdict
    assert "is nan" in str(verdict)


def test_a_violation_of_close_numbers_says_their_difference() -> None:
    ones = np.ones((1, 1))
    with pytest.raises(
        Violation, match=r"^the result\[0, 0\] is 1\.0000000000000009, expected 1 ± 3\.33e-16: 8\.88e-16 too much$"
    ):
        Comparisons().demand_match(ones + 2.0**-50, ones, ones * 3.33e-16, ARGUMENTS)
    with pytest.raises(Violation, match=r"expected 1, bit for bit: 8\.88e-16 too much$"):
        Comparisons().demand_equal(ones + 2.0**-50, ones, lambda: ones, ARGUMENTS, "the result")
