"""Scaled dot-product attention on the CPU by one plan for all calls of the same kind: what is known from shapes and
strides is found once, and the words of the kernels are kept but for addresses."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot import cpu_routes
from attnspec.backends.pytorch.kernels.dot.call import Call, four_dimensional
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES
from attnspec.backends.pytorch.runtime.forcing import forced
from attnspec.backends.pytorch.runtime.plans import Plans, ordinary, seen
from attnspec.backends.pytorch.runtime.transforms import intercepted

WORTH_WIDENING = 2**13
"""Numbers of keys from which widening half dtypes saves more than it takes."""

FEW_HALF = 20
"""Queries up to which half dtypes are widened for PyTorch's kernel."""

PIECE = 2**17
"""Numbers of keys that are widened at a time: half a megabyte of float32."""


class Plan(NamedTuple):
    """How to run a call: by PyTorch's kernel, in parts of the batch, by those of this package, or as others are."""

    rank: int
    scale: float
    pytorch: tuple[slice, ...]
    widens: bool
    kernel: Any
    attend: Callable[..., Tensor | None] | None
    tracked: bool


_plans: Plans[Plan] = Plans()


def attend(
    check: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool,
    scale: float | None,
) -> Tensor | None:  # fmt: skip
    """The output; None for calls that need more than a plan, which ``check`` has then seen.

    ``check`` raises for arguments that do not fit; what fitted once is not checked again.
    """
    if intercepted() or (causal is not True and causal is not False):
        check(query, key, value, mask, causal=causal)
        return None
    kind: Any = None
    plan = None
    try:
        kind = (
            seen(query), seen(key), seen(value), query.stride(), key.stride(), value.stride(),
            None if mask is None else (seen(mask), mask.stride()), causal, scale, torch.is_grad_enabled(),
            torch.get_num_threads(), torch._C._get_flash_sdp_enabled(), forced(),
        )  # fmt: skip
        plan = _plans.get(kind)
    except (AttributeError, TypeError, RuntimeError):  # what is no dense tensor is refused by name, or taken as it is
        kind = None
    if plan is None:
        check(query, key, value, mask, causal=causal)
        plan = _made(query, key, value, mask, causal, scale)
        if kind is not None:
            _plans.remember(kind, plan)
    if query.is_neg() or key.is_neg() or value.is_neg():
        return None
    if query._is_zerotensor() or key._is_zerotensor() or value._is_zerotensor():
        return None
    if plan.pytorch:
        return _by_pytorch(plan, query, key, value)
    return None if plan.attend is None else plan.attend(plan.kernel, query, key, value, mask, plan.tracked)


def _made(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Plan:
    operands = query, key, value
    nothing = Plan(0, 0.0, (), False, None, None, False)
    if not ordinary(*operands, mask) or not (query.numel() and key.numel() and value.numel()):
        return nothing
    call, batch = four_dimensional(query, key, value, mask, causal, scale)
    chosen = cpu_routes.kernel(call)
    tracked = call.differentiates()
    if chosen == "pytorch":
        alike = key.shape == value.shape and query.shape[:-2] == key.shape[:-2] and len(batch) <= 2
        plain = alike and mask is None and not causal and torch._C._get_flash_sdp_enabled()
        return (
            Plan(len(batch), call.scale, _parts(call, tracked), _widens(call), None, None, tracked)
            if plain
            else nothing
        )
    from attnspec.backends.pytorch.kernels.dot import planned_kernel

    made = planned_kernel.plan(call, operands, mask, batch)
    return Plan(len(batch), call.scale, (), False, made, None if made is None else planned_kernel.attend, tracked)


def _parts(call: Call, tracked: bool) -> tuple[slice, ...]:
    """Where half dtypes are widened, parts of the batch that stay in the cache, one if autograd records the call."""
    b, h, _, d = call.query.shape
    entry = h * call.key.shape[-2] * d
    if tracked or not _widens(call) or b * entry <= PIECE or not call.query.is_contiguous():
        return (slice(None),)
    size = max(1, PIECE // entry)
    return tuple(slice(i, i + size) for i in range(0, b, size))


def _widens(call: Call) -> bool:
    """Whether operands of half dtypes are widened: PyTorch's kernel for few queries takes several times as long."""
    return call.query.dtype in HALF_DTYPES and call.query.shape[-2] <= FEW_HALF and call.key.numel() >= WORTH_WIDENING


def _by_pytorch(plan: Plan, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """PyTorch's kernel, which wants four dimensions; nothing is excluded."""
    if len(plan.pytorch) > 1:
        output = torch.empty_like(query)
        whole = plan._replace(pytorch=(slice(None),))
        for part in plan.pytorch:
            output[part] = _by_pytorch(whole, query[part], key[part], value[part])
        return output
    if plan.widens:
        whole = plan._replace(widens=False)
        return _by_pytorch(whole, query.float(), key.float(), value.float()).to(query.dtype)
    operands = query, key, value
    if plan.rank == 1:
        operands = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
    elif plan.rank == 0:
        operands = query[None, None], key[None, None], value[None, None]
    found = cpu_routes.by_pytorch(*operands, None, False, plan.scale)
    return found.squeeze(1) if plan.rank == 1 else found[0, 0] if plan.rank == 0 else found
