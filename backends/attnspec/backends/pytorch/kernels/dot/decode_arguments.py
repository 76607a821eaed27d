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
from attnspec.backends.pytorch.kernels.llvm.memory import Memory
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, IntPointer

from .tiled_arguments import Strided

STORED = {torch.float32: "real", torch.float64: "real", torch.bfloat16: "bfloat16", torch.float16: "float16"}
"""Storage format of each dtype, as in `Memory.load_stored`."""

PAIRS = "pairs"
"""Storage format of bfloat16 keys and values that are multiplied in pairs, by bfloat16 queries and weights."""


class StridedBytes(Kind[Tensor, Strided[BytePointer]]):
    """Numbers (entries, heads, rows, columns) of any dtype, with contiguous rows; strides in bytes."""

    slots = 4

    @staticmethod
    def to_slots(x: Tensor) -> tuple[int, int, int, int]:
        """Address and strides."""
        first, second, third, size = *x.stride()[:3], x.element_size()
        return x.data_ptr(), first * size, second * size, third * size

    @staticmethod
    def read(k: Memory, buffer: IntPointer, first: int) -> Strided[BytePointer]:
        """Address and strides."""
        base, *strides = (k.load_int(buffer, first + i) for i in range(4))
        return Strided(BytePointer(base), *strides)


class Decode(Arguments):
    """Arguments of `decode.decode_kernel`; ``tasks`` are heads of keys of all batch elements.

    query (b, heads, d), as stored if `PAIRS`, and output (b, heads, d_v) are contiguous; ``maximum`` and ``reciprocal``
    (b, heads) are as in `Operands`. With `PAIRS` the maximum is NaN where the output has a NaN: parts of weights may
    give NaN where whole weights give infinity. Keys ``start`` (b) to ``stop`` (b) are attended to. ``key`` and
    ``value`` are pages of ``page`` keys, whose numbers ``table`` (b, ``pages``) holds; without a table a batch element
    is one page.
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
