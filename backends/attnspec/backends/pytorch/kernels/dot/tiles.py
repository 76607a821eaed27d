"""Matrix products in tiles that stay in registers.

A tile is a few rows of scalars times a few vectors: every scalar is broadcast and every vector loaded once per step of
the inner dimension, which is TILE_ROWS*TILE_VECTORS multiply-adds. Measured on one Zen 4 core, float32, operands in the
first cache: 115 GFLOP/s, the processor's peak, for 8x2, 6x4, 12x2 and 4x4 alike; the matrix library reaches 99. Whole
attention at n=256: 8x2 gives 96, and 16x1 some 8 % less, because 16 row addresses exceed the registers. With the 16
registers of AVX2, on one Zen 3 core of 80 GFLOP/s, n=512: 4x3 gives 48, 6x2 46, 3x3 and 2x4 45, 4x2 39.
"""

from collections.abc import Iterator, Sequence

from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel
from attnspec.backends.pytorch.kernels.llvm.machine_code import HAS_512_BITS, register_bytes
from attnspec.backends.pytorch.kernels.llvm.memory import Index
from attnspec.backends.pytorch.kernels.llvm.sums import Sums, add_product
from attnspec.backends.pytorch.kernels.llvm.values import RealPointer, Value

TILE_ROWS, TILE_VECTORS = (8, 2) if HAS_512_BITS else (4, 3)
"""Rows and vectors of a tile: its sums, a step's vectors and one scalar fit into the registers."""


def width(bits: int) -> int:
    """Columns of a tile: reals in its vectors."""
    return TILE_VECTORS * register_bytes() * 8 // bits


def groups_of_vectors(k: Kernel, columns: Value) -> Iterator[tuple[int, Value]]:
    """Loop over columns by `TILE_VECTORS` registers, fewer at the end: yield their number and the first column."""
    begin = k.integer(0)
    for count in range(TILE_VECTORS, 0, -1):
        wide = count * k.lanes
        end = begin + (columns - begin) // wide * wide
        with k.loop(begin, end, wide) as column:
            yield count, column
        begin = end


def add_tile_product(k: Kernel, filled: Value, sums: Sums, scalars: Sequence[tuple[RealPointer, int]], step: Index,
                     vectors: RealPointer, vector_step: Index, depth: tuple[Index, Value],
                     count: int = 1) -> None:  # fmt: skip
    """`add_product` of ``count`` vectors if at most ``count`` are `filled` by queries, otherwise of more."""
    if count == TILE_VECTORS:
        add_product(k, sums, scalars, step, vectors, vector_step, depth)
        return
    with k.when(filled.compare("<=", count)) as otherwise:
        add_product(k, [row[:count] for row in sums], scalars, step, vectors, vector_step, depth)
    with otherwise():
        add_tile_product(k, filled, sums, scalars, step, vectors, vector_step, depth, count + 1)
