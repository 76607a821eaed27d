"""Products of matrices, in tiles of sums that stay in registers.

PyTorch's own use a third of the multiply-adds of processors that its library was not made for: measured on one core of
Zen 5, 50 G multiply-adds/s in float32 and 118 here, of 142. With AVX2 alone, on Zen 3, both do 30 of 48, PyTorch's more
where matrices are small, and all products are left to PyTorch. Where the processor multiplies pairs of bfloat16, such
products are taken twice as fast again, and their sums not rounded to bfloat16, as PyTorch's are.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear

from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, Real, Reals, Size
from attnspec.backends.pytorch.kernels.llvm.codegen import LEADING, Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.machine_code import HAS_512_BITS, multiplies_bfloat16, register_bytes
from attnspec.backends.pytorch.kernels.llvm.registers import Inside, groups, load, store
from attnspec.backends.pytorch.kernels.llvm.threads import call, run, thread_count
from attnspec.backends.pytorch.kernels.llvm.values import RealPointer, Value, Variable
from attnspec.backends.pytorch.runtime.accumulation import widened

ROWS = 6
"""Rows of a tile of sums."""

VECTORS = 4 if HAS_512_BITS else 2
"""Registers of a row of a tile."""

DEPTH = 256
"""Terms of a sum that are added before it goes to memory: of the right matrix so many rows stay in the cache."""

TASK = 8 * ROWS
"""Rows of one task."""

LEAST = 2**21
"""Multiply-adds from which this is worth more than it takes to begin."""


class Product(Arguments):
    """output[r, c] = factor times the sum over t of left[r left_row + t left_step] right[t, c].

    So for every entry of the batch, ``blocks`` tasks each; ``left_entry`` and ``right_entry`` are the distances from
    one entry to the next.
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
    left_step: Size
    right: Reals
    output: Reals
    factor: Real


@compiled
def product_kernel(bits: int, pairs: bool) -> Kernel[Product]:
    """A product of two matrices of reals, or of ``pairs`` of bfloat16 in the place of each."""
    k = Kernel("product", Product, bits)
    g = k.argument
    add = k.add_products_of_pairs if pairs else k.fma

    def tile(
        matrices: tuple[RealPointer, RealPointer, RealPointer], rows: list[Value], first: Value, count: int,
        inside: Inside, start: Value, stop: Value, below: Value,
    ) -> None:  # fmt: skip
        """The sums of some rows and of so many registers, with the terms from start to stop."""
        left_matrix, right_matrix, output = matrices
        places = [[row * g.columns + first + c * k.lanes for c in range(count)] for row in rows]
        sums = [[Variable(k, k.full(0.0)) for _ in range(count)] for _ in rows]
        with k.when(start.is_nonzero()):
            for row, own in zip(places, sums, strict=True):
                for place, total in zip(row, own, strict=True):
                    total.set(load(k, inside, output, place))
        with k.loop(start, stop) as t:
            right = [load(k, inside, right_matrix, t * g.columns + first + c * k.lanes) for c in range(count)]
            for number, own in zip(rows, sums, strict=True):
                left = k.broadcast(left_matrix, number * g.left_row + t * g.left_step)
                for x, total in zip(right, own, strict=True):
                    total.set(add(left, x, total.get()))
        factor = k.select(stop.compare("==", g.depth), g.factor.load(), k.full(1.0))
        for r, (row, own) in enumerate(zip(places, sums, strict=True)):
            with k.when(below.compare(">", r)):
                for place, total in zip(row, own, strict=True):
                    store(k, total.get() * factor, inside, output, place)

    with k.tasks(g.tasks) as task:
        entry, begin = task // g.blocks, task % g.blocks * TASK
        matrices = (
            g.left + entry * g.left_entry, g.right + entry * g.right_entry, g.output + entry * (g.rows * g.columns)
        )  # fmt: skip
        end = k.minimum(begin + TASK, g.rows)
        with k.loop(0, g.depth, DEPTH) as start:
            stop = k.minimum(start + DEPTH, g.depth)

            def strip(places: list[Value], insides: Sequence[Inside], start: Value = start, stop: Value = stop) -> None:
                with k.loop(begin, end, ROWS) as row:
                    rows = [k.minimum(row + r, g.rows - 1) for r in range(ROWS)]
                    tile(matrices, rows, places[0], len(places), insides[0], start, stop, g.rows - row)

            groups(k, g.columns, VECTORS, strip)
    return k


