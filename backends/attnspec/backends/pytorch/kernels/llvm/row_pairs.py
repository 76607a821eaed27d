"""Matrices of bfloat16 whose rows are taken in pairs, as products of pairs take the terms of their sums.

A row of the result holds, in the place of each real, a number of one row and the number below it.
"""

from typing import Any, NamedTuple

from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel
from attnspec.backends.pytorch.kernels.llvm.registers import Inside, load_stored, store, vectors
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, RealPointer, Value


class RowPairs(NamedTuple):
    """``rows`` rows of ``columns`` numbers at a source, and their pairs at a target.

    ``step`` are the bytes from one row of the source to the next, ``target_step`` the reals from one of the target.
    """

    source: BytePointer
    target: RealPointer
    rows: Value
    columns: Value
    step: Value
    target_step: Value


def define_row_pairs(k: Kernel[Any]) -> None:
    """Define the subroutine behind `row_pairs`."""
    with k.subroutine("row_pairs", len(RowPairs._fields)) as values:
        g = RowPairs(BytePointer(values[0]), RealPointer(values[1]), *values[2:])
        with k.loop(0, g.rows, 2) as i:
            first, second = g.source + i * g.step, g.source + k.minimum(i + 1, g.rows - 1) * g.step
            there = (i + 1).compare("<", g.rows)
            target = g.target + i // 2 * g.target_step

            def write(
                c: Value, inside: Inside, rows: tuple[BytePointer, BytePointer] = (first, second), there: Value = there,
                target: RealPointer = target,
            ) -> None:  # fmt: skip
                low, high = (load_stored(k, inside, row, c, "bfloat16") for row in rows)
                store(k, k.pair(low, k.select(there, high, k.full(0.0))), inside, target, c)

            vectors(k, g.columns, write)


def row_pairs(k: Kernel[Any], pairs: RowPairs) -> None:
    """Write the pairs; the last row of an odd number of them is in pairs with zeros."""
    k.call("row_pairs", *pairs)
