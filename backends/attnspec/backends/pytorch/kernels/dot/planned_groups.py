"""Attention in groups of heads without options but causality and scale, by one plan for all calls of the same kind."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attnspec.backends.pytorch.runtime import forcing
from attnspec.backends.pytorch.runtime.plans import Plans, ordinary, seen
from attnspec.backends.pytorch.runtime.recording import recorded
from attnspec.backends.pytorch.runtime.transforms import intercepted, lazy

Results: TypeAlias = tuple[Tensor, Tensor | None]
Plan: TypeAlias = Callable[[Tensor, Tensor, Tensor], Results | None]
"""Computes a call from query, key and value; None where it needs more than a plan."""

# what plans depend on beside tensors, by functions of PyTorch in C++
grad, threads, flash = torch.is_grad_enabled, torch.get_num_threads, torch._C._get_flash_sdp_enabled

_plans: Plans[Plan] = Plans()


def attend(
    check: Callable[[], Any], query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float | None
) -> Results | None:
    """Output and log Σ exp; None for calls that need more than a plan, among them those that do not fit together.

    ``check`` raises for arguments that do not fit. It is called once for all calls of the same kind.
    """
    if (
        intercepted()
        or (causal is not True and causal is not False)
        or (scale is not None and type(scale) is not float)
    ):
        return None
    try:
        kind = (
            causal, scale, grad(), threads(), flash(), forcing.chosen, seen(query), seen(key), seen(value),
            query.stride(), key.stride(), value.stride(),
        )  # fmt: skip
        plan = _plans.get(kind)
    except (AttributeError, TypeError, RuntimeError):  # what is no dense tensor is refused by name, or taken as it is
        return None
    if lazy(query, key, value):
        return None
    if plan is None:
        check()
        plan = _plans.remember(kind, _made(query, key, value, causal, scale) or _nothing)
    return plan(query, key, value)


def _nothing(query: Tensor, key: Tensor, value: Tensor) -> None:
    return None


def _made(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float | None) -> Plan | None:
    """The plan of a call whose arguments fit together; None where there is nothing to be known before."""
    from attnspec.backends.pytorch.kernels.dot import groups
    from attnspec.backends.pytorch.kernels.dot.fused_groups import attending, fused
    from attnspec.backends.pytorch.kernels.formula import Scoring
    from attnspec.backends.pytorch.kernels.visible import Visible

    given = query, key, value
    visible, scoring = Visible(right=0 if causal else None), Scoring(scale)
    if any(x.dim() != 4 for x in given) or not ordinary(*given):
        return None
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        return None
    path, tracked = groups.path_for(*given, visible, scoring), recorded(*given)
    if path == "pytorch":
        call = fused(*given, causal, scale)
        return None if call is None else attending(call, tracked)
    own_scale = query.shape[-1] ** -0.5 if scale is None else scale
    if path == "few":
        from attnspec.backends.pytorch.kernels.dot import few

        return few.grouped(*given, causal, own_scale)
    if path == "step" and not causal:
        from attnspec.backends.pytorch.kernels.dot import step

        return step.planned(query, key, value, own_scale)
    if path == "llvm" and query.shape[-2] > 1:
        from attnspec.backends.pytorch.kernels.dot.planned_group_kernels import attention

        return attention(query, key, value, causal, own_scale)
    return None
