"""Check for rows that begin with 0, where PyTorch's fused kernel may hide NaN.

The maximum of a row's scores ignores NaN if keys are too few to fill a register. A maximum of -inf, in half dtypes also
of +inf, is taken for a row without keys, whose output is 0. Reading one number per row takes less time than any of
PyTorch's operations.
"""

from array import array
from collections.abc import Callable

import torch
from torch import Tensor

from attnspec.backends.pytorch.runtime.optional import HAS_LLVMLITE
from attnspec.backends.pytorch.runtime.transforms import addressable

if HAS_LLVMLITE:
    import llvmlite.ir as ir

    from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, OptionalBooleans, Result, Size
    from attnspec.backends.pytorch.kernels.llvm.codegen import LEADING, Kernel, buffer_slots, compiled
    from attnspec.backends.pytorch.kernels.llvm.values import INT, Value, Variable

    class Rows(Arguments):
        """``rows`` numbers, ``step`` bytes apart; ``any_zero`` becomes 1 if one of them is 0 or -0."""

        rows: Size
        step: Size
        x: OptionalBooleans
        any_zero: Result

    @compiled
    def _zero_kernel(size: int) -> Kernel[Rows]:
        k = Kernel("zero_rows", Rows, 32)
        g, b, kind = k.argument, k.builder, ir.IntType(8 * size)
        any_zero = Variable(k, k.integer(0))
        with k.loop(0, g.rows) as row:
            word = b.load((g.x + row * g.step).at(0), typ=kind, align=size)
            # the shift drops the sign, so that -0 is 0 too
            is_zero = b.icmp_unsigned("==", b.shl(word, kind(1)), kind(0))
            any_zero.set(any_zero.get() | Value(k, b.zext(is_zero, INT)))
        k.store_int(any_zero.get(), g.any_zero, 0)
        return k


def has_zero_row(x: Tensor) -> bool:
    """Return whether any row of a non-empty x (…, rows, columns) begins with 0."""
    if HAS_LLVMLITE and addressable(x) and x.stride(-1) == 1 and (x.is_contiguous() or _swapped(x)):
        return zero_check(x.shape, x.element_size())(x)
    return bool((x.detach()[..., 0] == 0).any())


def zero_check(shape: torch.Size, size: int) -> Callable[[Tensor], bool]:
    """Return `has_zero_row` for results of this shape and element size, stored without gaps."""
    if not HAS_LLVMLITE:
        return has_zero_row
    template = array("q", bytes(8 * (_FLAG + 1)))
    template[_ROWS], template[_STEP] = shape[:-1].numel(), shape[-1] * size
    kernel = _zero_kernel(size)

    def check(x: Tensor) -> bool:
        buffer = template[:]
        address = buffer.buffer_info()[0]
        buffer[_X], buffer[_ANY_ZERO] = x.data_ptr(), address + 8 * _FLAG
        kernel.call(address)
        return buffer[_FLAG] != 0

    return check


def _swapped(x: Tensor) -> bool:
    """Return whether x (b, h, n, d) is stored as (b, n, h, d). Fused kernels store so."""
    return x.dim() == 4 and x.transpose(1, 2).is_contiguous()


if HAS_LLVMLITE:
    _ROWS, _STEP, _X, _ANY_ZERO = buffer_slots(Rows.rows, Rows.step, Rows.x, Rows.any_zero)
    _FLAG = LEADING + Rows.slots
