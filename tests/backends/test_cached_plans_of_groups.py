"""Attention in groups of heads by plans: the same results from every path and call, with gradients of any order."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="llvmlite is not installed")

from attnspec.backends import pytorch as backend
from attnspec.backends.pytorch.kernels.dot import cached_plans, fused, groups, path_choice
from attnspec.backends.pytorch.runtime import plans
from attnspec.backends.pytorch.runtime.forcing import forcing
from attnspec.reference import REFERENCE
from tests.budgets import assert_gradients_within_budgets, assert_within_budgets, attention_gradients

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SHAPES = [(2, 4, 2, 1, 1, 8), (2, 4, 2, 1, 70, 32), (1, 6, 3, 5, 5, 16), (2, 4, 4, 33, 33, 32), (1, 8, 2, 40, 90, 16)]
"""Batch, heads, heads of keys, queries, keys, features."""


@pytest.fixture(autouse=True)
def _without_plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    cached_plans._plans._plans.clear()
    yield
    cached_plans._plans._plans.clear()


def draw(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    b, heads, heads_k, n, m, d = shape
    generator = torch.Generator().manual_seed(sum(shape))
    sizes = (b, heads, n, d), (b, heads_k, m, d), (b, heads_k, m, d)
    return [torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype) for size in sizes]


PATHS = ("pytorch", "llvm", None)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_planned_calls_give_the_formula_and_its_gradients(
    dtype: torch.dtype, shape: tuple[int, ...], causal: bool
) -> None:
    """The first call of every path makes a plan, and the second runs by it."""
    inputs = draw(shape, dtype)
    shapes = inputs[0].shape, inputs[0].shape[:-1]
    cotangents = [torch.randn(x, generator=torch.Generator().manual_seed(1)).to(dtype) for x in shapes]
    all_results = []
    for path in PATHS:
        with forcing(path):
            all_results += [backend.grouped_query_attention(*inputs, causal=causal) for _ in range(2)]
    assert all(x is not None and x.dtype is dtype for result in all_results for x in result)
    assert_within_budgets(all_results, "grouped_query_attention", *inputs, causal=causal)
    for indices in ((0, 1), (0,), (1,)):
        gradients = []
        for path in (path for path in PATHS for _ in range(2)):
            leaves = [x.clone().requires_grad_() for x in inputs]
            with forcing(path):
                results = backend.grouped_query_attention(*leaves, causal=causal)
                outputs = [x for i, x in enumerate(results) if i in indices and x is not None]
                weights = [cotangents[i] for i in indices]
                by_operand = torch.autograd.grad(outputs, leaves, weights, allow_unused=indices == (1,))
            # Logarithms do not depend on the values.
            gradients.append(
                tuple(torch.zeros_like(x) if g is None else g for x, g in zip(inputs, by_operand, strict=True))
            )
        assert all(x.dtype is dtype for result in gradients for x in result)
        cotangent = tuple(x if i in indices else None for i, x in enumerate(cotangents))
        assert_gradients_within_budgets(gradients, cotangent, "grouped_query_attention", *inputs, causal=causal)


def test_the_second_call_runs_by_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = draw((1, 4, 2, 5, 5, 16), torch.float32)
    for causal in (False, True):
        before = backend.grouped_query_attention(*inputs, causal=causal)
        monkeypatch.setattr(path_choice, "path_for", lambda *_: pytest.fail("expected the plan"))
        after = backend.grouped_query_attention(*inputs, causal=causal)
        monkeypatch.undo()
        for x, y in zip(before, after, strict=True):
            assert x is not None
            assert y is not None
            assert torch.equal(x, y)


@pytest.mark.parametrize("path", ["pytorch", "llvm"])
def test_second_derivatives_are_those_of_the_formula(path: str) -> None:
    leaves = [x.requires_grad_() for x in draw((1, 4, 2, 3, 6, 8), torch.float64)]
    with forcing(path):
        for _ in range(2):
            assert torch.autograd.gradgradcheck(backend.grouped_query_attention, leaves)  # type: ignore[arg-type]


def of_groups(query: Any, key: Any, value: Any, cotangent: Any) -> tuple[Any, Any]:
    """Gradients by queries and values, for two heads of queries per head of keys."""
    heads = [0, 0, 1, 1]
    of_query, _, of_value = attention_gradients(query, key[..., heads, :, :], value[..., heads, :, :], cotangent)
    return of_query, of_value[..., ::2, :, :] + of_value[..., 1::2, :, :]


@pytest.mark.parametrize("path", ["pytorch", "llvm", "small"])
def test_second_derivatives_of_some_operands_are_too(path: str) -> None:
    query, key, value = draw((1, 4, 2, 3, 6, 8), torch.float64)
    cotangent, other = (torch.randn(query.shape, dtype=torch.float64) for _ in range(2))
    gradients = []
    for own in (path, path, "plain"):
        with forcing(own):
            output, _ = backend.grouped_query_attention(query.requires_grad_(), key, value.requires_grad_())
            (first,) = torch.autograd.grad(output, query, cotangent, create_graph=True)
            by_query, by_value = torch.autograd.grad(first, (query, value), other)
            gradients.append((by_query, None, by_value, None))
    assert_gradients_within_budgets(gradients, (other, None), of_groups, query, key, value, cotangent)


@pytest.mark.parametrize("path", ["pytorch", "llvm", "small"])
def test_gradients_of_values_alone_can_be_recorded(path: str) -> None:
    query, key, value = draw((1, 4, 2, 3, 6, 8), torch.float64)
    cotangent = torch.randn(query.shape, dtype=torch.float64)
    gradients = []
    for own in (path, path, "plain"):
        with forcing(own):
            output, _ = backend.grouped_query_attention(query, key, value.requires_grad_())
            (gradient,) = torch.autograd.grad(output, value, cotangent, create_graph=True)
            gradients.append((None, gradient))
    assert_within_budgets(gradients, of_groups, query, key, value, cotangent)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_nonfinite_operands_are_left_to_the_formula(place: int, bad: float, causal: bool) -> None:
    inputs = draw((1, 4, 2, 5, 5, 16), torch.float32)
    backend.grouped_query_attention(*inputs, causal=causal)
    inputs[place][0, 0, 3, 2] = bad
    result: Any = backend.grouped_query_attention(*inputs, causal=causal)
    with forcing("plain"):
        expected: Any = backend.grouped_query_attention(*inputs, causal=causal)
    np.testing.assert_array_equal(result[1].isfinite(), expected[1].isfinite())
    exact = REFERENCE["grouped_query_attention"](*(x.double().numpy() for x in inputs), causal=causal)[1]
    lost = torch.from_numpy(~np.isfinite(exact))
    for _, logarithms in (result, expected):
        np.testing.assert_array_equal(logarithms[lost], exact[lost])
    # Error arithmetic knows no logarithm of an infinite sum: it is NaN there.
    results = [(x, y.masked_fill(lost, torch.nan)) for x, y in (result, expected)]
    assert_within_budgets(results, "grouped_query_attention", *inputs, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("wanted", [False, True])
def test_scores_that_overflow_are_left_to_the_formula(wanted: bool, causal: bool) -> None:
    query, key, value = draw((1, 4, 2, 5, 5, 16), torch.float32)
    backend.grouped_query_attention(query.requires_grad_(wanted), key, value, causal=causal)
    query.detach()[0, 0, 3] = torch.tensor([1e25, -1e25]).repeat(8)
    key[0, 0] = 1e25
    computed: Any = backend.grouped_query_attention(query, key, value, causal=causal)
    with forcing("plain"):
        expected: Any = backend.grouped_query_attention(query, key, value, causal=causal)
    inputs = [x.detach() for x in (query, key, value)]
    exact = REFERENCE["grouped_query_attention"](*(x.double().numpy() for x in inputs), causal=causal)
    results = [tuple(x.detach() for x in result) for result in (computed, expected)]
    for output, logarithms in results:
        assert output[0, 0, 3].isnan().all()
        np.testing.assert_array_equal(logarithms[0, 0, 3], results[1][1][0, 0, 3])
    for result in results:
        for x, y in zip(result, exact, strict=True):
            x[0, 0, 3] = torch.as_tensor(y[0, 0, 3])  # in doubles nothing overflows
    assert_within_budgets(results, "grouped_query_attention", *inputs, causal=causal)


def test_batched_gradients_are_those_one_by_one() -> None:
    leaves = [x.requires_grad_() for x in draw((1, 4, 2, 5, 7, 16), torch.float64)]
    cotangents = torch.randn(3, 1, 4, 5, 16, dtype=torch.float64)
    for path in ("pytorch", "llvm"):
        with forcing(path):
            for _ in range(2):
                output, _ = backend.grouped_query_attention(*leaves)
                together = torch.autograd.grad(output, leaves, cotangents, is_grads_batched=True, retain_graph=True)
                for i, cotangent in enumerate(cotangents):
                    alone = torch.autograd.grad(output, leaves, cotangent, retain_graph=True)
                    gradients = [alone, tuple(x[i] for x in together)]
                    assert_gradients_within_budgets(gradients, (cotangent, None), "grouped_query_attention", *leaves)


def test_options_are_no_part_of_a_plan() -> None:
    inputs = draw((1, 4, 2, 5, 5, 16), torch.float32)
    alone, _ = backend.grouped_query_attention(*inputs)
    for options in ({"window": (1, 0)}, {"softcap": 0.1}, {"key_lengths": torch.tensor([3])}, {"scale": 3.0}):
        result = backend.grouped_query_attention(*inputs, **options)
        assert_within_budgets(result, "grouped_query_attention", *inputs, **options)
    again, _ = backend.grouped_query_attention(*inputs)
    assert torch.equal(alone, again)


def test_keys_without_a_batch_are_no_batch_of_keys() -> None:
    """Keys have 2 heads and the batch is 2, so the missing dimension is ambiguous."""
    query, key, value = draw((2, 4, 2, 5, 7, 16), torch.float32)
    for unbatched in ((key[0], value[0]), (key[0], value), (key, value[0])):
        whole = [x.expand(2, 2, 7, 16).contiguous() for x in unbatched]
        results = [backend.grouped_query_attention(query, *whole)]
        for path in 2 * (None, "llvm", "pytorch"):
            with forcing(path):
                results.append(backend.grouped_query_attention(query, *unbatched))
        assert_within_budgets(results, "grouped_query_attention", query, *whole)


def test_a_refusal_stays_the_same() -> None:
    query, key, value = draw((1, 4, 2, 5, 5, 16), torch.float32)
    backend.grouped_query_attention(query, key, value)
    with pytest.raises(ValueError, match="grouped_query_attention"):
        backend.grouped_query_attention(query[..., :8], key, value)
    with pytest.raises((TypeError, ValueError), match="causal"):
        backend.grouped_query_attention(query, key, value, causal=1)  # type: ignore[arg-type]


def test_without_the_kernel_of_pytorch_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = draw((1, 4, 2, 5, 5, 16), torch.float32)
    expected = backend.grouped_query_attention(*inputs)
    cached_plans._plans._plans.clear()
    monkeypatch.setattr(fused, "flash_on_cpu", None)
    assert groups.path_for(inputs[0], inputs[1], inputs[2]) != "pytorch"
    results = [expected, backend.grouped_query_attention(*inputs)]
    assert_within_budgets(results, "grouped_query_attention", *inputs)


def test_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "REMEMBERED", 4)
    for m in range(1, 9):
        backend.grouped_query_attention(*draw((1, 4, 2, 5, m, 16), torch.float32))
        assert 1 <= len(cached_plans._plans._plans) <= 4
