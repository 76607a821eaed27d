"""Kernels of additive attention with few terms: results, gradients, bits, nonfinite numbers."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="kernels need llvmlite")

from attnspec.backends import pytorch
from attnspec.backends.pytorch import additive
from attnspec.backends.pytorch.kernels.additive.llvm import pointwise, pointwise_plan
from attnspec.backends.pytorch.kernels.llvm import matmul, threads
from attnspec.backends.pytorch.runtime.forcing import forcing
from tests.budgets import assert_gradients_within_budgets, assert_within_budgets, projected_additive_attention

SIZES = [(1, 1, 1, 1), (5, 7, 3, 4), (1, 40, 17, 70), (9, 1, 33, 16), (20, 20, 64, 65), (3, 130, 40, 5)]
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(dtype)


def operands(batch: tuple[int, ...], n: int, m: int, h: int, d: int, dtype: torch.dtype) -> list[Tensor]:
    shapes = ((*batch, n, 5), (*batch, m, 6), (*batch, m, d), (h, 5), (h, 6), (h,))
    return [draw(*shape, dtype=dtype).requires_grad_() for shape in shapes]


CALLS = {
    *((sizes, kind, causal) for sizes in SIZES for kind, causal in (("none", False), ("pairs", True))),
    *product([(9, 1, 33, 16), (5, 7, 3, 4)], ["none", "pairs", "keys", "queries", "entries"], [False, True]),
}
"""All sizes with and without a mask, and two with every kind of mask."""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("sizes", "kind", "causal"), sorted(CALLS), ids=str)
def test_output_and_gradients_are_the_formula(
    dtype: torch.dtype, sizes: tuple[int, ...], kind: str, causal: bool
) -> None:
    n, m, h, d = sizes
    x = operands((2, 3), n, m, h, d, dtype)
    shape = {"pairs": (n, m), "keys": (2, 3, 1, m), "queries": (n, 1), "entries": (2, 3, n, m)}.get(kind)
    mask = None if shape is None else draw(*shape) > -0.5
    with forcing("pointwise"):
        got = pytorch.additive_attention(*x, mask=mask, causal=causal)
        with torch.no_grad():
            assert torch.equal(pytorch.additive_attention(*x, mask=mask, causal=causal), got)
    assert_within_budgets(got, "additive_attention", *x, mask=mask, causal=causal)
    cotangent = draw(*got.shape, dtype=dtype)
    gradients = torch.autograd.grad(got, x, cotangent)
    assert all(tensor.dtype == dtype for tensor in (got, *gradients))
    assert_gradients_within_budgets(gradients, cotangent, "additive_attention", *x, mask=mask, causal=causal)


@pytest.mark.parametrize("shared_operand", range(3))
def test_an_operand_that_all_entries_share_gets_the_sum_of_their_gradients(shared_operand: int) -> None:
    x = operands((4,), 3, 6, 8, 5, torch.float64)
    x[shared_operand] = x[shared_operand][:1].detach().requires_grad_()
    with forcing("pointwise"):
        got = pytorch.additive_attention(*x)
    cotangent = draw(*got.shape)
    gradients = torch.autograd.grad(got, x, cotangent)
    assert_gradients_within_budgets(gradients, cotangent, "additive_attention", *x)


def test_batches_that_broadcast_both_ways() -> None:
    query, key, value, *weights = operands((1, 3), 4, 6, 5, 2, torch.float64)
    key = draw(2, 1, 6, 6).requires_grad_()
    leaves = [query, key, value, *weights]
    mask = draw(2, 1, 1, 6) > -0.5
    with forcing("pointwise"):
        got = pytorch.additive_attention(*leaves, mask=mask)
    assert_within_budgets(got, "additive_attention", *leaves, mask=mask)
    cotangent = draw(*got.shape)
    gradients = torch.autograd.grad(got, leaves, cotangent)
    assert_gradients_within_budgets(gradients, cotangent, "additive_attention", *leaves, mask=mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("exponent", [-30, -3, 0, 2, 5, 30])
def test_projections_of_any_magnitude_are_within_budgets(dtype: torch.dtype, exponent: int) -> None:
    a, b = (draw(2, rows, 9, dtype=dtype) * 10.0**exponent for rows in (4, 11))
    w_v, value = draw(9, dtype=dtype), draw(2, 11, 3, dtype=dtype)
    leaves = [x.requires_grad_() for x in (a, b, w_v, value)]
    got = additive.attention(*leaves, path="pointwise")
    assert_within_budgets(got, projected_additive_attention, *leaves)
    cotangent = draw(*got.shape, dtype=dtype)
    gradients = torch.autograd.grad(got, leaves, cotangent)
    assert all(tensor.dtype == dtype for tensor in (got, *gradients))
    assert_gradients_within_budgets(gradients, cotangent, projected_additive_attention, *leaves)


def test_bits_depend_on_the_attended_keys_alone() -> None:
    """Other queries, excluded keys and other entries change no bit."""
    x = [t.detach() for t in operands((3,), 6, 45, 40, 20, torch.float32)]
    mask = torch.arange(45) < 30
    with forcing("pointwise"):
        whole = pytorch.additive_attention(*x, mask=mask[None])
        other = [t.clone() for t in x]
        other[1][:, 30:] = draw(3, 15, 6, dtype=torch.float32) * 100
        other[2][:, 30:] = 7.0
        assert torch.equal(pytorch.additive_attention(*other, mask=mask[None]), whole)
        query, key, value, *weights = x
        alone = pytorch.additive_attention(query[1:2, 2:4], key[1:2], value[1:2], *weights, mask=mask[None])
    # the products before are PyTorch's, whose bits depend on the number of rows
    part = query[1:2, 2:4], key[1:2], value[1:2], *weights
    assert_within_budgets([alone, whole[1:2, 2:4]], "additive_attention", *part, mask=mask[None])


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    x = operands((5,), 6, 9, 24, 7, torch.float32)
    a, b = (x[0] @ x[3].mT).detach().requires_grad_(), (x[1] @ x[4].mT).detach().requires_grad_()
    leaves = [a, b, x[5], x[2]]
    before, results = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            monkeypatch.setattr(threads, "WORTH_WAKING", 0)
            torch.set_num_threads(count)
            got = additive.attention(*leaves, path="pointwise")
            results.append([got, *torch.autograd.grad(got.sum(), leaves)])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(first, second) for first, second in zip(*results, strict=True))


@pytest.mark.parametrize("where", ["key", "value"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("causal", [False, True])
def test_excluded_keys_and_values_have_no_effect_even_if_not_finite(where: str, bad: float, causal: bool) -> None:
    leaves = operands((2,), 4, 6, 5, 3, torch.float64)
    clean = [x.detach().clone().requires_grad_() for x in leaves]
    mask = torch.ones(4, 6, dtype=torch.bool)
    if causal:
        place = 4  # after the last query
    else:
        place, mask[:, 2] = 2, False
    with torch.no_grad():
        leaves[1 if where == "key" else 2][:, place] = bad
    arguments: dict[str, Any] = {"mask": None if causal else mask, "causal": causal}
    with forcing("pointwise"):
        got, expected = (pytorch.additive_attention(*x, **arguments) for x in (leaves, clean))
    assert_within_budgets([got, expected], "additive_attention", *clean, **arguments)
    gradients: list[tuple[Any, ...]] = [torch.autograd.grad(x.sum(), y) for x, y in ((got, leaves), (expected, clean))]
    if where == "key":  # the gradient of w_k is a product with the key itself
        gradients = [(*x[:4], None, x[5]) for x in gradients]
    assert_gradients_within_budgets(gradients, torch.ones_like(got), "additive_attention", *clean, **arguments)


@pytest.mark.parametrize("path", ["pointwise", "llvm"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", ["none", "rows", "keys"])
@pytest.mark.parametrize("unit", [0, -1])
def test_weights_of_a_row_whose_scores_are_all_minus_infinity_are_nan(
    path: str, sizes: tuple[int, ...], kind: str, unit: int
) -> None:
    n, m, h, d = sizes
    query, key, value, w_q, w_k, w_v = (x.detach().abs() for x in operands((2,), n, m, h, d, torch.float32))
    w_v[unit] = -torch.inf
    mask = torch.ones(n, m, dtype=torch.bool)
    if kind == "rows":
        mask[0] = False
    elif kind == "keys":
        mask[:, m // 2] = m == 1
    value.requires_grad_()
    with forcing(path):
        output = pytorch.additive_attention(query, key, value, w_q, w_k, w_v, mask=None if kind == "none" else mask)
    empty = int(kind == "rows")
    assert output[:, empty:].isnan().all()
    assert (output[:, :empty] == 0).all()
    (by_value,) = torch.autograd.grad(output.sum(), value)
    assert torch.equal(by_value.isnan(), mask.any(0)[:, None].expand(by_value.shape))


def test_batched_gradients_are_those_of_one_after_the_other() -> None:
    a, b, w_v, value = (draw(*s).requires_grad_() for s in ((2, 3, 4), (2, 5, 4), (4,), (2, 5, 3)))
    leaves = [a, b, w_v, value]
    got = additive.attention(*leaves, path="pointwise")
    cotangents = draw(6, *got.shape)
    together = torch.autograd.grad(got, leaves, cotangents, is_grads_batched=True, retain_graph=True)
    alone = [torch.autograd.grad(got, leaves, c, retain_graph=True) for c in cotangents]
    for i, cotangent in enumerate(cotangents):
        gradients = [tuple(x[i] for x in together), alone[i]]
        assert_gradients_within_budgets(gradients, cotangent, projected_additive_attention, *leaves)


def test_batched_gradients_go_through_projections_of_any_size() -> None:
    """512 rows, 64 hidden units, 64 features: kernels multiply these for single gradients."""
    sizes = (8, 64, 64), (8, 64, 64), (8, 64, 4), (64, 64), (64, 64), (64,)
    leaves = [draw(*size).float().requires_grad_() for size in sizes]
    with forcing("pointwise"):
        got = pytorch.additive_attention(*leaves)
        cotangents = draw(2, *got.shape).float()
        together = torch.autograd.grad(got, leaves, cotangents, is_grads_batched=True, retain_graph=True)
        alone = [torch.autograd.grad(got, leaves, c, retain_graph=True) for c in cotangents]
    for i, cotangent in enumerate(cotangents):
        gradients = [tuple(x[i] for x in together), alone[i]]
        assert_gradients_within_budgets(gradients, cotangent, "additive_attention", *leaves)


def test_hooks_on_saved_tensors_may_change_their_strides() -> None:
    x = operands((2,), 3, 6, 4, 5, torch.float64)

    def strided(t: Tensor) -> Tensor:
        return t.mT.contiguous().mT if t.dim() > 1 else t

    with forcing("pointwise"), torch.autograd.graph.saved_tensors_hooks(strided, lambda t: t):
        got = pytorch.additive_attention(*x)
    cotangent = draw(*got.shape)
    gradients = torch.autograd.grad(got, x, cotangent)
    assert_gradients_within_budgets(gradients, cotangent, "additive_attention", *x)


def test_the_batch_in_pieces_is_the_batch_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype, masked in product((torch.float32, torch.bfloat16), (False, True)):
        x = [t.detach() for t in operands((3, 4), 2, 9, 8, 5, dtype)]
        mask = draw(3, 4, 1, 9) > -0.5 if masked else None
        inputs = pointwise_plan.Operands(*x)
        batch = torch.Size((3, 4))
        whole = pointwise.attend(pointwise_plan.plan(inputs, mask, False, batch), inputs, mask, False)  # type: ignore[arg-type]
        # pieces of few elements in every dtype, so that the batch takes several
        monkeypatch.setattr(pointwise_plan, "PIECE", 200)
        monkeypatch.setattr(pointwise_plan, "PIECE_OF_WEIGHTS", 1)
        monkeypatch.setattr(pointwise_plan, "PARTS_REALS", True)
        plan = pointwise_plan.plan(inputs, mask, False, batch)
        monkeypatch.undo()
        assert plan is not None
        assert len(plan.pieces) > 3
        pieces = pointwise.attend(plan, inputs, mask, False)
        assert pieces is not None
        assert_within_budgets([pieces, whole], "additive_attention", *x, mask=mask)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wanted", [(0, 1, 2, 3, 4, 5), (1, 4), (2,), (3, 5), (0,)])
@pytest.mark.parametrize(("n", "m"), [(1, 9), (2, 9), (9, 1)])
@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_in_pieces_are_those_at_once(
    dtype: torch.dtype, wanted: tuple[int, ...], n: int, m: int, transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [t.detach() for t in operands((4, 4), n, m, 32, 16, dtype)]
    if transposed:
        inputs = [t.mT.contiguous().mT if t.dim() > 1 else t for t in inputs]
    cotangent = draw(4, 4, n, inputs[2].shape[-1]).to(dtype)
    # pieces of few elements in every dtype, and kernels for the smallest products
    monkeypatch.setattr(pointwise_plan, "PIECE", 400 if m > 1 else 40)
    monkeypatch.setattr(pointwise_plan, "PIECE_OF_WEIGHTS", 1)
    monkeypatch.setattr(pointwise_plan, "PARTS_REALS", True)
    monkeypatch.setattr(matmul, "LEAST_WORK", 1)
    monkeypatch.setattr(pointwise_plan, "LEAST_WORK", 1)
    x = [t.clone().requires_grad_(i in wanted) for i, t in enumerate(inputs)]
    plan = pointwise_plan.plan(pointwise_plan.Operands(*x), None, False, torch.Size((4, 4)))
    assert plan is not None
    assert len(plan.pieces) > 2
    output = pointwise.attend(plan, pointwise_plan.Operands(*x), None, True)
    assert output is not None
    gradients = torch.autograd.grad(output, [x[i] for i in wanted], cotangent)
    assert [g.dtype for g in gradients] == [dtype] * len(wanted)
    by_place = dict(zip(wanted, gradients, strict=True))
    own = tuple(by_place.get(i) for i in range(6))
    assert_gradients_within_budgets(own, cotangent, "additive_attention", *inputs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("where", [None, 0, 1, 2, 3, 4, 5, "cotangent"])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_scores_of_one_key_have_no_gradients_where_all_is_finite(
    dtype: torch.dtype, where: int | str | None, batch: tuple[int, ...]
) -> None:
    x = [t.detach() for t in operands(batch, 4, 1, 8, 16, dtype)]
    cotangent = draw(*batch, 4, 16, dtype=dtype)
    if where is not None:
        (cotangent if isinstance(where, str) else x[where]).view(-1)[1] = torch.inf
    exact = [t.double().requires_grad_() for t in x]
    query, key, value, w_q, w_k, w_v = exact
    weights = torch.softmax(torch.tanh(query @ w_q.mT + key @ w_k.mT).unsqueeze(-2) @ w_v, -1)  # 1, or NaN
    expected = torch.autograd.grad(weights @ value, exact, cotangent.double())
    for t in x:
        t.requires_grad_()
    with forcing("pointwise"):
        gradients = torch.autograd.grad(pytorch.additive_attention(*x), x, cotangent)
    # Only those of the value are sums; all others are 0 or NaN.
    assert_within_budgets(gradients[2], lambda g: g.sum(-2, keepdims=True), weights.detach().to(dtype) * cotangent)
    for got, want in zip((*gradients[:2], *gradients[3:]), (*expected[:2], *expected[3:]), strict=True):
        assert ((got == want) | (got.isnan() & want.isnan())).all()
        assert where is not None or not got.any()


def test_gradients_of_gradients_are_refused() -> None:
    x = draw(3, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(additive.attention(x, x, x[0], x, path="pointwise").sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        torch.autograd.grad(gradient.sum(), x)
