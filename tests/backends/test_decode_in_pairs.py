"""Decoding in large groups by bfloat16 pairs is as exact as by float32 products."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="llvmlite is not installed")

from attnspec.backends import pytorch
from attnspec.backends.pytorch.kernels.dot import decode, groups
from attnspec.backends.pytorch.kernels.dot.decode_arguments import PAIRS, STORED
from attnspec.backends.pytorch.kernels.llvm.machine_code import multiplies_bfloat16
from attnspec.backends.pytorch.runtime.forcing import forcing
from tests.budgets import assert_within_budgets

HEADS = [(8, 2), (6, 2), (7, 1), (12, 1)]
"""Heads of queries and of keys."""


@pytest.fixture(autouse=True)
def _on_every_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "is_zen", lambda: True)


pytestmark = pytest.mark.skipif(not multiplies_bfloat16(), reason="the processor does not multiply pairs of bfloat16")


@pytest.fixture(autouse=True)
def _by_steps() -> Iterator[None]:
    with forcing("decode"):
        yield


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def operands(heads: int, heads_k: int, m: int, d: int = 32, d_v: int = 64) -> list[Tensor]:
    return [draw(2, heads, 1, d), draw(2, heads_k, m, d), draw(2, heads_k, m, d_v)]


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("m", [1, 2, 15, 16, 33, 200])
def test_only_the_results_are_rounded(heads: tuple[int, int], m: int) -> None:
    inputs = operands(*heads, m)
    assert decode.multiplies_pairs(inputs[0], inputs[1], inputs[2])
    assert groups.path_for(inputs[0], inputs[1], inputs[2]) == "decode"
    for _ in range(2):
        assert_within_budgets(pytorch.grouped_query_attention(*inputs), "grouped_query_attention", *inputs)


def test_lengths_windows_and_pages_end_pairs() -> None:
    query, key, value = operands(8, 2, 40)
    for length in (1, 2, 17, 39):
        lengths = torch.tensor([length, length])
        result = pytorch.grouped_query_attention(query, key, value, key_lengths=lengths)
        table = torch.arange(10).view(2, 5)
        pages = [x.view(2, 2, 5, 8, -1).transpose(1, 2).flatten(0, 1).contiguous() for x in (key, value)]
        paged = pytorch.paged_attention(query, pages[0], pages[1], table, lengths)
        attended = query, key[:, :, :length], value[:, :, :length]
        assert_within_budgets([result, paged], "grouped_query_attention", *attended)
    last = query, key[:, :, 5:], value[:, :, 5:]
    window = pytorch.grouped_query_attention(*last, window=(None, 34))
    assert_within_budgets(window, "grouped_query_attention", *last)


@pytest.mark.parametrize("m", [4, 5])
def test_infinite_values_give_infinite_results(m: int) -> None:
    query, key, value = operands(8, 2, m)
    value[0, 0, -1, 3] = torch.inf
    value[0, 1, 0, 2] = torch.nan
    for _ in range(2):
        result = pytorch.grouped_query_attention(query, key, value)
        assert torch.isposinf(result[0][0, :4, 0, 3]).all()
        assert_within_budgets(result, "grouped_query_attention", query, key, value)


def test_few_heads_and_odd_rows_are_not_taken_in_pairs() -> None:
    assert not decode.multiplies_pairs(*operands(4, 2, 8))
    assert not decode.multiplies_pairs(*operands(8, 2, 8, d=16))
    assert not decode.multiplies_pairs(*operands(8, 2, 8, d_v=16))
    assert not decode.multiplies_pairs(*(x.half() for x in operands(8, 2, 8)))
    assert PAIRS not in STORED.values()
