"""The kernels for few queries and keys, within the budgets of the formula."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="llvmlite is not installed")

from attnspec.backends import pytorch
from attnspec.backends.pytorch import groups, sdpa
from attnspec.backends.pytorch.kernels.dot import small
from attnspec.backends.pytorch.kernels.dot.call import Call, Options, Tensors, as_4d
from attnspec.backends.pytorch.kernels.dot.differentiable import Attend
from attnspec.backends.pytorch.runtime.forcing import forcing
from attnspec.reference import REFERENCE
from tests.budgets import assert_gradients_within_budgets, assert_within_budgets, attention_gradients

from .concurrency import run_on_threads

SHAPES = [
    (1, 8, 2, 1, 1, 8, 8), (2, 4, 4, 3, 5, 16, 8), (2, 8, 2, 16, 16, 64, 64), (1, 2, 1, 7, 19, 40, 24),
    (1, 1, 1, 9, 4, 72, 200), (2, 2, 2, 5, 6, 7, 13),
    (2, 4, 2, 9, 1, 24, 40), (1, 3, 3, 13, 2, 8, 5), (3, 1, 1, 1, 1, 200, 1),
]  # fmt: skip
"""Batch, heads, heads of keys, queries, keys, features of keys and of values."""

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def forced() -> Iterator[None]:
    with forcing("small"):
        yield


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def plan_of(
    inputs: Sequence[Tensor], mask: Tensor | None, causal: bool, scale: float, *, logarithms: bool = False
) -> Attend:
    rank = inputs[0].dim() - 2
    query, key, value = (as_4d(x, rank) for x in inputs)
    options = Options(scale, right=0 if causal else None, logarithms=logarithms)
    call = Call(query, key, value, options, Tensors(mask))
    assert small.serves(call)
    return small.plan(call, inputs, rank)


def rows_of_one_head(x: Tensor, heads_k: int) -> Tensor:
    """Heads of queries that share keys, as rows of one head: the mask of such a head may differ in every row."""
    return x.reshape(x.shape[0], heads_k, 1, -1, *x.shape[3:])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_results_and_gradients_are_the_formula(
    shape: tuple[int, ...], dtype: torch.dtype, causal: bool, masked: bool
) -> None:
    b, heads, heads_k, n, m, d, d_v = shape
    arguments = [draw(b, heads, n, d), draw(b, heads_k, m, d), draw(b, heads_k, m, d_v)]
    arguments = [x.to(dtype).requires_grad_() for x in arguments]
    allowed = torch.ones(n, m, dtype=torch.bool).tril() if causal else torch.ones(n, m, dtype=torch.bool)
    mask = None
    if masked:
        mask = draw(b, heads, n, m) < 0.5
        mask[..., 0] = True
        allowed = allowed & mask
    result = plan_of(arguments, mask, causal, d**-0.5, logarithms=True)(*arguments, mask)
    assert result is not None
    results = [x for x in result if x is not None]
    cotangents = [draw(*x.shape).to(dtype) for x in results]
    gradients = torch.autograd.grad(results, arguments, cotangents)
    assert [x.dtype for x in (*results, *gradients)] == [dtype] * 5
    own, along, inputs, slopes = (
        tuple(rows_of_one_head(x, heads_k) for x in some) for some in (results, cotangents, arguments, gradients)
    )
    seen = allowed.expand(b, heads, n, m).reshape(b, heads_k, -1, m)
    assert_within_budgets(own, "grouped_query_attention", *inputs, mask=seen)
    assert_gradients_within_budgets(slopes, along, "grouped_query_attention", *inputs, mask=seen)


def test_the_operations_choose_the_path_and_name_it() -> None:
    query, key = draw(2, 3, 8), draw(2, 5, 8)
    mask = torch.ones(2, 3, 5, dtype=torch.bool)
    assert sdpa.path_for(query, key, key) == "all keys: small"
    assert sdpa.path_for(query, key, key, mask=mask) == "masked: small"
    assert sdpa.path_for(query, key, key, causal=True) == "causal: small"
    heads = draw(2, 4, 3, 8), draw(2, 2, 5, 8)
    assert groups.path_for(heads[0], heads[1], heads[1]) == "small"
    many = draw(1, 1, 1, 8).expand(1, 1, 2**18, 8)
    assert groups.path_for(many, heads[1][:1, :1], heads[1][:1, :1]) == "plain"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 8])
def test_one_key_whose_score_is_not_finite_is_left_to_the_formula(dtype: torch.dtype, n: int) -> None:
    query, key, value = (draw(1, 1, rows, 8).to(dtype) for rows in (n, 1, 1))
    query[0, 0, -1, 3] = torch.inf

    def compute(query: Tensor) -> tuple[Tensor, Tensor | None] | None:
        inputs = query, key, value
        return plan_of(inputs, None, False, 1.0)(*inputs)

    assert compute(query) is None
    assert compute(query.nan_to_num(posinf=1.0)) is not None
    output = pytorch.scaled_dot_product_attention(query, key, value)
    assert output[..., -1, :].isnan().all()
    assert torch.equal(output[..., :-1, :], value.expand(1, 1, n, 8)[..., :-1, :])


def leaves(*batch: int) -> tuple[Tensor, Tensor, Tensor]:
    return (
        draw(*batch, 4, 8).requires_grad_(),
        draw(*batch, 6, 8).requires_grad_(),
        draw(*batch, 6, 8).mul(2).requires_grad_(),
    )


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("causal", [False, True])
def test_a_gradient_is_read_as_it_lies(batch: tuple[int, ...], causal: bool) -> None:
    query, key, value = leaves(*batch)
    cotangents = [
        draw(*batch, 4, 8), draw(8).expand(*batch, 4, 8), draw(1).expand(*batch, 4, 8), draw(*batch, 8, 4).mT
    ]  # fmt: skip
    for _ in range(2):
        for cotangent in cotangents:
            output = pytorch.scaled_dot_product_attention(query, key, value, causal=causal)
            gradients = torch.autograd.grad(output, (query, key, value), cotangent)
            with forcing("plain"):
                again = pytorch.scaled_dot_product_attention(query, key, value, causal=causal)
            both = [gradients, torch.autograd.grad(again, (query, key, value), cotangent)]
            attention = "scaled_dot_product_attention"
            assert_gradients_within_budgets(both, cotangent, attention, query, key, value, causal=causal)


def test_operands_are_read_as_they_lie() -> None:
    whole = draw(2, 5, 3, 3, 8)
    for of_gradients in (False, True):
        leaf = whole.clone().requires_grad_(of_gradients)
        query, key, value = (x.transpose(1, 2) for x in leaf.unbind(2))
        output = pytorch.scaled_dot_product_attention(query, key, value)
        assert_within_budgets(output, "scaled_dot_product_attention", query, key, value)
        if of_gradients:
            cotangent = draw(*output.shape)
            (gradient,) = torch.autograd.grad(output, leaf, cotangent)
            gradients = tuple(x.transpose(1, 2) for x in gradient.unbind(2))
            assert_gradients_within_budgets(gradients, cotangent, "scaled_dot_product_attention", query, key, value)


@pytest.mark.parametrize("wanted", [(0, 1, 2), (0,), (1, 2), (0, 2)])
def test_second_derivatives_are_those_of_the_formula(wanted: tuple[int, ...]) -> None:
    inputs = [x.detach().requires_grad_(i in wanted) for i, x in enumerate(leaves(2))]
    mask = draw(2, 4, 6) < 0.5
    mask[..., 0] = True
    output, operands = (
        pytorch.scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], mask=mask),
        [inputs[i] for i in wanted],
    )
    cotangent = draw(*output.shape)
    first = torch.autograd.grad(output, operands, cotangent, create_graph=True)
    along = [draw(*x.shape) for x in first]
    by_place = dict(zip(wanted, torch.autograd.grad(first, operands, along), strict=True))
    second, weights = (*(by_place.get(i) for i in range(3)), None), dict(zip(wanted, along, strict=True))
    assert_gradients_within_budgets(
        second, tuple(weights.get(i) for i in range(3)), attention_gradients, *inputs, cotangent, mask=mask
    )


def test_second_derivatives_in_groups() -> None:
    query, key, value = draw(1, 4, 3, 8).requires_grad_(), draw(1, 2, 5, 8), draw(1, 2, 5, 8).requires_grad_()
    results = [x for x in pytorch.grouped_query_attention(query, key, value) if x is not None]
    cotangents = [draw(*x.shape) for x in results]
    (first,) = torch.autograd.grad(results, query, cotangents, create_graph=True)
    along = draw(*first.shape)
    gradients = torch.autograd.grad(first, (query, value), along)
    own, weights, rows, output, logarithms = (
        rows_of_one_head(x, 2)[:, :, 0] for x in (gradients[0], along, query, *cotangents)
    )
    assert_gradients_within_budgets(
        (own, None, gradients[1], None, None), (weights, None, None), attention_gradients, rows, key, value, output,
        of_logarithms=logarithms,
    )  # fmt: skip


def test_saved_tensors_that_hooks_replace_are_read_as_they_are() -> None:
    query, key, value = leaves(2)
    expected = torch.autograd.grad(pytorch.scaled_dot_product_attention(query, key, value).sum(), (query, key, value))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x.mT.contiguous().mT if x.dim() > 1 else x):
        output = pytorch.scaled_dot_product_attention(query, key, value)
    gradients = [torch.autograd.grad(output.sum(), (query, key, value)), expected]
    assert_gradients_within_budgets(
        gradients, torch.ones_like(output), "scaled_dot_product_attention", query, key, value
    )


@pytest.mark.parametrize("causal", [False, True])
def test_excluded_keys_and_values_are_not_read(causal: bool) -> None:
    query, key, value = leaves(2)
    mask = None if causal else torch.ones(2, 4, 6, dtype=torch.bool)
    if mask is not None:
        mask[..., 5] = False
    right = torch.autograd.grad(
        pytorch.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal).sum(), (query, key, value)
    )
    clean = [x.detach().clone() for x in (query, key, value)]
    with torch.no_grad():
        key[:, 5], value[:, 5] = torch.nan, torch.inf
    output = pytorch.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal)
    gradients, attention = (
        [torch.autograd.grad(output.sum(), (query, key, value)), right],
        "scaled_dot_product_attention",
    )
    assert_gradients_within_budgets(gradients, torch.ones_like(output), attention, *clean, mask=mask, causal=causal)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("operand", [0, 1, 2])
def test_nonfinite_operands_are_left_to_the_formula(bad: float, operand: int) -> None:
    inputs = [x.detach() for x in leaves(2)]
    inputs[operand][0, 1, 2] = bad
    result = plan_of(inputs, None, False, 8**-0.5)(*inputs)
    assert (result is None) == (operand < 2 or bad != bad)  # infinite values are left to the kernel, NaN is not
    got = pytorch.scaled_dot_product_attention(inputs[0], inputs[1], inputs[2])
    assert_within_budgets(got, "scaled_dot_product_attention", *inputs)


def test_rows_that_overlap_have_gradients_that_do_not() -> None:
    base = draw(10).requires_grad_()
    key, value, cotangent = draw(3, 8), draw(3, 8), draw(3, 8)
    gradients = []
    for path in ("plain", "small", "pytorch", "llvm"):
        with forcing(path):
            for _ in range(2):
                output = pytorch.scaled_dot_product_attention(base.unfold(0, 8, 1), key, value)
                gradients.append((torch.autograd.grad(output, base, cotangent)[0], None, None))

    def attention_of_overlapping_rows(base: Any, key: Any, value: Any) -> Any:
        return REFERENCE["scaled_dot_product_attention"](np.stack([base[i : i + 8] for i in range(3)]), key, value)

    assert_gradients_within_budgets(gradients, cotangent, attention_of_overlapping_rows, base, key, value)


@pytest.mark.parametrize("path", ["small", "pytorch", "llvm", None])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_overlap_are_read_as_they_are(path: str | None, dtype: torch.dtype) -> None:
    rows, key, value = draw(1, 1, 10).to(dtype).unfold(2, 8, 1), draw(1, 1, 3, 8).to(dtype), draw(1, 1, 3, 8).to(dtype)
    with forcing(path):
        for causal in (False, True):
            for call in (
                pytorch.scaled_dot_product_attention,
                lambda *x, **o: pytorch.grouped_query_attention(*x, **o)[0],
            ):
                results = [call(x, key, value, causal=causal) for x in (rows, rows.contiguous())]
                assert_within_budgets(results, "scaled_dot_product_attention", rows, key, value, causal=causal)


@pytest.mark.parametrize("wanted", [False, True])
def test_a_default_device_moves_nothing(wanted: bool) -> None:
    inputs = [x.detach().requires_grad_(wanted) for x in leaves(2)]
    heads = [x.detach().unsqueeze(0).requires_grad_(wanted) for x in leaves(2)]
    for _ in range(2):
        with torch.device("meta"):
            output = pytorch.scaled_dot_product_attention(inputs[0], inputs[1], inputs[2])
            grouped, logarithms = pytorch.grouped_query_attention(heads[0], heads[1], heads[2])
        assert output.is_cpu
        assert grouped.is_cpu
        assert logarithms is not None
        assert logarithms.is_cpu
        again = pytorch.scaled_dot_product_attention(inputs[0], inputs[1], inputs[2])
        assert_within_budgets([output, again], "scaled_dot_product_attention", *inputs)
        assert_within_budgets((grouped, logarithms), "grouped_query_attention", *heads)


def test_batches_of_gradients_of_logarithms_are_those_one_by_one() -> None:
    query, key, value = (x.detach().unsqueeze(0).requires_grad_() for x in leaves(2))
    for _ in range(2):
        _, logarithms = pytorch.grouped_query_attention(query, key, value)
        assert logarithms is not None
        cotangents = draw(3, *logarithms.shape)
        (together,) = torch.autograd.grad(logarithms, query, cotangents, is_grads_batched=True, retain_graph=True)
        for cotangent, got in zip(cotangents, together, strict=True):
            (expected,) = torch.autograd.grad(logarithms, query, cotangent, retain_graph=True)
            gradients = [(got, None, None), (expected, None, None)]
            assert_gradients_within_budgets(gradients, (None, cotangent), "grouped_query_attention", query, key, value)


def test_nan_gradients_of_rows_without_keys_have_no_effect() -> None:
    query, key, value = leaves()
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[2] = False
    output = pytorch.scaled_dot_product_attention(query, key, value, mask=mask)
    cotangent = torch.ones_like(output)
    cotangent[2] = torch.nan
    for again in (False, True):
        gradients = torch.autograd.grad(output, (query, key, value), cotangent, create_graph=again, retain_graph=True)
        assert all(x.isfinite().all() for x in gradients)


def test_calls_like_an_earlier_one_reuse_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [draw(2, 2, 2, 4, 8).requires_grad_() for _ in range(3)]
    first = pytorch.scaled_dot_product_attention(inputs[0], inputs[1], inputs[2])
    monkeypatch.setattr(small, "plan", lambda *_: pytest.fail("expected the plan of the first call"))
    assert torch.equal(first, pytorch.scaled_dot_product_attention(inputs[0], inputs[1], inputs[2]))


@pytest.mark.parametrize("wanted", [False, True])
def test_every_thread_has_memory_of_its_own(wanted: bool) -> None:
    inputs = [draw(1, h, 48, 64).float().requires_grad_(wanted) for h in (8, 2, 2)]

    def results() -> list[Tensor]:
        output, logarithms = pytorch.grouped_query_attention(*inputs)
        assert logarithms is not None
        return [output, logarithms, *(torch.autograd.grad(output.sum() + logarithms.sum(), inputs) if wanted else ())]

    expected = results()
    runs: list[list[Tensor]] = []

    run_on_threads(lambda: runs.extend(results() for _ in range(50)))
    assert len(runs) == 200
    assert all(torch.equal(x, own) for run in runs for x, own in zip(run, expected, strict=True))
