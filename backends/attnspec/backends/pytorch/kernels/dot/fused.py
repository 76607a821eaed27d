"""CPU attention by PyTorch's own kernels: the path ``pytorch``.

These kernels multiply excluded values by 0, give gradients to rows without keys, and may hide NaN. Operands or results
are therefore checked: if a number is not finite, only the formula is right.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.call import NO_TENSORS, Call, Options, as_4d, overlaps
from attnspec.backends.pytorch.kernels.dot.differentiable import Attend, Gradients, by_formula, runner
from attnspec.backends.pytorch.kernels.dot.zero_rows import has_zero_row, zero_check
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

FEW_QUERIES = 20
"""Queries up to which half dtypes are widened for PyTorch's kernel."""

SAFE_SUM = 2.0**14
"""Features times max(1, scale) up to which dot products of operands within `range_check.MAGNITUDE_LIMIT` are finite."""


def widens(query: Tensor, key: Tensor) -> bool:
    """Return whether to widen half operands. For few queries PyTorch's half kernel takes several times as long, except
    for bfloat16 on AMX tiles; dtypes in `APPROXIMATED` always need it."""
    if query.dtype not in HALF_DTYPES:
        return False
    few_queries = query.shape[-2] <= FEW_QUERIES and key.numel() >= WORTH_WIDENING
    few_queries = few_queries and not (query.dtype is torch.bfloat16 and _multiplies_tiles())
    return few_queries or query.dtype in APPROXIMATED


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
    alike = call.is_4d and call.key.shape == call.value.shape and not overlaps(call.query)
    return alike and _range_check(call) is not None


def plan(call: Call, operands: Sequence[Tensor], rank: int) -> Attend:
    """Return the function for calls like this one; ``operands`` have ``rank`` batch dimensions."""
    if not call.options.logarithms:
        return _output_plan(call, rank)
    in_range, hides_nan = _range_check(call), None
    assert in_range is not None
    if _overflows(call):
        hides_nan = zero_check(call.query.shape, call.query.element_size())
    # The exponentials of half dtypes are off by up to 5·10⁻⁵ (AVX-512 too), which shows where log Σ exp is near 0.
    widened = call.query.dtype in HALF_DTYPES
    return runner(Plan(rank, call.options, widened, in_range, hides_nan), call.differentiates())


def _range_check(call: Call) -> Callable[..., bool] | None:
    """Return a check that operands are within `MAGNITUDE_LIMIT`; None if the kernel cannot read them."""
    if not HAS_LLVMLITE:
        return None
    from attnspec.backends.pytorch.kernels.dot.range_check import range_check

    return range_check(call[:3], call.tensors.mask)


def _overflows(call: Call) -> bool:
    """Return whether sums of products of numbers within `MAGNITUDE_LIMIT` may overflow."""
    return call.query.shape[-1] * max(1.0, call.options.scale) > SAFE_SUM


def output_of(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float, zero_empty_rows: bool
) -> Tensor:
    """Output (b, h, n, d_v); NaN and infinities may be hidden or spread.

    ``zero_empty_rows`` sets rows without an attendable key to 0, so that their queries get no gradients.
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
    return output if mask is None or not zero_empty_rows else output.masked_fill(~mask.any(-1, keepdim=True), 0)


def _output_plan(call: Call, rank: int) -> Attend:
    query, key, value, (scale, _, right, *_), *_ = call
    excludes, tracked, causal, copies = call.excludes(), call.differentiates(), right is not None, overlaps(query)
    readable = all(map(addressable, call[:3])) and query.numel() and key.numel() and value.numel()
    check = _range_check(call) if readable and excludes and tracked and not _overflows(call) else None
    hides_nan = zero_check(query.shape, query.element_size()) if query.shape[-1] == value.shape[-1] else has_zero_row

    def attend(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *_: Tensor | None
    ) -> tuple[Tensor, None] | None:
        query, key, value = as_4d(query, rank), as_4d(key, rank), as_4d(value, rank)
        if copies:
            query = query.contiguous()
        in_range = check is not None and check(query, key, value, mask)
        output = output_of(query, key, value, mask, causal, scale, tracked and not in_range)
        if readable and not in_range:
            if excludes and not all(map(finite, (output, query, key, value) if tracked else (output,))):
                return None
            if hides_nan(output) and not (finite(query) and finite(key)):
                return None
        return output if rank == 2 else output.squeeze(1) if rank == 1 else output[0, 0], None

    return attend


@plan_class
class Plan:
    """Plan of calls with the same shapes, strides and options.

    ``widens``: compute in float32. ``in_range`` checks that operands are within `MAGNITUDE_LIMIT`, ``hides_nan``
    whether a result may hide a NaN.
    """

    rank: int
    options: Options
    widens: bool
    in_range: Callable[..., bool]
    hides_nan: Callable[[Tensor], bool] | None

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *_: Tensor | None
    ) -> tuple[Tensor, Tensor | None, bool, tuple[Tensor, ...]]:
        """Output and log Σ exp, whether only the formula is right, and both before rounding."""
        if not self.in_range(query, key, value):
            return torch.empty(0), None, True, ()
        dtype = query.dtype
        if self.widens:
            query, key, value = query.float(), key.float(), value.float()
        assert flash_on_cpu is not None
        causal, scale = self.options.right is not None, self.options.scale
        # 0.0: no dropout
        unrounded = output, logarithms = flash_on_cpu(query, key, value, 0.0, causal, scale=scale)
        needs_formula = self.hides_nan is not None and self.hides_nan(output)
        output = output if output.dtype is dtype else output.to(dtype)
        return output, logarithms if logarithms.dtype is dtype else logarithms.to(dtype), needs_formula, unrounded

    def reads(self, operands: Sequence[Tensor], saved: Sequence[Tensor]) -> bool:
        """Return True: PyTorch's operator reads all strides."""
        return True

    def backward(
        self, operands: Sequence[Tensor], tensors: Sequence[Tensor | None], saved: Sequence[Tensor],
        gradient: Tensor | None, logarithms_gradient: Tensor | None, wanted: Sequence[bool],
    ) -> Gradients:  # fmt: skip
        """Gradients by PyTorch's operator; if log Σ exp has a gradient, by the formula."""
        if gradient is None or logarithms_gradient is not None:
            return by_formula(self, operands, NO_TENSORS, (gradient, logarithms_gradient), wanted)
        dtype, sums = operands[0].dtype, saved[0].dtype
        inputs = (gradient, *operands) if sums is dtype else [x.to(sums) for x in (gradient, *operands)]
        assert flash_on_cpu_backward is not None
        wide = flash_on_cpu_backward(*inputs, *saved, 0.0, self.options.right is not None, scale=self.options.scale)
        return wide if sums is dtype else tuple(x.to(dtype) for x in wide)
