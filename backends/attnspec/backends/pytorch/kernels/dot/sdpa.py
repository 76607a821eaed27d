"""Scaled dot-product attention by the fastest kernel available: this package's on the CPU, PyTorch's on an accelerator.

``scaled_dot_product_attention`` of PyTorch takes its fused kernels only for four dimensions, equal batches, equal head
sizes and a contiguous last axis, and computes every excluded pair of a boolean mask. Here inputs are brought into four
dimensions (views where possible); for an accelerator, masks are read for their structure where that pays.
"""

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot import cpu_routes, cuda_routes
from attnspec.backends.pytorch.kernels.dot.call import Call, four_dimensional
from attnspec.backends.pytorch.kernels.dot.mask_structure import read
from attnspec.backends.pytorch.runtime.transforms import has_tangents, transformed


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    in_layer: bool = False,
) -> Tensor:
    """softmax(scale·QKᵀ)V over the attendable keys; ``scale`` is 1/√d unless given.

    query (*batch, n, d), key (*batch, m, d), value (*batch, m, d_v), mask boolean (*batch, n, m) with True = attend;
    batches broadcast, and so do all dimensions of the mask. Raises ``ValueError`` for sizes and devices that do not
    agree and batches that do not broadcast, ``TypeError`` for dtypes that differ and a mask that is not boolean.
    A call ``in_layer``, a part of another operation, is computed by PyTorch where it is small.
    """
    if in_layer and mask is None and not causal and cpu_routes.at_once(query, key, value):
        return cpu_routes.by_pytorch(query, key, value, None, False, scale)
    call, batch = four_dimensional(query, key, value, mask, causal, scale)
    if in_layer:
        call = call._replace(in_layer=True)
    output = cpu_routes.attend(call, fits=len(batch) == 2) if query.is_cpu else _on_accelerator(call)
    rank = len(batch)
    return output if rank == 2 else output.squeeze(1) if rank == 1 else output.reshape(*batch, *output.shape[-2:])


def path_for(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    in_layer: bool = False,
) -> str:
    """The route that ``attend`` takes for these arguments, as ``structure: kernel``.

    Where something excluded is not finite, the CPU then computes again, with the scores in memory.
    """
    call, batch = four_dimensional(query, key, value, mask, causal, scale)
    call = call._replace(in_layer=in_layer)
    if query.is_cpu:
        kernel = "plain" if has_tangents() else cpu_routes.kernel(call, fits=len(batch) == 2)
        return f"{_keys(call)}: {kernel}"
    call = _structured(call)
    if call.lengths is not None:
        return f"{len(call.lengths)} lengths: variable-length flash"
    return f"{_keys(call)}: {cuda_routes.kernel(call.query, call.key, call.value, call.mask, call.causal)}"


def _keys(call: Call) -> str:
    return "masked" if call.mask is not None else "causal" if call.causal else "all keys"


def masked_nonfinite(device: str) -> str:
    """What becomes of NaN and infinities at excluded keys and values: ``excluded`` or ``propagates``.

    On the CPU the result or a sum shows them, and the excluded terms are then left out one by one; that reads a
    value, so under ``torch.compile`` and ``torch.func`` it is not done. On other devices reading it would wait for the
    device in every call.
    """
    return "excluded" if torch.device(device).type == "cpu" else "propagates"


def _on_accelerator(call: Call) -> Tensor:
    if (call.mask is not None or call.causal) and not transformed():
        call = _structured(call)
    if call.lengths is not None:
        return cuda_routes.variable_length(call.query, call.key, call.value, call.lengths, call.scale)
    return cuda_routes.dense(*call[:6])


def _structured(call: Call) -> Call:
    """The call with fewer keys, or with a structure in place of its mask, where reading the mask pays."""
    b, h, n, d = call.query.shape
    m = call.key.shape[-2]
    if call.mask is not None and cuda_routes.worth_waiting(call.query, b * h * n * d * m):
        mask, causal, lengths = read(call.mask)
        if mask is None:
            call = call._replace(mask=None, causal=call.causal or causal)
        elif lengths:
            m = max(lengths)
            call = call.first_keys(m)
            if min(lengths) == m:
                call = call._replace(mask=None)
            elif len(lengths) == b and cuda_routes.worth_packing(call.query, call.causal, lengths):
                call = call._replace(lengths=lengths)
    return call.first_keys(n) if call.causal and m > n else call
