"""Fast additive attention on the CPU: both paths within their budgets, edges, bits, operators."""

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual
from torch.testing._internal.two_tensor import TwoTensor

from attnspec.backends.pytorch import additive
from tests.budgets import (
    assert_gradients_within_budgets,
    assert_slopes_within_budgets,
    assert_within_budgets,
    projected_additive_attention,
    projected_additive_scores,
)

pytest.importorskip("llvmlite", reason="the llvm path needs llvmlite")
from attnspec.backends.pytorch.kernels.additive import path_choice
from attnspec.backends.pytorch.kernels.additive.llvm import decoding, operators
from attnspec.backends.pytorch.kernels.llvm.machine_code import IS_X86
from attnspec.backends.pytorch.runtime.forcing import forcing

PATHS = ("llvm", "plain")
DTYPES = (torch.float32, torch.float64)


def draw(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0, seed: int = 0) -> Tensor:
    generator = np.random.Generator(np.random.PCG64([seed, *shape]))
    return torch.from_numpy(generator.standard_normal(shape) * scale).to(dtype)


def operands(batch: tuple[int, ...], n: int, m: int, h: int, d: int, dtype: torch.dtype = torch.float32,
             scale: float = 1.0) -> list[Tensor]:  # fmt: skip
    return [
        draw(*batch, n, h, dtype=dtype, scale=scale, seed=1),
        draw(*batch, m, h, dtype=dtype, scale=scale, seed=2),
        draw(h, dtype=dtype, seed=3) / h**0.5,
        draw(*batch, m, d, dtype=dtype, seed=4),
    ]


