"""Scaled dot-product attention by the best kernel of the installed PyTorch.

``scaled_dot_product_attention`` of PyTorch takes its fused kernels only for four dimensions, equal batches, equal head
sizes and a contiguous last axis, and computes every excluded pair of a boolean mask. Here inputs are brought into that
form (views where possible), masks are read for their structure, and small sizes go where they are fastest.
"""

from math import isfinite, isnan

import torch
from torch import Tensor

from attnspec.backends.pytorch import cpu_routes, cuda_routes
from attnspec.backends.pytorch.call import Call, four_dimensional
from attnspec.backends.pytorch.exact_exclusion import exact
from attnspec.backends.pytorch.mask_structure import read
from attnspec.backends.pytorch.transforms import transformed

READ_FROM = 1 << 23
"""Multiply-adds of one product from which a mask is read for its structure on the CPU: some 300 µs of work."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale·QKᵀ)V over the attendable keys; ``scale`` is 1/√d unless given.

    query (*batch, n, d), key (*batch, m, d), value (*batch, m, d_v), mask boolean (*batch, n, m) with True = attend;
    batches broadcast, and so do all dimensions of the mask. Raises ``ValueError`` for sizes that do not agree,
    ``TypeError`` for a mask that is not boolean, ``RuntimeError`` for batches that do not broadcast.
    """
    call, batch = four_dimensional(query, key, value, mask, causal, scale)
    everything = mask is None and not causal
    output = _dense(call) if everything or transformed() else _of_structure(_structured(call))
    rank = len(batch)
    return output if rank == 2 else output.squeeze(1) if rank == 1 else output.reshape(*batch, *output.shape[-2:])


def path_for(query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> str:
    """The route that ``attend`` takes for these arguments, as ``structure: kernel``."""
    call = _structured(four_dimensional(query, key, value, mask, causal, None)[0])
    if call.lengths is not None:
        if not query.is_cpu:
            return f"{len(call.lengths)} lengths: variable-length flash"
        groups = cpu_routes.groups(call)
        return f"{len(groups)} lengths: {', '.join(sorted({cpu_routes.kernel(group) for group in groups}))}"
    structure = "masked" if call.mask is not None else "causal" if call.causal else "all keys"
    if query.is_cpu:
        return f"{structure}: {cpu_routes.kernel(call)}"
    return f"{structure}: {cuda_routes.kernel(call.query, call.key, call.value, call.mask, call.causal)}"


def masked_nonfinite(device: str) -> str:
    """What becomes of NaN and infinities at excluded keys and values: ``excluded`` or ``propagates``.

    On the CPU a sum shows them, and the excluded terms are then left out one by one; that reads a
    value, so under ``torch.compile`` and ``torch.func`` it is not done. On other devices reading it would wait for the
    device in every call.
    """
    return "excluded" if torch.device(device).type == "cpu" else "propagates"


def _structured(call: Call) -> Call:
    """Fewer keys, or a structure instead of a mask, where that is certain and pays."""
    n, m = call.query.shape[-2], call.key.shape[-2]
    if call.mask is not None and _worth_reading(call, call.mask):
        mask, causal, lengths = read(call.mask)
        if mask is None:
            call = call._replace(mask=None, causal=call.causal or causal)
        elif lengths:
            if max(lengths) <= cpu_routes.SHARE * m:
                m = max(lengths)
                call = call.first_keys(m)
            if min(lengths) == m:
                call = call._replace(mask=None)
            elif len(lengths) == len(call.query) and _worth_grouping(call, lengths):
                call = call._replace(lengths=lengths)
    return call.first_keys(n) if call.causal and m > n else call


def _worth_reading(call: Call, mask: Tensor) -> bool:
    b, h, n, d = call.query.shape
    work = b * h * n * d * call.key.shape[-2]
    if not call.query.is_cpu:
        return cuda_routes.worth_waiting(call.query, work)
    if mask.shape[-2] == 1:
        return work >= READ_FROM and work >= 2 * b * cpu_routes.group_from()
    # up to 256 rows of 256 keys no kernel gains from what a mask says
    return work >= 2 * READ_FROM and 128 * n * call.key.shape[-2] >= READ_FROM


def _worth_grouping(call: Call, lengths: tuple[int, ...]) -> bool:
    if call.query.is_cpu:
        return cpu_routes.worth_grouping(call, lengths)
    return cuda_routes.worth_packing(call.query, call.causal, lengths)


def _of_structure(call: Call) -> Tensor:
    """The result, exact also where something that is not finite stands at an excluded key."""
    if call.lengths is not None:
        output, sums = _grouped(call), None
    elif call.query.is_cpu and cpu_routes.kernel(call) == "flash":
        output, sums = cpu_routes.flash(call)
    else:
        output, sums = _dense(call), None
    excludes = call.mask is not None or call.causal
    if output.is_cpu and excludes and _may_leak(output, sums, call):
        return exact(call.query, call.key, call.value, call.allowed(), call.scale)
    return output


def _dense(call: Call) -> Tensor:
    return cpu_routes.dense(call) if call.query.is_cpu else cuda_routes.dense(*call[:6])


def _grouped(call: Call) -> Tensor:
    if call.query.is_cpu:
        return cpu_routes.grouped(call)
    return cuda_routes.variable_length(call.query, call.key, call.value, call.lengths or (), call.scale)


def _may_leak(output: Tensor, sums: Tensor | None, call: Call) -> bool:
    """Whether anything is not finite in the result, or, for the backward, in keys and values.

    A sum is not finite then; that it also overflows for huge finite numbers only costs time.
    """
    wide = torch.float32 if output.dtype in cpu_routes.HALF else None
    read = output.detach()
    if sums is not None and output.shape[-2]:
        # The fused kernel multiplies every value with a weight of the last row, and an excluded key that is not finite
        # makes its score NaN, and with it a sum; under a causal mask it sets the scores, whatever they are.
        if call.mask is not None and isnan(sums.detach().sum()):
            return True
        read = read[:, :, -1]
    if not call.differentiates():
        return not isfinite(read.sum(dtype=wide))
    total = read.sum(dtype=wide) + call.key.detach().sum(dtype=wide)
    return not isfinite(total if call.mask is None else total + call.value.detach().sum(dtype=wide))
