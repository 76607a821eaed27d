"""Groups of heads of bfloat16 by products in pairs, within the budgets of the formula."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="llvmlite is not installed")

from attnspec.backends import pytorch
from attnspec.backends.pytorch.kernels.dot import groups, paired_formula, paired_groups, paired_rows
from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.kernels.llvm.machine_code import multiplies_bfloat16
from attnspec.backends.pytorch.kernels.visible import Visible
from attnspec.backends.pytorch.runtime.forcing import forcing
from tests.budgets import assert_gradients_within_budgets, assert_within_budgets, attention_gradients

SHAPES = [(1, 4, 2, 5, 32, 8, 8), (2, 6, 2, 70, 48, 16, 24), (3, 2, 2, 1, 16, 2, 2), (1, 4, 2, 5, 33, 8, 8)]
"""Batch, heads, heads of keys, queries, keys, features of keys and of values."""

pytestmark = pytest.mark.skipif(not multiplies_bfloat16(), reason="the processor does not multiply pairs of bfloat16")


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def operands(shape: tuple[int, ...]) -> list[Tensor]:
    b, heads, heads_k, n, m, d, d_v = shape
    return [draw(b, heads, n, d), draw(b, heads_k, m, d), draw(b, heads_k, m, d_v)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("asked", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize("wanted", [(0, 1, 2), (1,)])
@pytest.mark.parametrize("chunk", [None, 1, 1500, 6000])
@pytest.mark.parametrize("in_rows", [False, True])
def test_results_and_gradients_are_the_formula(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], asked: tuple[int, ...], wanted: tuple[int, ...],
    chunk: int | None, in_rows: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(paired_rows, "serves", lambda m: in_rows and m > 1)
    if chunk is not None:
        monkeypatch.setattr(paired_formula, "CHUNK", chunk)
        monkeypatch.setattr(paired_rows, "CHUNK", chunk)
        monkeypatch.setattr(paired_formula, "KEPT", 0)
    given = operands(shape)
    output = pytorch.grouped_query_attention(*given)
    cotangents = [draw(*x.shape) if i in asked and x is not None else None for i, x in enumerate(output)]
    with forcing("plain"):
        assert groups.path_for(given[0], given[1], given[2]) == "plain"
        for _ in range(2):
            got = pytorch.grouped_query_attention(*given)
            assert all(x is not None and x.dtype is torch.bfloat16 for x in got)
            assert_within_budgets(got, "grouped_query_attention", *given)
            leaves = [x.clone().requires_grad_(i in wanted) for i, x in enumerate(given)]
            results = pytorch.grouped_query_attention(leaves[0], leaves[1], leaves[2])
            outputs = [x for i, x in enumerate(results) if i in asked and x is not None]
            found = torch.autograd.grad(
                outputs, [leaves[i] for i in wanted], [cotangents[i] for i in asked], allow_unused=True
            )
            by_place = dict(zip(wanted, found, strict=True))
            own = tuple(by_place.get(i) for i in range(3))
            assert all(x is None or x.dtype is torch.bfloat16 for x in own)
            assert_gradients_within_budgets(own, tuple(cotangents), "grouped_query_attention", *given)


def test_it_takes_what_costs_least_with_gradients() -> None:
    given = operands((1, 8, 2, 256, 256, 64, 64))
    everything, as_it_is = Visible(), Scoring()
    assert paired_groups.serves(given[0], given[1], given[2], everything, as_it_is)
    leaves = [x.clone().requires_grad_() for x in given]
    chosen = groups.path_for(leaves[0], leaves[1], leaves[2])
    assert chosen in ("plain", "llvm")
    found = paired_groups.cost(leaves[0], leaves[1], leaves[2])
    assert found is None or found > 0


@pytest.mark.parametrize(
    ("visible", "scoring"),
    [
        (Visible(right=0), Scoring()),
        (Visible(left=1), Scoring()),
        (Visible(lengths=torch.tensor([3])), Scoring()),
        (Visible(), Scoring(softcap=2.0)),
        (Visible(), Scoring(bias=torch.zeros(1, 1, 1, 1))),
    ],
)
def test_options_are_left_to_others(visible: Visible, scoring: Scoring) -> None:
    given = operands(SHAPES[0])
    assert not paired_groups.serves(given[0], given[1], given[2], visible, scoring)


@pytest.mark.parametrize("shape", [(1, 4, 2, 5, 32, 8, 7), (1, 4, 2, 5, 32, 7, 8), (1, 4, 2, 0, 32, 8, 8)])
def test_sizes_that_are_no_pairs_are_left_to_others(shape: tuple[int, ...]) -> None:
    given = operands(shape)
    assert not paired_groups.serves(given[0], given[1], given[2], Visible(), Scoring())


def test_other_batches_and_dtypes_are_left_to_others() -> None:
    query, key, value = operands((2, 4, 2, 5, 32, 8, 8))
    assert not paired_groups.serves(query, key[:1], value, Visible(), Scoring())
    assert not paired_groups.serves(query.half(), key.half(), value.half(), Visible(), Scoring())


def test_second_derivatives_and_batches_of_gradients_are_the_formula() -> None:
    given = operands(SHAPES[0])
    leaves = [x.clone().requires_grad_() for x in given]
    with forcing("plain"):
        output, _ = pytorch.grouped_query_attention(leaves[0], leaves[1], leaves[2])
        cotangents = draw(3, *output.shape)
        together = torch.autograd.grad(output, leaves, cotangents, is_grads_batched=True, retain_graph=True)
        for i, one in enumerate(cotangents):
            results = [tuple(x[i] for x in together), torch.autograd.grad(output, leaves, one, retain_graph=True)]
            assert_gradients_within_budgets(results, (one, None), "grouped_query_attention", *given)
        (of_key,) = torch.autograd.grad(output, leaves[1], cotangents[0], create_graph=True)
        along = draw(*of_key.shape)
        (second,) = torch.autograd.grad(of_key, leaves[0], along)
    # heads of queries that share keys are rows of one head
    query, cotangent, by_query = (x.reshape(1, 2, -1, 8) for x in (given[0], cotangents[0], second))
    rows = query, given[1], given[2], cotangent
    assert_gradients_within_budgets((by_query, None, None, None), (None, along, None), attention_gradients, *rows)
