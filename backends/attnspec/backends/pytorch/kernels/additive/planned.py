"""Additive attention with its projections, by one plan for all calls of the same kind."""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attnspec.backends.pytorch.kernels import additive
from attnspec.backends.pytorch.runtime import forcing
from attnspec.backends.pytorch.runtime.plans import Plans, ordinary, seen
from attnspec.backends.pytorch.runtime.recent import Recent, function_modes, modes, named
from attnspec.backends.pytorch.runtime.recording import recorded
from attnspec.backends.pytorch.runtime.transforms import intercepted, lazy

from . import HAS_LLVMLITE, routes

Operands: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""query, key, value, w_q, w_k and w_v."""

Plan: TypeAlias = Callable[[Operands, Tensor | None], Tensor | None]
"""Computes a call from its operands and mask; None where it needs more than a plan."""

# what plans depend on beside tensors, by functions of PyTorch in C++
grad, threads = torch.is_grad_enabled, torch.get_num_threads

_recent: Recent[Plan] = Recent()
_plans: Plans[Plan] = Plans()


def at_once(operation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """For additive attention: calls like recent ones run by their plan.

    Under autocast, modes and transforms no call is like them, so that this stands outside of what lowers dtypes.
    """
    known, tracing = _recent.known, torch.compiler.is_dynamo_compiling

    @wraps(operation)
    def called(
        query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, *,
        mask: Tensor | None = None, causal: bool = False,
    ) -> Tensor:  # fmt: skip
        # all in this frame: those of helpers would take as long as what they do
        ordinary = not tracing() and forward_ad._current_level < 0 and not modes() and not function_modes()
        try:  # comparing the sizes of nested tensors would end the process
            ordinary = ordinary and not (query.is_nested or key.is_nested or value.is_nested)
            ordinary = ordinary and not (w_q.is_nested or w_k.is_nested or w_v.is_nested)
            ordinary = ordinary and (mask is None or not mask.is_nested)
        except AttributeError:  # what is no tensor is refused by name
            ordinary = False
        if (causal is True or causal is False) and ordinary:
            operands = query, key, value, w_q, w_k, w_v
            for alike, plan in known.get((causal, mask is None, grad(), threads(), forcing.chosen), ()):
                if alike(*operands) if mask is None else alike(*operands, mask):
                    output = plan(operands, mask)
                    if output is not None:
                        return output
                    break
        return operation(query, key, value, w_q, w_k, w_v, mask=mask, causal=causal)

    named(called, operation.__name__)
    return called


def attend(
    check: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor,
    mask: Tensor | None, causal: bool,
) -> Tensor | None:  # fmt: skip
    """The output of a call that the direct kernels take; None for all others, which ``check`` has then seen.

    ``check`` raises for arguments that do not fit; what fitted once is not checked again.
    """
    operands = query, key, value, w_q, w_k, w_v
    if intercepted() or not HAS_LLVMLITE or (causal is not True and causal is not False):
        check(*operands, mask, causal=causal)
        return None
    kind: Any = None
    plan = None
    options = causal, mask is None, grad(), threads(), forcing.chosen
    try:
        kind = options, *map(seen, operands), seen(mask), all(x.is_contiguous() for x in operands)
        plan = _plans.get(kind)
    except (AttributeError, TypeError, RuntimeError):  # what is no tensor is refused by name
        kind = None
    if plan is None:
        shape = check(*operands, mask, causal=causal)
        plan = _made(shape, operands, mask, causal)
        if kind is not None:
            _plans.remember(kind, plan)
    given = operands if mask is None else (*operands, mask)
    if plan is _nothing or lazy(*given):
        return None
    output = plan(operands, mask)
    if output is not None and kind is not None and ordinary(*given):
        _recent.remember(options, plan, *given)
    return output


def _nothing(operands: Operands, mask: Tensor | None) -> None:
    return None


def _made(shape: Any, operands: Operands, mask: Tensor | None, causal: bool) -> Plan:
    query, key, value, _, _, w_v = operands
    tracked = recorded(*operands)
    if "direct" not in additive.available_paths(query.device.type) or forcing.chosen == "plain":
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
    return lambda operands, mask: direct.attend_ordinary(plan, operands, mask, tracked)


def _sharing(shape: Any, operands: Operands, mask: Tensor | None, causal: bool, tracked: bool) -> Plan:
    """By the kernels that share exponentials."""
    from .llvm import shared
    from .llvm.direct_plan import Operands as Given

    batch = torch.Size(shape[:-2])
    if not shared.serves(Given(*operands), batch):
        return _nothing
    plan = shared.plan(Given(*operands), mask, causal, batch)
    return lambda operands, mask: shared.attend(plan, Given(*operands), mask, tracked)
