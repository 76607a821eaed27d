"""Grouped-query attention on CUDA by PyTorch's kernels, with log Σ exp.

``enable_gqa`` is the flash kernel of ``F.scaled_dot_product_attention(enable_gqa=True)``, called as an operator because
that function does not return log Σ exp. ``flex`` is flex_attention (`dot.flex`), which has all options and gradients of
both results. ``plain`` is the formula. Nothing here was measured on a GPU, so cost does not choose.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.cuda_fused import MOST_BLOCKS
from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.kernels.visible import Visible
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES, finite
from attnspec.backends.pytorch.runtime.devices import AMPERE, capability
from attnspec.backends.pytorch.runtime.forcing import forced
from attnspec.backends.pytorch.runtime.optional import HAS_TRITON
from attnspec.backends.pytorch.runtime.private import flash_on_cuda
from attnspec.backends.pytorch.runtime.recording import needs_gradients
from attnspec.backends.pytorch.runtime.transforms import any_lazy, fused_allowed

from .batches import batch_of, merge_batch, merge_bias, merge_ints, merge_mask, padded_features

WIDEST = {torch.float32: 128, torch.bfloat16: 256, torch.float16: 256}
"""Largest head size with tiles within a GPU's shared memory; other dtypes have no kernel."""

KINDS: tuple[type[Tensor], ...] = (Tensor, torch.nn.Parameter)
"""Classes of tensors that kernels take; others may compute differently."""

SCALES = 2.0**-40, 2.0**40
"""Smallest and largest scale and cap that float32 handles; the formula computes others."""


class Call(NamedTuple):
    """Properties that determine a call's path.

    ``entries``: number of batch elements. ``tracked``: operands need gradients, ``learned``: bias or slopes do.
    """

    device: str
    dtype: torch.dtype
    heads: int
    n: int
    d: int
    heads_k: int
    m: int
    d_v: int
    entries: int = 1
    tracked: bool = False
    learned: bool = False


def path_of(call: Call, visible: Visible, scoring: Scoring, flash: bool = True, forced_path: str | None = None) -> str:
    """Return ``enable_gqa``, ``flex`` or ``plain``; ``flash``: PyTorch's flash kernels run on the device.

    On the CPU, ``flex`` needs ``forced_path="flex"`` and a call without gradients.
    """
    on_device = call.device == "cuda" or (call.device == "cpu" and forced_path == "flex" and not call.tracked)
    if not on_device or forced_path == "plain" or not _supported(call, scoring):
        return "plain"
    alone = all(x is None for x in (visible.mask, visible.left, visible.lengths))
    aligned = visible.right is None or (visible.right == 0 and visible.offsets is None and call.n <= call.m)
    flash = flash and forced_path != "flex" and takes_flash(call, scoring)
    return "enable_gqa" if flash and alone and aligned else "flex"


def takes_flash(call: Call, scoring: Scoring) -> bool:
    """Return whether flash kernels support a call: half dtypes, no gradients, only a positive scale.

    Their log Σ exp has no gradient, and they take the maximum before scaling: wrong for negative scales.
    """
    positive = scoring.scale is None or scoring.scale > 0
    alone = all(x is None for x in scoring[1:])
    return call.dtype in HALF_DTYPES and not call.tracked and alone and positive


def _supported(call: Call, scoring: Scoring) -> bool:
    scale = (call.d or 1) ** -0.5 if scoring.scale is None else scoring.scale
    cap = 1.0 if scoring.softcap is None else scoring.softcap
    return (
        max(call.d, call.d_v) <= WIDEST.get(call.dtype, 0)
        and min(call.entries, call.heads, call.n, call.d, call.heads_k, call.m, call.d_v) > 0
        and call.entries * call.heads <= MOST_BLOCKS
        and SCALES[0] <= abs(scale) <= SCALES[1]
        and SCALES[0] <= cap <= SCALES[1]
        and not call.learned
    )


