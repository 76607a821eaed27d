"""Planned calls of scaled dot-product attention by the fused kernel of PyTorch."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnspec.backends.pytorch.kernels.additive import HAS_LLVMLITE
from attnspec.backends.pytorch.kernels.dot import cpu_routes
from attnspec.backends.pytorch.kernels.dot.call import Call, overlaps
from attnspec.backends.pytorch.kernels.dot.zero_rows import finder, has_zero_row
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES

WORTH_WIDENING = 2**13
"""Numbers of keys from which widening half dtypes saves more than it takes."""

FEW_HALF = 20
"""Queries up to which half dtypes are widened for PyTorch's kernel."""

PIECE = 2**17
"""Numbers of keys that are widened at a time: half a megabyte of float32."""

Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
Plan: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor | None]
"""Computes a call from query, key, value and mask; None where it needs more than a plan."""


def by_pytorch(call: Call, rank: int, scale: float | None) -> Attend:
    """What computes calls of as many dimensions of the batch as ``rank``, 2 at most, and the sizes of ``call``."""
    sdpa = scaled_dot_product_attention if scale is None else partial(scaled_dot_product_attention, scale=scale)

    def of_two(query: Tensor, key: Tensor, value: Tensor, _: Tensor | None = None) -> Tensor:
        return sdpa(query, key, value)

    def of_one(query: Tensor, key: Tensor, value: Tensor, _: Tensor | None = None) -> Tensor:
        return sdpa(query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)).squeeze(1)

    def of_none(query: Tensor, key: Tensor, value: Tensor, _: Tensor | None = None) -> Tensor:
        return sdpa(query[None, None], key[None, None], value[None, None])[0, 0]

    attend: Attend = (of_none, of_one, of_two)[rank]
    if overlaps(call.query):
        whole = attend

        def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
            return whole(query.contiguous(), key, value, mask)

    attend = _with_nan(attend, call, scale)
    return _widened(attend, call) if widens(call.query, call.key) else attend


def excluding(call: Call, given: Sequence[Tensor], mask: Tensor | None, rank: int, scale: float | None) -> Plan | None:
    """What computes calls by PyTorch's kernel under this mask, or causal.

    It gives None where something is not finite, and with gradients where a row is empty. None where masks or operands
    do not lie as they must.
    """
    if not HAS_LLVMLITE or (mask is not None and (call.causal or mask.dim() not in (2, rank + 2))):
        return None
    if overlaps(call.query):
        return None
    from attnspec.backends.pytorch.kernels.dot.regular import inspector

    causal, one, tracked = call.causal, rank == 1, call.differentiates()
    # values are looked at where they are fewer than results
    values = call.key.shape[-2] <= call.query.shape[-2]
    regular = of_result = hides = of_scores = None
    # What is excluded and not finite makes the result NaN, but infinite queries and keys gradients even where not.
    if tracked:
        regular = inspector(given if values else given[:2], mask)
        if regular is None:
            return None
    if not (tracked and values):
        result = call.query.new_empty((*given[0].shape[:-1], given[2].shape[-1]))
        of_result = inspector((result,))
        if of_result is None:
            return None
        if not tracked:
            of_scores, hides = inspector(given[:2]), finder(result.shape, result.element_size())
    sdpa = scaled_dot_product_attention if scale is None else partial(scaled_dot_product_attention, scale=scale)
    sdpa = cpu_routes.in_float32(sdpa) if call.query.dtype in cpu_routes.APPROXIMATED else sdpa
    of_batch = mask is not None and one and mask.dim() == 3

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor | None:
        if regular is not None and not regular(query, key, value if values else None, mask):
            return None
        if one:
            own = mask.unsqueeze(1) if of_batch and mask is not None else mask
            found = sdpa(query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1), own, 0.0, causal).squeeze(1)
        else:
            found = sdpa(query, key, value, mask, 0.0, causal)
        if of_result is not None and not of_result(found):
            return None
        if hides is not None and hides(found) and (of_scores is None or not of_scores(query, key)):
            return None
        return found

    return attend


def _with_nan(attend: Attend, call: Call, scale: float | None) -> Attend:
    size = 4 if widens(call.query, call.key) else call.query.element_size()
    shape = torch.Size((*call.query.shape[:-1], call.value.shape[-1]))
    hides, numbers = finder(shape, size), shape.numel()

    def attend_with_nan(query: Tensor, key: Tensor, value: Tensor, _: Tensor | None = None) -> Tensor:
        found = attend(query, key, value, None)
        # a part of the batch has fewer rows than the finder looks at
        if (hides if found.numel() == numbers else has_zero_row)(found):
            return cpu_routes.with_nan(found, query, key, value, None, False, scale)
        return found

    return attend_with_nan


def _widened(attend: Attend, call: Call) -> Attend:
    parts, attend_whole = _parts(call), cpu_routes.in_float32(attend)
    if len(parts) == 1:
        return attend_whole

    def attend_widened(query: Tensor, key: Tensor, value: Tensor, _: Tensor | None = None) -> Tensor:
        output = torch.empty_like(query)
        for part in parts:
            output[part] = attend_whole(query[part], key[part], value[part])
        return output

    return attend_widened


def _parts(call: Call) -> tuple[slice, ...]:
    """Where half dtypes are widened, parts of the batch that stay in the cache, one if autograd records the call."""
    b, h, _, d = call.query.shape
    entry = h * call.key.shape[-2] * d
    if call.differentiates() or b * entry <= PIECE or not call.query.is_contiguous():
        return (slice(None),)
    size = max(1, PIECE // entry)
    return tuple(slice(i, i + size) for i in range(0, b, size))


def widens(query: Tensor, key: Tensor) -> bool:
    """Whether operands of half dtypes are widened: PyTorch's kernel for few queries takes several times as long, but
    for bfloat16 where it multiplies tiles, and of some dtypes its errors show."""
    few = query.shape[-2] <= FEW_HALF and key.numel() >= WORTH_WIDENING
    few = few and not (query.dtype is torch.bfloat16 and _multiplies_tiles())
    return query.dtype in HALF_DTYPES and (few or query.dtype in cpu_routes.APPROXIMATED)


def _multiplies_tiles() -> bool:
    if not HAS_LLVMLITE:
        return False
    from attnspec.backends.pytorch.kernels.llvm.tile_registers import multiplies_tiles

    return multiplies_tiles()
