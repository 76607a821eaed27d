"""Attention in groups of heads without options but causality and scale, by one plan for all calls of the same kind."""

from collections.abc import Callable
from functools import wraps
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attnspec.backends.pytorch.runtime import forcing
from attnspec.backends.pytorch.runtime.plans import ordinary
from attnspec.backends.pytorch.runtime.recent import Recent, autocasts, function_modes, modes, named
from attnspec.backends.pytorch.runtime.recording import recorded
from attnspec.backends.pytorch.runtime.transforms import intercepted, lazy

Results: TypeAlias = tuple[Tensor, Tensor | None]
Plan: TypeAlias = Callable[[Tensor, Tensor, Tensor], Results | None]
"""Computes a call from query, key and value; None where it needs more than a plan."""

# what plans depend on beside tensors, by functions of PyTorch in C++
grad, threads, flash = torch.is_grad_enabled, torch.get_num_threads, torch._C._get_flash_sdp_enabled

_recent: Recent[Plan] = Recent()


def at_once(operation: Callable[..., Results]) -> Callable[..., Results]:
    """For attention in groups: calls like recent ones run by their plan.

    Under autocast, modes and transforms no call is like them, so that this stands outside of what lowers dtypes.
    """
    known, tracing = _recent.known, torch.compiler.is_dynamo_compiling

    @wraps(operation)
    def called(
        query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False,
        scale: float | None = None, window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
        bias: Tensor | None = None, slopes: Tensor | None = None, sinks: Tensor | None = None,
        key_lengths: Tensor | None = None,
    ) -> Results:  # fmt: skip
        # all in this frame: those of helpers would take as long as what they do
        try:  # comparing the sizes of nested tensors would end the process
            dense = not (query.is_nested or key.is_nested or value.is_nested)
        except AttributeError:  # what is no tensor is refused by name
            dense = False
        simple = (
            dense and mask is None and window is None and softcap is None and bias is None and slopes is None
            and sinks is None
            and key_lengths is None and (causal is True or causal is False) and (scale is None or type(scale) is float)
            and not tracing() and forward_ad._current_level < 0 and not modes() and not function_modes()
        )  # fmt: skip
        declined = False
        if simple:
            options = causal, scale, grad(), threads(), flash(), forcing.chosen
            for alike, plan in known.get(options, ()):
                if alike(query, key, value):
                    found = plan(query, key, value)
                    if found is not None:
                        return found
                    declined = True
                    break
        results = operation(
            query, key, value, mask=mask, causal=causal, scale=scale, window=window, softcap=softcap, bias=bias,
            slopes=slopes, sinks=sinks, key_lengths=key_lengths,
        )  # fmt: skip
        if simple and not declined and not (intercepted() or autocasts()) and ordinary(query, key, value):
            made = _made(query, key, value, causal, scale) or _nothing
            _recent.remember(options, made, query, key, value)
        return results

    named(called, operation.__name__)
    return called


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
    if any(x.dim() != 4 for x in given) or lazy(*given):
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
