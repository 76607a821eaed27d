"""Arguments of the kernel for one query per head, and names of storage formats."""

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm.arguments import (
    Arguments,
    Integers,
    Kind,
    OptionalIntegers,
    Real,
    Reals,
    Scratch,
    Size,
)
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer

from .tiled_arguments import Strided, strided_reader

STORED = {torch.float32: "real", torch.float64: "real", torch.bfloat16: "bfloat16", torch.float16: "float16"}
"""Storage format of each dtype, as in `Memory.load_stored`."""

PAIRS = "pairs"
"""Storage format of bfloat16 keys and values, multiplied in pairs by bfloat16 queries and weights. One
instruction adds two such products to a float32 sum. To lose no precision, a weight is split into two bfloat16 parts:
itself rounded, and the difference."""


class StridedBytes(Kind[Tensor, Strided[BytePointer]]):
    """Numbers (entries, heads, rows, columns) of any dtype, with contiguous rows; strides in bytes."""

    slots = 4
    read = staticmethod(strided_reader(BytePointer))

    @staticmethod
    def to_slots(x: Tensor) -> tuple[int, int, int, int]:
        """Address and strides."""
        first, second, third, size = *x.stride()[:3], x.element_size()
        return x.data_ptr(), first * size, second * size, third * size


class Decode(Arguments):
    """Arguments of `decode.decode_kernel`; there is a task for each head of keys of each batch element.

    query (b, heads, d) and output (b, heads, d_v) are contiguous reals, but with `PAIRS` the query is bfloat16.
    ``maximum`` (b, heads) is the largest score before the scale, ``reciprocal`` (b, heads) is 1/Σ exp(score − maximum).
    With `PAIRS` the maximum is NaN where the output has a NaN, and `decode.plan` then leaves the call to the formula:
    the two parts of a weight may give NaN where the whole weight gives infinity. Keys ``start`` (b) to before ``stop``
    (b) are attended to. ``key`` and ``value`` consist of pages of ``page`` keys. Row b of ``table`` (b, ``pages``)
    lists the pages of a sequence, by their number; without a table, batch element b is page b.
    """

    tasks: Size
    heads_k: Size
    group: Size
    d: Size
    d_v: Size
    page: Size
    pages: Size
    log2_scale: Real
    table: OptionalIntegers
    start: Integers
    stop: Integers
    query: Reals
    key: StridedBytes
    value: StridedBytes
    output: Reals
    maximum: Reals
    reciprocal: Reals
    scratch: Scratch