class Projection:
    """x ↦ x wᵀ for w (columns, depth) in memory; half dtypes are widened, and the results are not rounded."""

    def __init__(self, w: Tensor, rows: int) -> None:
        """For so many rows of x."""
        self.columns, self.depth = w.shape
        wide = widened(w)
        self.fast = worthwhile(rows, self.columns, self.depth, wide)
        self.pairs = self.fast and w.dtype is torch.bfloat16 and self.depth % 2 == 0 and multiplies_bfloat16()
        if self.pairs:
            self.right = _in_pairs(w).mT.contiguous()
        else:
            self.right = wide.resolve_neg().mT.contiguous() if self.fast else wide

    def __call__(self, x: Tensor, output: Tensor | None = None) -> Tensor:
        """The product for x (*batch, depth) in memory, written to ``output`` (*batch, columns) if that is given."""
        if not self.fast:
            found = linear(widened(x), self.right)
            return found if output is None else output.copy_(found)
        rows = (x if self.pairs else widened(x)).resolve_neg().reshape(-1, self.depth)
        rows = _in_pairs(rows) if self.pairs else rows
        output = None if output is None else output.view(1, -1, self.columns)
        return _products(rows[None], self.right[None], self.pairs, output).view(*x.shape[:-1], self.columns)


Multiply: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]
"""Writes the product of two matrices to a third."""


