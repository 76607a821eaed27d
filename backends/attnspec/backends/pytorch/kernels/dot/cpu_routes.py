"""Scaled dot-product attention on the CPU: which kernel, and how to get there.

``llvm`` are the kernels of this package (``dot``), ``step`` those for one query in each head without gradients, ``few``
those for few queries and keys. ``pytorch`` is what PyTorch takes by itself: inside ``torch.compile``,
``torch.func`` and modes, without llvmlite, where it takes less time (`routes`), for empty operands, for scales that
are not positive, for tensors that are not addressable memory, and wherever fused kernels are switched off
(``torch.nn.attention.sdpa_kernel``). In forward mode the formula is computed, for no fused kernel has tangents.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnspec.backends.bases.autocast import is_on
from attnspec.backends.pytorch.kernels.additive import HAS_LLVMLITE, LLVM_DTYPES
from attnspec.backends.pytorch.kernels.dot.call import Call, four_dimensional, overlaps
from attnspec.backends.pytorch.kernels.dot.exact_exclusion import exact
from attnspec.backends.pytorch.kernels.dot.zero_rows import has_zero_row
from attnspec.backends.pytorch.runtime import autocast
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES, finite
from attnspec.backends.pytorch.runtime.forcing import forced
from attnspec.backends.pytorch.runtime.transforms import addressable, has_tangents, intercepted, lazy, transformed

SMALL_IN_LAYER = 1 << 18
"""Multiply-adds that PyTorch's kernel does before one of this package is called from within another operation."""
SCALES = 2.0**-126, 2.0**126
"""Smallest and largest scale that the kernels take: within the normal numbers of float32."""

APPROXIMATED = (torch.float16,) if torch.backends.cpu.get_cpu_capability() == "AVX2" else ()
"""Dtypes that are widened for PyTorch's fused kernel, whose errors would show: on AVX2 its exponentials of half dtypes
make scores count as 2·10⁻⁵ larger than they are, which float16 resolves in the mean of many rows."""


def kernel(call: Call, *, fits: bool = False) -> str:
    """``llvm``, ``step``, ``few`` or ``pytorch``; ``fits`` if operands were given in four dimensions."""
    if intercepted():  # before any size is read, which torch.export would make a constraint
        return "pytorch"
    query, key, value, mask, _, scale, _, in_layer = call
    b, h, n, d = query.shape
    small = b * h * n * key.shape[-2] * (d + value.shape[-1]) <= SMALL_IN_LAYER and query.dtype not in HALF_DTYPES
    if in_layer and small and (mask is None or call.differentiates()) and forced() is None:
        return "pytorch"
    served = (
        HAS_LLVMLITE
        and torch._C._get_flash_sdp_enabled()  # on the CPU too
        and query.dtype in LLVM_DTYPES
        and query.dtype == key.dtype == value.dtype
        and SCALES[0] <= scale <= SCALES[1]
        and query.numel() > 0
        and key.numel() > 0
        and value.numel() > 0
        and all(map(addressable, (query, key, value) if mask is None else (query, key, value, mask)))
    )
    if not served:
        return "pytorch"
    from attnspec.backends.pytorch.kernels.dot import routes

    return routes.by_cost(
        b, h, n, key.shape[-2], d, value.shape[-1], query.dtype, tracked=call.differentiates(),
        excludes=mask is not None or call.causal, masked=mask is not None, also=_some(call), fits=fits,
    )  # fmt: skip


def _some(call: Call) -> list[str]:
    """The paths that serve this call and not every other."""
    from attnspec.backends.pytorch.kernels.dot import few, step

    alone = call.query.shape[-2] == 1 and call.mask is None and not call.causal and not call.differentiates()
    found = ["step"] if alone and step.reads(call.key, call.value) else []
    if few.serves(*call[:4]):
        found.append("few")
    return found


