"""Additive attention with its projections, by plans that are cached by shapes, dtypes and settings."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.additive import path_choice
from attnspec.backends.pytorch.runtime import forcing
from attnspec.backends.pytorch.runtime.optional import HAS_LLVMLITE
from attnspec.backends.pytorch.runtime.plans import Plans, all_dense_cpu, plan_properties
from attnspec.backends.pytorch.runtime.recording import needs_gradients
from attnspec.backends.pytorch.runtime.transforms import any_lazy, operations_intercepted

Operands: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""query, key, value, w_q, w_k and w_v."""

Plan: TypeAlias = Callable[[Operands, Tensor | None], Tensor | None]
"""Function of operands and mask; it returns None for a call that the general path must compute."""

# Plans also depend on these settings; module names save the look-up of an attribute in every call.
grad, threads = torch.is_grad_enabled, torch.get_num_threads

_plans: Plans[Plan] = Plans()


def attend(
    check: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor,
    mask: Tensor | None, causal: bool,
) -> Tensor | None:  # fmt: skip
    """Return the output of a call; None if it has no plan, for the general path to compute.

    ``check`` raises for arguments that do not fit; a call whose plan is cached skips it.
    """
    operands = query, key, value, w_q, w_k, w_v
    if operations_intercepted() or not HAS_LLVMLITE or (causal is not True and causal is not False):
        check(*operands, mask, causal=causal)
        return None
    kind: Any = None
    plan = None
    try:
        kind = (
            causal, grad(), threads(), forcing.chosen, *map(plan_properties, operands), plan_properties(mask),
            all(x.is_contiguous() for x in operands),
        )  # fmt: skip
        plan = _plans.get(kind)
    except (AttributeError, TypeError, RuntimeError):  # an argument is no tensor: `check` raises and names it
        kind = None
    if plan is None:
        shape = check(*operands, mask, causal=causal)
        plan = _make_plan(shape, operands, mask, causal)
        if kind is not None:
            _plans.remember(kind, plan)
    tensors = operands if mask is None else (*operands, mask)
    if plan is _leave_to_general_path or any_lazy(*tensors):
        return None
    return plan(operands, mask)


def _leave_to_general_path(operands: Operands, mask: Tensor | None) -> None:
    return None


def _make_plan(shape: Any, operands: Operands, mask: Tensor | None, causal: bool) -> Plan:
    query, key, value, _, _, w_v = operands
    tracked = needs_gradients(*operands)
    if "pointwise" not in path_choice.available_paths(query.device.type) or forcing.chosen == "plain":
        return _leave_to_general_path
    if not all_dense_cpu(*operands, mask) or any(x.dtype is not query.dtype for x in operands):
        return _leave_to_general_path
    n, m, h = query.shape[-2], key.shape[-2], w_v.shape[0]
    chosen = path_choice.by_cost(math.prod(shape[:-2]), n, m, h, value.shape[-1], query.dtype, tracked=tracked)
    if chosen != "pointwise":
        return _factorised_plan(shape, operands, mask, causal, tracked)
    from .llvm import pointwise, small
    from .llvm.pointwise_plan import Operands as PlanOperands
    from .llvm.pointwise_plan import plan as plan_of

    plan = plan_of(PlanOperands(*operands), mask, causal, torch.Size(shape[:-2]))
    if plan is None:
        return _leave_to_general_path
    small_plan = small.plan(PlanOperands(*operands), plan)
    if small_plan is not None:
        return lambda operands, mask: small.attend(small_plan, operands, mask, tracked)
    return lambda operands, mask: pointwise.attend(plan, operands, mask, tracked)


def _factorised_plan(shape: Any, operands: Operands, mask: Tensor | None, causal: bool, tracked: bool) -> Plan:
    from .llvm import factorised
    from .llvm.pointwise_plan import Operands as PlanOperands

    batch = torch.Size(shape[:-2])
    if not factorised.serves(PlanOperands(*operands), batch):
        return _leave_to_general_path
    plan = factorised.plan(PlanOperands(*operands), mask, causal, batch)
    return lambda operands, mask: factorised.attend(plan, PlanOperands(*operands), mask, tracked)