SHAPES = [
    ((), 1, 1, 1, 1), ((2,), 5, 7, 3, 4), ((3,), 25, 33, 64, 20), ((2, 2), 33, 129, 65, 64), ((4,), 1, 40, 8, 16),
    ((1,), 49, 31, 2, 100), ((), 100, 257, 17, 1),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_meets_the_formula(shape, causal, dtype) -> None:  # type: ignore[no-untyped-def]
    batch, n, m, h, d = shape
    a, b, w_v, value = operands(batch, n, m, h, d, dtype)
    for mask in (None, draw(n, m, seed=9) > 0, draw(1, m, seed=9) > 0, draw(n, 1, seed=9) > 0):
        results = [additive.attention(a, b, w_v, value, mask=mask, causal=causal, path=path) for path in PATHS]
        for got in results:
            assert got.shape == (*batch, n, d)
            assert got.dtype == dtype
            assert got.is_contiguous()
        assert_within_budgets(results, projected_additive_attention, a, b, w_v, value, mask=mask, causal=causal)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("path", PATHS)
def test_half_dtypes_accumulate_in_float32(path, dtype) -> None:  # type: ignore[no-untyped-def]
    a, b, w_v, value = operands((2,), 30, 70, 40, 24, dtype)
    got = additive.attention(a, b, w_v, value, causal=True, path=path)
    assert got.dtype == dtype
    assert_within_budgets(got, projected_additive_attention, a, b, w_v, value, causal=True)
    leaves = [x.requires_grad_() for x in (a, b, w_v, value)]
    grads = torch.autograd.grad(additive.attention(*leaves, path=path).sum(), leaves)
    assert [g.dtype for g in grads] == [dtype] * 4


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("exponent", range(-3, 7))
def test_any_magnitude_of_projections(exponent, dtype, path) -> None:  # type: ignore[no-untyped-def]
    """Keys near the negative of queries: factors overflow though tanh is not saturated."""
    h, n, m = 19, 29, 43
    a, b, w_v, value = operands((2,), n, m, h, 8, dtype, 10.0**exponent)
    b[:, :n] = -a + draw(2, n, h, dtype=dtype, seed=5)
    b[:, n:, 1::2] *= 1e-3
    leaves = [x.requires_grad_() for x in (a, b, w_v)]
    got = additive.scores(*leaves, path=path)
    assert_within_budgets(got, projected_additive_scores, *leaves)
    output = additive.attention(a, b, w_v, value, path=path)
    assert_within_budgets(output, projected_additive_attention, a, b, w_v, value)
    cotangent = draw(*got.shape, dtype=dtype, seed=6)
    grads = torch.autograd.grad(got, leaves, cotangent)
    assert_gradients_within_budgets(grads, cotangent, projected_additive_scores, *leaves)


def test_weights_of_zero_and_of_very_different_size() -> None:
    """Weights of 0 and of very different size: their ratio to the largest is part of the factors."""
    a, b, _, value = operands((), 40, 50, 12, 6, scale=3.0)
    for w_v in (
        torch.zeros(12), torch.tensor([0.0, 1e-44, 1e-30, 1e-10, 1e-5, -1e-3, 1.0, -2.0, 0.0, 3.0, -1e-38, 1e-2]),
        torch.full((12,), -5.0), torch.full((12,), 1e3),
    ):  # fmt: skip
        assert_within_budgets(additive.scores(a, b, w_v), projected_additive_scores, a, b, w_v)
        assert additive.attention(a, b, w_v, value).isfinite().all()


def test_scores_below_the_smallest_normal_number_may_be_0() -> None:
    """Kernels write each of 12 terms as 0 where it is subnormal, as budgets allow."""
    a, b, _, value = operands((), 40, 50, 12, 6, scale=3.0)
    w_v = torch.full((12,), 1e-40)
    exact = projected_additive_scores(*(x.double().numpy() for x in (a, b, w_v)))
    error = additive.scores(a, b, w_v).double() - torch.from_numpy(exact)
    assert (error.abs() <= 12 * torch.finfo(torch.float32).tiny).all()
    assert additive.attention(a, b, w_v, value).isfinite().all()


@pytest.mark.parametrize("h", [63, 512])
@pytest.mark.parametrize("kind", ["random", "equal", "equal and zero"])
@pytest.mark.parametrize("path", PATHS)
def test_scores_stay_near_whatever_the_signs_of_weights(path: str, kind: str, h: int) -> None:
    """Equal weights are the hard case: all terms have one sign, unless the kernel flips every second."""
    a, b, w_v, _ = operands((), 16, 64, h, 1)
    if kind != "random":
        w_v = torch.full_like(w_v, 0.5)
    if kind == "equal and zero":
        w_v[::2] = 0.0
    assert_within_budgets(additive.scores(a, b, w_v, path=path), projected_additive_scores, a, b, w_v)


@pytest.mark.parametrize("path", PATHS)
def test_gradients_are_those_of_the_formula(path) -> None:  # type: ignore[no-untyped-def]
    for (batch, n, m, h, d), causal in itertools.product(SHAPES[:5], (False, True)):
        leaves = [x.requires_grad_() for x in operands(batch, n, m, h, d, torch.float64)]
        mask = draw(n, m, seed=9) > 0
        upstream = draw(*batch, n, d, dtype=torch.float64, seed=10)
        got = torch.autograd.grad(additive.attention(*leaves, mask=mask, causal=causal, path=path), leaves, upstream)
        assert all(g.is_contiguous() for g in got)
        options: dict[str, Any] = {"mask": mask, "causal": causal}
        assert_gradients_within_budgets(got, upstream, projected_additive_attention, *leaves, **options)


def test_gradients_by_finite_differences() -> None:
    leaves = [x.requires_grad_() for x in operands((2,), 5, 6, 3, 4, torch.float64)]
    mask = draw(5, 6, seed=9) > 0
    assert torch.autograd.gradcheck(lambda *x: additive.attention(*x, mask=mask, path="llvm"), leaves)
    assert torch.autograd.gradcheck(lambda *x: additive.scores(*x, path="llvm"), leaves[:3])
    assert torch.autograd.gradgradcheck(lambda *x: additive.scores(*x, path="plain"), leaves[:3])


def test_second_derivatives_raise() -> None:
    leaves = [x.requires_grad_() for x in operands((), 4, 5, 3, 2)]
    for result in (additive.attention(*leaves, path="llvm"), additive.scores(*leaves[:3], path="llvm")):
        (grad,) = torch.autograd.grad(result.sum(), leaves[0], create_graph=True)
        with pytest.raises(NotImplementedError, match="second derivatives"):
            torch.autograd.backward(grad.sum())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("causal", [False, True])
def test_torch_func_and_tangents_take_the_plain_path(causal: bool) -> None:
    """The kernels would know nothing of the transform, and give a tangent of 0."""
    leaves = [x.requires_grad_() for x in operands((2,), 5, 6, 3, 4, torch.float64)]
    inputs = tuple(x.detach() for x in leaves)
    paths: list[str] = []

    def total(*x: Tensor) -> Tensor:
        paths.append(additive.path_for(*x))
        scores = additive.scores(*x[:3]).square().sum()
        return scores + additive.attention(*x, mask=mask, causal=causal).square().sum()

    def formula(a: Any, b: Any, w_v: Any, value: Any) -> Any:
        scores = np.tanh(a[..., :, None, :] + b[..., None, :, :]) @ w_v
        output = projected_additive_attention(a, b, w_v, value, mask.numpy(), causal)
        return (scores * scores).sum() + (output * output).sum()

    mask = draw(5, 6, seed=9) > 0
    want = torch.autograd.grad(total(*leaves), leaves)
    assert paths.pop() in {"pointwise", "llvm"}
    along = [draw(*x.shape, dtype=torch.float64, seed=11) for x in inputs]
    every = range(len(inputs))
    each = torch.func.vmap(torch.func.grad(total, argnums=tuple(every)), in_dims=(0, 0, None, 0))(*inputs)
    got = [g.sum(0) if x.dim() == 1 else g for g, x in zip(each, inputs, strict=True)]
    gradients = [want, torch.func.grad(total, argnums=tuple(every))(*inputs), tuple(got)]
    assert_gradients_within_budgets(gradients, torch.ones(()), formula, *inputs)
    with dual_level():
        duals = [make_dual(x, t) for x, t in zip(inputs, along, strict=True)]  # type: ignore[no-untyped-call]
        tangent = unpack_dual(total(*duals)).tangent  # type: ignore[no-untyped-call]
    assert tangent is not None
    directions = dict(zip(("a", "b", "w_v", "value"), along, strict=True))
    assert_slopes_within_budgets(tangent, directions, torch.ones(()), formula, *inputs)
    assert paths == ["plain"] * 3
    cache = additive.prepare_keys(*inputs[1:])
    assert cache.path == "llvm"
    stepped = torch.func.grad(lambda a: additive.step(cache, a).sum())(inputs[0][:, 0])
    query = inputs[0][:, 0].clone().requires_grad_()
    (recorded,) = torch.autograd.grad(additive.step(cache, query).sum(), query)
    own_gradients = [(x[:, None], None, None, None) for x in (stepped, recorded)]
    assert_gradients_within_budgets(
        own_gradients, torch.ones(2, 1, 4), projected_additive_attention, inputs[0][:, :1], *inputs[1:]
    )


@pytest.mark.skipif(not IS_X86, reason="kernels flush subnormal numbers where they are slow, which is on x86")
@pytest.mark.parametrize("path", ["pointwise", "llvm"])
@pytest.mark.parametrize("n", [1, 3])
def test_saturated_scores_have_no_subnormal_gradients(path: str, n: int) -> None:
    """Subnormal gradients would slow matrix products. Exact gradients of b and values are subnormal here."""
    a, b, w_v, value = operands((2,), n, 64, 64, 64, scale=8.0)
    a[:, 1:], w_v = a[:, :1], w_v * 32
    inputs = [x.requires_grad_() for x in (a, b, w_v, value)]
    with forcing(path):
        output = additive.attention(*inputs)
    gradients = torch.autograd.grad(output.sum(), inputs)
    smallest = torch.finfo(torch.float32).smallest_normal
    exact = [x.detach().double().requires_grad_() for x in inputs]
    scores = torch.tanh(exact[0][..., :, None, :] + exact[1][..., None, :, :]) @ exact[2]
    wanted = torch.autograd.grad((torch.softmax(scores, -1) @ exact[3]).sum(), exact)

    def subnormal(x: Tensor) -> int:
        return int(((x != 0) & (x.abs() < smallest)).sum())

    assert subnormal(wanted[1])
    assert subnormal(wanted[3])
    assert [subnormal(x) for x in (output, *gradients)] == [0] * 5
    assert_gradients_within_budgets(gradients, torch.ones(2, n, 64), projected_additive_attention, *inputs)


@pytest.mark.parametrize("path", PATHS)
def test_rows_without_keys_are_zero(path) -> None:  # type: ignore[no-untyped-def]
    a, b, w_v, value = operands((2,), 6, 40, 5, 3)
    mask = torch.ones(6, 40, dtype=torch.bool)
    mask[2] = False
    leaves = [x.clone().requires_grad_() for x in (a, b, w_v, value)]
    out = additive.attention(*leaves, mask=mask, path=path)
    assert (out[:, 2] == 0).all()
    grads = torch.autograd.grad(out[:, 2].sum(), leaves)
    assert all((g == 0).all() for g in grads)
    for n, m, batch in ((6, 0, (2,)), (0, 4, (2,)), (3, 4, (0,)), (0, 0, ())):
        leaves = [x.requires_grad_() for x in operands(batch, n, m, 5, 3)]
        out = additive.attention(*leaves, path=path)
        assert out.shape == (*batch, n, 3)
        assert (out == 0).all()
        assert all((g == 0).all() for g in torch.autograd.grad(out.sum(), leaves))
        assert additive.scores(*leaves[:3], path=path).shape == (*batch, n, m)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scale", [1.0, 60.0])
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), float("-inf"), 1e30, -1e30])
def test_an_excluded_key_has_no_effect(garbage, scale, path) -> None:  # type: ignore[no-untyped-def]
    """The key changes no output and no other gradient; its own gradient is exactly 0."""
    n, m, key = 30, 70, 37
    a, b, w_v, value = operands((2,), n, m, 20, 10, scale=scale)
    mask = draw(n, m, seed=9) > 0
    mask[:, key] = False
    upstream = draw(2, n, 10, seed=10)
    inputs, results = [x.clone() for x in (a, b, w_v, value)], []
    for spoiled in (False, True):
        b, value = b.clone(), value.clone()
        if spoiled:
            b[:, key] = garbage
            value[:, key] = garbage
        leaves = [x.clone().requires_grad_() for x in (a, b, w_v, value)]
        out = additive.attention(*leaves, mask=mask, path=path)
        results.append((out.detach(), *torch.autograd.grad(out, leaves, upstream)))
    assert path != "llvm" or all(map(torch.equal, *results))
    assert_within_budgets([x[0] for x in results], projected_additive_attention, *inputs, mask=mask)
    gradients = [x[1:] for x in results]
    assert_gradients_within_budgets(gradients, upstream, projected_additive_attention, *inputs, mask=mask)
    for gradient in (results[1][2], results[1][4]):
        assert (gradient[:, key] == 0).all()