def at_once(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether PyTorch's kernel takes operands of a layer as they are, and is the fastest."""
    if not query.is_cpu or query.dtype in HALF_DTYPES or transformed() or has_tangents():
        return False
    shape, others = query.shape, key.shape
    if len(shape) != 4 or others != value.shape or shape[:2] != others[:2] or shape[3] != others[3]:
        return False
    return forced() is None and 0 < shape.numel() * 2 * others[2] <= SMALL_IN_LAYER


def in_float32(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same of query, key and value in float32, with the result in their dtype."""

    def attend_widened(query: Tensor, key: Tensor, value: Tensor, *others: Any, **options: Any) -> Tensor:
        return attend(query.float(), key.float(), value.float(), *others, **options).to(query.dtype)

    return attend_widened


def by_pytorch(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> Tensor:
    """The output of PyTorch's kernel, with NaN where it hides that no score of a row is a number, where sizes may be
    read."""
    sdpa = F.scaled_dot_product_attention
    if query.is_cpu and query.dtype in APPROXIMATED:
        sdpa = in_float32(sdpa)
    if not intercepted() and overlaps(query):
        query = query.contiguous()
    output = sdpa(query, key, value, mask, 0.0, causal, scale=scale)
    if intercepted() or not addressable(output) or not output.numel():
        return output
    return with_nan(output, query, key, value, mask, causal, scale)


def with_nan(
    output: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> Tensor:
    """The output of PyTorch's kernel, computed anew where it may have hidden that scores are not finite."""
    if not has_zero_row(output) or _finite(query, key):
        return output
    call = four_dimensional(query, key, value, mask, causal, scale)[0]
    return exact(call.query, call.key, call.value, call.allowed(), call.scale).view(output.shape)


def attend(call: Call, *, fits: bool = False) -> Tensor:
    """The output; excluded keys have no effect on it, even where they hold NaN or infinity."""
    if not transformed() and lazy(*call[:3]):
        call = _resolved(call)
    if is_on(call.query):
        query, key, value = autocast.cast(*call[:3])
        call = call._replace(query=query, key=key, value=value)
    if has_tangents():
        return exact(call.query, call.key, call.value, call.allowed(), call.scale)
    excludes = call.mask is not None or call.causal
    chosen = kernel(call, fits=fits)
    if chosen == "few":
        from attnspec.backends.pytorch.kernels.dot import few

        found = few.attend(call)
        return exact(call.query, call.key, call.value, call.allowed(), call.scale) if found is None else found
    if chosen == "llvm":
        from attnspec.backends.pytorch.kernels.dot import cpu

        output, nan = cpu.attend(call)
        leaks = excludes and (nan or (call.differentiates() and not _finite(call.key, call.value)))
    elif chosen == "step":
        from attnspec.backends.pytorch.kernels.dot import step

        operands = call.query, call.key, call.value
        compute = step.planned_output(*operands, call.scale, (*call.query.shape[:-1], call.value.shape[-1]))
        output, leaks = compute(*operands, None), False
    else:
        output = _by_pytorch(call)
        leaks = excludes and not intercepted() and addressable(output) and not _finite(output, *_differentiated(call))
    return exact(call.query, call.key, call.value, call.allowed(), call.scale) if leaks else output


def _resolved(call: Call) -> Call:
    """The call with lazy negations and zero tensors materialised; PyTorch's fused kernel overlooks the latter."""
    query, key, value = (x.clone() if x._is_zerotensor() else x.resolve_neg() for x in call[:3])
    return call._replace(query=query, key=key, value=value)


def _by_pytorch(call: Call) -> Tensor:
    query, key, value, mask, causal, scale, *_ = call
    if mask is not None and causal:
        mask, causal = call.allowed(), False
    d, d_v = query.shape[-1], value.shape[-1]
    if d != d_v and query.numel() and value.numel():
        # PyTorch's fused kernel wants one width; zeros at the end change neither scores nor the columns returned
        query, key, value = (F.pad(x, (0, max(d, d_v) - x.shape[-1])) for x in (query, key, value))
    output = by_pytorch(query, key, value, mask, causal, scale)[..., :d_v]
    if mask is None or not call.differentiates():
        return output
    # stops a NaN in the incoming gradient of a row without an attendable key
    return output.masked_fill(~mask.any(-1, keepdim=True), 0)


def _differentiated(call: Call) -> tuple[Tensor, ...]:
    return call[:3] if call.differentiates() else ()


def _finite(*tensors: Tensor) -> bool:
    return all(map(finite, tensors))