def _planned(left: Tensor, right: Tensor, output: Tensor, pairs: bool) -> Multiply:
    """For matrices in memory of the sizes and strides of these, whose words are made once."""
    template = array("q", bytes(8 * LEADING))
    template.extend(_arguments(left, right, output).to_words())
    kernel = product_kernel(8 * output.element_size(), pairs)
    entries, rows, depth = left.shape
    threads = thread_count(entries * -(-rows // TASK), entries * rows * right.shape[2] * depth)
    of_left, of_right, of_output = (LEADING + word for word in (Product.left, Product.right, Product.output))

    def multiply(left: Tensor, right: Tensor, output: Tensor) -> None:
        words = template[:]
        words[of_left], words[of_right], words[of_output] = left.data_ptr(), right.data_ptr(), output.data_ptr()
        call(kernel, threads, words)

    return multiply


def planned(rows: int, columns: int, depth: int, dtype: torch.dtype) -> Multiply | None:
    """What writes x wᵀ to a third tensor (rows, columns), all in memory, for x (rows, depth) and w (columns, depth).

    None where PyTorch's product is faster, or operands would have to be widened.
    """
    like = widened(torch.empty(0, dtype=dtype))
    pairs = dtype is torch.bfloat16 and depth % 2 == 0 and multiplies_bfloat16()
    if not worthwhile(rows, columns, depth, like) or not (pairs or like.dtype is dtype):
        return None
    left = like.new_empty(1, rows, depth // 2 if pairs else depth)
    multiply = _planned(left, like.new_empty(1, left.shape[2], columns), like.new_empty(1, rows, columns), pairs)
    return lambda x, w, output: multiply(x, (_in_pairs(w) if pairs else w).mT.contiguous(), output)


class ProjectionGradients:
    """Gradients of x and of w from that of x wᵀ (rows, columns), all in memory and in the dtype of sums."""

    def __init__(self, rows: int, columns: int, depth: int, dtype: torch.dtype) -> None:
        """For x (rows, depth) and w (columns, depth)."""
        empty, parts = torch.empty(0, dtype=dtype).new_empty, _parts(rows)
        self.of_input: Multiply | None = None
        self.of_parts: Multiply | None = None
        self.shape = parts, columns, depth
        if worthwhile(rows, depth, columns, empty(0)):
            self.of_input = _planned(empty(1, rows, columns), empty(1, columns, depth), empty(1, rows, depth), False)
        if worthwhile(columns, depth, rows, empty(0)):
            left, right = empty(parts, rows // parts, columns).mT, empty(parts, rows // parts, depth)
            self.of_parts = _planned(left, right, empty(self.shape), False)

    def input(self, gradient: Tensor, w: Tensor) -> Tensor:
        """Of x (rows, depth)."""
        if self.of_input is None:
            return gradient @ w
        output = w.new_empty(len(gradient), self.shape[2])
        self.of_input(gradient, w, output)
        return output

    def weight(self, gradient: Tensor, x: Tensor) -> Tensor:
        """Of w (columns, depth)."""
        if self.of_parts is None:
            return gradient.mT @ x
        output = x.new_empty(self.shape)
        self.of_parts(gradient, x, output)
        return output.sum(0)


def _parts(rows: int) -> int:
    """In how many parts of so many rows a sum over them is taken, for threads to share; by the rows alone."""
    return next((parts for parts in (8, 4, 2) if rows % parts == 0 and rows // parts >= DEPTH), 1)


def worthwhile(rows: int, columns: int, depth: int, x: Tensor) -> bool:
    """Whether a product of this size, in the dtype of x, is faster here than PyTorch's: on AVX2 none is.

    Nor is one whose rows do not fill a register.
    """
    return HAS_512_BITS and rows * columns * depth >= LEAST and columns * x.element_size() >= register_bytes()


def product(left: Tensor, right: Tensor) -> Tensor:
    """left (rows, depth) times right (depth, columns), of float32 or float64 in memory, with any strides."""
    if not worthwhile(left.shape[0], right.shape[1], right.shape[0], right):
        return left @ right
    return _products(left.resolve_neg()[None], right.resolve_neg().contiguous()[None], False)[0]


def of_pairs(left: Tensor, right: Tensor, factor: float, output: Tensor | None = None) -> Tensor:
    """factor·left·rightᵀ for left (entries, n, depth) and right (entries, m, depth) of bfloat16 in memory, in float32.

    For an even depth, and where `multiplies_bfloat16`.
    """
    return times_pairs(left, columns_of_pairs(right), factor, output)


def columns_of_pairs(right: Tensor) -> Tensor:
    """right (entries, m, depth) as `times_pairs` reads it: (entries, depth / 2, m) pairs."""
    return _in_pairs(right).mT.contiguous()


def times_pairs(left: Tensor, columns: Tensor, factor: float, output: Tensor | None = None) -> Tensor:
    """`of_pairs` for what `columns_of_pairs` gives."""
    return _products(_in_pairs(left), columns, True, output, factor)


def _in_pairs(x: Tensor) -> Tensor:
    """x (…, rows, depth) of bfloat16, each two numbers as one of float32."""
    x = x.resolve_neg().contiguous()
    # what lies at an odd place, or has an odd stride along a dimension of size 1
    if x.storage_offset() % 2 or any(stride % 2 for stride in x.stride()[:-1]):
        x = x.new_empty(x.shape).copy_(x)
    return x.view(torch.float32)


def _products(
    left: Tensor, right: Tensor, pairs: bool, output: Tensor | None = None, factor: float = 1.0
) -> Tensor:  # fmt: skip
    (entries, rows, depth), columns = left.shape, right.shape[2]
    output = torch.empty(entries, rows, columns, dtype=right.dtype) if output is None else output
    arguments = _arguments(left, right, output, factor)
    threads = thread_count(entries * -(-rows // TASK), entries * rows * columns * depth)
    run(product_kernel(8 * right.element_size(), pairs), threads, arguments)
    return output


def _arguments(left: Tensor, right: Tensor, output: Tensor, factor: float = 1.0) -> Product:
    (entries, rows, depth), columns = left.shape, right.shape[2]
    blocks = -(-rows // TASK)
    return Product(
        tasks=entries * blocks, blocks=blocks, left_entry=left.stride(0), right_entry=right.stride(0), rows=rows,
        columns=columns, depth=depth, left=left, left_row=left.stride(1), left_step=left.stride(2), right=right,
        output=output, factor=factor,
    )  # fmt: skip
