"""Products of matrices in tiles that stay in registers.

A tile is a few rows of scalars times a few vectors: every scalar is broadcast, every vector loaded once a step of the
inner dimension, which is TILE_ROWS*TILE_VECTORS multiply-adds. Measured on one Zen 4 core, float32, operands in the
first cache: 115 GFLOP/s for 8x2, 6x4, 12x2 and 4x4 alike, all that the processor has; the matrix library reaches 99.
Whole attention at n=256: 8x2 gives 96, and 16x1 some 8 % less, for 16 addresses of rows are more than registers.
"""

from collections.abc import Sequence

from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel
from attnspec.backends.pytorch.kernels.llvm.machine_code import HAS_512_BITS, register_bytes
from attnspec.backends.pytorch.kernels.llvm.memory import Index
from attnspec.backends.pytorch.kernels.llvm.values import RealPointer, Value, Variable

TILE_ROWS, TILE_VECTORS = (8, 2) if HAS_512_BITS else (4, 3)
"""Scalars and vectors of a tile: their products with a step's vectors and one scalar fill the registers there are."""

STEPS = 1 if HAS_512_BITS else 2
"""Steps of the inner dimension between two tests whether it ends: with fewer registers, loops take a larger part."""

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
    begin, end = k.constant(depth[0], depth[1]), depth[1]
    for steps in sorted({STEPS, 1}, reverse=True):
        stop = begin + (end - begin) // steps * steps
        with k.loop(begin, stop, steps) as first:
            for t in (first + i for i in range(steps)):
                loaded = [k.load(vectors, t * vector_step + c * k.lanes) for c in range(len(sums[0]))]
                for (base, offset), row in zip(scalars, sums, strict=True):
                    scalar = k.broadcast(base, t * step + offset)
                    for total, vector in zip(row, loaded, strict=True):
                        total.set(k.fma(scalar, vector, total.get()))
        begin = stop


def add_tile_product(k: Kernel, filled: Value, sums: Sums, scalars: Sequence[tuple[RealPointer, int]], step: Index,
                     vectors: RealPointer, vector_step: Index, depth: tuple[Index, Value],
                     count: int = 1) -> None:  # fmt: skip
    """The same, of ``count`` vectors where no more than those are `filled` by queries, and else of more."""
    if count == TILE_VECTORS:
        add_product(k, sums, scalars, step, vectors, vector_step, depth)
        return
    with k.when(filled.compare("<=", count)) as otherwise:
        add_product(k, [row[:count] for row in sums], scalars, step, vectors, vector_step, depth)
    with otherwise():
        add_tile_product(k, filled, sums, scalars, step, vectors, vector_step, depth, count + 1)
