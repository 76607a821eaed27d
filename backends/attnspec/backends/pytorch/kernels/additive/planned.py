"""Additive attention with its projections, by one plan for all calls of the same kind."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels import additive
from attnspec.backends.pytorch.runtime.forcing import forced
from attnspec.backends.pytorch.runtime.plans import Plans, ordinary, seen
from attnspec.backends.pytorch.runtime.recording import recorded
from attnspec.backends.pytorch.runtime.transforms import intercepted

from . import HAS_LLVMLITE, routes


class Planned(NamedTuple):
    """What runs a call, if the direct kernels do: their plan, and what takes it, the operands, the mask, and whether
    autograd records the call."""

    plan: Any
    attend: Callable[..., Tensor | None] | None
    tracked: bool


_plans: Plans[Planned] = Plans()


def attend(
    check: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor,
    mask: Tensor | None, causal: bool,
) -> Tensor | None:  # fmt: skip
    """The output of a call that the direct kernels take; None for all others, which ``check`` has then seen.

    ``check`` raises for arguments that do not fit; what fitted once is not checked again.
    """
    if intercepted() or not HAS_LLVMLITE or (causal is not True and causal is not False):
        check(query, key, value, w_q, w_k, w_v, mask, causal=causal)
        return None
    kind: Any = None
    planned = None
    try:
        kind = (
            seen(query), seen(key), seen(value), seen(w_q), seen(w_k), seen(w_v), seen(mask), causal,
            torch.is_grad_enabled(), torch.get_num_threads(), forced(),
        )  # fmt: skip
        planned = _plans.get(kind)
    except (AttributeError, TypeError, RuntimeError):  # what is no tensor is refused by name
        kind = None
    if planned is None:
        shape = check(query, key, value, w_q, w_k, w_v, mask, causal=causal)
        planned = _made(shape, query, key, value, w_q, w_k, w_v, mask, causal)
        if kind is not None:
            _plans.remember(kind, planned)
    if planned.attend is None:
        return None
    return planned.attend(planned.plan, (query, key, value, w_q, w_k, w_v), mask, planned.tracked)


def _made(
    shape: Any, query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, mask: Tensor | None,
    causal: bool,
) -> Planned:  # fmt: skip
    operands = query, key, value, w_q, w_k, w_v
    tracked = recorded(*operands)
    if "direct" not in additive.available_paths(query.device.type) or forced() == "plain":
        return Planned(None, None, tracked)
    if not ordinary(*operands, mask) or any(x.dtype is not query.dtype for x in operands):
        return Planned(None, None, tracked)
    n, m, h = query.shape[-2], key.shape[-2], w_v.shape[0]
    chosen = routes.by_cost(math.prod(shape[:-2]), n, m, h, value.shape[-1], query.dtype, tracked=tracked)
    if chosen != "direct":
        return Planned(None, None, tracked)
    from .llvm import direct

    plan = direct.plan(direct.Operands(*operands), mask, causal, torch.Size(shape[:-2]))
    return Planned(plan, None if plan is None else direct.attend_unnamed, tracked)
