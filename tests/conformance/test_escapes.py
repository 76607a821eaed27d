"""Known gaps of the suite: wrong implementations that no law of `quick` convicts.

Each test fails as expected as long as its implementation escapes. Once a law of `quick` convicts it, the test says so:
the implementation then becomes a mutant of that law, and leaves `escaping.py`.
"""

from typing import Any

import pytest

pytest.importorskip("torch", reason="these implementations are PyTorch's operations")


from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Status

from .escaping import Attention, LayerNorm, Softmax
from .showing import ESCAPES, Escape

CORRECT = {"scaled_dot_product_attention": Attention, "layer_norm": LayerNorm, "softmax": Softmax}
"""By operation, the correct class of ``escaping.py``; the wrong ones there are its subclasses."""

each_escape = pytest.mark.parametrize(("wrong", "escape"), ESCAPES.items(), ids=[wrong.__name__ for wrong in ESCAPES])


def violated_laws(backend: Any, operation: str) -> list[str]:
    """The laws that a backend violates in `quick`, in float32."""
    contract = Contract.of(backend)
    (case,) = cases(contract, operations=(operation,), dtypes=("float32",))
    results = judge(backend, contract, case, PROFILES["quick"], stop_at_first=True)
    return [r.law for r in results if r.status is Status.FAILED]


@pytest.mark.parametrize("operation", CORRECT)
def test_the_correct_implementations_conform(operation: str) -> None:
    assert violated_laws(CORRECT[operation](), operation) == []


@each_escape
def test_every_escape_gives_a_wrong_result(wrong: Any, escape: Escape) -> None:
    # `reveal` makes the call of ``showing.py`` whose result shows the error
    result, expected = escape.reveal(wrong()), escape.reveal(CORRECT[escape.operation]())
    assert ((result.isnan() != expected.isnan()) | ((result - expected).abs() > 0.01)).any()


@pytest.mark.xfail(reason="no law of quick tries it yet", strict=True, raises=AssertionError)
@each_escape
def test_every_escape_is_convicted(wrong: Any, escape: Escape) -> None:
    assert violated_laws(wrong(), escape.operation)
