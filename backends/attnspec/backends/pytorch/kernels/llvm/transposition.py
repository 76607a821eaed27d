"""Transposition of matrices, in squares of as many rows as a register has lanes."""

from typing import Any, NamedTuple

from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, Reals, Size
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.threads import run, thread_count
from attnspec.backends.pytorch.kernels.llvm.values import RealPointer, Value
from attnspec.backends.pytorch.kernels.llvm.vector_functions import transposed


class Square(NamedTuple):
    """A square with as many rows as a register has lanes: address, stride, existing rows and columns.

    Fewer exist at the edge of a matrix, more do not matter.
    """

    base: RealPointer
    step: Value
    rows: Value
    columns: Value


def define_transpose(k: Kernel) -> None:
    """Define the subroutine behind `transpose`."""
    with k.subroutine("transpose", 2 * len(Square._fields)) as values:
        source, target = (Square(RealPointer(base), *sizes) for base, *sizes in (values[:4], values[4:]))
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
    """Transpose a square; missing columns are read as 0, missing rows repeat the last."""
    k.call("transpose", *source, *target)


def transpose_all(k: Kernel[Any], source: RealPointer, target: RealPointer, rows: Value, columns: Value) -> None:
    """Transpose a whole contiguous matrix (rows, columns)."""
    with k.loop(0, rows, k.lanes) as row, k.loop(0, columns, k.lanes) as column:
        there, across = rows - row, columns - column
        whole = Square(source + (row * columns + column), columns, there, across)
        transpose(k, whole, Square(target + (column * rows + row), rows, across, there))


class Transposition(Arguments):
    """Contiguous x (entries, rows, columns) and its transpose; an entry is a task."""

    tasks: Size
    rows: Size
    columns: Size
    x: Reals
    transpose: Reals


@compiled
def columns_kernel(bits: int) -> Kernel[Transposition]:
    """Kernel that transposes each entry."""
    k = Kernel("columns", Transposition, bits)
    define_transpose(k)
    g = k.argument
    with k.tasks(g.tasks) as entry:
        first = entry * (g.rows * g.columns)
        transpose_all(k, g.x + first, g.transpose + first, g.rows, g.columns)
    return k


def columns(x: Tensor) -> Tensor:
    """Contiguous transpose of a contiguous x (entries, rows, columns), float32 or float64."""
    entries, rows, count = x.shape
    output = x.new_empty(entries, count, rows)
    arguments = Transposition(tasks=entries, rows=rows, columns=count, x=x, transpose=output)
    run(columns_kernel(8 * x.element_size()), thread_count(entries, x.numel()), arguments)
    return output
