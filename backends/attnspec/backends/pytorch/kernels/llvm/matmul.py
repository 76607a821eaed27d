"""Matrix products, in tiles of sums that stay in registers.

PyTorch's products reach a third of the peak on processors for which its library is not tuned. On a core of Zen 5, in
float32, PyTorch reaches 50 G multiply-adds/s and this module 118, of 142. With AVX2 alone, on Zen 3, both reach 30 of
48, PyTorch more for small matrices. On Intel PyTorch reaches 85 to 98 of 106, this module 71 to 91. With AVX2 and on
Intel, PyTorch therefore computes all products.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, Reals, Size
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.kernel_plan import kernel_plan
from attnspec.backends.pytorch.kernels.llvm.machine_code import HAS_512_BITS, is_zen, register_bytes
from attnspec.backends.pytorch.kernels.llvm.registers import Inside, load, store
from attnspec.backends.pytorch.kernels.llvm.threads import run, thread_count
from attnspec.backends.pytorch.kernels.llvm.values import RealPointer, Value, Variable

ROWS = 6
"""Rows of a tile of sums."""

VECTORS = 4 if HAS_512_BITS else 2
"""Registers of a row of a tile."""

DEPTH = 256
"""Terms added before a sum is written to memory: as many rows of the right matrix as stay in the cache."""

TASK_ROWS = 8 * ROWS
"""Rows of one task."""

LEAST_WORK = 2**21
"""Multiply-adds from which the gain exceeds the call overhead."""


class MatrixArguments(Arguments):
    """Arguments of the products of all entries of a batch, ``blocks`` tasks each.

    ``left_entry`` and ``right_entry`` are the distances between entries, ``left_row`` between rows.
    """

    tasks: Size
    blocks: Size
    left_entry: Size
    right_entry: Size
    rows: Size
    columns: Size
    depth: Size
    left: Reals
    left_row: Size
    right: Reals
    output: Reals


class ProductArguments(MatrixArguments):
    """output[r, c] = the sum over t of left[r left_row + t left_step] right[t, c]."""

    left_step: Size


class MultiplyArguments(NamedTuple):
    """Values of `ProductArguments` for one product: the arguments of the subroutine `multiply`."""

    left: RealPointer
    right: RealPointer
    output: RealPointer
    rows: Value
    columns: Value
    depth: Value
    left_row: Value
    left_step: Value


def define_multiply(k: Kernel[Any], pairs: bool) -> None:
    """Define the subroutine behind `multiply`: for reals, or ``pairs`` of bfloat16 (`batched_product`)."""
    with k.subroutine("multiply", len(MultiplyArguments._fields)) as (left, right, output, *sizes):
        _multiply(k, MultiplyArguments(RealPointer(left), RealPointer(right), RealPointer(output), *sizes), pairs)


def multiply(k: Kernel[Any], product: MultiplyArguments) -> None:
    """Multiply two matrices."""
    k.call("multiply", *product)


def _multiply(k: Kernel[Any], g: MultiplyArguments, pairs: bool) -> None:
    add = k.add_products_of_pairs if pairs else k.fma

    def tile(
        rows: list[Value], first: Value, insides: Sequence[Inside], start: Value, stop: Value, remaining: Value
    ) -> None:
        """Add the terms from start to stop to the sums of these rows and registers; store ``remaining`` rows."""
        columns = [first + c * k.lanes for c in range(len(insides))]
        sums = [[Variable(k, k.full(0.0)) for _ in insides] for _ in rows]
        with k.when(start.is_nonzero()):
            for row, row_sums in zip(rows, sums, strict=True):
                for column, inside, total in zip(columns, insides, row_sums, strict=True):
                    total.set(load(k, inside, g.output, row * g.columns + column))
        with k.loop(start, stop) as t:
            right = [
                load(k, inside, g.right, t * g.columns + column)
                for column, inside in zip(columns, insides, strict=True)
            ]
            for number, row_sums in zip(rows, sums, strict=True):
                left = k.broadcast(g.left, number * g.left_row + t * g.left_step)
                for x, total in zip(right, row_sums, strict=True):
                    total.set(add(left, x, total.get()))
        for r, (row, row_sums) in enumerate(zip(rows, sums, strict=True)):
            with k.when(remaining.compare(">", r)):
                for column, inside, total in zip(columns, insides, row_sums, strict=True):
                    store(k, total.get(), inside, g.output, row * g.columns + column)

    with k.loop(0, g.depth, DEPTH) as start:
        stop = k.minimum(start + DEPTH, g.depth)

        def strip(first: Value, insides: Sequence[Inside], count: int = ROWS) -> None:
            with k.loop(0, g.rows, count) as row:
                rows = [k.minimum(row + r, g.rows - 1) for r in range(count)]  # past the end, the last repeats
                tile(rows, first, insides, start, stop, g.rows - row)

        wide, lanes, columns = VECTORS * k.lanes, k.lanes, g.columns
        whole = columns // wide * wide
        # The last columns go by two registers, and then by one with twice as many rows: a tile needs enough sums that
        # no addition waits for the previous one of its own sum. Pairs end at `last`: a partly filled register counts,
        # and one without a partner is left.
        last = whole + (columns - whole + (lanes - 1)) // (2 * lanes) * (2 * lanes)
        with k.loop(0, whole, wide) as first:
            strip(first, [None] * VECTORS)
        with k.loop(whole, last, 2 * lanes) as first:
            strip(first, [None, k.lanes_below(columns - first - lanes)])
        with k.loop(last, columns, lanes) as first:
            strip(first, [k.lanes_below(columns - first)], 2 * ROWS)


@compiled
def product_kernel(bits: int, pairs: bool) -> Kernel[ProductArguments]:
    """Kernel for products of reals, or ``pairs`` of bfloat16 (`batched_product`); a task is up to `TASK_ROWS` rows."""
    k = Kernel("product", ProductArguments, bits)
    define_multiply(k, pairs)
    g = k.argument
    with k.tasks(g.tasks) as task:
        entry, begin = task // g.blocks, task % g.blocks * TASK_ROWS
        left = g.left + (entry * g.left_entry + begin * g.left_row)
        output = g.output + (entry * g.rows + begin) * g.columns
        rows = k.minimum(k.integer(TASK_ROWS), g.rows - begin)
        right = g.right + entry * g.right_entry
        multiply(k, MultiplyArguments(left, right, output, rows, g.columns, g.depth, g.left_row, g.left_step))
    return k


Multiply: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]
"""Function that writes the product of two matrices to a third."""


def plan(left: Tensor, right: Tensor, output: Tensor) -> Multiply:
    """Return a function that multiplies contiguous matrices of these sizes; its argument buffer is cached."""
    kernel, arguments = product_kernel(8 * output.element_size(), False), _arguments(left, right, output)
    entries, rows, depth = left.shape
    threads = thread_count(entries * -(-rows // TASK_ROWS), entries * rows * right.shape[2] * depth)
    slots = ProductArguments.left, ProductArguments.right, ProductArguments.output
    prepared = kernel_plan(kernel, threads, arguments, *slots)
    return lambda left, right, output: prepared.run(left.data_ptr(), right.data_ptr(), output.data_ptr())


def faster_than_pytorch(rows: int, columns: int, depth: int, x: Tensor) -> bool:
    """Return whether this product is faster than PyTorch's, for this size and x's dtype.

    It is slower if the columns do not fill a register.
    """
    large = rows * columns * depth >= LEAST_WORK and columns * x.itemsize >= register_bytes()
    return HAS_512_BITS and is_zen() and large


def product(left: Tensor, right: Tensor, output: Tensor | None = None) -> Tensor:
    """left (rows, depth) times right (depth, columns), float32 or float64, any strides.

    ``output`` is contiguous memory (rows, columns) for the result, or None.
    """
    if faster_than_pytorch(left.shape[0], right.shape[1], right.shape[0], right):
        output = None if output is None else output[None]
        return batched_product(left.resolve_neg()[None], right.resolve_neg().contiguous()[None], output)[0]
    return left @ right if output is None else torch.mm(left, right, out=output)


def product_over_rows(left: Tensor, right: Tensor, total: Tensor | None = None) -> Tensor:
    """leftᵀ·right for left (rows, columns) and right (rows, depth), added to ``total`` unless None.

    PyTorch's library may split a long sum among threads. It gets `DEPTH` rows at a time, so that sums do not depend on
    their number. On Zen it gets all: its sums do not depend on threads there.
    """
    (rows, columns), depth = left.shape, right.shape[1]
    if faster_than_pytorch(columns, depth, rows, right):
        result = product(left.mT, right)
        return result if total is None else total.add_(result)
    if is_zen():
        return left.mT @ right if total is None else total.addmm_(left.mT, right)
    if total is None:
        total = right.new_zeros(columns, depth)
    for left_rows, right_rows in zip(torch.split(left, DEPTH), torch.split(right, DEPTH), strict=True):
        total.addmm_(left_rows.mT, right_rows)
    return total


def batched_product(left: Tensor, right: Tensor, output: Tensor | None = None, *, pairs: bool = False) -> Tensor:
    """left·right for left (entries, rows, depth), any strides, and contiguous right (entries, depth, columns).

    Elements are float32 or float64. With ``pairs``, a float32 stands for two bfloat16 that follow each other along the
    sum, left[r, 2t] and left[r, 2t+1], right[2t, c] and right[2t+1, c]; ``depth`` counts pairs.
    """
    (entries, rows, depth), columns = left.shape, right.shape[2]
    output = torch.empty(entries, rows, columns, dtype=right.dtype) if output is None else output
    threads = thread_count(entries * -(-rows // TASK_ROWS), entries * rows * columns * depth)
    run(product_kernel(8 * right.element_size(), pairs), threads, _arguments(left, right, output))
    return output


def _arguments(left: Tensor, right: Tensor, output: Tensor) -> ProductArguments:
    (entries, rows, depth), columns = left.shape, right.shape[2]
    blocks = -(-rows // TASK_ROWS)
    return ProductArguments(
        tasks=entries * blocks, blocks=blocks, left_entry=left.stride(0), right_entry=right.stride(0), rows=rows,
        columns=columns, depth=depth, left=left, left_row=left.stride(1), left_step=left.stride(2), right=right,
        output=output,
    )  # fmt: skip