@pytest.mark.parametrize("path", PATHS)
def test_a_nonfinite_value_reaches_exactly_the_rows_that_attend_to_it(path) -> None:  # type: ignore[no-untyped-def]
    a, b, w_v, value = operands((2,), 30, 70, 20, 10)
    value[0, 3, 2], value[1, 5, 0] = float("nan"), float("inf")
    out = additive.attention(a, b, w_v, value, causal=True, path=path)
    assert out[0, :3].isfinite().all()
    assert out[0, 3:, 2].isnan().all()
    assert out[0, 3:, 3:].isfinite().all()
    assert out[1, :5].isfinite().all()
    assert (out[1, 5:, 0] == float("inf")).all()
    b[0, 4, 1] = float("nan")
    out = additive.attention(a, b, w_v, operands((2,), 30, 70, 20, 10)[3], causal=True, path=path)
    assert out[0, :4].isfinite().all()
    assert out[0, 4:].isnan().all()
    assert out[1].isfinite().all()
    assert additive.scores(a, b, w_v, path=path).isnan()[0, :, 4].all()


def test_the_future_changes_no_bit() -> None:
    x = draw(2, 60, 16, seed=1)
    w_v, value = draw(16, seed=2), draw(2, 60, 9, seed=3)
    for scale in (1.0, 10.0, 50.0):
        first = additive.attention(x * scale, -x * scale, w_v, value, causal=True, path="llvm")
        later, later_value = x.clone(), value.clone()
        later[:, 31:], later_value[:, 31:] = 1e6, 1e6
        second = additive.attention(later * scale, -later * scale, w_v, later_value, causal=True, path="llvm")
        assert torch.equal(first[:, :31], second[:, :31])


