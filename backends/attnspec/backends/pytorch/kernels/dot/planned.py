"""Scaled dot-product attention on the CPU by one plan for all calls of the same kind: what is known from shapes and
strides is found once, and the words of the kernels are kept but for addresses."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot import cpu_routes
from attnspec.backends.pytorch.kernels.dot.call import four_dimensional
from attnspec.backends.pytorch.kernels.dot.planned_pytorch import Plan, by_pytorch, excluding
from attnspec.backends.pytorch.runtime import forcing
from attnspec.backends.pytorch.runtime.plans import Plans, ordinary, seen
from attnspec.backends.pytorch.runtime.transforms import intercepted, lazy

# what plans depend on beside tensors, by functions of PyTorch in C++
grad, threads, flash = torch.is_grad_enabled, torch.get_num_threads, torch._C._get_flash_sdp_enabled

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
            causal, scale, grad(), threads(), flash(), forcing.chosen, seen(query), seen(key), seen(value),
            query.stride(), key.stride(), value.stride(), None if mask is None else (seen(mask), mask.stride()),
        )  # fmt: skip
        plan = _plans.get(kind)
    except (AttributeError, TypeError, RuntimeError):  # what is no dense tensor is refused by name, or taken as it is
        kind = None
    if plan is None:
        check(query, key, value, mask, causal=causal)
        plan = _made(query, key, value, mask, causal, scale)
        if kind is not None:
            _plans.remember(kind, plan)
    given = (query, key, value) if mask is None else (query, key, value, mask)
    if lazy(*given):
        return None
    return plan(query, key, value, mask)


def _made(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Plan:
    operands = query, key, value
    if not ordinary(*operands, mask) or not (query.numel() and key.numel() and value.numel()):
        return _nothing
    call, batch = four_dimensional(query, key, value, mask, causal, scale)
    chosen = cpu_routes.kernel(call, fits=len(batch) == 2)
    if chosen == "pytorch":
        alike = key.shape == value.shape and query.shape[:-2] == key.shape[:-2] == batch and len(batch) <= 2
        if not alike or not torch._C._get_flash_sdp_enabled():
            return _nothing
        if mask is None and not causal:
            return by_pytorch(call, len(batch), scale)
        return excluding(call, operands, mask, len(batch), scale) or _nothing
    from attnspec.backends.pytorch.kernels.dot import few, planned_kernel, step

    if chosen == "few":
        return few.planned(call, operands, mask, batch) or _nothing
    if chosen == "step":
        copied = call.key.data_ptr() != key.data_ptr() or call.value.data_ptr() != value.data_ptr()
        if copied or len(batch) > 2 or any(x.shape[:-2] != batch for x in operands):
            return _nothing
        return step.planned_output(*call[:3], call.scale, (*batch, 1, value.shape[-1]))
    made = planned_kernel.plan(call, operands, mask, batch)
    if made is None:
        return _nothing
    return partial(planned_kernel.attend, made, call.differentiates())


def _nothing(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    return None
