"""Plans of calls, forced paths, and the choice among paths: what is refused and remembered."""

from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("llvmlite", reason="there is one path without llvmlite")

from attnspec.backends import pytorch
from attnspec.backends.pytorch import additive, groups, sdpa
from attnspec.backends.pytorch.kernels import costs
from attnspec.backends.pytorch.kernels.additive import cached_plans as additive_plans
from attnspec.backends.pytorch.kernels.additive import path_choice as additive_paths
from attnspec.backends.pytorch.kernels.costs import SIZES, Cost
from attnspec.backends.pytorch.kernels.dot import path_costs as dot_costs
from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.kernels.visible import Visible
from attnspec.backends.pytorch.runtime import paths, plans
from attnspec.backends.pytorch.runtime.accumulation import FLOAT_DTYPES
from attnspec.backends.pytorch.runtime.forcing import PATHS, forced, forcing
from tests.budgets import assert_gradients_within_budgets, assert_within_budgets


def operands(n: int = 3, m: int = 5, d: int = 4, batch: tuple[int, ...] = (2,)) -> list[Tensor]:
    return [torch.randn(*batch, n, d), torch.randn(*batch, m, d), torch.randn(*batch, m, d)]


def weights(d: int = 4) -> list[Tensor]:
    return [torch.randn(d, d), torch.randn(d, d), torch.randn(d)]


WRONG: list[tuple[int, Callable[[Tensor], Any]]] = [
    (1, lambda x: x[..., :3]), (2, lambda x: x[..., :4, :]), (0, lambda x: x.long()), (1, lambda x: x.double()),
    (2, lambda x: x.numpy()), (0, lambda x: x[0, 0]), (1, lambda x: None), (1, lambda x: x.to("meta")),
]  # fmt: skip


@pytest.mark.parametrize(("place", "change"), WRONG)
@pytest.mark.parametrize("operation", ["scaled_dot_product_attention", "dot_product_attention", "additive_attention"])
def test_a_call_that_was_planned_changes_no_message(operation: str, place: int, change: Callable[..., Any]) -> None:
    call = getattr(pytorch, operation)
    inputs: list[Any] = operands() + (weights() if operation == "additive_attention" else [])
    wrong = [*inputs[:place], change(inputs[place]), *inputs[place + 1 :]]
    messages = []
    for _ in range(2):
        with pytest.raises((ValueError, TypeError), match=f"^{operation}: ") as raised:
            call(*wrong)
        messages.append(str(raised.value))
        call(*inputs)
    assert messages[0] == messages[1]


@pytest.mark.parametrize("operation", ["scaled_dot_product_attention", "additive_attention"])
def test_flags_and_masks_are_checked_in_every_call(operation: str) -> None:
    inputs = operands() + (weights() if operation == "additive_attention" else [])
    call = getattr(pytorch, operation)
    call(*inputs, causal=True)
    for wrong in (1, None, "yes"):
        with pytest.raises(TypeError, match=rf"^{operation}: causal: "):
            call(*inputs, causal=wrong)
    call(*inputs, mask=torch.ones(3, 5, dtype=torch.bool))
    with pytest.raises(TypeError, match=rf"^{operation}: mask: "):
        call(*inputs, mask=torch.ones(3, 5))
    with pytest.raises(ValueError, match=rf"^{operation}: mask: "):
        call(*inputs, mask=torch.ones(3, 4, dtype=torch.bool))


def test_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "REMEMBERED", 3)
    kept: plans.Plans[int] = plans.Plans()
    for i in range(10):
        assert kept.remember(i, -i) == -i
        assert kept.get(i) == -i
    assert sum(kept.get(i) is not None for i in range(10)) <= 3


def test_a_second_call_is_not_checked_again() -> None:
    seen = []

    def check(*arguments: Any, **_: Any) -> torch.Size:
        seen.append(arguments)
        return torch.Size((7, 3, 4))

    query, key, value = operands(batch=(7, 3))
    w_q, w_k, w_v = weights()
    for attend in (
        lambda: additive_plans.attend(check, query, key, value, w_q, w_k, w_v, None, False),
        lambda: sdpa.attend(query, key, value, scale=0.125, check=check),
        lambda: groups.attend(query, key, value, Visible(), Scoring(0.125), check),
    ):
        for _ in range(3):
            attend()
        assert len(seen) == 1
        seen.clear()


