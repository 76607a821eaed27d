"""Scaled dot-product attention by the fastest kernel: ours on the CPU, PyTorch's on accelerators.

PyTorch's ``scaled_dot_product_attention`` uses fused kernels only for four dimensions, equal batches, equal head sizes
and a contiguous last axis, and computes every excluded pair of a boolean mask. This module brings inputs into four
dimensions (views where possible). On an accelerator it reads the structure of masks where that pays.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from attnspec.backends.bases.autocast import autocast_enabled
from attnspec.backends.pytorch.kernels import formula
from attnspec.backends.pytorch.kernels.dot import cached_plans, cuda_fused, fused, path_choice
from attnspec.backends.pytorch.kernels.dot.cached_plans import NumericOptions
from attnspec.backends.pytorch.kernels.dot.call import Call, allowed, ungrouped_call
from attnspec.backends.pytorch.kernels.dot.mask_structure import structure_of
from attnspec.backends.pytorch.runtime import autocast
from attnspec.backends.pytorch.runtime.transforms import has_tangents, operations_intercepted, values_unreadable


def attend(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False,
    scale: float | None = None, in_layer: bool = False, check: Callable[[], Any] | None = None,
) -> Tensor:  # fmt: skip
    """softmax(scale·QKᵀ)V over the attendable keys; ``scale`` is 1/√d by default.

    query (*batch, n, d), key (*batch, m, d), value (*batch, m, d_v), mask boolean (*batch, n, m) with True = attend;
    batches broadcast, and so do all dimensions of the mask. Raises ``ValueError`` for sizes and devices that do not
    agree and batches that do not broadcast, ``TypeError`` for dtypes that differ and a mask that is not boolean; errors
    of ``check`` come first. If ``in_layer``, the call is part of another operation, and PyTorch computes it if it is
    small. Excluded keys have no effect on the CPU, even where they hold NaN or infinity.
    """
    if isinstance(query, Tensor) and autocast_enabled(query):
        cast_operands = autocast.cast(query, key, value)
        with autocast.off(query):
            return attend(*cast_operands, mask=mask, causal=causal, scale=scale, in_layer=in_layer, check=check)
    captured, on_cpu = operations_intercepted(), isinstance(query, Tensor) and query.is_cpu
    if check is not None and (captured or not on_cpu or (causal is not True and causal is not False)):
        check()
    if on_cpu and not captured:
        tensors = () if mask is None else (mask,)
        numeric = NumericOptions(None, 0 if causal else None, scale, in_layer=in_layer)
        results = cached_plans.attend(check, numeric, query, key, value, *tensors)
        if results is not None:
            return results[0]
    call, batch = ungrouped_call(query, key, value, mask, causal, scale)
    (m, d) = call.key.shape[-2:]
    if not m or not d or (on_cpu and (not captured or has_tangents())):
        # Without keys PyTorch's own kernels add 0·Σq, which is NaN where the sum overflows. Without features all scores
        # are 0, and rows are means, which kernels do not compute.
        attendable = allowed(call.options, call.tensors, call.query, call.key)
        output = formula.output_of(*call[:3], attendable, call.options.scale)
    elif on_cpu:
        options, tracked = call.options, call.differentiates()
        output = fused.output_of(*call[:3], call.tensors.mask, causal, options.scale, tracked)
    else:
        output = _on_accelerator(call)
    rank = len(batch)
    return output if rank == 2 else output.squeeze(1) if rank == 1 else output.reshape(*batch, *output.shape[-2:])


def path_for(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False,
    scale: float | None = None, in_layer: bool = False,
) -> str:  # fmt: skip
    """Name of the path of `attend`, as ``structure: kernel``.

    If an excluded number is not finite, the CPU then computes again by the formula, with scores in memory.
    """
    call, _ = ungrouped_call(query, key, value, mask, causal, scale, in_layer)
    if query.is_cpu:
        path = "plain" if has_tangents() else "pytorch" if operations_intercepted() else path_choice.path_for(call)
        return f"{_structure_name(call)}: {path}"
    call, lengths = _structured(call)
    if lengths is not None:
        return f"{len(lengths)} lengths: variable-length flash"
    return f"{_structure_name(call)}: {cuda_fused.NAME}"


def _structure_name(call: Call) -> str:
    return "masked" if call.tensors.mask is not None else "causal" if call.options.right is not None else "all keys"


def _on_accelerator(call: Call) -> Tensor:
    lengths = None
    if call.excludes() and not values_unreadable():
        call, lengths = _structured(call)
    query, key, value, options, tensors, *_ = call
    if lengths is not None:
        return cuda_fused.variable_length(query, key, value, lengths, options.scale)
    return cuda_fused.dense(query, key, value, tensors.mask, options.right is not None, options.scale)


def _structured(call: Call) -> tuple[Call, tuple[int, ...] | None]:
    """Drop needless keys and masks where reading the mask pays; return the call and any lengths."""
    b, h, n, d = call.query.shape
    m, mask = call.key.shape[-2], call.tensors.mask
    lengths = None
    if mask is not None and cuda_fused.worth_waiting(call.query, b * h * n * d * m):
        mask, causal, key_ends = structure_of(mask)
        if mask is None:
            call = _without_mask(call)
            call = call._replace(options=call.options._replace(right=0)) if causal else call
        elif key_ends:
            m = max(key_ends)
            call = _first_keys(call, m)
            if min(key_ends) == m:
                call = _without_mask(call)
            elif len(key_ends) == b:
                causal = call.options.right is not None
                fits = cuda_fused.worth_packing(call.query, call.value, causal, key_ends)
                lengths = key_ends if fits else None
    return _first_keys(call, n) if call.options.right is not None and m > n else call, lengths


def _without_mask(call: Call) -> Call:
    return call._replace(tensors=call.tensors._replace(mask=None))


def _first_keys(call: Call, stop: int) -> Call:
    mask = None if call.tensors.mask is None else call.tensors.mask[..., :stop]
    tensors = call.tensors._replace(mask=mask)
    return call._replace(key=call.key[:, :, :stop], value=call.value[:, :, :stop], tensors=tensors)
