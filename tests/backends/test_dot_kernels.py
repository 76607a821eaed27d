"""The compiled kernels of scaled dot-product attention, and their building blocks."""

import multiprocessing
from collections.abc import Callable, Iterator
from itertools import product
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from attnspec.backends.pytorch.kernels.dot import path_choice, tiled
from attnspec.backends.pytorch.kernels.dot.sdpa import attend
from attnspec.backends.pytorch.kernels.llvm import threads
from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, Reals, Size
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel
from attnspec.backends.pytorch.kernels.llvm.machine_code import Compiled, register_bytes
from attnspec.backends.pytorch.kernels.llvm.threads import run
from attnspec.backends.pytorch.kernels.llvm.transposition import Square, define_transpose, transpose
from attnspec.backends.pytorch.kernels.llvm.vector_functions import exp2
from attnspec.backends.pytorch.runtime.forcing import forcing
from attnspec.reference import REFERENCE
from tests.budgets import assert_gradients_within_budgets, assert_within_budgets, assert_within_roundings, mp


@pytest.fixture(autouse=True)
def at_every_size() -> Iterator[None]:
    """The kernels even where PyTorch's are faster; and all threads again afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with forcing("llvm"):
        yield
    torch.set_num_threads(before)


def lower(n: int, m: int) -> Tensor:
    """Key j is attendable for query i where j ≤ i."""
    return torch.ones(n, m, dtype=torch.bool).tril()


SIZES = [
    (1, 1, 1, 1), (3, 2, 5, 4), (16, 16, 16, 16), (17, 9, 8, 24), (31, 64, 33, 7), (32, 65, 64, 64), (33, 63, 3, 70),
    (48, 130, 40, 1), (64, 64, 64, 64), (100, 257, 20, 13), (257, 100, 9, 40), (70, 7, 100, 3),
]  # fmt: skip


KINDS = ("none", "pairs", "heads", "keys", "queries", "sparse", "band")
CALLS = {
    *((sizes, kind, causal) for sizes in SIZES for kind, causal in (("none", False), ("pairs", True))),
    *product([(31, 64, 33, 7), (48, 130, 40, 1)], KINDS, [False, True]),
}
"""All sizes with and without a mask, and two with every kind of mask: what is left out does not depend on features."""


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize(("sizes", "kind", "causal"), sorted(CALLS), ids=str)
def test_output_and_gradients_are_the_formula(bits: int, sizes: tuple[int, ...], kind: str, causal: bool) -> None:
    n, m, d, d_v = sizes
    generator = torch.Generator().manual_seed(n * m + d)
    mask = None
    if kind != "none":
        shapes = {"pairs": (2, 1, n, m), "heads": (1, 3, n, m), "keys": (2, 1, 1, m), "queries": (n, 1)}
        mask = torch.rand(shapes.get(kind, (n, m)), generator=generator) > (0.97 if kind == "sparse" else 0.4)
        if kind == "band":
            mask = lower(n, m) & ~lower(n, m).roll(5, 0)
    dtype = torch.float32 if bits == 32 else torch.float64
    query, key, value = leaves = [
        torch.randn(2, 3, *shape, generator=generator, dtype=dtype, requires_grad=True)
        for shape in ((n, d), (m, d), (m, d_v))
    ]
    allowed = (torch.ones(n, m, dtype=torch.bool) if mask is None else mask).expand(2, 3, n, m)
    allowed = allowed & lower(n, m) if causal else allowed
    got = attend(query, key, value, mask=mask, causal=causal)
    assert_within_budgets(got, "scaled_dot_product_attention", *leaves, mask=mask, causal=causal)
    assert not got[~allowed.any(-1)].any()
    cotangent = torch.randn(got.shape, generator=generator, dtype=dtype)
    gradients = torch.autograd.grad(got, leaves, cotangent)
    assert_gradients_within_budgets(
        gradients, cotangent, "scaled_dot_product_attention", *leaves, mask=mask, causal=causal
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_dtypes_are_rounded_once(dtype: torch.dtype) -> None:
    leaves = [torch.randn(2, 40, 24).to(dtype).requires_grad_() for _ in range(3)]
    got = attend(*leaves, causal=True)
    wide = [x.detach().float().requires_grad_() for x in leaves]
    plain = attend(*wide, causal=True)
    assert torch.equal(got, plain.to(dtype))
    cotangent = torch.randn(got.shape).to(dtype)
    for gradient, exact in zip(
        torch.autograd.grad(got, leaves, cotangent), torch.autograd.grad(plain, wide, cotangent.float()), strict=True
    ):
        assert torch.equal(gradient, exact.to(dtype))


@pytest.mark.parametrize("path", ["llvm", "small"])
def test_gradients_of_half_dtypes_in_a_batch_and_with_changed_saved_tensors(path: str) -> None:
    leaves = [torch.randn(2, 2, rows, 8).bfloat16().requires_grad_() for rows in (5, 16, 16)]
    cotangents = torch.randn(3, 2, 2, 5, 8).bfloat16()
    with forcing(path):
        output = attend(*leaves)
        together = torch.autograd.grad(output, leaves, cotangents, is_grads_batched=True)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: x, lambda x: x.mT.contiguous().mT if x.dim() > 1 else x
        ):
            output = attend(*leaves)
        alone = torch.autograd.grad(output, leaves, cotangents[0])
    for cotangent, gradients in (
        (cotangents[0], alone),
        *((x, tuple(y[i] for y in together)) for i, x in enumerate(cotangents)),
    ):
        assert_gradients_within_budgets(gradients, cotangent, "scaled_dot_product_attention", *leaves)


def test_operands_masks_and_gradients_may_have_any_strides() -> None:
    """Strides of any size, also 0; and heads that join without a copy."""
    base = torch.randn(2, 40, 3, 16, requires_grad=True)
    query, key = base.transpose(1, 2), base.transpose(1, 2).flip(-1)
    value = torch.randn(1, 1, 8, 40).mT.expand(2, 3, 40, 8)
    mask = (torch.rand(40, 80) > 0.4)[:, ::2]
    for chosen in (mask, mask.T, mask[:, :1].expand(40, 40), mask.expand(2, 1, 40, 40)):
        got = attend(query, key, value, mask=chosen)
        plain = [x.detach().contiguous().requires_grad_() for x in (query, key)]
        expected = attend(plain[0], plain[1], value.contiguous(), mask=chosen.contiguous())
        assert torch.equal(got, expected)
        assert got.transpose(1, 2).is_contiguous()
        (gradient,) = torch.autograd.grad(got.sum(), base)
        by_query, by_key = torch.autograd.grad(expected.sum(), plain)
        gradients = [(x, None) for x in (gradient, (by_query + by_key.flip(-1)).transpose(1, 2))]
        allowed = chosen.numpy()

        def of_base(base: Any, value: Any, allowed: Any = allowed) -> Any:
            heads = np.swapaxes(base, 1, 2)
            return REFERENCE["scaled_dot_product_attention"](heads, heads[..., ::-1], value, mask=allowed)

        assert_gradients_within_budgets(gradients, torch.ones_like(got), of_base, base, value)


def test_gradients_that_nobody_wants_are_not_computed() -> None:
    operands = [torch.randn(2, 20, 8) for _ in range(3)]
    every = torch.autograd.grad(attend(*[x.requires_grad_() for x in operands]).sum(), operands)
    for i in range(3):
        own = [x.detach().requires_grad_(i == j) for j, x in enumerate(operands)]
        (gradient,) = torch.autograd.grad(attend(*own).sum(), own[i])
        assert torch.equal(gradient, every[i])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("entries", [1, 3])
def test_few_heads_are_divided_among_threads(entries: int, causal: bool) -> None:
    """On several threads, the gradient of the queries is a sum over ranges of keys."""
    leaves = [torch.randn(entries, 300, 64, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    cotangent = torch.randn(entries, 300, 64, dtype=torch.float64)
    gradients = []
    for count in (1, 4):
        torch.set_num_threads(count)
        gradients.append(torch.autograd.grad(attend(*leaves, causal=causal), leaves, cotangent))
    assert tiled.key_range(entries, 300, 4) < 300 <= tiled.key_range(entries, 300, 1)
    assert_gradients_within_budgets(gradients, cotangent, "scaled_dot_product_attention", *leaves, causal=causal)


def test_nonfinite_numbers_give_what_the_formula_gives() -> None:
    """NaN where it is attended, zeros where nothing is, whatever is stored at excluded keys."""
    query, key, value = torch.randn(40, 4), torch.randn(70, 4), torch.randn(70, 4)
    for bad in (nan, inf, -inf):
        spoiled = key.clone(), value.clone()
        for x in spoiled:
            x[39:] = bad
        got = attend(query, *spoiled, causal=True)
        assert_within_budgets(got[:39], "scaled_dot_product_attention", query[:39], key[:39], value[:39], causal=True)
        assert not got[39].isfinite().any()
        assert not attend(query, *spoiled, mask=torch.zeros(1, 1, dtype=torch.bool)).any()
    assert attend(query, torch.full((70, 4), nan), value).isnan().all()
    lowest = torch.full((70, 4), -inf)
    assert attend(query.abs(), lowest, value).isnan().all()
    assert attend(query.abs(), lowest, value, mask=torch.rand(1, 70) > 0.5).isnan().all()
    huge = attend(query, 1e30 * key, value)
    assert torch.equal(huge, value[(query @ key.T).argmax(-1)])


def test_a_result_that_is_exactly_one_value() -> None:
    """A single attendable key has weight 1, not 1 to rounding."""
    query, key, value = (100 * torch.randn(3, 50, 7) for _ in range(3))
    mask = torch.eye(50, dtype=torch.bool)
    assert torch.equal(attend(query, key, value, mask=mask), value)


def test_scores_up_to_the_largest_number_and_scales_down_to_the_smallest() -> None:
    key = torch.ones(20, 1)
    key[1] = 2.8e38
    value = torch.randn(20, 1)
    assert torch.equal(attend(torch.ones(20, 1), key, value, scale=1.0), value[1].expand(20, 1))
    low = attend(torch.ones(20, 1), torch.full((20, 1), -2.8e38), value, scale=1.0)
    for row in low:  # equal scores weigh equally
        assert_within_budgets(row, "average_pooling", value)
    for scale in (1e-50, 2.0**-126, 0.0, -1.0, 1e37):
        got = attend(key[:3] / 1e38, key / 1e38, value, scale=scale)
        scaled = scale * (key[:3] / 1e38).double()
        assert_within_budgets(got, "dot_product_attention", scaled, key / 1e38, value)
    assert torch.equal(got[1], value[1])  # a score of 8e37, whose rounding no budget bounds


@pytest.mark.parametrize("scale", [-0.5, 0.0, 1.0])
def test_scores_of_no_features_are_0(scale: float) -> None:
    value = torch.randn(3, 4, 7)
    result = attend(torch.zeros(3, 4, 0), torch.zeros(3, 4, 0), value, causal=True, scale=scale)
    for i in range(4):
        assert_within_budgets(result[:, i], "average_pooling", value[:, : i + 1])


def test_no_heads_give_an_empty_result() -> None:
    empty = torch.ones(2, 0, 0, 3)
    assert attend(empty, empty, empty).shape == (2, 0, 0, 3)


def test_meta_negated_fake_and_zero_tensors_are_computed_or_refused() -> None:
    """A wrong address would end the process; a sign kept aside would be lost."""
    query, key, value = (torch.randn(2, 20, 4) for _ in range(3))
    with torch.device("meta"):
        result = attend(query, key, value, causal=True)
    assert_within_budgets(result, "scaled_dot_product_attention", query, key, value, causal=True)
    for operands in ((query, key.to("meta"), value), (query, key, value.to("meta"))):
        with pytest.raises(ValueError, match="query, key, value, mask: expected one device; got cpu"):
            attend(*operands)
    with pytest.raises(ValueError, match="one device; got cpu, cpu, cpu, meta"):
        attend(query, key, value, mask=torch.ones(20, 20, dtype=torch.bool, device="meta"))
    negative = torch.complex(query, query).conj().imag
    assert negative.is_neg()
    assert_within_budgets(attend(negative, key, value), "scaled_dot_product_attention", -query, key, value)
    fake = FakeTensorMode().from_tensor(query)
    assert attend(fake, fake, fake, causal=True).shape == query.shape
    zero = torch._efficientzerotensor((2, 20, 4))
    assert_within_budgets(attend(zero, key, value), "scaled_dot_product_attention", 0 * query, key, value)


def test_lazily_negated_and_zero_gradients_count_as_their_numbers() -> None:
    query, key, value = leaves = [torch.randn(2, 20, 4, requires_grad=True) for _ in range(3)]
    mask = torch.rand(20, 20) > 0.3
    mask[3] = False
    weight = torch.randn(2, 20, 4)
    expected = torch.autograd.grad(attend(query, key, value, mask=mask), leaves, weight)
    negative = torch.complex(weight, -weight).conj().imag
    assert negative.is_neg()
    for gradient in (negative, weight.mT.contiguous().mT):
        gradients = torch.autograd.grad(attend(query, key, value, mask=mask), leaves, gradient)
        assert all(torch.equal(x, y) for x, y in zip(gradients, expected, strict=True))
    zero = torch._efficientzerotensor((2, 20, 4))
    assert not any(x.any() for x in torch.autograd.grad(attend(query, key, value), leaves, zero))
    batch = torch.stack([weight, 2 * weight])
    output = attend(query, key, value, mask=mask)
    together = torch.autograd.grad(output, leaves, batch, is_grads_batched=True)
    for i, cotangent in enumerate(batch):
        gradients = tuple(x[i] for x in together)
        assert_gradients_within_budgets(gradients, cotangent, "scaled_dot_product_attention", *leaves, mask=mask)


@pytest.mark.parametrize(
    "store", [lambda x: x.mT.contiguous().mT if x.dim() > 1 else x, lambda x: torch.stack([x, x], -1)[..., 0]]
)
def test_saved_tensors_that_hooks_move_are_read_with_their_strides(store: Callable[[Tensor], Tensor]) -> None:
    leaves = [torch.randn(2, 3, 20, 4, requires_grad=True) for _ in range(3)]
    with torch.autograd.graph.saved_tensors_hooks(store, lambda x: x):
        output = attend(*leaves, causal=True)
    cotangent = torch.randn(output.shape)
    gradients = torch.autograd.grad(output, leaves, cotangent)
    assert_gradients_within_budgets(gradients, cotangent, "scaled_dot_product_attention", *leaves, causal=True)


def test_a_query_that_attends_nothing_gives_keys_no_gradient() -> None:
    query, key, value = (torch.randn(20, 4, requires_grad=True) for _ in range(3))
    mask = torch.ones(20, 20, dtype=torch.bool)
    mask[7] = False
    with torch.no_grad():
        query[7] = nan
    output = attend(query, key, value, mask=mask)
    assert all(x.isfinite().all() for x in torch.autograd.grad(output.sum(), (key, value)))


@pytest.mark.parametrize("llvm", [True, False])
def test_autocast_decides_the_dtype_on_either_kernel(llvm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_choice, "HAS_LLVMLITE", llvm)
    x, y = torch.randn(2, 20, 4), torch.randn(2, 20, 4, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        assert attend(x, x, x).dtype is torch.bfloat16
        half = x.bfloat16()
        assert torch.equal(attend(half, x, x), attend(half, half, half))
        assert attend(y, y, y).dtype is torch.float64


def test_no_features_are_refused_unless_there_is_a_scale() -> None:
    nothing, value = torch.empty(20, 0), torch.randn(20, 3)
    with pytest.raises(ValueError, match="query: expected at least one feature, or a scale; got 0"):
        attend(nothing, nothing, value)
    for row in attend(nothing, nothing, value, scale=1.0):
        assert_within_budgets(row, "average_pooling", value)


class Mapping(Arguments):
    """A function of every element of `x`."""

    count: Size
    x: Reals
    out: Reals


@pytest.mark.parametrize("bits", [32, 64])
def test_exp2_is_within_three_roundings(bits: int) -> None:
    k = Kernel("exponentials", Mapping, bits)
    with k.loop(0, k.argument.count, k.lanes) as i:
        k.store(exp2(k, k.load(k.argument.x, i)), k.argument.out, i)
    dtype = torch.float32 if bits == 32 else torch.float64
    lowest = -126 if bits == 32 else -1022
    special = torch.tensor([0.0, 1.0, -1.0, lowest, lowest - 1.0, 3.0 * lowest, -inf, nan], dtype=dtype)
    x = torch.cat([special, torch.linspace(lowest, 1, (1 << 14) - 8, dtype=torch.float64).to(dtype)])
    out = torch.empty_like(x)
    assert len(x) % k.lanes == 0
    run(Compiled(*k.code()), 1, Mapping(count=len(x), x=x, out=out))
    assert out[:7].tolist() == [1.0, 2.0, 0.5, 2.0**lowest, 0.0, 0.0, 0.0]
    assert out[7].isnan()
    # the last sum of the series is one rounding, all before it less than two
    assert_within_roundings(out[8:], lambda power: mp.power(2, power), x[8:], 3)


class Transposition(Arguments):
    """A source and a target, with the rows and columns that exist of each."""

    source: Reals
    rows: Size
    columns: Size
    target: Reals
    target_rows: Size
    target_columns: Size


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_a_transposition_writes_what_exists_and_nothing_else(rows: int) -> None:
    k = Kernel("transposition", Transposition, 32)
    define_transpose(k)
    g = k.argument
    source = Square(g.source, k.integer(k.lanes), g.rows, g.columns)
    transpose(k, source, Square(g.target, k.integer(k.lanes), g.target_rows, g.target_columns))
    lanes = register_bytes() // 4
    x = torch.arange(lanes * lanes, dtype=torch.float32).reshape(lanes, lanes) + 1
    out = torch.full((lanes, lanes), -1.0)
    run(Compiled(*k.code()), 1, Transposition(source=x, rows=rows, columns=2, target=out, target_rows=3,
                                      target_columns=lanes - 1))  # fmt: skip
    existing = x[torch.arange(lanes).clamp(max=rows - 1)]
    existing[:, 2:] = 0
    assert torch.equal(out[:3, :-1], existing.T[:3, :-1])
    assert (out[3:] == -1).all()
    assert (out[:, -1] == -1).all()


def _attended(n: int) -> Tensor:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(4, n, 32, generator=generator)
    return attend(x, x, x, causal=True)


def _child(connection: "multiprocessing.connection.Connection") -> None:
    connection.send(_attended(300).tolist())
    connection.close()


def test_threads_of_pytorch_of_python_and_of_a_fork_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    expected = _attended(300)
    torch.set_num_threads(4)
    assert torch.equal(_attended(300), expected)
    with monkeypatch.context() as patch:
        patch.setattr(threads, "_team", lambda: None)
        assert torch.equal(_attended(300), expected)
    if "fork" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        child = context.Process(target=_child, args=(there,))
        child.start()
        assert here.poll(60), "the child does not answer"
        assert here.recv() == expected.tolist()
        child.join()
        assert child.exitcode == 0


def test_few_tasks_or_little_work_run_on_one_thread() -> None:
    torch.set_num_threads(4)
    assert threads.thread_count(1, 1e12) == 1
    assert threads.thread_count(8, threads.WORTH_WAKING - 1) == 1
    assert threads.thread_count(2, threads.WORTH_WAKING) == 4
