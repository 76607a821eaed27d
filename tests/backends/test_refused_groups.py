"""Calls that attention of the chapter `kernels` refuses, with their messages."""

import re
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor

from attnspec.backends import pytorch as backend
from tests.budgets import assert_within_budgets

QUERY, KEY, VALUE = torch.ones(2, 4, 3, 8), torch.ones(2, 2, 5, 8), torch.ones(2, 2, 5, 8)
PAGES = torch.ones(6, 2, 4, 8)
TABLE, LENGTHS = torch.tensor([[0, 1], [2, 3]]), torch.tensor([5, 8])
ENDS, OF_KEYS = torch.tensor([0, 1, 3]), torch.tensor([0, 2, 5])
LATENT = [torch.ones(s) for s in ((2, 4, 3, 8), (2, 4, 3, 2), (2, 5, 6), (2, 5, 2), (4, 8, 6), (4, 7, 6))]

INTEGERS = "torch.uint8 or a signed integer dtype"
SIDES = "a tuple (left, right), each an integer of at least 0 or None"
OF_GROUPS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"key_lengths": torch.tensor([-1, 2])}, ValueError, "key_lengths in 0..5; got -1"),
    ({"key_lengths": torch.tensor([6, 2])}, ValueError, "key_lengths in 0..5; got 6"),
    ({"key_lengths": torch.tensor([1.0, 2.0])}, TypeError, f"{INTEGERS}; got torch.float32"),
    ({"key_lengths": torch.tensor([1, 2, 3])}, ValueError, "a batch that broadcasts with (2,); got batch (3,)"),
    ({"key_lengths": torch.empty(2, device="meta").long()}, ValueError, "a tensor on cpu like the others; got meta"),
    ({"window": (-1, 0)}, TypeError, f"{SIDES}; got (-1, 0)"),
    ({"window": (0, -2)}, TypeError, f"{SIDES}; got (0, -2)"),
    ({"window": [1, 0]}, TypeError, f"{SIDES}; got list"),
    ({"window": (1.0, 0)}, TypeError, f"{SIDES}; got (1.0, 0)"),
    ({"softcap": 0.0}, ValueError, "a positive, finite number; got 0.0"),
    ({"softcap": -1}, ValueError, "a positive, finite number; got -1"),
    ({"softcap": nan}, ValueError, "a positive, finite number; got nan"),
    ({"softcap": inf}, ValueError, "a positive, finite number; got inf"),
    ({"scale": nan}, ValueError, "a finite number; got nan"),
    ({"scale": -inf}, ValueError, "a finite number; got -inf"),
    ({"scale": "1"}, TypeError, "a number; got '1'"),
    ({"mask": torch.ones(3, 5)}, TypeError, "torch.bool, True = may attend; got torch.float32"),
    ({"mask": torch.ones(3, 4) > 0}, ValueError, "(*batch, n, m) with m = 5 or 1; got (3, 4)"),
    ({"mask": torch.ones(5) > 0}, ValueError, "(*batch, n, m), rank 2 or more; got (5,)"),
    ({"mask": torch.ones(2, 4, 3, 5) > 0}, ValueError, "a batch that broadcasts with (2,); got batch (2, 4)"),
    ({"bias": torch.ones(4, 3, 5).double()}, TypeError, "torch.float32 like the others; got torch.float64"),
    ({"bias": torch.ones(3, 3, 5)}, ValueError, "(*batch, heads, n, m) with heads = 4 or 1; got (3, 3, 5)"),
    ({"bias": torch.ones(4, 3, 5, device="meta")}, ValueError, "a tensor on cpu like the others; got meta"),
    ({"slopes": torch.ones(2)}, ValueError, "(heads,) with heads = 4; got (2,)"),
    ({"slopes": torch.ones(2, 4)}, ValueError, "(heads,), rank 1; got (2, 4)"),
    ({"sinks": torch.ones(1)}, ValueError, "(heads,) with heads = 4; got (1,)"),
    ({"sinks": torch.ones(4).half()}, TypeError, "torch.float32 like the others; got torch.float16"),
    ({"sinks": torch.ones(4, device="meta")}, ValueError, "a tensor on cpu like the others; got meta"),
    ({"causal": 1}, TypeError, "True or False; got 1"),
    ({"query": QUERY[:, :3]}, ValueError, "heads a multiple of heads_k = 2; got (2, 3, 3, 8)"),
    ({"value": VALUE[:, :, :4]}, ValueError, "(*batch, heads_k, m, d_v) with m = 5 (from key); got (2, 2, 4, 8)"),
    ({"key": KEY.double()}, TypeError, "torch.float32 like the others; got torch.float64"),
]  # fmt: skip


def grouped(query: Tensor = QUERY, key: Tensor = KEY, value: Tensor = VALUE, **options: Any) -> object:
    return backend.grouped_query_attention(query, key, value, **options)


def packed(query_ends: Tensor = ENDS, key_ends: Tensor = OF_KEYS, **options: Any) -> object:
    return backend.variable_length_attention(QUERY, KEY, VALUE, query_ends, key_ends, **options)


def paged(n: int = 3, block_table: Tensor = TABLE, key_lengths: Tensor = LENGTHS, value_pages: Tensor = PAGES,
          **options: Any) -> object:  # fmt: skip
    return backend.paged_attention(QUERY[..., :n, :], PAGES, value_pages, block_table, key_lengths, **options)


