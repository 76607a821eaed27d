"""Attention in groups of heads by plans: the same results from every path and call, with gradients of any order."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="llvmlite is not installed")

from attnspec.backends import pytorch as backend
from attnspec.backends.pytorch.kernels.dot import fused_groups, groups, planned_groups
from attnspec.backends.pytorch.runtime.forcing import forcing

CLOSE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SHAPES = [(1, 4, 2, 1, 1, 8), (2, 4, 2, 1, 70, 32), (1, 6, 3, 5, 5, 16), (2, 4, 4, 33, 33, 32), (1, 8, 2, 40, 90, 16)]
"""Batch, heads, heads of keys, queries, keys, features."""


@pytest.fixture(autouse=True)
def _without_plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    planned_groups._recent.known.clear()
    yield
    planned_groups._recent.known.clear()


def draw(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    b, heads, heads_k, n, m, d = shape
    made = torch.Generator().manual_seed(sum(shape))
    sizes = (b, heads, n, d), (b, heads_k, m, d), (b, heads_k, m, d)
    return [torch.randn(*size, generator=made, dtype=torch.float64).to(dtype) for size in sizes]


def formula(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, 1) for x in (key, value))
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return torch.softmax(scores, -1) @ value, torch.logsumexp(scores, -1)


@pytest.mark.parametrize("path", ["pytorch", "llvm", None])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_planned_calls_give_the_formula_and_its_gradients(
    dtype: torch.dtype, shape: tuple[int, ...], causal: bool, path: str | None
) -> None:
    given = draw(shape, dtype)
    exact = [x.double().requires_grad_() for x in given]
    expected = formula(exact[0], exact[1], exact[2], causal)
    cotangents = [torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(dtype) for x in expected]
    near = CLOSE[dtype]
    with forcing(path):
        for _ in range(2):
            found = backend.grouped_query_attention(*given, causal=causal)
            for got, want in zip(found, expected, strict=True):
                assert got is not None
                assert got.dtype is dtype
                torch.testing.assert_close(got.double(), want, rtol=near, atol=4 * near)
        for asked in ((0, 1), (0,), (1,)):
            weights = [cotangents[i].double() for i in asked]
            want_gradients = torch.autograd.grad(
                [expected[i] for i in asked], exact, weights, retain_graph=True, allow_unused=True
            )
            for _ in range(2):
                leaves = [x.clone().requires_grad_() for x in given]
                results = backend.grouped_query_attention(*leaves, causal=causal)
                outputs = [x for i, x in enumerate(results) if i in asked and x is not None]
                gradients = torch.autograd.grad(outputs, leaves, [cotangents[i] for i in asked], allow_unused=True)
                for got, want in zip(gradients, want_gradients, strict=True):
                    if want is None:
                        assert got is None or not got.any()
                    else:
                        assert got is not None
                        assert got.dtype is dtype
                        largest = max(1.0, float(want.abs().max()))
                        torch.testing.assert_close(got.double(), want, rtol=near, atol=8 * near * largest)


def test_the_second_call_runs_by_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    given = draw((1, 4, 2, 5, 5, 16), torch.float32)
    for causal in (False, True):
        before = backend.grouped_query_attention(*given, causal=causal)
        monkeypatch.setattr(groups, "attend", lambda *_: pytest.fail("expected the plan"))
        after = backend.grouped_query_attention(*given, causal=causal)
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


@pytest.mark.parametrize("path", ["pytorch", "llvm", "few"])
def test_second_derivatives_of_some_operands_are_too(path: str) -> None:
    query, key, value = draw((1, 4, 2, 3, 6, 8), torch.float64)
    found = []
    for own in (path, path, "plain"):
        with forcing(own):
            output, _ = backend.grouped_query_attention(query.requires_grad_(), key, value.requires_grad_())
            (first,) = torch.autograd.grad(output.sin().sum(), query, create_graph=True)
            found.append(torch.autograd.grad(first.sin().sum(), (query, value)))
    for again in found[:2]:
        for got, expected in zip(again, found[2], strict=True):
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("path", ["pytorch", "llvm", "few"])
def test_gradients_of_values_alone_can_be_recorded(path: str) -> None:
    query, key, value = draw((1, 4, 2, 3, 6, 8), torch.float64)
    found = []
    for own in (path, path, "plain"):
        with forcing(own):
            output, _ = backend.grouped_query_attention(query, key, value.requires_grad_())
            found.append(torch.autograd.grad(output.sin().sum(), value, create_graph=True)[0])
    for again in found[:2]:
        torch.testing.assert_close(again, found[2])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_not_finite_is_left_to_the_formula(place: int, bad: float, causal: bool) -> None:
    given = draw((1, 4, 2, 5, 5, 16), torch.float32)
    backend.grouped_query_attention(*given, causal=causal)
    given[place][0, 0, 3, 2] = bad
    found, logarithms = backend.grouped_query_attention(*given, causal=causal)
    with forcing("plain"):
        expected, expected_logarithms = backend.grouped_query_attention(*given, causal=causal)
    torch.testing.assert_close(found, expected, equal_nan=True)
    torch.testing.assert_close(logarithms, expected_logarithms, equal_nan=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("wanted", [False, True])
def test_scores_that_overflow_are_left_to_the_formula(wanted: bool, causal: bool) -> None:
    query, key, value = draw((1, 4, 2, 5, 5, 16), torch.float32)
    backend.grouped_query_attention(query.requires_grad_(wanted), key, value, causal=causal)
    query.detach()[0, 0, 3] = torch.tensor([1e25, -1e25]).repeat(8)
    key[0, 0] = 1e25
    found, logarithms = backend.grouped_query_attention(query, key, value, causal=causal)
    with forcing("plain"):
        expected, expected_logarithms = backend.grouped_query_attention(query, key, value, causal=causal)
    assert expected[0, 0, 3].isnan().all()
    torch.testing.assert_close(found, expected, equal_nan=True)
    torch.testing.assert_close(logarithms, expected_logarithms, equal_nan=True)


def test_batched_gradients_are_those_one_by_one() -> None:
    leaves = [x.requires_grad_() for x in draw((1, 4, 2, 5, 7, 16), torch.float64)]
    cotangents = torch.randn(3, 1, 4, 5, 16, dtype=torch.float64)
    for path in ("pytorch", "llvm"):
        with forcing(path):
            for _ in range(2):
                output, _ = backend.grouped_query_attention(*leaves)
                together = torch.autograd.grad(output, leaves, cotangents, is_grads_batched=True, retain_graph=True)
                for i, one in enumerate(cotangents):
                    alone = torch.autograd.grad(output, leaves, one, retain_graph=True)
                    for x, y in zip(together, alone, strict=True):
                        torch.testing.assert_close(x[i], y)


def test_options_are_no_part_of_a_plan() -> None:
    given = draw((1, 4, 2, 5, 5, 16), torch.float32)
    alone, _ = backend.grouped_query_attention(*given)
    for options in ({"window": (1, 0)}, {"softcap": 0.1}, {"key_lengths": torch.tensor([3])}, {"scale": 3.0}):
        assert not torch.allclose(backend.grouped_query_attention(*given, **options)[0], alone)
    again, _ = backend.grouped_query_attention(*given)
    assert torch.equal(alone, again)


def test_keys_without_a_batch_are_no_batch_of_keys() -> None:
    """As many entries as heads of keys, so that a missing dimension changes no first size."""
    query, key, value = draw((2, 4, 2, 5, 7, 16), torch.float32)
    for shared in ((key[0], value[0]), (key[0], value), (key, value[0])):
        expected = backend.grouped_query_attention(query, *(x.expand(2, 2, 7, 16).contiguous() for x in shared))
        for _ in range(2):
            for path in (None, "llvm", "pytorch"):
                with forcing(path):
                    found = backend.grouped_query_attention(query, *shared)
                for got, want in zip(found, expected, strict=True):
                    torch.testing.assert_close(got, want)


def test_a_refusal_stays_the_same() -> None:
    query, key, value = draw((1, 4, 2, 5, 5, 16), torch.float32)
    backend.grouped_query_attention(query, key, value)
    with pytest.raises(ValueError, match="grouped_query_attention"):
        backend.grouped_query_attention(query[..., :8], key, value)
    with pytest.raises((TypeError, ValueError), match="causal"):
        backend.grouped_query_attention(query, key, value, causal=1)  # type: ignore[arg-type]


def test_without_the_kernel_of_pytorch_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    given = draw((1, 4, 2, 5, 5, 16), torch.float32)
    expected = backend.grouped_query_attention(*given)
    planned_groups._recent.known.clear()
    monkeypatch.setattr(fused_groups, "FORWARD", None)
    assert groups.path_for(given[0], given[1], given[2]) != "pytorch"
    for got, want in zip(backend.grouped_query_attention(*given), expected, strict=True):
        torch.testing.assert_close(got, want)


def test_plans_are_bounded() -> None:
    recent = planned_groups._recent
    for m in range(1, 9):
        backend.grouped_query_attention(*draw((1, 4, 2, 5, m, 16), torch.float32))
    assert all(len(kept) <= 4 for kept in recent.known.values())
