"""Additive attention: refused calls, copies of a cache, weights and gradients at extreme numbers."""

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attnspec.backends import pytorch
from attnspec.backends.pytorch import additive, sdpa
from attnspec.backends.pytorch.runtime.forcing import forcing
from attnspec.backends.pytorch.runtime.optional import HAS_LLVMLITE
from tests.budgets import assert_gradients_within_budgets, assert_within_budgets, projected_additive_scores

PATHS = ("llvm", "plain") if HAS_LLVMLITE else ("plain",)


def operands(n: int = 5, m: int = 7, h: int = 4, d: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, n, h), (2, m, h), (h,), (2, m, d))
    a, b, w_v, value = (torch.randn(shape, generator=generator) for shape in shapes)
    return a, b, w_v, value


@pytest.mark.parametrize("place", range(5))
def test_another_device_is_refused_before_its_memory_is_read(place: int) -> None:
    inputs: list[Any] = [*operands(), torch.ones(5, 7, dtype=torch.bool)]
    inputs[place] = inputs[place].to("meta")
    with pytest.raises(ValueError, match=r"^additive attention: expected all tensors on one device; got .*meta"):
        additive.attention(*inputs[:4], mask=inputs[4])
    if place < 3:
        with pytest.raises(ValueError, match="one device"):
            additive.scores(*inputs[:3])


@pytest.mark.parametrize("mask", [False, True])
def test_a_step_refuses_another_device(mask: bool) -> None:
    a, b, w_v, value = operands()
    cache = additive.prepare_keys(b, w_v, value)
    query, row = a[:, 0], torch.ones(2, 7, dtype=torch.bool)
    with pytest.raises(ValueError, match="one device"):
        additive.step(cache, query if mask else query.to("meta"), mask=row.to("meta") if mask else None)


def test_the_contract_refuses_another_device_by_name() -> None:
    x, w = torch.randn(5, 4), torch.randn(4, 4)
    mask = torch.ones(5, 5, dtype=torch.bool, device="meta")
    with pytest.raises(
        ValueError, match=r"^additive_attention: mask: expected a tensor on cpu like the others; got meta$"
    ):
        pytorch.additive_attention(x, x, x, w, w, w[0], mask=mask)
    with pytest.raises(ValueError, match=r"^multi_head_attention: mask: "):
        pytorch.multi_head_attention(x, x, x, w[None], w[None], w[None], w, mask=mask)


MESSAGES: list[tuple[Callable[..., Any], type[Exception], str]] = [
    (lambda a, b, w, v: additive.attention(a, b, w.double(), v), TypeError,
     "a, b, w_v, value: expected one floating dtype; got torch.float32, torch.float32, torch.float64, torch.float32"),
    (lambda a, b, w, v: additive.prepare_keys(b[0, 0], w, v), ValueError,
     r"b: expected shape \(\*batch, m, h\); got \(4,\)"),
    (lambda a, b, w, v: additive.step(additive.prepare_keys(b, w, v), a[:, 0, :3]), ValueError,
     r"a: expected shape \(\*batch, 4\); got \(2, 3\)"),
    (lambda a, b, w, v: additive.step(additive.prepare_keys(b, w, v), a[:, 0], mask=torch.ones(2, 8) > 0), ValueError,
     r"mask: expected shape broadcastable to \(\*batch, 7\), rank >= 1; got \(2, 8\)"),
    (lambda a, b, w, v: pytorch.dot_scores(a.numpy(), b), TypeError,
     "dot_scores: query: expected a torch.Tensor; got ndarray"),
    (lambda a, b, w, v: pytorch.dot_scores(a, None), TypeError,  # type: ignore[arg-type]
     "dot_scores: key: expected a torch.Tensor; got NoneType"),
    (lambda a, b, w, v: pytorch.softmax(a, mask=[[True]]), TypeError,  # type: ignore[arg-type]
     "softmax: mask: expected a torch.Tensor; got list"),
    (lambda a, b, w, v: pytorch.gaussian_scores(a, b.double()), TypeError,
     "gaussian_scores: key: expected torch.float32 like the others; got torch.float64"),
    (lambda a, b, w, v: pytorch.self_attention(a.long()), TypeError,
     "self_attention: x: expected a floating dtype; got torch.int64"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), MESSAGES)
def test_messages_name_who_expected_and_got(call: Callable[..., Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"{message}$"):
        call(*operands())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))])
