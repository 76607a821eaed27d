"""Plans of calls, forced paths, and the choice among paths: what is refused and remembered, what takes least time."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

pytest.importorskip("llvmlite", reason="there is one path without llvmlite")

from attnspec.backends import pytorch
from attnspec.backends.pytorch import additive, sdpa
from attnspec.backends.pytorch.kernels.additive import planned as additive_plans
from attnspec.backends.pytorch.kernels.costs import instruction_set
from attnspec.backends.pytorch.kernels.dot import planned as dot_plans
from attnspec.backends.pytorch.kernels.measured import COSTS
from attnspec.backends.pytorch.runtime import paths, plans
from attnspec.backends.pytorch.runtime.forcing import PATHS, forced, forcing


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
    given: list[Any] = operands() + (weights() if operation == "additive_attention" else [])
    wrong = [*given[:place], change(given[place]), *given[place + 1 :]]
    messages = []
    for _ in range(2):
        with pytest.raises((ValueError, TypeError), match=f"^{operation}: ") as raised:
            call(*wrong)
        messages.append(str(raised.value))
        call(*given)
    assert messages[0] == messages[1]


@pytest.mark.parametrize("operation", ["scaled_dot_product_attention", "additive_attention"])
def test_flags_and_masks_are_checked_in_every_call(operation: str) -> None:
    given = operands() + (weights() if operation == "additive_attention" else [])
    call = getattr(pytorch, operation)
    call(*given, causal=True)
    for wrong in (1, None, "yes"):
        with pytest.raises(TypeError, match=rf"^{operation}: causal: "):
            call(*given, causal=wrong)
    call(*given, mask=torch.ones(3, 5, dtype=torch.bool))
    with pytest.raises(TypeError, match=rf"^{operation}: mask: "):
        call(*given, mask=torch.ones(3, 5))
    with pytest.raises(ValueError, match=rf"^{operation}: mask: "):
        call(*given, mask=torch.ones(3, 4, dtype=torch.bool))


def test_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "REMEMBERED", 3)
    kept: plans.Plans[int] = plans.Plans()
    for i in range(10):
        assert kept.remember(i, -i) == -i
        assert kept.get(i) == -i
    assert sum(kept.get(i) is not None for i in range(10)) <= 3


@pytest.mark.parametrize("module", [additive_plans, dot_plans])
def test_a_second_call_is_not_checked_again(module: Any) -> None:
    seen = []

    def check(*given: Any, causal: bool) -> torch.Size:
        seen.append(given)
        return torch.Size(given[0].shape)

    given = operands(batch=(7, 3)) + (weights() if module is additive_plans else [])
    extra = () if module is additive_plans else (0.125,)
    for _ in range(3):
        module.attend(check, *given, None, False, *extra)
    assert len(seen) == 1


def test_what_changes_the_path_changes_the_plan() -> None:
    """Gradients, strides, threads and PyTorch's own switches are part of what a plan is remembered by."""
    query, key, value = operands(40, 40, 16)
    expected = pytorch.scaled_dot_product_attention(query, key, value)
    for x in (query, key, value):
        x.requires_grad_()
    tracked = pytorch.scaled_dot_product_attention(query, key, value)
    assert tracked.requires_grad
    with torch.no_grad():
        assert not pytorch.scaled_dot_product_attention(query, key, value).requires_grad
    turned = [x.detach().mT.contiguous().mT for x in (query, key, value)]
    torch.testing.assert_close(pytorch.scaled_dot_product_attention(*turned), expected)
    with sdpa_kernel(SDPBackend.MATH):
        (gradient,) = torch.autograd.grad(
            pytorch.scaled_dot_product_attention(query, key, value).sum(), query, create_graph=True
        )
        assert torch.autograd.grad(gradient.square().sum(), query)[0].isfinite().all()
    negated = torch._neg_view(query.detach())
    torch.testing.assert_close(
        pytorch.scaled_dot_product_attention(negated, key, value),
        pytorch.scaled_dot_product_attention(-query.detach(), key, value),
    )


