"""Wrong attentions that no law of `quick` convicts: known gaps of the suite, to be closed one by one.

Each test fails as expected as long as its backend escapes. Once a law convicts it, the test says so: the backend then
becomes a mutant of that law, and leaves `escaping.py`.
"""

from typing import Any

import pytest

pytest.importorskip("torch", reason="these backends are PyTorch's operations")

import torch

from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import cases, judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Result, Status

from .escaping import ESCAPING, Attention, UniformRowsWithoutGradients


def violated(backend: Any) -> list[Result]:
    """The laws that a backend violates in `quick`, in float32."""
    contract = Contract.of(backend)
    (case,) = cases(contract, operations=("scaled_dot_product_attention",), dtypes=("float32",))
    found = judge(backend, contract, case, PROFILES["quick"], stop_at_first=True)
    return [r for r in found if r.status is Status.FAILED]


def test_what_they_are_made_of_is_right() -> None:
    assert violated(Attention()) == []


class Uniform(UniformRowsWithoutGradients):
    """With the gradients."""

    def attention(self, query: Any, key: Any, value: Any, mask: Any, causal: bool) -> Any:
        right = Attention.attention(self, query, key, value, mask, causal)
        return torch.where(mask.any(-1, keepdim=True), right, value.mean(-2, keepdim=True))


@pytest.mark.parametrize("made", ESCAPING, ids=lambda made: made.__name__)
def test_they_are_wrong(made: Any) -> None:
    right = Uniform() if made is UniformRowsWithoutGradients else Attention()
    assert (ESCAPING[made].by(made()) - ESCAPING[made].by(right)).abs().max() > 0.01


@pytest.mark.xfail(reason="no law of quick tries it yet", strict=True)
@pytest.mark.parametrize("made", ESCAPING, ids=lambda made: made.__name__)
def test_wrong_attention_is_convicted(made: Any) -> None:
    assert violated(made())