def test_a_cache_can_be_copied_and_stored(path: str, duplicate: Callable[[Any], Any]) -> None:
    a, b, w_v, value = operands()
    cache = additive.prepare_keys(b, w_v, value, path=path)
    expected = additive.step(cache, a[:, 0])
    other = duplicate(cache)
    assert other.path == path
    assert torch.equal(additive.step(other, a[:, 0]), expected)
    if duplicate is not copy.copy:
        other.value.zero_()
        assert torch.equal(additive.step(cache, a[:, 0]), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_whose_sum_overflows(dtype: torch.dtype) -> None:
    """Sums of weights that overflow, where scores and differences of scores do not."""
    half = 2.0**64 if dtype is torch.float32 else 2.0**512  # its square is beyond the largest number
    a = torch.tensor([[0.5, -0.4], [1e-3, 0.2]], dtype=dtype)
    b = torch.tensor([[0.1, 0.3], [-1.0, 2.0], [0.0, -0.1]], dtype=dtype)
    w_v = torch.tensor([0.8, 0.9], dtype=dtype)
    value = torch.tensor([[1.0], [2.0], [4.0]], dtype=dtype)
    huge = w_v * half * half
    scores = additive.scores(a, b, huge) / half / half
    assert_within_budgets(scores, projected_additive_scores, a, b, w_v)
    chosen = value[scores.argmax(-1)]
    assert torch.equal(additive.attention(a, b, huge, value), chosen)
    assert torch.equal(additive.step(additive.prepare_keys(b, huge, value), a), chosen)
    leaf = a.clone().requires_grad_()
    cotangent = torch.full_like(scores, 0.25)  # of sums over keys, which would overflow
    (gradient,) = torch.autograd.grad(additive.scores(leaf, b, huge), leaf, cotangent)
    gradients = gradient / half / half, None, None
    assert_gradients_within_budgets(gradients, cotangent, projected_additive_scores, a, b, w_v)


def masked_row(query: Tensor, key: Tensor, value: Tensor) -> tuple[list[Tensor], Tensor]:
    leaves = [x.clone().requires_grad_() for x in (query, key, value)]
    mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
    mask[1] = False
    return leaves, mask


@pytest.mark.parametrize("what", ["query", "gradient"])
@pytest.mark.parametrize("route", ["llvm", "few queries", "exact", "additive llvm", "additive plain"])
def test_a_query_that_attends_nothing_reaches_no_gradient(route: str, what: str) -> None:
    """The features of the query, or the gradient of its result, are NaN."""
    n, m = (3, 5000) if route == "few queries" else (30, 40)
    query, key, value = (torch.randn(size, 16, generator=torch.Generator().manual_seed(size)) for size in (n, m, m))
    if what == "query":
        query[1] = torch.nan
    if route == "exact":
        key[2] = torch.nan
    leaves, mask = masked_row(query, key, value)
    if route == "exact":
        mask[:, 2] = False
    if route.startswith("additive"):
        a, b, values = leaves
        output = additive.attention(a, b, torch.ones(16), values, mask=mask, path=route.split()[1])
    else:
        output = sdpa.attend(*leaves, mask=mask)
    assert torch.equal(output[1], torch.zeros(16))
    gradient = torch.ones_like(output)
    if what == "gradient":
        gradient[1] = torch.nan
    gradients = torch.autograd.grad(output, leaves, gradient)
    assert all(x.isfinite().all() for x in gradients)
    assert torch.equal(gradients[0][1], torch.zeros(16))


def nested() -> list[Tensor]:
    parts = [torch.randn(3, 4), torch.randn(5, 4)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors", category=UserWarning)
        return [torch.nested.nested_tensor(parts, layout=layout) for layout in (torch.strided, torch.jagged)]


@pytest.mark.parametrize("warm", [False, True])
def test_tensors_that_are_not_dense_are_refused_by_name(warm: bool) -> None:
    dense, w, w_v = torch.randn(2, 5, 4), torch.randn(3, 4), torch.randn(3)
    calls: dict[str, Callable[[Tensor], Any]] = {
        "additive_attention": lambda x: pytorch.additive_attention(x, x, x, w, w, w_v),
        "scaled_dot_product_attention": lambda x: pytorch.scaled_dot_product_attention(x, x, x),
        "dot_product_attention": lambda x: pytorch.dot_product_attention(x, x, x),
        "grouped_query_attention": lambda x: pytorch.grouped_query_attention(x, x, x),
    }
    for name, call in calls.items():
        if warm:  # a plan of an ordinary call is compared with what follows
            for _ in range(2):
                call(dense[None] if name.startswith("grouped") else dense)
        for x in nested():
            with pytest.raises(TypeError, match=rf"^{name}: query: expected a dense tensor; got a nested one$"):
                call(x)
        with pytest.raises(TypeError, match=rf"^{name}: query: expected a dense tensor; got torch\.sparse_coo$"):
            call(dense.to_sparse())
        with pytest.raises(TypeError, match=rf"^{name}: query: expected a floating dtype of at least 16 bits; got"):
            call(dense.to(torch.float8_e4m3fn))


def additive_of_ones(x: Tensor, mask: Tensor) -> Tensor:
    w = torch.ones(64, 64)
    return pytorch.additive_attention(x, x, x, w, w, w[0], mask=mask)


MASKED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "additive_attention": additive_of_ones,
    "scaled_dot_product_attention": lambda x, mask: pytorch.scaled_dot_product_attention(x, x, x, mask=mask),
    "grouped_query_attention": lambda x, mask: pytorch.grouped_query_attention(x, x, x, mask=mask)[0],
}
"""Calls of as many queries as keys and values, the same tensor."""


def operands_of_ones(name: str, n: int) -> Tensor:
    return torch.ones(1, 2, n, 64) if name == "grouped_query_attention" else torch.ones(2, n, 64)


@pytest.mark.parametrize("path", [None, "llvm", "pointwise", "small", "plain"])
@pytest.mark.parametrize("n", [3, 64])
@pytest.mark.parametrize("name", MASKED)
def test_a_mask_without_memory_of_its_own_excludes_all(name: str, n: int, path: str | None) -> None:
    """A lazy mask of zeros excludes all, even after a cached plan for ordinary masks."""
    with forcing(path):
        for _ in range(2):
            assert MASKED[name](operands_of_ones(name, n), torch.ones(n, n, dtype=torch.bool)).eq(1).all()
        assert MASKED[name](operands_of_ones(name, n), torch._efficientzerotensor((n, n), dtype=torch.bool)).eq(0).all()


@pytest.mark.parametrize("n", [3, 64])
@pytest.mark.parametrize("name", MASKED)
def test_a_nested_mask_is_refused_by_name(name: str, n: int) -> None:
    for _ in range(2):
        MASKED[name](operands_of_ones(name, n), torch.ones(len(operands_of_ones(name, n)), n, n, dtype=torch.bool))
    for mask in nested():
        with pytest.raises(TypeError, match=rf"^{name}: mask: expected a dense tensor; got a nested one$"):
            MASKED[name](operands_of_ones(name, n), mask.bool())


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_gradients_do_not_depend_on_the_default_dtype(default: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = (64, 1, 64), (64, 32, 64), (64, 32, 64), (256, 64), (256, 64), (256,)
    inputs = [torch.randn(s, generator=generator, dtype=torch.float32).bfloat16().requires_grad_() for s in shapes]

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(pytorch.additive_attention(*inputs).sum(), inputs)

    expected = gradients()
    torch.set_default_dtype(default)
    try:
        own_gradients = gradients()
    finally:
        torch.set_default_dtype(torch.float32)
    for x, y in zip(own_gradients, expected, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("sizes", [(2, 130, 130, 64), (4, 60, 60, 128), (64, 1, 50, 128), (8, 1, 200, 64)])
def test_operands_may_lie_anywhere(sizes: tuple[int, int, int, int]) -> None:
    batch, n, m, h = sizes
    generator = torch.Generator().manual_seed(0)
    shapes = (batch, n, h), (batch, m, h), (batch, m, h), (h, h), (h, h), (h,)
    inputs = [torch.randn(s, generator=generator).bfloat16() / 4 for s in shapes]
    cotangent = torch.randn((batch, n, h), generator=generator).bfloat16()
    recorded, unrecorded, gradients = [], [], []
    for place in (None, *range(6)):
        moved = list(inputs)
        if place is not None:
            moved[place] = torch.cat([torch.zeros(1), inputs[place].flatten()]).bfloat16()[1:].view(shapes[place])
            assert moved[place].storage_offset() == 1
        leaves = [x.requires_grad_() for x in moved]
        recorded.append(pytorch.additive_attention(*leaves))
        gradients.append(torch.autograd.grad(recorded[-1], leaves, cotangent))
        with torch.no_grad():
            unrecorded.append(pytorch.additive_attention(*leaves))
    assert all(torch.equal(result, results[0]) for results in (recorded, unrecorded) for result in results)
    assert_gradients_within_budgets(gradients, cotangent, "additive_attention", *inputs)


def test_a_call_that_no_plan_serves_is_examined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pointwise = pytest.importorskip(
        "attnspec.backends.pytorch.kernels.additive.llvm.pointwise", reason="llvmlite is missing"
    )
    calls: list[object] = []
    plan = pointwise.plan

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return plan(*arguments)

    monkeypatch.setattr(pointwise, "plan", counted)
    a, b, value, w_v = torch.randn(2, 1, 5, 9), torch.randn(1, 3, 7, 9), torch.randn(2, 3, 7, 11), torch.randn(9)
    for count in (2, 2, 2):  # the first call asks twice for a plan, later calls never
        additive.attention(a, b, w_v, value, path="pointwise")
        assert len(calls) == count


@pytest.mark.parametrize("batch", [(2, 2), (3,), (), (1, 4)])
@pytest.mark.parametrize("mask", [False, True])
def test_rounded_gradients_of_any_batch(batch: tuple[int, ...], mask: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = (*batch, 3, 64), (*batch, 129, 64), (*batch, 129, 48), (256, 64), (256, 64), (256,)
    inputs = [(torch.randn(s, generator=generator) / 4).bfloat16().requires_grad_() for s in shapes]
    attendable = torch.rand(*batch, 3, 129, generator=generator) > 0.3 if mask else None
    cotangent = torch.randn(*batch, 3, 48, generator=generator).bfloat16()
    gradients = torch.autograd.grad(pytorch.additive_attention(*inputs, mask=attendable), inputs, cotangent)
    assert_gradients_within_budgets(gradients, cotangent, "additive_attention", *inputs, mask=attendable)
