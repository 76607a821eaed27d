"""bfloat16 matrix products by tile registers (AMX), with float32 sums that are not rounded.

The last tile of rows begins early enough to be whole: rows in two tiles get the same numbers from both.
"""

from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm import tile_registers
from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, Reals, Size
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.matmul import MatrixArguments
from attnspec.backends.pytorch.kernels.llvm.threads import run, thread_count
from attnspec.backends.pytorch.kernels.llvm.tile_registers import BYTES, PAIRS, ROWS
from attnspec.backends.pytorch.kernels.llvm.values import Value

TASK_ROWS = 4 * ROWS
"""Rows per task: few, so that the columns of a tile of the right matrix stay in the cache."""

FASTER = 8
"""Products of pairs that tiles multiply in the time of one by lanes: the unit of `thread_count`."""

SUMS, LEFT, RIGHT, LAST_LEFT, LAST_RIGHT = (0, 1), (2, 3), 4, (5, 6), 7
"""Numbers of the tile registers: two of sums, two of the left matrix, one of the right. A register has one shape per
kernel, so three others, LAST, hold the pairs left over at the end of the depth."""


class TileProduct(MatrixArguments):
    """Arguments of the product: output[r, c] = the sum over pairs t of left[r left_row + t] right[c / 16, t, c % 16].

    ``first_row_bytes``, ``last_row_bytes`` and ``register_rows`` are `tile_registers.configuration`.
    """

    first_row_bytes: Size
    last_row_bytes: Size
    register_rows: Size


class Packing(Arguments):
    """Arguments of packing x (entries, rows, depth) as output (entries, groups of rows, depth, 16).

    Zero rows pad x. A task is a group; ``groups`` are those of an entry, ``entry`` the distance between entries.
    """

    tasks: Size
    groups: Size
    entry: Size
    rows: Size
    depth: Size
    x: Reals
    output: Reals


@compiled
def packing_kernel() -> Kernel[Packing]:
    """Kernel that packs a group per task, a column at a time."""
    k = Kernel("tile_packing", Packing, 32)
    g = k.argument
    with k.tasks(g.tasks) as task:
        first = task % g.groups * PAIRS
        x, output = g.x + (task // g.groups * g.entry + first * g.depth), g.output + task * g.depth * PAIRS
        inside = k.lanes_below(g.rows - first)
        with k.loop(0, g.depth) as t:
            k.store(k.load_strided(inside, x, t, g.depth), output, t * PAIRS)
    return k


@compiled
def tile_product_kernel() -> Kernel[TileProduct]:
    """Kernel that multiplies two tiles of rows by one of columns at a time."""
    k = Kernel("tile_product", TileProduct, 32)
    g = k.argument
    tile_registers.configure(k, (g.first_row_bytes, g.last_row_bytes, g.register_rows))
    height = k.minimum(g.rows, k.integer(ROWS))
    sums = k.array(ROWS * PAIRS)
    whole = g.depth // PAIRS * PAIRS
    with k.tasks(g.tasks) as task:
        entry, begin = task // g.blocks, task % g.blocks * TASK_ROWS
        left, right = g.left + entry * g.left_entry, g.right + entry * g.right_entry
        output = g.output + entry * (g.rows * g.columns)
        with (
            k.loop(0, g.columns, PAIRS) as column,
            k.loop(begin, k.minimum(begin + TASK_ROWS, g.rows), 2 * ROWS) as first,
        ):
            rows = [k.minimum(first + c * ROWS, g.rows - height) for c in range(2)]

            def add(t: Value, of_left: tuple[int, int], of_right: int) -> None:
                tile_registers.load(k, of_right, right, column * g.depth + t * PAIRS, k.integer(PAIRS))
                for row, left_tile, total in zip(rows, of_left, SUMS, strict=True):
                    tile_registers.load(k, left_tile, left, row * g.left_row + t, g.left_row)
                    tile_registers.add_product(k, total, left_tile, of_right)

            for total in SUMS:
                tile_registers.zero(k, total)
            with k.loop(0, whole, PAIRS) as t:
                add(t, LEFT, RIGHT)
            with k.when(whole.compare("<", g.depth)):
                add(whole, LAST_LEFT, LAST_RIGHT)
            for row, total in zip(rows, SUMS, strict=True):
                with k.when((column + PAIRS).compare("<=", g.columns)) as otherwise:
                    tile_registers.store(k, total, output, row * g.columns + column, g.columns)
                with otherwise():
                    tile_registers.store(k, total, sums, k.integer(0), k.integer(PAIRS))
                    with k.loop(0, height) as r:
                        inside = k.lanes_below(g.columns - column)
                        k.store_lanes(k.load(sums, r * PAIRS), inside, output, (row + r) * g.columns + column)
    tile_registers.release(k)
    return k


def multiply(left: Tensor, right: Tensor, output: Tensor) -> None:
    """output (entries, rows, columns) = left·right, of contiguous pairs.

    left is (entries, rows, depth), right (entries, groups of columns, depth, 16).
    """
    (entries, rows, depth), columns = left.shape, output.shape[2]
    blocks = -(-rows // TASK_ROWS)
    tasks = entries * blocks
    height, last_pairs = min(rows, ROWS), depth % PAIRS or PAIRS
    whole, last = (height, BYTES), (height, 4 * last_pairs)
    # in the order of the register numbers: SUMS, LEFT, RIGHT, LAST_LEFT, LAST_RIGHT
    first_row_bytes, last_row_bytes, register_rows = tile_registers.configuration(
        [whole] * 4 + [(PAIRS, BYTES), last, last, (last_pairs, BYTES)]
    )
    arguments = TileProduct(
        tasks=tasks, blocks=blocks, left_entry=left.stride(0), right_entry=right.stride(0), rows=rows,
        columns=columns, depth=depth, left=left, left_row=left.stride(1), right=right, output=output,
        first_row_bytes=first_row_bytes, last_row_bytes=last_row_bytes, register_rows=register_rows,
    )  # fmt: skip
    run(tile_product_kernel(), thread_count(tasks, entries * rows * columns * depth / FASTER), arguments)


def packed(x: Tensor) -> Tensor:
    """Contiguous pairs x (entries, rows, depth) packed as columns of the right matrix of `multiply`."""
    entries, rows, depth = x.shape
    groups = -(-rows // PAIRS)
    output = x.new_empty(entries, groups, depth, PAIRS)
    tasks = entries * groups
    arguments = Packing(tasks=tasks, groups=groups, entry=x.stride(0), rows=rows, depth=depth, x=x, output=output)
    run(packing_kernel(), thread_count(tasks, output.numel()), arguments)
    return output