def path_for(query: Tensor, key: Tensor, value: Tensor, visible: Visible, scoring: Scoring) -> str:
    """Path of `attend`, by `path_of` and the kernels that run on the device.

    On the CPU the formula computes excluded NaN and infinities; elsewhere finding them would wait for the device.
    """
    call = call_of(query, key, value, visible, scoring)
    if query.is_cuda and not (HAS_TRITON and capability(query.device) >= AMPERE):
        return "plain"
    if query.is_cpu and any(x is not None for x in visible) and not (finite(key) and finite(value)):
        return "plain"
    flash = query.is_cuda and fused_allowed()
    return path_of(call, visible, scoring, flash, forced())


def call_of(query: Tensor, key: Tensor, value: Tensor, visible: Visible, scoring: Scoring) -> Call:
    """`Call` of these tensors."""
    (heads, n, d), (heads_k, m, d_v) = query.shape[-3:], value.shape[-3:]
    others = [x for x in (*visible, scoring.bias, scoring.slopes) if isinstance(x, Tensor)]
    tensors = query, key, value, *others
    strided = all(x.layout is torch.strided and type(x) in KINDS for x in tensors)
    alike = strided and not any_lazy(*tensors) and query.dtype == key.dtype == value.dtype
    learned = any(x is not None and needs_gradients(x) for x in (scoring.bias, scoring.slopes))
    entries = batch_of(query, key, value, visible, scoring).numel()
    device, dtype = query.device.type if alike else "none", query.dtype
    tracked = needs_gradients(query, key, value)
    return Call(device, dtype, heads, n, d, heads_k, m, d_v, entries, tracked, learned)


def attend(path: str, query: Tensor, key: Tensor, value: Tensor, visible: Visible,
           scoring: Scoring) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output and log Σ exp, as `groups.attend` gives them, by ``enable_gqa`` or ``flex``."""
    batch = batch_of(query, key, value, visible, scoring)
    query, key, value = merge_batch(query, batch), merge_batch(key, batch), merge_batch(value, batch)
    if path == "enable_gqa":
        output, logarithms = by_flash(query, key, value, visible.right == 0, scoring.scale)
    else:
        output, logarithms = by_flex(query, key, value, visible, scoring, batch)
    return output.reshape(*batch, *output.shape[1:]), logarithms.reshape(*batch, *logarithms.shape[1:])


def by_flash(query: Tensor, key: Tensor, value: Tensor, causal: bool,
             scale: float | None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output and log Σ exp by flash. Head sizes are padded to one multiple of 8, causal keys cut after n."""
    d, d_v = query.shape[-1], value.shape[-1]
    if causal:
        key, value = key[:, :, : query.shape[-2]], value[:, :, : query.shape[-2]]
    width = -(-max(d, d_v) // 8) * 8
    query, key, value = (padded_features(x, width) for x in (query, key, value))
    output, logarithms = flash(query, key, value, causal, d**-0.5 if scale is None else float(scale))
    return output[..., :d_v], logarithms


def flash(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """PyTorch's flash kernel: output and natural logarithms in float32."""
    output, logarithms, *_ = flash_on_cuda(query, key, value, 0.0, causal, scale=scale)
    return output, logarithms


def by_flex(query: Tensor, key: Tensor, value: Tensor, visible: Visible, scoring: Scoring,
            batch: torch.Size) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output and log Σ exp by flex_attention; keys past a cache's length are zeroed, even NaN."""
    from attnspec.backends.pytorch.kernels.dot import flex

    (b, heads, n, _), m = query.shape, key.shape[-2]
    lengths, offsets = merge_ints(visible.lengths, batch), merge_ints(visible.offsets, batch)
    same_mask = lengths is None and offsets is None
    mask = bias = None
    if visible.mask is not None:
        mask = merge_mask(visible.mask, batch, m)
        same_mask, mask = same_mask and mask.shape[0] == 1, mask.expand(b, 1, n, m).squeeze(1)
    if scoring.bias is not None:
        bias = merge_bias(scoring.bias, batch, m).expand(b, heads, n, m)
    if lengths is not None:
        absent = (torch.arange(m, device=key.device) >= lengths[:, None])[:, None, :, None]
        key, value = key.masked_fill(absent, 0), value.masked_fill(absent, 0)
    condition = flex.conditions(visible._replace(mask=mask, lengths=lengths, offsets=offsets), query.device)
    ahead = flex.from_diagonal(offsets)
    return flex.attend(query, key, value, condition, scoring._replace(bias=bias), ahead, by_element=not same_mask)