def test_everything_that_changes_the_path_changes_the_plan() -> None:
    """Gradients, strides, threads and PyTorch's own switches are part of a plan's key."""
    query, key, value = operands(40, 40, 16)
    expected = pytorch.scaled_dot_product_attention(query, key, value)
    for x in (query, key, value):
        x.requires_grad_()
    tracked = pytorch.scaled_dot_product_attention(query, key, value)
    assert tracked.requires_grad
    with torch.no_grad():
        assert not pytorch.scaled_dot_product_attention(query, key, value).requires_grad
    turned = [x.detach().mT.contiguous().mT for x in (query, key, value)]
    results = [pytorch.scaled_dot_product_attention(*turned), expected]
    assert_within_budgets(results, "scaled_dot_product_attention", query, key, value)
    with sdpa_kernel(SDPBackend.MATH):
        (gradient,) = torch.autograd.grad(
            pytorch.scaled_dot_product_attention(query, key, value).sum(), query, create_graph=True
        )
        assert torch.autograd.grad(gradient.square().sum(), query)[0].isfinite().all()
    negated = torch._neg_view(query.detach())
    result = pytorch.scaled_dot_product_attention(negated, key, value)
    assert_within_budgets(result, "scaled_dot_product_attention", -query, key, value)


def test_paths_are_forced_and_named() -> None:
    x = torch.randn(2, 6, 8)
    with (
        pytest.raises(
            ValueError,
            match=r"^path: expected one of llvm, pointwise, decode, small, plain, pytorch, flex; got 'fast'$",
        ),
        forcing("fast"),
    ):
        pass
    for path in ("llvm", "pointwise", "plain"):
        with forcing(path):
            assert forced() == path
            assert additive.path_for(x, x, x[0, 0], x) == path
            assert additive.path_for(x, x, x[0, 0], x, path="plain") == "plain"  # the argument wins
    for path in ("llvm", "pytorch"):
        with forcing(path):
            assert sdpa.path_for(x, x, x) == f"all keys: {path}"
    assert forced() is None
    assert [getattr(paths, path).name for path in PATHS] == [f"pytorch by {path}" for path in PATHS]


@pytest.mark.parametrize("instructions", ["amx", "zen5", "avx512", "avx2", "neon"])
def test_costs_are_known_of_every_path_that_serves_all_calls(instructions: str) -> None:
    kinds = [str(x).removeprefix("torch.") for x in FLOAT_DTYPES]
    paths = ("additive", "pointwise"), ("additive", "llvm"), ("dot", "llvm"), ("dot", "pytorch")
    required = {(*path, kind, mode) for path in paths for kind in kinds for mode in ("forward", "gradients")}
    known = costs.table(instructions)
    assert required <= set(known)
    for cost in known.values():
        assert cost.call > 0
        assert min(cost.pair, cost.score, cost.row) >= 0
        assert len(cost.measured) in (0, len(SIZES))


@pytest.mark.parametrize("instructions", ["amx", "zen5", "avx512", "avx2", "neon"])
def test_costs_are_those_of_the_table_of_the_instruction_set(
    monkeypatch: pytest.MonkeyPatch, instructions: str
) -> None:
    monkeypatch.setattr(costs, "instruction_set", lambda: instructions)
    # Neon is not measured: pairs and scores are assumed to take twice AVX2's time
    name, times = ("avx2", 2) if instructions == "neon" else (instructions, 1)
    text = (files(costs.__package__) / "measured" / f"{name}.tsv").read_text(encoding="utf-8")
    head, *lines = (line.split("\t") for line in text.splitlines() if not line.startswith("#"))
    assert tuple(head) == costs.COLUMNS
    assert len(costs.table(instructions)) == len(lines)
    for operation, path, kind, mode, call, pair, score, row, measured in lines:
        result = costs.cost_of(operation, path, getattr(torch, kind), mode == "gradients")
        factors = tuple(float(x) for x in measured.split())
        assert result == (float(call), times * float(pair), times * float(score), float(row), factors)


def test_sizes_with_the_same_leading_digits_share_the_choice_of_a_path() -> None:
    assert [costs.leading_digits(size) for size in (0, 1, 31, 32, 63, 64, 67, 68, 4095)] == [
        0, 1, 31, 32, 62, 64, 64, 68, 3968
    ]  # fmt: skip
    for routes, sizes in ((additive_paths, (64, 64)), (dot_costs, (64, 64))):
        routes._microseconds.cache_clear()
        for m in range(1024, 1088):  # as in decoding, one key more per step
            routes.microseconds("llvm", 4, 1, m, *sizes, torch.float32, False, 1)
        assert routes._microseconds.cache_info().misses == 1


@pytest.mark.parametrize("instructions", ["amx", "zen5", "avx512", "avx2", "neon"])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("tracked", [False, True])
def test_many_terms_go_to_the_kernels_that_share_exponentials(
    monkeypatch: pytest.MonkeyPatch, instructions: str, dtype: torch.dtype, tracked: bool
) -> None:
    monkeypatch.setattr(costs, "instruction_set", lambda: instructions)
    for routes in (additive_paths, dot_costs):
        routes._microseconds.cache_clear()
    try:
        assert additive_paths.by_cost(1, 2048, 2048, 64, 64, dtype, tracked=tracked) == "llvm"
        chosen = dot_costs.by_cost(1, 1, 2048, 2048, 64, 64, dtype, tracked=tracked, excludes=False)
        # PyTorch's kernel multiplies bfloat16 by AMX tiles
        tiles = instructions == "amx" and dtype is torch.bfloat16 and not tracked
        assert chosen == ("pytorch" if tiles else "llvm")
    finally:
        for routes in (additive_paths, dot_costs):
            routes._microseconds.cache_clear()