def test_bits_do_not_depend_on_threads_or_repetition() -> None:
    before = torch.get_num_threads()
    leaves = [x.requires_grad_() for x in operands((3,), 200, 300, 33, 40)]
    results = []
    try:
        for threads in (1, 2, 4, 4):
            torch.set_num_threads(threads)
            out = additive.attention(*leaves, causal=True, path="llvm")
            raw = additive.scores(*leaves[:3], path="llvm")
            grads = torch.autograd.grad(out.sin().sum(), leaves) + torch.autograd.grad(raw.sin().sum(), leaves[:3])
            results.append((out, raw, *grads))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(results[0], other, strict=True))


def test_bits_do_not_depend_on_the_place_in_a_batch() -> None:
    a, b, w_v, value = operands((5,), 40, 50, 21, 7)
    order = torch.tensor([3, 0, 4, 1, 2])
    whole = additive.attention(a, b, w_v, value, path="llvm")
    assert torch.equal(whole[order], additive.attention(a[order], b[order], w_v, value[order], path="llvm"))
    assert torch.equal(whole[2:3], additive.attention(a[2:3], b[2:3], w_v, value[2:3], path="llvm"))


def test_a_single_attendable_key_returns_its_value() -> None:
    a, b, w_v, value = operands((2,), 9, 40, 7, 33)
    mask = torch.nn.functional.one_hot(torch.arange(9) * 3, 40).bool()
    assert torch.equal(additive.attention(a, b, w_v, value, mask=mask, path="llvm"), value[:, torch.arange(9) * 3])


