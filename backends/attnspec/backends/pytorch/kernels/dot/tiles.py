"""Products of matrices in tiles that stay in registers, and the transposition of matrices.

A tile is a few rows of scalars times a few vectors: every scalar is broadcast, every vector loaded once a step of the
inner dimension, which is TILE_ROWS*TILE_VECTORS multiply-adds. Measured on one Zen 4 core, float32, operands in the
first cache: 115 GFLOP/s for 8x2, 6x4, 12x2 and 4x4 alike, all that the processor has; the matrix library reaches 99.
Whole attention at n=256: 8x2 gives 96, and 16x1 some 8 % less, for 16 addresses of rows are more than registers.
"""

from collections.abc import Sequence
from typing import NamedTuple

from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel
from attnspec.backends.pytorch.kernels.llvm.machine_code import HAS_512_BITS, register_bytes
from attnspec.backends.pytorch.kernels.llvm.memory import Index
from attnspec.backends.pytorch.kernels.llvm.values import RealPointer, Value, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import transposed

TILE_ROWS = 8 if HAS_512_BITS else 4
TILE_VECTORS = 2

Sums = list[list[Variable]]


def width(bits: int) -> int:
    """Columns of a tile."""
    return TILE_VECTORS * register_bytes() * 8 // bits


def zeros(k: Kernel, rows: int, vectors: int) -> Sums:
    """The sums of a tile before any product."""
    return [[Variable(k, k.full(0.0)) for _ in range(vectors)] for _ in range(rows)]


def add_product(k: Kernel, sums: Sums, scalars: Sequence[tuple[RealPointer, int]], step: Index,
                vectors: RealPointer, vector_step: Index, depth: tuple[Index, Value]) -> None:  # fmt: skip
    """sums[r][c] += the sum over t in `depth` of scalars[r][t*step] * vectors[t*vector_step + c-th vector].

    A row of scalars is a pointer and a number of reals to skip.
    """
    with k.loop(depth[0], depth[1]) as t:
        loaded = [k.load(vectors, t * vector_step + c * k.lanes) for c in range(len(sums[0]))]
        for (base, offset), row in zip(scalars, sums, strict=True):
            scalar = k.broadcast(base, t * step + offset)
            for total, vector in zip(row, loaded, strict=True):
                total.set(k.fma(scalar, vector, total.get()))


def add_tile_product(k: Kernel, in_one_vector: Value, sums: Sums, scalars: Sequence[tuple[RealPointer, int]],
                     step: Index, vectors: RealPointer, vector_step: Index,
                     depth: tuple[Index, Value]) -> None:  # fmt: skip
    """The same, of the first vector only where all queries are `in_one_vector`."""
    with k.when(in_one_vector) as otherwise:
        add_product(k, [row[:1] for row in sums], scalars, step, vectors, vector_step, depth)
    with otherwise():
        add_product(k, sums, scalars, step, vectors, vector_step, depth)


class Square(NamedTuple):
    """A matrix of as many rows and columns as a register has lanes: address, stride, and how many of each exist."""

    base: RealPointer
    step: Value
    rows: Value
    columns: Value


def define_transpose(k: Kernel) -> None:
    """Define the subroutine behind `transpose`."""
    with k.subroutine("transpose", 8) as values:
        source, target = Square(RealPointer(values[0]), *values[1:4]), Square(RealPointer(values[4]), *values[5:])
        whole = k.integer(1)
        for count in (source.rows, source.columns, target.rows, target.columns):
            whole = k.select(count.compare("<", k.lanes), k.integer(0), whole)
        with k.when(whole.is_nonzero()) as otherwise:
            loaded = [k.load(source.base + source.step * i, 0) for i in range(k.lanes)]
            for i, row in enumerate(transposed(k, loaded)):
                k.store(row, target.base + target.step * i, 0)
        with otherwise():
            inside = k.lanes_below(source.columns)
            numbers = [k.minimum(k.integer(i), source.rows - 1) for i in range(k.lanes)]
            loaded = [k.load_lanes(inside, source.base + number * source.step, 0) for number in numbers]
            for i, row in enumerate(transposed(k, loaded)):
                written = k.lanes_below(k.select(target.rows.compare(">", i), target.columns, k.integer(0)))
                k.store_lanes(row, written, target.base + target.step * i, 0)


def transpose(k: Kernel, source: Square, target: Square) -> None:
    """Rows become columns. A column beyond the last reads as 0, a row beyond the last as the last."""
    k.call("transpose", *source, *target)
