"""Check that PyTorch's kernel is right under masks: numbers within range, no empty rows.

That kernel multiplies excluded values by 0, and passes gradients of rows without keys. Products of numbers within
`MODERATE` are finite, and so are sums of many. One kernel checks all operands faster than any PyTorch operation.
"""

from array import array
from collections.abc import Callable, Sequence

from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, OptionalBooleans, Result, Size
from attnspec.backends.pytorch.kernels.llvm.codegen import LEADING, Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.machine_code import register_bytes
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, Value, Variable
from attnspec.backends.pytorch.runtime.accumulation import widened

from .step_arguments import STORED

AT_ONCE = 4
"""Independent sums, so that additions do not wait for one another."""

MODERATE = {32: 2.0**56, 64: 2.0**500}
"""The magnitude limit, by bits of the computation."""


class Regular(Arguments):
    """Three arrays, and a mask of ``rows`` rows of ``m``; ``strange`` becomes 1 if a check fails."""

    first_count: Size
    second_count: Size
    third_count: Size
    rows: Size
    m: Size
    first: OptionalBooleans
    second: OptionalBooleans
    third: OptionalBooleans
    mask: OptionalBooleans
    strange: Result


@compiled
def regular_kernel(bits: int, stored: str) -> Kernel[Regular]:
    """Kernel for arrays of ``stored`` numbers, each at least a register long."""
    k = Kernel("regular", Regular, bits)
    g, size = k.argument, k.size if stored == "real" else 2
    strange = Variable(k, k.integer(0))
    totals = [Variable(k, k.full(0.0)) for _ in range(AT_ONCE)]
    # times this, numbers beyond `MODERATE` become infinite
    most = k.full((2.0**128 if bits == 32 else 2.0**1023) / MODERATE[bits])

    def add(x: BytePointer, at: Value, total: Variable) -> None:
        """Add 0·(most·x), which is NaN if x is not finite or beyond `MODERATE`."""
        total.set(k.fma(k.load_stored(x, at * size, stored) * most, k.full(0.0), total.get()))

    def look_at(x: BytePointer, count: Value) -> None:
        step = AT_ONCE * k.lanes
        whole = count // step * step
        with k.loop(0, whole, step) as i:
            for number, total in enumerate(totals):
                add(x, i + number * k.lanes, total)
        # the last register overlaps the one before
        with k.loop(whole, count, k.lanes) as i:
            add(x, k.minimum(i, count - k.lanes), totals[0])

    for x, count in ((g.first, g.first_count), (g.second, g.second_count), (g.third, g.third_count)):
        look_at(x, count)
    for total in totals:
        found = k.any(total.get().compare("!=", total.get()))
        strange.set(k.select(found, k.integer(1), strange.get()))
    with k.loop(0, g.rows) as row:
        seen, own = Variable(k, k.integer(0)), g.mask + row * g.m
        whole = g.m // 8 * 8
        with k.loop(0, whole, 8) as j:
            seen.set(seen.get() | k.load_eight_bytes(own, j))
        with k.loop(whole, g.m) as j:
            seen.set(seen.get() | k.load_byte(own, j))
        strange.set(k.select(seen.get().compare("==", 0), k.integer(1), strange.get()))
    k.store_int(strange.get(), g.strange, 0)
    return k


def inspector(tensors: Sequence[Tensor], mask: Tensor | None = None) -> Callable[..., bool] | None:
    """Return the check of up to three tensors of these sizes, and of a mask.

    None if they are not contiguous, or smaller than a register.
    """
    first = widened(tensors[0][:0])
    lanes = register_bytes() // first.element_size()
    given = [*tensors] if mask is None else [*tensors, mask]
    if not all(x.is_contiguous() for x in given) or any(x.numel() < lanes for x in tensors):
        return None
    template = array("q", bytes(8 * (_ANSWER + 1)))
    for place, x in zip(_COUNTS, tensors, strict=False):
        template[place] = x.numel()
    if mask is not None:
        template[_ROWS], template[_M] = mask.shape[:-1].numel(), mask.shape[-1]
    run = regular_kernel(first.element_size() * 8, STORED[tensors[0].dtype]).call
    answer, strange, mask_word = _ANSWER, _STRANGE, _MASK
    one, two, three = _TENSORS

    # written out: loops and helpers would take longer than the kernel
    def regular(first: Tensor, second: Tensor | None = None, third: Tensor | None = None,
                mask: Tensor | None = None) -> bool:  # fmt: skip
        words = template[:]
        address = words.buffer_info()[0]
        words[strange] = address + 8 * answer
        words[one] = first.data_ptr()
        if second is not None:
            words[two] = second.data_ptr()
        if third is not None:
            words[three] = third.data_ptr()
        if mask is not None:
            words[mask_word] = mask.data_ptr()
        run(address)
        return not words[answer]

    return regular


_COUNTS = tuple(LEADING + word for word in (Regular.first_count, Regular.second_count, Regular.third_count))
_TENSORS = tuple(LEADING + word for word in (Regular.first, Regular.second, Regular.third))
_ROWS, _M, _MASK, _STRANGE = (LEADING + word for word in (Regular.rows, Regular.m, Regular.mask, Regular.strange))
_ANSWER = LEADING + Regular.words