@pytest.mark.parametrize("path", PATHS)
def test_broadcasting_and_strides(path) -> None:  # type: ignore[no-untyped-def]
    a, b, w_v, value = draw(3, 1, 10, 6), draw(4, 20, 6), draw(6), draw(2, 1, 1, 20, 5)
    mask = draw(3, 1, 1, 20) > 0
    leaves = [x.clone().requires_grad_() for x in (a, b, w_v, value)]
    out = additive.attention(*leaves, mask=mask, path=path)
    batch = (2, 3, 4)
    full = [x.expand(*batch, *x.shape[-2:]).contiguous() for x in (a, b, value)]
    want = additive.attention(full[0], full[1], w_v, full[2], mask=mask.expand(*batch, 10, 20), path=path)
    assert out.shape == (*batch, 10, 5)
    assert_within_budgets([out, want], projected_additive_attention, *leaves, mask=mask)
    upstream = draw(*out.shape, seed=1)
    gradients = torch.autograd.grad(out, leaves, upstream)
    assert_gradients_within_budgets(gradients, upstream, projected_additive_attention, *leaves, mask=mask)
    # strided operands and masks
    strided = [x.mT.contiguous().mT for x in (a, b, value)]
    columns = torch.zeros(20, 10, dtype=torch.bool).bernoulli_(0.5, generator=torch.Generator().manual_seed(0)).T
    same = additive.attention(strided[0], strided[1], w_v, strided[2], mask=columns, path=path)
    dense = additive.attention(a, b, w_v, value, mask=columns.contiguous(), path=path)
    assert path != "llvm" or torch.equal(same, dense)
    assert_within_budgets([same, dense], projected_additive_attention, a, b, w_v, value, mask=columns)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("left", "right"), [((2,), (1,)), ((1,), (2,)), ((2, 1, 3), (4, 1)), ((4, 1), (2, 1, 3)), ((3,), ()), ((0,), (1,))]
)
def test_batches_broadcast_entry_by_entry(left: tuple[int, ...], right: tuple[int, ...], path: str) -> None:
    """A flattened index must repeat entries of batch dimensions of size 1 in place."""
    batch = torch.broadcast_shapes(left, right)  # type: ignore[no-untyped-call]
    a, b, w_v, value = draw(*left, 5, 3, seed=1), draw(*right, 7, 3, seed=2), draw(3), draw(*right, 7, 4, seed=3)
    for mask in (None, draw(*left, 5, 7, seed=4) > 0, draw(*right, 1, 7, seed=5) > 0):
        got = additive.attention(a, b, w_v, value, mask=mask, path=path)
        assert got.shape == (*batch, 5, 4)
        assert_within_budgets(got, projected_additive_attention, a, b, w_v, value, mask=mask)
    assert_within_budgets(additive.scores(a, b, w_v, path=path), projected_additive_scores, a, b, w_v)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_step_is_attention_of_one_query(dtype, path) -> None:  # type: ignore[no-untyped-def]
    for batch, m, h, d in (((3,), 70, 20, 11), ((), 1, 1, 1), ((2, 2), 33, 64, 64)):
        a, b, w_v, value = operands(batch, 1, m, h, d, dtype)
        cache = additive.prepare_keys(b, w_v, value, path=path)
        for mask in (None, draw(*batch, m, seed=9) > 0, draw(m, seed=8) > 0):
            row = None if mask is None else mask.unsqueeze(-2)
            got = additive.step(cache, a.squeeze(-2), mask=mask)
            want = additive.attention(a, b, w_v, value, mask=row, path=path).squeeze(-2)
            assert got.dtype == dtype
            assert torch.equal(got, want)
    cache = additive.prepare_keys(*operands((2,), 1, 0, 4, 3)[1:], path=path)
    assert torch.equal(additive.step(cache, draw(2, 4)), torch.zeros(2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ordinary_steps_take_one_call_and_others_are_left_to_the_kernels(dtype: torch.dtype) -> None:
    """``fused`` computes a step in one kernel call; None if ``step`` must compute it."""
    a, b, w_v, value = operands((3,), 1, 70, 20, 11, dtype)
    query, mask = a[:, 0].contiguous(), draw(3, 70, seed=9) > 0
    cache = additive.prepare_keys(b, w_v, value)
    for chosen in (None, mask):
        row = None if chosen is None else chosen.unsqueeze(-2)
        whole = additive.attention(a, b, w_v, value, mask=row, path="llvm")
        assert torch.equal(cache.fused(query, chosen), whole[:, 0])
    for other in (query[:2], query.bfloat16(), query.clone().requires_grad_(), draw(20, 3).mT.to(dtype)):
        assert cache.fused(other, None) is None
    assert cache.fused(query, mask[:, :1]) is None
    assert cache.fused(query, mask.T.contiguous().T) is None
    assert cache.fused.useful
    tracked = additive.prepare_keys(b.clone().requires_grad_(), w_v, value)
    assert tracked.fused(query, None) is None
    with torch.no_grad():
        assert tracked.fused(query, None) is not None
    # a query out of the factors' range, or NaN: from then on ``step`` computes every step
    for far in (300.0 * torch.ones_like(query), torch.full_like(query, torch.nan)):
        cache = additive.prepare_keys(b, w_v, value)
        got = additive.step(cache, far)
        whole = additive.attention(far[:, None], b, w_v, value, path="llvm")
        assert torch.equal(got.nan_to_num(), whole[:, 0].nan_to_num())
        assert not cache.fused.useful
        half = [x.bfloat16() for x in (query, b, w_v, value)]
        got = additive.prepare_keys(*half[1:]).fused(half[0], None)
        assert torch.equal(got, additive.attention(half[0][:, None], *half[1:], path="llvm")[:, 0])
    assert additive.prepare_keys(b, w_v, value[0]).fused is None


def test_step_excludes_nonfinite_values_and_tracks_gradients() -> None:
    a, b, w_v, value = operands((2,), 1, 50, 8, 6)
    mask = torch.ones(2, 50, dtype=torch.bool)
    mask[:, 7] = False
    clean = additive.step(additive.prepare_keys(b, w_v, value, path="llvm"), a[:, 0], mask=mask)
    b, value = b.clone(), value.clone()
    b[:, 7], value[:, 7] = float("nan"), float("inf")
    cache = additive.prepare_keys(b, w_v, value, path="llvm")
    assert torch.equal(clean, additive.step(cache, a[:, 0], mask=mask))
    assert additive.step(cache, a[:, 0]).isnan().all()
    query = a[:, 0].clone().requires_grad_()
    (grad,) = torch.autograd.grad(additive.step(cache, query, mask=mask).sum(), query)
    assert grad.isfinite().all()
    assert (grad != 0).any()


def test_operators_pass_opcheck() -> None:
    a, b, w_v, value = (x.requires_grad_() for x in operands((2,), 10, 40, 5, 6))
    mask = torch.rand(2, 10, 40) < 0.5
    for m, causal, save in ((None, False, True), (mask, True, True)):
        torch.library.opcheck(operators.attention_op.overload, (a, b, w_v, value, m, causal, save))
    torch.library.opcheck(operators.scores_op.overload, (a, b, w_v))
    plain = [x.detach() for x in (a, b, w_v, value)]
    torch.library.opcheck(operators.attention_op.overload, (*plain, None, False, False))
    out, weights = operators.attention_op(plain[0], plain[1], plain[2], plain[3], None, True, True)
    torch.library.opcheck(operators.attention_backward_op.overload, (torch.ones_like(out), *plain, out, weights, True))
    torch.library.opcheck(operators.scores_backward_op.overload, (draw(2, 10, 40), *plain[:3]))
    a, b, w_v, value = plain
    for keys in (b, b.to(torch.bfloat16), b.mT.contiguous().mT):
        inputs = tuple(x.to(keys.dtype) for x in (w_v, value))
        torch.library.opcheck(decoding.keys_op.overload, (keys, *inputs))
        prepared = decoding.prepare(keys, *inputs).tensors()
        torch.library.opcheck(decoding.step_op.overload, (a[:, 0].to(keys.dtype), prepared, keys, inputs[1], None))


def test_torch_compile_takes_the_operators_as_they_are() -> None:
    torch._dynamo.reset()
    leaves = [x.requires_grad_() for x in operands((2,), 20, 30, 5, 6)]
    wanted = torch.autograd.grad(additive.attention(*leaves, causal=True, path="llvm").sum(), leaves)

    def total(*x: Tensor) -> Tensor:
        return additive.attention(*x, causal=True, path="llvm").sum()

    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    for got, want in zip(torch.autograd.grad(compiled(*leaves), leaves), wanted, strict=True):
        assert torch.equal(got, want)
    cache = additive.prepare_keys(*(x.detach() for x in leaves[1:]), path="llvm")
    loop = torch.compile(lambda x: additive.step(cache, torch.tanh(x)), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        state = draw(2, 5)
        assert torch.equal(loop(state), additive.step(cache, torch.tanh(state)))


def decode(query: Tensor, b: Tensor, w_v: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    return additive.step(additive.prepare_keys(b, w_v, value, path="llvm"), query, mask=mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spoiled", [False, True])
def test_keys_are_prepared_inside_of_torch_compile(dtype: torch.dtype, spoiled: bool) -> None:
    torch._dynamo.reset()
    a, b, w_v, value = (x.to(dtype) for x in operands((2,), 1, 9, 3, 4))
    if spoiled:
        value[:, 4] = float("inf")
    mask = draw(2, 9, seed=3) > 0
    for size in (9, 7):
        inputs = a[:, 0], b[:, :size], w_v, value[:, :size], mask[:, :size]
        compiled = torch.compile(decode, fullgraph=True, backend="aot_eager", dynamic=True)
        assert torch.equal(compiled(*inputs), decode(*inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nonfinite_values_reach_only_steps_that_attend_to_them(dtype: torch.dtype) -> None:
    a, b, w_v, value = (x.to(dtype) for x in operands((2,), 1, 9, 3, 4))
    value[0, 4, 1], value[1, 2, 0] = float("inf"), float("nan")
    for mask in (None, torch.arange(9) != 4):
        got = decode(a[:, 0], b, w_v, value, mask)
        wanted = additive.attention(a, b, w_v, value, mask=None if mask is None else mask[None], path="llvm")[:, 0]
        allowed = None if mask is None else mask[None]
        results = [got[:, None], wanted[:, None]]
        assert_within_budgets(results, projected_additive_attention, a, b, w_v, value, mask=allowed)
        assert bool(got[0, 1].isinf()) == (mask is None)
        assert got[1, 0].isnan()
        assert got[:, 2:].isfinite().all()


def test_keys_without_dense_memory_are_prepared() -> None:
    a, b, w_v, value = operands((2,), 1, 9, 3, 4)
    real = a[:, 0], b, w_v, value
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in real]
        assert decode(*fake).shape == (2, 4)
    zero = torch._efficientzerotensor((2, 9, 3))
    results = [decode(a[:, 0], x, w_v, value)[:, None] for x in (zero, torch.zeros(2, 9, 3))]
    assert_within_budgets(results, projected_additive_attention, a, torch.zeros(2, 9, 3), w_v, value)
    zero = torch._efficientzerotensor((2, 9, 4))
    assert torch.equal(decode(a[:, 0], b, w_v, zero), torch.zeros(2, 4))
    both: Any = decode(*(TwoTensor(x, x.clone()) for x in real))  # type: ignore[no-untyped-call]
    assert torch.equal(both.a, decode(*real))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_can_be_masked_in_place(path: str, dtype: torch.dtype) -> None:
    a, b, w_v, _ = (x.to(dtype).requires_grad_() for x in operands((2,), 5, 9, 3, 4))
    mask = draw(5, 9, seed=3) > 0
    mask[:, 0] = True
    weights = torch.softmax(additive.scores(a, b, w_v, path=path).masked_fill_(~mask, float("-inf")), -1)
    (gradient,) = torch.autograd.grad(weights.square().sum(), a)
    assert gradient.isfinite().all()
    assert (gradient != 0).any()


@pytest.mark.parametrize("spoiled", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_masked_call_compiles_as_one_graph(path: str, spoiled: bool) -> None:
    """Both paths compile, although the plain one branches on numbers outside of torch.compile."""
    torch._dynamo.reset()
    leaves = [x.requires_grad_() for x in operands((2,), 6, 9, 3, 4, torch.float64)]
    mask = draw(6, 9, seed=9) > 0
    mask[:, 4] = False
    clean = [x.detach().clone() for x in leaves]
    if spoiled:
        with torch.no_grad():
            leaves[1][:, 4], leaves[3][:, 4] = float("nan"), float("inf")
    for allowed, causal in ((mask, False), (mask, True), *([] if spoiled else [(None, True)])):

        def total(*x: Tensor, allowed: Tensor | None = allowed, causal: bool = causal) -> Tensor:
            return additive.attention(*x, mask=allowed, causal=causal, path=path).sum()

        wanted = torch.autograd.grad(total(*leaves), leaves)
        compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
        gradients = [wanted, torch.autograd.grad(compiled(*leaves), leaves)]
        assert_gradients_within_budgets(
            gradients, torch.ones(2, 6, 4), projected_additive_attention, *clean, mask=allowed, causal=causal
        )


def test_autocast_computes_in_its_dtype() -> None:
    a, b, w_v, value = operands((2,), 20, 30, 5, 6)
    for path in PATHS:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = additive.attention(a, b, w_v, value, path=path)
            assert additive.scores(a, b, w_v, path=path).dtype == torch.bfloat16
        want = additive.attention(*(x.bfloat16() for x in (a, b, w_v, value)), path=path)
        assert got.dtype == torch.bfloat16
        assert torch.equal(got, want)


def test_inputs_are_not_written_to() -> None:
    inputs = operands((2,), 20, 30, 5, 6)
    copies = [x.clone().requires_grad_() for x in inputs]
    torch.autograd.backward(additive.attention(*copies, causal=True, path="llvm").sum())
    assert all(torch.equal(x, y) for x, y in zip(inputs, copies, strict=True))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"a": draw(2, 5, 4)}, ValueError), ({"b": draw(2, 6, 2)}, ValueError), ({"w_v": draw(3, 1)}, ValueError),
        ({"value": draw(2, 7, 4)}, ValueError), ({"value": draw(3, 6, 4)}, ValueError), ({"a": draw(3)}, ValueError),
        ({"mask": torch.ones(6, dtype=torch.bool)}, ValueError), ({"mask": torch.ones(5, 6)}, TypeError),
        ({"mask": torch.ones(4, 6, dtype=torch.bool)}, ValueError), ({"path": "cudnn"}, ValueError),
        ({"a": draw(2, 5, 3).double()}, TypeError), ({"path": "triton"}, ValueError),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(change, error, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    a, b, w_v, value = operands((2,), 5, 6, 3, 4)
    with pytest.raises(error):
        additive.attention(**({"a": a, "b": b, "w_v": w_v, "value": value} | change))


def test_the_path_is_named(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert path_choice.available_paths("cpu") == ("llvm", "pointwise", "plain")
    for runs, paths in ((True, ("triton", "plain")), (False, ("plain",))):  # False: GPUs of AMD
        monkeypatch.setattr(path_choice, "TRITON_ON_CUDA", runs)
        assert path_choice.available_paths("cuda") == paths
    assert additive.path_for(draw(2)) == "llvm"
    assert additive.path_for(draw(2), path="plain") == "plain"


def test_without_llvmlite_the_plain_path_is_taken() -> None:
    """In a fresh process in which llvmlite cannot be imported."""
    program = (
        "import sys; sys.modules['llvmlite'] = None\n"
        "import torch; from attnspec.backends.pytorch import additive\n"
        "from attnspec.backends.pytorch.kernels.additive import path_choice\n"
        "x = torch.randn(2, 4, 3)\n"
        "assert path_choice.available_paths('cpu') == ('plain',), path_choice.available_paths('cpu')\n"
        "assert additive.path_for(x) == 'plain'\n"
        "assert additive.attention(x, x, x[0, 0], x).isfinite().all()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_memory_does_not_grow_with_the_hidden_size() -> None:
    """The compiled path saves weights n*m; neither path holds n*m*h."""
    program = (
        "import resource, torch; from attnspec.backends.pytorch import additive\n"
        "torch.set_num_threads(1)\n"
        "def operands(n): return [torch.randn(4, n, 64, requires_grad=True) for _ in range(2)] + [\n"
        "    torch.randn(64, requires_grad=True), torch.randn(4, n, 64, requires_grad=True)]\n"
        "additive.attention(*operands(32), path='llvm').sum().backward()\n"
        "x = operands(1024); peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak(); additive.attention(*x, path='llvm').sum().backward()\n"
        "assert peak() - before <= 110 * 1024, (peak() - before) / 1024\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
