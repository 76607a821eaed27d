"""Additive attention with its projections, by plans cached per shapes, dtypes and settings."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.additive import routes
from attnspec.backends.pytorch.runtime import forcing
from attnspec.backends.pytorch.runtime.optional import HAS_LLVMLITE
from attnspec.backends.pytorch.runtime.plans import Plans, ordinary, seen
from attnspec.backends.pytorch.runtime.recording import recorded
from attnspec.backends.pytorch.runtime.transforms import intercepted, lazy

Operands: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""query, key, value, w_q, w_k and w_v."""

Plan: TypeAlias = Callable[[Operands, Tensor | None], Tensor | None]
"""Computes a call from its operands and mask; returns None where the general path must compute it."""

# settings that plans depend on besides tensors, read by PyTorch's C++ functions
grad, threads = torch.is_grad_enabled, torch.get_num_threads

_plans: Plans[Plan] = Plans()


def attend(
    check: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor,
    mask: Tensor | None, causal: bool,
) -> Tensor | None:  # fmt: skip
    """Return the output of a call with a plan; None for all others.

    ``check`` raises for arguments that do not fit; a call whose plan is cached skips it.
    """
    operands = query, key, value, w_q, w_k, w_v
    if intercepted() or not HAS_LLVMLITE or (causal is not True and causal is not False):
        check(*operands, mask, causal=causal)
        return None
    kind: Any = None
    plan = None
    try:
        kind = (
            causal,
            grad(),
            threads(),
            forcing.chosen,
            *map(seen, operands),
            seen(mask),
            all(x.is_contiguous() for x in operands),
        )
        plan = _plans.get(kind)
    except (AttributeError, TypeError, RuntimeError):  # `check` names an argument that is no tensor
        kind = None
    if plan is None:
        shape = check(*operands, mask, causal=causal)
        plan = _made(shape, operands, mask, causal)
        if kind is not None:
            _plans.remember(kind, plan)
    given = operands if mask is None else (*operands, mask)
    if plan is _nothing or lazy(*given):
        return None
    return plan(operands, mask)


def _nothing(operands: Operands, mask: Tensor | None) -> None:
    return None


def _made(shape: Any, operands: Operands, mask: Tensor | None, causal: bool) -> Plan:
    query, key, value, _, _, w_v = operands
    tracked = recorded(*operands)
    if "direct" not in routes.available_paths(query.device.type) or forcing.chosen == "plain":
        return _nothing
    if not ordinary(*operands, mask) or any(x.dtype is not query.dtype for x in operands):
        return _nothing
    n, m, h = query.shape[-2], key.shape[-2], w_v.shape[0]
    chosen = routes.by_cost(math.prod(shape[:-2]), n, m, h, value.shape[-1], query.dtype, tracked=tracked)
    if chosen != "direct":
        return _sharing(shape, operands, mask, causal, tracked)
    from .llvm import direct, few
    from .llvm.direct_plan import Operands as Given
    from .llvm.direct_plan import plan as plan_of

    plan = plan_of(Given(*operands), mask, causal, torch.Size(shape[:-2]))
    if plan is None:
        return _nothing
    of_few = few.plan(Given(*operands), plan)
    if of_few is not None:
        return lambda operands, mask: few.attend(of_few, operands, mask, tracked)
    return lambda operands, mask: direct.attend(plan, operands, mask, tracked)


def _sharing(shape: Any, operands: Operands, mask: Tensor | None, causal: bool, tracked: bool) -> Plan:
    """Return the plan of the kernels with factorised exponentials."""
    from .llvm import factorised
    from .llvm.direct_plan import Operands as Given

    batch = torch.Size(shape[:-2])
    if not factorised.serves(Given(*operands), batch):
        return _nothing
    plan = factorised.plan(Given(*operands), mask, causal, batch)
    return lambda operands, mask: factorised.attend(plan, Given(*operands), mask, tracked)
