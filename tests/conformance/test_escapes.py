"""Wrong implementations that no law of `quick` convicts: known gaps of the suite, to be closed one by one.

Each test fails as expected as long as its implementation escapes. Once a law of `quick` convicts it, the test says so:
the implementation then becomes a mutant of that law, and leaves `escaping.py`.
"""

from typing import Any

import pytest

pytest.importorskip("torch", reason="these implementations are PyTorch's operations")


from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import cases, judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Status

from .escaping import Attention, LayerNorm, Softmax
from .showing import ESCAPES, Escape

RIGHT = {"scaled_dot_product_attention": Attention, "layer_norm": LayerNorm, "softmax": Softmax}
"""What they are made of, by operation."""

each = pytest.mark.parametrize(("made", "escape"), ESCAPES.items(), ids=[made.__name__ for made in ESCAPES])


def violated(backend: Any, operation: str) -> list[str]:
    """The laws that a backend violates in `quick`, in float32."""
    contract = Contract.of(backend)
    (case,) = cases(contract, operations=(operation,), dtypes=("float32",))
    found = judge(backend, contract, case, PROFILES["quick"], stop_at_first=True)
    return [r.law for r in found if r.status is Status.FAILED]


@pytest.mark.parametrize("operation", RIGHT)
def test_what_they_are_made_of_is_right(operation: str) -> None:
    assert violated(RIGHT[operation](), operation) == []


@each
def test_they_are_wrong(made: Any, escape: Escape) -> None:
    got, right = escape.shown(made()), escape.shown(RIGHT[escape.operation]())
    assert ((got.isnan() != right.isnan()) | ((got - right).abs() > 0.01)).any()


@pytest.mark.xfail(reason="no law of quick tries it yet", strict=True, raises=AssertionError)
@each
def test_a_wrong_implementation_is_convicted(made: Any, escape: Escape) -> None:
    assert violated(made(), escape.operation)
