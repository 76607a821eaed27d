"""The kernels for few queries and keys, against the formula in double precision."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="llvmlite is not installed")

from attnspec.backends import pytorch
from attnspec.backends.pytorch import groups, sdpa
from attnspec.backends.pytorch.kernels.dot import few
from attnspec.backends.pytorch.runtime.forcing import forcing
from tests.budgets import assert_within_budgets

from .concurrency import at_once

SHAPES = [
    (1, 8, 2, 1, 1, 8, 8), (2, 4, 4, 3, 5, 16, 8), (2, 8, 2, 16, 16, 64, 64), (1, 2, 1, 7, 19, 40, 24),
    (1, 1, 1, 9, 4, 72, 200), (2, 2, 2, 5, 6, 7, 13),
    (2, 4, 2, 9, 1, 24, 40), (1, 3, 3, 13, 2, 8, 5), (3, 1, 1, 1, 1, 200, 1),
]  # fmt: skip
"""Batch, heads, heads of keys, queries, keys, features of keys and of values."""

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def forced() -> Iterator[None]:
    with forcing("few"):
        yield


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def formula(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = (query @ key.mT * query.shape[-1] ** -0.5).masked_fill(~allowed, -torch.inf)
    return torch.softmax(scores, -1) @ value, torch.logsumexp(scores, -1)


def assert_near(got: Tensor, expected: Tensor, roundings: int = 8) -> None:
    near = roundings * torch.finfo(got.dtype).eps * float(expected.detach().abs().max())
    torch.testing.assert_close(got.double(), expected.double(), rtol=0, atol=near)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_results_and_gradients_are_the_formula(
    shape: tuple[int, ...], dtype: torch.dtype, causal: bool, masked: bool
) -> None:
    b, heads, heads_k, n, m, d, d_v = shape
    given = [draw(b, heads, n, d), draw(b, heads_k, m, d), draw(b, heads_k, m, d_v)]
    given = [x.to(dtype).requires_grad_() for x in given]
    allowed = torch.ones(n, m, dtype=torch.bool).tril() if causal else torch.ones(n, m, dtype=torch.bool)
    mask = None
    if masked:
        mask = draw(b, heads, n, m) < 0.5
        mask[..., 0] = True
        allowed = allowed & mask
    compute = few.attention(
        given[0], given[1], given[2], mask, causal, d**-0.5, shape=(b, heads, n, d_v), given=given, logarithms=True
    )
    found = compute(given[0], given[1], given[2], mask)
    assert found is not None
    exact = [x.detach().double().requires_grad_() for x in given]
    expected = formula(exact[0], exact[1], exact[2], allowed)
    cotangents = [draw(*x.shape).to(dtype) for x in expected]
    assert all(isinstance(x, Tensor) for x in found)
    gradients = torch.autograd.grad([x for x in found if x is not None], given, cotangents)
    wanted = torch.autograd.grad(expected, exact, [x.double() for x in cotangents])
    for got, right in zip((*found, *gradients), (*expected, *wanted), strict=True):
        assert got is not None
        assert got.dtype is dtype
        assert_near(got, right)


def test_the_operations_take_it_and_name_it() -> None:
    query, key = draw(2, 3, 8), draw(2, 5, 8)
    mask = torch.ones(2, 3, 5, dtype=torch.bool)
    assert sdpa.path_for(query, key, key) == "all keys: few"
    assert sdpa.path_for(query, key, key, mask=mask) == "masked: few"
    assert sdpa.path_for(query, key, key, causal=True) == "causal: few"
    heads = draw(2, 4, 3, 8), draw(2, 2, 5, 8)
    assert groups.path_for(heads[0], heads[1], heads[1]) == "few"
    many = draw(1, 1, 1, 8).expand(1, 1, 2**18, 8)
    assert groups.path_for(many, heads[1][:1, :1], heads[1][:1, :1]) == "plain"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 8])
def test_one_key_whose_score_is_not_finite_is_left_to_the_formula(dtype: torch.dtype, n: int) -> None:
    query, key, value = (draw(1, 1, rows, 8).to(dtype) for rows in (n, 1, 1))
    query[0, 0, -1, 3] = torch.inf

    def compute(query: Tensor) -> tuple[Tensor, Tensor | None] | None:
        given = query, key, value
        return few.attention(*given, None, False, 1.0, shape=(1, 1, n, 8), given=given, logarithms=False)(*given, None)

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
            found = torch.autograd.grad(output, (query, key, value), cotangent)
            with forcing("plain"):
                again = pytorch.scaled_dot_product_attention(query, key, value, causal=causal)
            for got, right in zip(found, torch.autograd.grad(again, (query, key, value), cotangent), strict=True):
                assert_near(got, right)


def test_operands_are_read_as_they_lie() -> None:
    whole = draw(2, 5, 3, 3, 8)
    for of_gradients in (False, True):
        leaf = whole.clone().requires_grad_(of_gradients)
        query, key, value = (x.transpose(1, 2) for x in leaf.unbind(2))
        output = pytorch.scaled_dot_product_attention(query, key, value)
        right = formula(query, key, value, torch.ones(5, 5, dtype=torch.bool))[0]
        assert_near(output, right)
        if of_gradients:
            found, wanted = (torch.autograd.grad(x.sin().sum(), leaf)[0] for x in (output, right))
            assert_near(found, wanted)


@pytest.mark.parametrize("wanted", [(0, 1, 2), (0,), (1, 2), (0, 2)])
def test_second_derivatives_are_those_of_the_formula(wanted: tuple[int, ...]) -> None:
    given = [x.detach().requires_grad_(i in wanted) for i, x in enumerate(leaves(2))]
    mask = draw(2, 4, 6) < 0.5
    mask[..., 0] = True
    found = []
    for output in (
        pytorch.scaled_dot_product_attention(given[0], given[1], given[2], mask=mask),
        formula(given[0][:, None], given[1][:, None], given[2][:, None], mask[:, None])[0][:, 0],
    ):
        asked = [given[i] for i in wanted]
        first = torch.autograd.grad(output.sin().sum(), asked, create_graph=True)
        found.append(torch.autograd.grad(torch.cat([x.flatten() for x in first]).sin().sum(), asked))
    for got, right in zip(*found, strict=True):
        assert_near(got, right, 64)


def test_second_derivatives_in_groups() -> None:
    query, key, value = draw(1, 4, 3, 8).requires_grad_(), draw(1, 2, 5, 8), draw(1, 2, 5, 8).requires_grad_()
    everything = torch.ones(3, 5, dtype=torch.bool)
    found = []
    for results in (pytorch.grouped_query_attention(query, key, value), formula(query, key, value, everything)):
        total = sum(x.sin().sum() for x in results if x is not None)
        assert isinstance(total, Tensor)
        (first,) = torch.autograd.grad(total, query, create_graph=True)
        found.append(torch.autograd.grad(first.sin().sum(), (query, value)))
    for got, right in zip(*found, strict=True):
        assert_near(got, right, 64)


def test_saved_tensors_that_hooks_replace_are_read_as_they_are() -> None:
    query, key, value = leaves(2)
    expected = torch.autograd.grad(pytorch.scaled_dot_product_attention(query, key, value).sum(), (query, key, value))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x.mT.contiguous().mT if x.dim() > 1 else x):
        output = pytorch.scaled_dot_product_attention(query, key, value)
    for got, right in zip(torch.autograd.grad(output.sum(), (query, key, value)), expected, strict=True):
        assert_near(got, right)


@pytest.mark.parametrize("causal", [False, True])
def test_what_is_excluded_is_not_read(causal: bool) -> None:
    query, key, value = leaves(2)
    mask = None if causal else torch.ones(2, 4, 6, dtype=torch.bool)
    if mask is not None:
        mask[..., 5] = False
    right = torch.autograd.grad(
        pytorch.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal).sum(), (query, key, value)
    )
    with torch.no_grad():
        key[:, 5], value[:, 5] = torch.nan, torch.inf
    output = pytorch.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal)
    for got, expected in zip(torch.autograd.grad(output.sum(), (query, key, value)), right, strict=True):
        assert_near(got, expected)


@pytest.mark.parametrize("strange", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("operand", [0, 1, 2])
def test_what_is_not_finite_is_left_to_the_formula(strange: float, operand: int) -> None:
    given = [x.detach() for x in leaves(2)]
    given[operand][0, 1, 2] = strange
    assert few.serves(given[0].unsqueeze(1), given[1].unsqueeze(1), given[2].unsqueeze(1), None)
    compute = few.attention(
        given[0].unsqueeze(1), given[1].unsqueeze(1), given[2].unsqueeze(1), None, False, 8**-0.5, shape=(2, 4, 8),
        given=given, logarithms=False,
    )  # fmt: skip
    found = compute(given[0], given[1], given[2], None)
    assert (found is None) == (operand < 2 or strange != strange)
    got = pytorch.scaled_dot_product_attention(given[0], given[1], given[2])
    assert_within_budgets(got, "scaled_dot_product_attention", *given)


def test_rows_that_overlap_have_gradients_that_do_not() -> None:
    base = draw(10).requires_grad_()
    key, value = draw(3, 8), draw(3, 8)
    found = []
    for path in ("plain", "few", "pytorch", "llvm"):
        with forcing(path):
            for _ in range(2):
                output = pytorch.scaled_dot_product_attention(base.unfold(0, 8, 1), key, value)
                found.append(torch.autograd.grad(output.sin().sum(), base)[0])
    for other in found[1:]:
        assert_near(other, found[0])


@pytest.mark.parametrize("path", ["few", "pytorch", "llvm", None])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_overlap_are_read_as_they_are(path: str | None, dtype: torch.dtype) -> None:
    rows, key, value = draw(1, 1, 10).to(dtype).unfold(2, 8, 1), draw(1, 1, 3, 8).to(dtype), draw(1, 1, 3, 8).to(dtype)
    with forcing(path):
        for causal in (False, True):
            for call in (
                pytorch.scaled_dot_product_attention,
                lambda *x, **o: pytorch.grouped_query_attention(*x, **o)[0],
            ):
                got, expected = (call(x, key, value, causal=causal) for x in (rows, rows.contiguous()))
                assert_near(got, expected, 4)


@pytest.mark.parametrize("wanted", [False, True])
def test_a_default_device_moves_nothing(wanted: bool) -> None:
    given = [x.detach().requires_grad_(wanted) for x in leaves(2)]
    heads = [x.detach().unsqueeze(0).requires_grad_(wanted) for x in leaves(2)]
    for _ in range(2):
        with torch.device("meta"):
            output = pytorch.scaled_dot_product_attention(given[0], given[1], given[2])
            grouped, logarithms = pytorch.grouped_query_attention(heads[0], heads[1], heads[2])
        assert output.is_cpu
        assert grouped.is_cpu
        assert logarithms is not None
        assert logarithms.is_cpu
        assert_near(output, pytorch.scaled_dot_product_attention(given[0], given[1], given[2]).detach())


def test_batches_of_gradients_of_logarithms_are_those_one_by_one() -> None:
    query, key, value = (x.detach().unsqueeze(0).requires_grad_() for x in leaves(2))
    for _ in range(2):
        _, logarithms = pytorch.grouped_query_attention(query, key, value)
        assert logarithms is not None
        cotangents = draw(3, *logarithms.shape)
        (together,) = torch.autograd.grad(logarithms, query, cotangents, is_grads_batched=True, retain_graph=True)
        for one, got in zip(cotangents, together, strict=True):
            (expected,) = torch.autograd.grad(logarithms, query, one, retain_graph=True)
            assert_near(got, expected)


def test_a_gradient_of_a_row_without_keys_goes_nowhere_again() -> None:
    query, key, value = leaves()
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[2] = False
    output = pytorch.scaled_dot_product_attention(query, key, value, mask=mask)
    cotangent = torch.ones_like(output)
    cotangent[2] = torch.nan
    for again in (False, True):
        found = torch.autograd.grad(output, (query, key, value), cotangent, create_graph=again, retain_graph=True)
        assert all(x.isfinite().all() for x in found)


def test_calls_without_a_plan_of_their_own_share_what_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [draw(2, 2, 2, 4, 8).requires_grad_() for _ in range(3)]
    first = pytorch.scaled_dot_product_attention(given[0], given[1], given[2])
    monkeypatch.setattr(few, "_made", lambda *_, **__: pytest.fail("expected what was made before"))
    assert torch.equal(first, pytorch.scaled_dot_product_attention(given[0], given[1], given[2]))


@pytest.mark.parametrize("wanted", [False, True])
def test_every_thread_has_memory_of_its_own(wanted: bool) -> None:
    given = [draw(1, h, 48, 64).float().requires_grad_(wanted) for h in (8, 2, 2)]

    def results() -> list[Tensor]:
        output, logarithms = pytorch.grouped_query_attention(*given)
        assert logarithms is not None
        return [output, logarithms, *(torch.autograd.grad(output.sum() + logarithms.sum(), given) if wanted else ())]

    expected = results()
    found: list[list[Tensor]] = []

    at_once(lambda: found.extend(results() for _ in range(50)))
    assert len(found) == 200
    assert all(torch.equal(x, own) for some in found for x, own in zip(some, expected, strict=True))
