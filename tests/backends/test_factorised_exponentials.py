"""Calls and gradients of the kernels with factorised exponentials, against the formula in doubles."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="llvmlite is not installed")

from attnspec.backends import pytorch
from attnspec.backends.pytorch.kernels.additive.llvm import factorised, gradient_plan, layout
from attnspec.backends.pytorch.kernels.additive.llvm.pointwise_plan import Operands
from attnspec.backends.pytorch.runtime import scratch_memory
from attnspec.backends.pytorch.runtime.forcing import forcing
from tests.budgets import assert_gradients_within_budgets, assert_within_budgets

from .concurrency import run_on_threads

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SHAPES = [((2,), 5, 7, 8, 8, 3), ((), 40, 130, 32, 64, 16), ((2, 3), 64, 70, 48, 32, 33)]
"""Batch, queries, keys, features of queries and keys, hidden units, features of values."""


@pytest.fixture(autouse=True)
def _by_shared_exponentials() -> Iterator[None]:
    with forcing("llvm"):
        yield


def draw(shape: tuple[tuple[int, ...], int, int, int, int, int], dtype: torch.dtype) -> list[Tensor]:
    batch, n, m, d_q, h, d = shape
    generator = torch.Generator().manual_seed(n)
    sizes = (*batch, n, d_q), (*batch, m, d_q), (*batch, m, d), (h, d_q), (h, d_q), (h,)
    return [torch.randn(*size, generator=generator).to(dtype) for size in sizes]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_output_is_the_formula(
    dtype: torch.dtype, shape: tuple[tuple[int, ...], int, int, int, int, int], causal: bool
) -> None:
    inputs = draw(shape, dtype)
    results = [pytorch.additive_attention(*inputs, causal=causal) for _ in range(3)]
    assert all(output.dtype is dtype for output in results)
    assert_within_budgets(results, "additive_attention", *inputs, causal=causal)
    assert torch.equal(results[0], results[2])


def masks(batch: tuple[int, ...], n: int, m: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(m)
    shapes = {"of pairs": (n, m), "of keys": (1, m), "of queries": (n, 1), "of a batch": (*batch, 1, m)}
    dense_masks = {name: torch.rand(*shape, generator=generator) < 0.6 for name, shape in shapes.items()}
    strided = torch.rand(*batch, m, n, generator=generator) < 0.6
    return dense_masks | {"in another order": strided.mT, "nowhere": torch.zeros(n, m, dtype=torch.bool)}


@pytest.fixture
def served_by_plan(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """True for every call that its plan served."""
    served: list[bool] = []
    attend = factorised.attend

    def seen(*arguments: Any) -> Tensor | None:
        output = attend(*arguments)
        served.append(output is not None)
        return output

    monkeypatch.setattr(factorised, "attend", seen)
    return served


MASKED_CALLS = [(SHAPES[0], kind, causal) for kind in masks((), 1, 1) for causal in (False, True)]
MASKED_CALLS += [
    (shape, kind, causal) for shape in SHAPES[1:] for kind, causal in (("of pairs", False), ("of keys", True))
]


@pytest.mark.parametrize(("shape", "kind", "causal"), MASKED_CALLS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_masked_calls_are_planned_too(
    dtype: torch.dtype, shape: tuple[tuple[int, ...], int, int, int, int, int], kind: str, causal: bool,
    served_by_plan: list[bool],
) -> None:  # fmt: skip
    batch, n, m, *_ = shape
    mask = masks(batch, n, m)[kind]
    inputs = [x.requires_grad_() for x in draw(shape, dtype)]
    gradients = [pytorch.additive_attention(*inputs, mask=mask, causal=causal) for _ in range(3)]
    with torch.no_grad():
        alone = pytorch.additive_attention(*inputs, mask=mask, causal=causal)
    assert served_by_plan == [True] * 4
    assert torch.equal(alone, gradients[2])
    assert_within_budgets(alone, "additive_attention", *inputs, mask=mask, causal=causal)
    cotangent = torch.linspace(-1, 1, alone.numel()).to(dtype).view(alone.shape)
    own = torch.autograd.grad(gradients[2], inputs, cotangent)
    assert_gradients_within_budgets(own, cotangent, "additive_attention", *inputs, mask=mask, causal=causal)


@pytest.mark.parametrize("m", [7, 256])  # 256: rows of weights are padded (`row_stride`)
def test_gradients_of_rows_without_keys_have_no_effect(m: int) -> None:
    inputs = [x.requires_grad_() for x in draw(((2,), 5, m, 8, 8, 3), torch.float32)]
    mask = torch.ones(5, m, dtype=torch.bool)
    mask[2] = False
    cotangent = torch.ones(2, 5, 3)
    expected = torch.autograd.grad(pytorch.additive_attention(*inputs, mask=mask), inputs, cotangent)
    cotangent[:, 2] = torch.nan
    junk = torch.full((2, 5, 288), torch.nan)
    del junk  # for memory that is not written to hold numbers other than 0
    gradients = torch.autograd.grad(pytorch.additive_attention(*inputs, mask=mask), inputs, cotangent)
    negated = torch._neg_view(-cotangent)  # is left to the operator
    by_operator = torch.autograd.grad(pytorch.additive_attention(*inputs, mask=mask), inputs, negated)
    assert all(torch.equal(own, other) for own, other in zip(gradients, expected, strict=True))
    cotangent[:, 2] = 0.0
    assert_gradients_within_budgets([gradients, by_operator], cotangent, "additive_attention", *inputs, mask=mask)


def test_the_operator_reads_saved_tensors_in_other_dtypes() -> None:
    inputs = [x.requires_grad_() for x in draw(SHAPES[2], torch.float32)]
    cotangent = torch.ones(2, 3, 64, 33)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.double(), lambda x: x):
        output = pytorch.additive_attention(*inputs)
    gradients = torch.autograd.grad(output, inputs, torch._neg_view(-cotangent))
    assert_gradients_within_budgets(gradients, cotangent, "additive_attention", *inputs)


def test_weights_that_change_in_place_are_read_again() -> None:
    inputs = draw(SHAPES[1], torch.float32)
    pytorch.additive_attention(*inputs)
    inputs[5].numpy()[:] *= -2.0
    inputs[3].data.mul_(0.5)
    assert_within_budgets(pytorch.additive_attention(*inputs), "additive_attention", *inputs)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e30])
def test_values_out_of_range_are_within_budgets(bad: float) -> None:
    inputs = draw(SHAPES[0], torch.float32)
    pytorch.additive_attention(*inputs)
    inputs[2][0, 3, 1] = bad
    assert_within_budgets(pytorch.additive_attention(*inputs), "additive_attention", *inputs)


def test_results_are_not_in_memory_that_is_kept() -> None:
    first, second = draw(SHAPES[1], torch.float32), draw(SHAPES[1], torch.float32)
    second[0] = -second[0]
    output = pytorch.additive_attention(*first)
    copy = output.clone()
    pytorch.additive_attention(*second)
    assert torch.equal(output, copy)


def test_every_thread_has_memory_of_its_own() -> None:
    inputs = draw(SHAPES[2], torch.float32)
    expected = pytorch.additive_attention(*inputs)
    outputs: list[Tensor] = []

    def repeat() -> None:
        outputs.extend(pytorch.additive_attention(*inputs) for _ in range(20))

    run_on_threads(repeat)
    assert len(outputs) == 80
    assert all(torch.equal(x, expected) for x in outputs)


def test_operands_that_the_plan_cannot_read_are_left_to_others() -> None:
    query, key, value, w_q, w_k, w_v = draw(SHAPES[0], torch.float32)
    batch = query.shape[:-2]
    assert factorised.serves(Operands(query, key, value, w_q, w_k, w_v), batch)
    assert not factorised.serves(Operands(query[:1], key, value, w_q, w_k, w_v), batch)
    assert not factorised.serves(Operands(query, key, value, w_q.mT.contiguous().mT, w_k, w_v), batch)
    assert not factorised.serves(Operands(query, key, value, None, None, w_v), batch)
    assert not factorised.serves(Operands(query, key[:, :0], value[:, :0], w_q, w_k, w_v), batch)


def test_memory_is_kept_up_to_a_limit() -> None:
    def where(kind: str, numbers: int, dtype: torch.dtype) -> int:
        lease = scratch_memory.lease_tensor(kind, numbers, dtype)
        assert lease is not None
        assert lease[1].shape == (numbers,)
        return lease[1].data_ptr()

    small = where("test", 100, torch.float32)
    assert where("test", 50, torch.float64) == small
    assert where("another", 100, torch.float32) != small
    assert scratch_memory.lease_tensor("test", scratch_memory.MOST_BYTES, torch.float32) is None


def test_memory_that_is_held_is_lent_to_nobody_else() -> None:
    begin, lease = scratch_memory.lease_address("test", 100)
    others = [scratch_memory.lease_address("test", size) for size in (100, 200)]
    assert len({begin, *(where for where, _ in others)}) == 3
    last = others[-1][0]
    del lease, others
    assert scratch_memory.lease_address("test", 100)[0] == last


def test_memory_comes_back_from_a_call_that_raises() -> None:
    where = []

    def fails() -> None:
        begin, _lease = scratch_memory.lease_address("raising", 100)
        where.append(begin)
        raise ValueError("a call")

    for _ in range(2):
        with pytest.raises(ValueError, match="a call"):
            fails()
    where.append(scratch_memory.lease_address("raising", 100)[0])
    assert len(set(where)) == 1


def test_scratch_memory_of_a_name_is_reused_up_to_a_limit() -> None:
    begin, lease = scratch_memory.lease_address("test", 1000)
    size = len(lease.memory)
    assert begin == lease.memory.data_ptr()
    del lease
    assert scratch_memory.lease_address("test", 10)[0] == begin
    assert len(scratch_memory.lease_address("test", size + 1)[1].memory) == size + 1
    kept = scratch_memory.lease_address("test", 10)[0]
    large = scratch_memory.lease_address("test", scratch_memory.MOST_BYTES + 1)[1]
    assert len(large.memory) == scratch_memory.MOST_BYTES + 1
    assert scratch_memory.lease_address("test", 10)[0] == kept


def gradients(
    compute: Callable[..., Tensor], inputs: list[Tensor], cotangent: Tensor, wanted: Sequence[int] = range(6)
) -> tuple[Tensor, ...]:
    leaves = [x.detach().requires_grad_(i in wanted) for i, x in enumerate(inputs)]
    return torch.autograd.grad(compute(*leaves), [leaves[i] for i in wanted], cotangent)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [*SHAPES, ((2,), 40, 256, 16, 16, 16)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_are_those_of_the_formula(
    dtype: torch.dtype, shape: tuple[tuple[int, ...], int, int, int, int, int], causal: bool
) -> None:
    inputs = draw(shape, dtype)
    cotangent = torch.randn(*shape[0], shape[1], shape[5], generator=torch.Generator().manual_seed(9)).to(dtype)
    own_gradients = gradients(partial(pytorch.additive_attention, causal=causal), inputs, cotangent)
    assert all(own.dtype is dtype for own in own_gradients)
    assert_gradients_within_budgets(own_gradients, cotangent, "additive_attention", *inputs, causal=causal)


@pytest.mark.parametrize("wanted", [[i] for i in range(6)] + [[0, 2], [1, 5], [3, 4]], ids=str)
def test_gradients_of_some_operands_are_those_of_all(wanted: list[int]) -> None:
    inputs, cotangent = draw(SHAPES[1], torch.float32), torch.randn(40, 16)
    every = gradients(pytorch.additive_attention, inputs, cotangent)
    some = gradients(pytorch.additive_attention, inputs, cotangent, wanted)
    assert all(torch.equal(own, every[i]) for own, i in zip(some, wanted, strict=True))


def test_a_second_derivative_raises() -> None:
    leaves = [x.requires_grad_() for x in draw(SHAPES[0], torch.float32)]
    (by_query,) = torch.autograd.grad(pytorch.additive_attention(*leaves).sum(), leaves[0], create_graph=True)
    with pytest.raises(
        NotImplementedError, match="second derivatives are not implemented on the path pointwise or llvm"
    ):
        torch.autograd.grad(by_query.sum(), leaves)


def test_batches_of_gradients_are_the_gradients() -> None:
    leaves = [x.requires_grad_() for x in draw(SHAPES[0], torch.float32)]
    output = pytorch.additive_attention(*leaves)
    cotangents = torch.randn(3, *output.shape)
    gradients = torch.autograd.grad(output, leaves, cotangents, retain_graph=True, is_grads_batched=True)
    for i, cotangent in enumerate(cotangents):
        alone = torch.autograd.grad(output, leaves, cotangent, retain_graph=True)
        batched = tuple(own[i] for own in gradients)
        assert_gradients_within_budgets([batched, alone], cotangent, "additive_attention", *leaves)


def test_the_output_may_be_changed_in_place_but_not_what_is_kept_of_it() -> None:
    leaves = [x.requires_grad_() for x in draw((*SHAPES[2][:5], 32), torch.float32)]
    output = pytorch.additive_attention(*leaves)
    output.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(output.sum(), leaves)


def test_gradients_do_not_depend_on_the_number_of_threads() -> None:
    inputs, cotangent = draw(((4,), 256, 256, 64, 64, 64), torch.float32), torch.randn(4, 256, 64)
    before, runs = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            runs.append(gradients(pytorch.additive_attention, inputs, cotangent))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(x, y) for other in runs[1:] for x, y in zip(runs[0], other, strict=True))


def test_gradients_of_entries_that_are_not_all_taken_together() -> None:
    batch, n, m, _, h, d = shape = (7,), 400, 410, 8, 16, 8
    inputs, cotangent, threads = draw(shape, torch.float32), torch.randn(*batch, n, d), torch.get_num_threads()
    torch.set_num_threads(1)  # more take more entries together
    try:
        together = gradient_plan.entries_per_group(n, h, layout.row_stride(m, torch.empty(0)), 4)
        assert 0 < batch[0] % together < batch[0], "the last ones are fewer than the others"
        own_gradients = gradients(pytorch.additive_attention, inputs, cotangent)
        for i in range(batch[0]):
            of_entry = [x[i : i + 1] for x in inputs[:3]] + inputs[3:]
            alone = gradients(pytorch.additive_attention, of_entry, cotangent[i : i + 1])
            assert all(
                torch.equal(own[i : i + 1], other) for own, other in zip(own_gradients[:3], alone[:3], strict=True)
            )
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", ["far", "NaN"])
def test_huge_projections_and_nan_queries_stay_within_budgets(case: str, dtype: torch.dtype) -> None:
    """Projections of ±400 have no exponentials."""
    inputs = draw(SHAPES[0], dtype)
    if case == "far":
        inputs[3:5] = [x * 400.0 for x in inputs[3:5]]
    else:
        inputs[0][0, 2] = torch.nan
    cotangent = torch.randn(2, 5, 3, dtype=dtype)
    output = pytorch.additive_attention(*inputs)
    assert bool(output.isfinite().all()) == (case != "NaN")
    own_gradients = gradients(pytorch.additive_attention, inputs, cotangent)
    assert_within_budgets(output, "additive_attention", *inputs)
    assert_gradients_within_budgets(own_gradients, cotangent, "additive_attention", *inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_weights_whose_sum_is_infinite(dtype: torch.dtype) -> None:
    """Scores are so far apart that every query takes one value, bit for bit."""
    query, key, value, w_q, w_k, w_v = draw(SHAPES[0], dtype)
    scores = torch.tanh((query.double() @ w_q.double().mT)[:, :, None] + (key.double() @ w_k.double().mT)[:, None])
    first = (scores @ w_v.double()).argmax(-1)
    inputs = [query, key, value, w_q, w_k, w_v * 2.0 ** (126 if dtype is torch.float32 else 1022)]
    assert bool(inputs[5].abs().sum().isinf())
    taken = torch.nn.functional.one_hot(first, key.shape[1]).to(dtype)
    assert torch.equal(pytorch.additive_attention(*inputs), taken @ value)
    cotangent = torch.randn(2, 5, 3, dtype=dtype)
    own_gradients = gradients(pytorch.additive_attention, inputs, cotangent)
    assert_gradients_within_budgets((own_gradients[2],), cotangent, lambda value: taken.numpy() @ value, value)
    # The others are differences of equal numbers, times such a weight: 0 but for roundings.
    assert all(bool(x.isfinite().all()) for x in own_gradients)


def test_the_backward_may_have_other_threads() -> None:
    inputs, before = draw(((4,), 256, 256, 64, 64, 64), torch.float32), torch.get_num_threads()
    cotangent, runs = torch.randn(4, 256, 64), []
    leaves = [x.requires_grad_() for x in inputs]
    try:
        for forward, backward in ((2, 1), (1, 2), (2, 3)):
            torch.set_num_threads(forward)
            output = pytorch.additive_attention(*leaves)
            torch.set_num_threads(backward)
            runs.append(torch.autograd.grad(output, leaves, cotangent))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(x, y) for other in runs[1:] for x, y in zip(runs[0], other, strict=True))


def test_saved_tensors_may_come_back_in_other_dtypes_and_strides() -> None:
    inputs, cotangent = draw(SHAPES[2], torch.float32), torch.randn(2, 3, 64, 33)

    def unpack(x: Tensor) -> Tensor:
        return x.double() if x.dim() < 2 else x.double().mT.contiguous().mT

    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
        own_gradients = gradients(pytorch.additive_attention, inputs, cotangent)
    assert_gradients_within_budgets(own_gradients, cotangent, "additive_attention", *inputs, precision="ieee32")


def test_first_gradients_beyond_scratch_memory_while_another_device_is_the_default() -> None:
    code = (
        "import torch\n"
        "from attnspec.backends import pytorch\n"
        "from attnspec.backends.pytorch.runtime.forcing import forcing\n"
        "sizes = (2, 900, 64), (2, 900, 64), (2, 900, 64), (512, 64), (512, 64), (512,)\n"
        "given = [torch.randn(*size).requires_grad_() for size in sizes]\n"
        "with forcing('llvm'):\n"
        "    with torch.device('meta'):\n"
        "        pytorch.additive_attention(*[x[..., :8, :] if x.dim() == 3 else x for x in given]).sum()\n"
        "    first = torch.autograd.grad(pytorch.additive_attention(*given).sum(), given)\n"
        "    second = torch.autograd.grad(pytorch.additive_attention(*given).sum(), given)\n"
        "assert all(torch.equal(x, y) for x, y in zip(first, second))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