def message(operation: str, wrong: dict[str, Any], expected: str) -> str:
    """A pattern of the error; its expectation may begin with other words."""
    return rf"^{operation}: {next(iter(wrong))}: expected .*{re.escape(expected)}$"


@pytest.mark.parametrize(("wrong", "error", "expected"), OF_GROUPS)
def test_attention_in_groups_refuses(wrong: dict[str, Any], error: type[Exception], expected: str) -> None:
    with pytest.raises(error, match=message("grouped_query_attention", wrong, expected)):
        grouped(**wrong)


@pytest.mark.parametrize(
    ("wrong", "error", "expected"),
    [
        ({"query_ends": torch.tensor([0, 1, 2])}, ValueError, "never falling; got [0, 1, 2]"),
        ({"query_ends": torch.tensor([1, 1, 3])}, ValueError, "never falling; got [1, 1, 3]"),
        ({"key_ends": torch.tensor([0, 6, 5])}, ValueError, "never falling; got [0, 6, 5]"),
        ({"key_ends": torch.tensor([0, 5])}, ValueError, "(ends,) with ends = 3; got (2,)"),
        ({"query_ends": ENDS.double()}, TypeError, f"{INTEGERS}; got torch.float64"),
        ({"window": (None, -1)}, TypeError, f"{SIDES}; got (None, -1)"),
        ({"softcap": -1.0}, ValueError, "a positive, finite number; got -1.0"),
        ({"slopes": torch.ones(2)}, ValueError, "(heads,) with heads = 4; got (2,)"),
        ({"sinks": torch.ones(4).half()}, TypeError, "torch.float32 like the others; got torch.float16"),
        ({"scale": nan}, ValueError, "a finite number; got nan"),
    ],
)  # fmt: skip
def test_packed_sequences_refuse(wrong: dict[str, Any], error: type[Exception], expected: str) -> None:
    with pytest.raises(error, match=message("variable_length_attention", wrong, expected)):
        packed(**wrong)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("wrong", "error", "expected"),
    [
        ({"block_table": TABLE - 1}, ValueError, "block_table in 0..5; got -1"),
        ({"block_table": TABLE + 3}, ValueError, "block_table in 0..5; got 6"),
        ({"block_table": TABLE.float()}, TypeError, f"{INTEGERS}; got torch.float32"),
        ({"key_lengths": LENGTHS + 1}, ValueError, "key_lengths in 0..8; got 9"),
        ({"key_lengths": LENGTHS - 6}, ValueError, "key_lengths in 0..8; got -1"),
        ({"value_pages": PAGES[:5]}, ValueError,
         "(pages, heads_k, page, d_v) with pages = 6 (from key_pages); got (5, 2, 4, 8)"),
        ({"window": (-1, None)}, TypeError, f"{SIDES}; got (-1, None)"),
        ({"softcap": 0.0}, ValueError, "a positive, finite number; got 0.0"),
        ({"slopes": torch.ones(2, 4)}, ValueError, "(heads,), rank 1; got (2, 4)"),
        ({"sinks": torch.ones(1)}, ValueError, "(heads,) with heads = 4; got (1,)"),
        ({"scale": inf}, ValueError, "a finite number; got inf"),
    ],
)  # fmt: skip
def test_keys_in_pages_refuse(n: int, wrong: dict[str, Any], error: type[Exception], expected: str) -> None:
    with pytest.raises(error, match=message("paged_attention", wrong, expected)):
        paged(n, **wrong)


def test_other_operations_refuse_numbers_out_of_their_domain() -> None:
    with pytest.raises(ValueError, match="latent_attention: scale: expected a finite number; got nan"):
        backend.latent_attention(*LATENT, scale=nan)
    for theta in (0.0, -1.0, nan, inf):
        with pytest.raises(ValueError, match=f"^rotary_embedding: theta: expected a positive, finite .* got {theta}$"):
            backend.rotary_embedding(QUERY, theta=theta)
    for name in ("theta", "factor", "length", "low", "high"):
        with pytest.raises(ValueError, match=f"^rotary_frequencies: {name}: expected a positive, finite .* got 0.0$"):
            backend.rotary_frequencies(4, **{name: 0.0})
    with pytest.raises(ValueError, match=r"^rotary_frequencies: low: expected less than high = 4.0; got 4.0$"):
        backend.rotary_frequencies(4, low=4.0)
    for bias in (nan, inf):
        with pytest.raises(ValueError, match=f"^sigmoid_attention: bias: expected a finite number; got {bias}$"):
            backend.sigmoid_attention(QUERY, QUERY, QUERY, bias=bias)
    positions = torch.arange(3)
    with pytest.raises(ValueError, match=r"^relative_position_bias: max_distance: expected more than the 8 .* got 8$"):
        backend.relative_position_bias(torch.zeros(32, 2), positions, positions, max_distance=8)
    for rate in (1.0, -0.1, nan):
        with pytest.raises(ValueError, match=re.escape(f"dropout: rate: expected a number in [0, 1); got {rate}")):
            backend.dropout(QUERY, rate=rate)


def test_lengths_in_bytes_are_numbers_below_the_queries_too() -> None:
    lengths = torch.tensor([1, 2])
    query, pages = torch.randn(2, 4, 3, 8), torch.randn(6, 2, 4, 8)
    expected = backend.paged_attention(query, pages, pages, TABLE, lengths, causal=True)
    result = backend.paged_attention(query, pages, pages, TABLE, lengths.to(torch.uint8), causal=True)
    inputs = query, pages, pages, TABLE, lengths
    assert_within_budgets([result, expected], "paged_attention", *inputs, causal=True)
