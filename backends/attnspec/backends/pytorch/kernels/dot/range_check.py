"""Check that PyTorch's kernel is right under masks: numbers within range, no empty rows.

That kernel multiplies excluded values by 0, and gives gradients to rows without keys. Products of numbers within
`MAGNITUDE_LIMIT` are finite, and so are sums of many. One kernel checks all operands faster than any PyTorch operation.
"""

from array import array
from collections.abc import Callable, Sequence

from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, OptionalBooleans, Result, Size
from attnspec.backends.pytorch.kernels.llvm.codegen import LEADING, Kernel, buffer_slots, compiled
from attnspec.backends.pytorch.kernels.llvm.machine_code import register_bytes
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, Value, Variable
from attnspec.backends.pytorch.runtime.accumulation import upcast

from .decode_arguments import STORED

SUMS_AT_ONCE = 4
"""Independent sums, so that additions do not wait for one another."""

MAGNITUDE_LIMIT = {32: 2.0**56, 64: 2.0**500}
"""The magnitude limit, by bits of the computation."""


class Arrays(Arguments):
    """Three arrays, and a mask of ``rows`` rows of ``m``; ``failed`` becomes 1 if a check fails."""

    first_count: Size
    second_count: Size
    third_count: Size
    rows: Size
    m: Size
    first: OptionalBooleans
    second: OptionalBooleans
    third: OptionalBooleans
    mask: OptionalBooleans
    failed: Result


@compiled
def range_check_kernel(bits: int, stored: str) -> Kernel[Arrays]:
    """Kernel for arrays of ``stored`` numbers, each at least a register long."""
    k = Kernel("range_check", Arrays, bits)
    g, size = k.argument, k.size if stored == "real" else 2
    failed = Variable(k, k.integer(0))
    totals = [Variable(k, k.full(0.0)) for _ in range(SUMS_AT_ONCE)]
    # Times this, numbers beyond `MAGNITUDE_LIMIT` become infinite. (In float64 beyond twice the limit: Python cannot
    # compute 2.0**1024.)
    most = k.full((2.0**128 if bits == 32 else 2.0**1023) / MAGNITUDE_LIMIT[bits])

    def add(x: BytePointer, at: Value, total: Variable) -> None:
        """Add 0·(most·x), which is NaN if x is not finite or beyond `MAGNITUDE_LIMIT`."""
        total.set(k.fma(k.load_stored(x, at * size, stored) * most, k.full(0.0), total.get()))

    def add_all(x: BytePointer, count: Value) -> None:
        step = SUMS_AT_ONCE * k.lanes
        whole = count // step * step
        with k.loop(0, whole, step) as i:
            for number, total in enumerate(totals):
                add(x, i + number * k.lanes, total)
        # the last register overlaps the one before
        with k.loop(whole, count, k.lanes) as i:
            add(x, k.minimum(i, count - k.lanes), totals[0])

    for x, count in ((g.first, g.first_count), (g.second, g.second_count), (g.third, g.third_count)):
        add_all(x, count)
    for total in totals:
        has_nan = k.any(total.get().compare("!=", total.get()))
        failed.set(k.select(has_nan, k.integer(1), failed.get()))
    with k.loop(0, g.rows) as row:
        mask_bytes, mask_row = Variable(k, k.integer(0)), g.mask + row * g.m
        whole = g.m // 8 * 8
        with k.loop(0, whole, 8) as j:
            mask_bytes.set(mask_bytes.get() | k.load_eight_bytes(mask_row, j))
        with k.loop(whole, g.m) as j:
            mask_bytes.set(mask_bytes.get() | k.load_byte(mask_row, j))
        failed.set(k.select(mask_bytes.get().compare("==", 0), k.integer(1), failed.get()))
    k.store_int(failed.get(), g.failed, 0)
    return k


def range_check(tensors: Sequence[Tensor], mask: Tensor | None = None) -> Callable[..., bool] | None:
    """Return the check of up to three tensors of these sizes, and of a mask.

    None if they are not contiguous, or smaller than a register.
    """
    first = upcast(tensors[0][:0])
    lanes = register_bytes() // first.element_size()
    read_tensors = [*tensors] if mask is None else [*tensors, mask]
    if not all(x.is_contiguous() for x in read_tensors) or any(x.numel() < lanes for x in tensors):
        return None
    template = array("q", bytes(8 * (_FLAG + 1)))
    for slot, x in zip(_COUNTS, tensors, strict=False):
        template[slot] = x.numel()
    if mask is not None:
        template[_ROWS], template[_M] = mask.shape[:-1].numel(), mask.shape[-1]
    run = range_check_kernel(first.element_size() * 8, STORED[tensors[0].dtype]).call
    flag, failed, mask_slot = _FLAG, _FAILED, _MASK
    first_slot, second_slot, third_slot = _TENSORS

    # written out: loops and helpers would take longer than the kernel
    def in_range(first: Tensor, second: Tensor | None = None, third: Tensor | None = None,
                mask: Tensor | None = None) -> bool:  # fmt: skip
        buffer = template[:]
        address = buffer.buffer_info()[0]
        buffer[failed] = address + 8 * flag
        buffer[first_slot] = first.data_ptr()
        if second is not None:
            buffer[second_slot] = second.data_ptr()
        if third is not None:
            buffer[third_slot] = third.data_ptr()
        if mask is not None:
            buffer[mask_slot] = mask.data_ptr()
        run(address)
        return not buffer[flag]

    return in_range


_COUNTS = buffer_slots(Arrays.first_count, Arrays.second_count, Arrays.third_count)
_TENSORS = buffer_slots(Arrays.first, Arrays.second, Arrays.third)
_ROWS, _M, _MASK, _FAILED = buffer_slots(Arrays.rows, Arrays.m, Arrays.mask, Arrays.failed)
_FLAG = LEADING + Arrays.slots
