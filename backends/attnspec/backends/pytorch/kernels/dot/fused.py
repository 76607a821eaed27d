"""CPU attention by PyTorch's own kernels: the path ``pytorch``.

These kernels multiply excluded values by 0, pass gradients of rows without keys, and may hide NaN. Operands or results
are therefore checked: if a number is not finite, only the formula is right.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.call import NOTHING, Call, Options, as_four, overlaps
from attnspec.backends.pytorch.kernels.dot.differentiable import Attend, Gradients, attending, by_formula
from attnspec.backends.pytorch.kernels.dot.zero_rows import finder, has_zero_row
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES, finite
from attnspec.backends.pytorch.runtime.masks import causal_triangle
from attnspec.backends.pytorch.runtime.optional import HAS_LLVMLITE
from attnspec.backends.pytorch.runtime.plans import plan_class
from attnspec.backends.pytorch.runtime.private import flash_on_cpu, flash_on_cpu_backward
from attnspec.backends.pytorch.runtime.transforms import addressable

APPROXIMATED = (torch.float16,) if torch.backends.cpu.get_cpu_capability() == "AVX2" else ()
"""Dtypes widened to avoid an error of PyTorch's fused kernel. With AVX2 its exponentials of half dtypes act as if
scores were 2·10⁻⁵ larger, which shows in the mean of many float16 rows."""

WORTH_WIDENING = 2**13
"""Elements of keys from which widening half dtypes saves more time than it takes."""

FEW_HALF = 20
"""Queries up to which half dtypes are widened for PyTorch's kernel."""

SUMMED = 2.0**14
"""Features times max(1, scale) up to which dot products of operands within `regular.MODERATE` are finite."""


def widens(query: Tensor, key: Tensor) -> bool:
    """Return whether to widen half operands. For few queries PyTorch's half kernel takes several times as long, except
    for bfloat16 on AMX tiles; dtypes in `APPROXIMATED` always need it."""
    if query.dtype not in HALF_DTYPES:
        return False
    few = query.shape[-2] <= FEW_HALF and key.numel() >= WORTH_WIDENING
    few = few and not (query.dtype is torch.bfloat16 and _multiplies_tiles())
    return few or query.dtype in APPROXIMATED


def _multiplies_tiles() -> bool:
    if not HAS_LLVMLITE:
        return False
    from attnspec.backends.pytorch.kernels.llvm.tile_registers import multiplies_tiles

    return multiplies_tiles()


def serves(call: Call) -> bool:
    """Return whether PyTorch's kernel supports the call; with log Σ exp, only causality and scale."""
    if not call.options.logarithms:
        return True
    if flash_on_cpu is None or flash_on_cpu_backward is None or not call.is_simple() or call.tensors.mask is not None:
        return False
    alike = call.fits and call.key.shape == call.value.shape and not overlaps(call.query)
    return alike and _inspector(call) is not None


def plan(call: Call, given: Sequence[Tensor], rank: int) -> Attend:
    """Return the function for calls like this one; operands ``given`` have ``rank`` batch dimensions."""
    if not call.options.logarithms:
        return _output_plan(call, rank)
    regular, hides = _inspector(call), None
    assert regular is not None
    if _overflows(call):
        hides = finder(call.query.shape, call.query.element_size())
    return attending(Plan(rank, call.options, widens(call.query, call.key), regular, hides), call.differentiates())


def _inspector(call: Call) -> Callable[..., bool] | None:
    """Return a check that operands are within `regular.MODERATE`; None if they cannot be read."""
    if not HAS_LLVMLITE:
        return None
    from attnspec.backends.pytorch.kernels.dot.regular import inspector

    return inspector(call[:3], call.tensors.mask)


def _overflows(call: Call) -> bool:
    """Return whether sums of products of numbers within `regular.MODERATE` may overflow."""
    return call.query.shape[-1] * max(1.0, call.options.scale) > SUMMED


# The output alone