def test_paths_are_forced_and_named() -> None:
    x = torch.randn(2, 6, 8)
    with (
        pytest.raises(ValueError, match=r"^path: expected one of llvm, direct, step, plain, pytorch; got 'fast'$"),
        forcing("fast"),
    ):
        pass
    for path in ("llvm", "direct", "plain"):
        with forcing(path):
            assert forced() == path
            assert additive.path_for(x, x, x[0, 0], x) == path
            assert additive.path_for(x, x, x[0, 0], x, path="plain") == "plain"  # what is asked for is taken
    for path in ("llvm", "pytorch"):
        with forcing(path):
            assert sdpa.path_for(x, x, x) == f"all keys: {path}"
    assert forced() is None
    assert [getattr(paths, path).name for path in PATHS] == [f"pytorch by {path}" for path in PATHS]


@pytest.mark.parametrize("instructions", ["avx512", "avx2", "neon"])
def test_costs_are_known_of_every_path(instructions: str) -> None:
    assert set(COSTS[instructions]) == set(COSTS["avx512"])
    assert len(COSTS["avx512"]) == 24
    for call, pair, row in COSTS[instructions].values():
        assert call > 0
        assert pair > 0
        assert row >= 0


@pytest.mark.parametrize("instructions", ["avx512", "avx2", "neon"])
@pytest.mark.parametrize("kind", ["float32", "float64", "half"])
@pytest.mark.parametrize("mode", ["forward", "gradients"])
def test_many_terms_go_to_the_kernels_that_share_exponentials(instructions: str, kind: str, mode: str) -> None:
    costs = COSTS[instructions]
    assert costs["additive", "llvm", kind, mode].pair < costs["additive", "direct", kind, mode].pair
    assert costs["dot", "llvm", kind, mode].pair < costs["dot", "pytorch", kind, mode].pair


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
            for call, names in (
                (lambda q, k, v: pytorch.additive_attention(q, k, v, *w), ("llvm", "direct", "plain")),  # noqa: B023
                (pytorch.scaled_dot_product_attention, ("llvm", "pytorch", "step", "plain")),
            ):
                results = []
                for path in names:
                    leaves = [x.clone().requires_grad_() for x in (query, key, value)]
                    with forcing(path):
                        got = call(*leaves)
                    results.append([got, *torch.autograd.grad(got.sin().sum(), leaves)])
                for other in results[1:]:
                    for one, two in zip(results[0], other, strict=True):
                        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


GRID = [(1, 1, 1, 8), (8, 1, 32, 64), (2, 16, 16, 32), (4, 48, 48, 64), (2, 128, 128, 64), (1, 256, 256, 64)]


@pytest.mark.parametrize("operation", ["additive", "dot"])
@pytest.mark.parametrize("tracked", [False, True])
def test_the_path_that_is_chosen_takes_least_time(operation: str, tracked: bool) -> None:
    """Where one takes less than half the time of the other, three times: what load adds is not the same for both."""
    if instruction_set() not in ("avx512", "avx2"):
        pytest.skip("the costs of this instruction set were not measured")
    names = ("direct", "llvm") if operation == "additive" else ("llvm", "pytorch")
    wrong = []
    for batch, n, m, d in GRID:
        given = operands(n, m, d, (batch,)) + (weights(d) if operation == "additive" else [])
        given = [x.requires_grad_(tracked) for x in given]
        call = pytorch.additive_attention if operation == "additive" else pytorch.scaled_dot_product_attention

        def once(path: str | None, call: Any = call, given: list[Tensor] = given) -> float:
            with forcing(path):
                start = time.perf_counter()
                output = call(*given)
                if tracked:
                    torch.autograd.grad(output.sum(), given)
                return time.perf_counter() - start

        def least(once: Callable[[str], float] = once) -> dict[str, float]:
            times: dict[str, list[float]] = {path: [] for path in names}
            for _ in range(24):
                for path in names:
                    times[path].append(once(path))
            return {path: statistics.median(sorted(taken)[:6]) for path, taken in times.items()}

        if operation == "additive":
            a, b = given[0] @ given[3].mT, given[1] @ given[4].mT
            chosen = additive.path_for(a, b, given[5], given[2])
        else:
            chosen = sdpa.path_for(given[0], given[1], given[2]).partition(": ")[2]
        seen = [least() for _ in range(3)]
        if all(taken[chosen] > 2 * min(taken.values()) for taken in seen):
            wrong.append(((batch, n, m, d), chosen, seen))
    assert not wrong
