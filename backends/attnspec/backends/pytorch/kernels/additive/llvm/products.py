"""Products of weights and values: in register tiles, or for one row in memory order."""

from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel
from attnspec.backends.pytorch.kernels.llvm.memory import Index
from attnspec.backends.pytorch.kernels.llvm.sums import add_product, zeros
from attnspec.backends.pytorch.kernels.llvm.values import RealPointer, Value

from .tiles import PRODUCT_VECTORS

AHEAD = 16384
"""Prefetch distance in bytes for the values of a single row, twice that of `scores`: a value needs less arithmetic."""


def emit_product(k: Kernel, scalars: RealPointer, rows: list[Value], inner_step: Index, inner: tuple[Value, Value],
                 vectors: RealPointer, d: Value, finish: "Finish") -> None:  # fmt: skip
    """Emit rows r of sum_t scalars[rows[r] + t*inner_step] * vectors[t, :]; t in `inner`, d a multiple of lanes.

    ``finish(r, first, sums)`` stores the sums of row r from column ``first`` on.
    """
    step = PRODUCT_VECTORS * k.lanes

    def columns(first: Value, count: int) -> None:
        sums = zeros(k, len(rows), count)
        scalar_rows = [(scalars + row, 0) for row in rows]  # a row is a pointer and the number of reals to skip
        add_product(k, sums, scalar_rows, inner_step, vectors + first, d, inner)
        for r in range(len(rows)):
            finish(r, first, [s.get() for s in sums[r]])

    whole = d // step * step
    with k.loop(0, whole, step) as first:
        columns(first, PRODUCT_VECTORS)
    with k.loop(whole, d, k.lanes) as first:
        columns(first, 1)


def emit_row_product(k: Kernel, scalars: RealPointer, inner: tuple[Value, Value], vectors: RealPointer, d: Value,
                     sums: RealPointer, finish: "Finish") -> None:  # fmt: skip
    """Emit the product of one row, in the vectors' memory order; its d sums are in memory at `sums`."""
    with k.loop(0, d, k.lanes) as c:
        k.store(k.full(0.0), sums, c)

    # One row of `vectors` after the other, in memory order: several at once would share the memory bandwidth.
    with k.loop(inner[0], inner[1]) as t:
        share = k.broadcast(scalars, t)
        with k.loop(0, d, k.lanes) as c:
            k.prefetch(vectors, t * d + c + AHEAD // k.size)
            k.store(k.fma(share, k.load(vectors, t * d + c), k.load(sums, c)), sums, c)
    with k.loop(0, d, k.lanes) as c:
        finish(0, c, [k.load(sums, c)])


class Finish:
    """Writer of rows r < `count` of a product, each times element r of `scale`."""

    def __init__(self, k: Kernel, base: RealPointer, offset: Value, stride: Value, count: Value,
                 scale: RealPointer | None = None) -> None:  # fmt: skip
        self.k, self.base, self.offset, self.stride, self.count, self.scale = k, base, offset, stride, count, scale

    def __call__(self, row: int, first: Value, sums: list[Value]) -> None:
        """Store the sums of `row` from column `first` on."""
        k = self.k
        with k.when(self.count.compare(">", row)):
            for c, total in enumerate(sums):
                scaled = total if self.scale is None else total * k.broadcast(self.scale, row)
                k.store(scaled, self.base, self.offset + self.stride * row + first + c * k.lanes)