def output_of(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float, opens: bool
) -> Tensor:
    """Output (b, h, n, d_v); NaN and infinities may be hidden or spread.

    ``opens`` sets rows without an attendable key to 0, so that their queries get no gradients.
    """
    dtype, d, d_v = query.dtype, query.shape[-1], value.shape[-1]
    if mask is not None and causal:
        mask, causal = mask & causal_triangle(query.shape[-2], key.shape[-2], query.device), False
    if d != d_v:
        # PyTorch's fused kernel requires one width; zeros at the end change neither scores nor the columns returned
        query, key, value = (F.pad(x, (0, max(d, d_v) - x.shape[-1])) for x in (query, key, value))
    if query.is_cpu and widens(query, key):
        query, key, value = query.float(), key.float(), value.float()
    output = F.scaled_dot_product_attention(query, key, value, mask, 0.0, causal, scale=scale)
    if d != d_v:
        output = output[..., :d_v]
    if output.dtype is not dtype:
        output = output.to(dtype)
    return output if mask is None or not opens else output.masked_fill(~mask.any(-1, keepdim=True), 0)


def _output_plan(call: Call, rank: int) -> Attend:
    query, key, value, (scale, _, right, *_), *_ = call
    excludes, tracked, causal, apart = call.excludes(), call.differentiates(), right is not None, overlaps(query)
    readable = all(map(addressable, call[:3])) and query.numel() and key.numel() and value.numel()
    look = _inspector(call) if readable and excludes and tracked and not _overflows(call) else None
    hides = finder(query.shape, query.element_size()) if query.shape[-1] == value.shape[-1] else has_zero_row

    def attend(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *_: Tensor | None
    ) -> tuple[Tensor, None] | None:
        query, key, value = as_four(query, rank), as_four(key, rank), as_four(value, rank)
        if apart:
            query = query.contiguous()
        regular = look is not None and look(query, key, value, mask)
        output = output_of(query, key, value, mask, causal, scale, tracked and not regular)
        if readable and not regular:
            if excludes and not all(map(finite, (output, query, key, value) if tracked else (output,))):
                return None
            if hides(output) and not (finite(query) and finite(key)):
                return None
        return output if rank == 2 else output.squeeze(1) if rank == 1 else output[0, 0], None

    return attend


# Output and log Σ exp


@plan_class
class Plan:
    """Plan of calls with the same shapes, strides and options.

    ``widens``: compute in float32. ``regular`` checks that operands are within range, ``hides`` whether a result may
    hide a NaN.
    """

    rank: int
    options: Options
    widens: bool
    regular: Callable[..., bool]
    hides: Callable[[Tensor], bool] | None

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *_: Tensor | None
    ) -> tuple[Tensor, Tensor | None, bool, tuple[Tensor, ...]]:
        """Output and log Σ exp, whether only the formula is right, and both before rounding."""
        if not self.regular(query, key, value):
            return torch.empty(0), None, True, ()
        dtype = query.dtype
        if self.widens:
            query, key, value = query.float(), key.float(), value.float()
        assert flash_on_cpu is not None
        causal, scale = self.options.right is not None, self.options.scale
        kept = output, logarithms = flash_on_cpu(query, key, value, 0.0, causal, scale=scale)
        strange = self.hides is not None and self.hides(output)
        output = output if output.dtype is dtype else output.to(dtype)
        return output, logarithms if logarithms.dtype is dtype else logarithms.to(dtype), strange, kept

    def reads(self, operands: Sequence[Tensor], kept: Sequence[Tensor]) -> bool:
        """Return True: PyTorch's operator reads all strides."""
        return True

    def backward(
        self, operands: Sequence[Tensor], tensors: Sequence[Tensor | None], kept: Sequence[Tensor],
        gradient: Tensor | None, of_logarithms: Tensor | None, wanted: Sequence[bool],
    ) -> Gradients:  # fmt: skip
        """Gradients by PyTorch's operator; if log Σ exp has a gradient, by the formula."""
        if gradient is None or of_logarithms is not None:
            return by_formula(self, operands, NOTHING, (gradient, of_logarithms), wanted)
        dtype, sums = operands[0].dtype, kept[0].dtype
        given = (gradient, *operands) if sums is dtype else [x.to(sums) for x in (gradient, *operands)]
        assert flash_on_cpu_backward is not None
        found = flash_on_cpu_backward(*given, *kept, 0.0, self.options.right is not None, scale=self.options.scale)
        return found if sums is dtype else tuple(x.to(dtype) for x in found)