def test_a_measured_time_is_that_of_calls_like_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far from all measured calls the model is the sum over units of work."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    works = (costs.Work(100, 10, 20), costs.Work(10**6, 10**4, 10**4))
    cost = Cost(10, 1, 0, 0, (2.0, 0.5))
    model = [10 + work.pairs / 1e3 for work in works]
    for work, expected in ((works[0], 2 * model[0]), (works[1], 0.5 * model[1]), (costs.Work(1e15, 1e12, 1e12), 1e12)):
        # measured calls are weighted by their distance, and none is infinitely far
        assert abs(costs.microseconds(cost, work, works) / expected - 1) < 0.05
    assert costs.microseconds(cost._replace(measured=()), works[0], works) == model[0]


class Recorded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning", "ignore:There is a perf"
)
@pytest.mark.parametrize("operation", ["scaled_dot_product_attention", "additive_attention"])
def test_a_plan_serves_only_calls_like_the_one_it_was_made_for(operation: str) -> None:
    """Calls with the same tensors, or some like them, after a plan was made."""
    inputs = operands(6, 9, 8) + (weights(8) if operation == "additive_attention" else [])
    call = getattr(pytorch, operation)
    expected = call(*inputs)
    assert torch.equal(call(*inputs), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert call(*inputs).dtype is torch.bfloat16
    assert torch.equal(call(*inputs), expected)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert type(call(*inputs)).__name__ == "FakeTensor"
    with Recorded() as recorded:
        call(*inputs)
    assert recorded.operations
    batched = torch.func.vmap(lambda x: call(x, *inputs[1:]))(inputs[0].expand(3, *inputs[0].shape))
    assert_within_budgets([expected, *batched], operation, *inputs)
    tangent = torch.func.jvp(lambda x: call(x, *inputs[1:]), (inputs[0],), (torch.ones_like(inputs[0]),))[1]
    assert tangent.abs().max() > 0
    traced = torch.jit.trace(lambda x: call(x, *inputs[1:]), inputs[0])  # type: ignore[no-untyped-call]
    assert_within_budgets(traced(2 * inputs[0]), operation, 2 * inputs[0], *inputs[1:])
    with torch.inference_mode():
        assert torch.equal(call(*inputs), expected)
    turned = [x.mT.contiguous().mT for x in inputs[:3]]
    assert_within_budgets(call(*turned, *inputs[3:]), operation, *inputs)
    assert_within_budgets(call(torch._neg_view(inputs[0]), *inputs[1:]), operation, -inputs[0], *inputs[1:])
    doubled = [x.double() for x in inputs]
    assert call(*doubled).dtype is torch.float64
    assert torch.equal(call(*inputs), expected)


def test_one_tensor_may_be_several_operands() -> None:
    x = torch.randn(2, 5, 8)
    results = [pytorch.scaled_dot_product_attention(x, x.clone(), x.clone())]
    results += [pytorch.scaled_dot_product_attention(x, x, x) for _ in range(2)]
    assert_within_budgets(results, "scaled_dot_product_attention", x, x, x)


def test_every_path_gives_the_same_where_routes_change() -> None:
    """Sizes on both sides of each change, as queries and keys are doubled."""
    generator = torch.Generator().manual_seed(0)
    for d in (8, 64):
        last: dict[str, str] = {}
        for size in (1, 4, 16, 64, 128, 256):
            query, key, value = (torch.randn(2, size, d, generator=generator) for _ in range(3))
            w = [torch.randn(d, d, generator=generator) * d**-0.5 for _ in range(2)] + [
                torch.randn(d, generator=generator)
            ]
            a, b = query @ w[0].mT, key @ w[1].mT
            chosen = {"additive": additive.path_for(a, b, w[2], value), "dot": sdpa.path_for(query, key, value)}
            if chosen == last:
                continue
            last = chosen
            for operation, names, more in (
                ("additive_attention", ("llvm", "pointwise", "plain"), w),
                ("scaled_dot_product_attention", ("llvm", "pytorch", "decode", "small"), []),
            ):
                cotangent = torch.randn(query.shape, generator=generator)
                results, gradients = [], []
                for path in names:
                    leaves = [x.clone().requires_grad_() for x in (query, key, value, *more)]
                    with forcing(path):
                        results.append(getattr(pytorch, operation)(*leaves))
                        gradients.append(torch.autograd.grad(results[-1], leaves, cotangent))
                assert_within_budgets(results, operation, query, key, value, *more)
                assert_gradients_within_budgets(gradients, cotangent, operation, query, key, value, *more)
