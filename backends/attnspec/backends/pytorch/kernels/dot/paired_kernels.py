"""softmax(scale·QKᵀ)V of bfloat16 by products of pairs, some rows of an entry at a time, which stay in the cache.

Matrices lie in memory one number after another. What a product reads as its right matrix is put in order for it by
each task, in memory of its thread: keys and values as columns of pairs where features are summed over, and as pairs of
rows where keys or queries are.

Gradients of queries are sums over keys, those of keys and values over queries: two kernels, each of whose tasks has
all terms of its sums, which therefore have one order. Weights and gradients of scores go from one to the other as
`PANEL` says.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from attnspec.backends.pytorch.kernels.dot.weight_rows import OfGradients, OfWeights, gradients_of_row, weights_of_row
from attnspec.backends.pytorch.kernels.llvm.arguments import (
    Arguments,
    Bytes,
    OptionalBytes,
    OptionalReals,
    Reals,
    Scratch,
    Size,
)
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.matmul import Product, define_multiply, multiply
from attnspec.backends.pytorch.kernels.llvm.registers import Inside, in_registers, load, store_stored, vectors
from attnspec.backends.pytorch.kernels.llvm.row_pairs import RowPairs, define_row_pairs, row_pairs
from attnspec.backends.pytorch.kernels.llvm.transposition import define_transpose, transpose_all
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, Extent, RealPointer, Value

LANES = 16
"""Float32 numbers, or pairs of bfloat16, of a register of 512 bits."""

PANEL = 48
"""Keys of a panel, whole registers and whole tiles of a product: pairs of rows of weights (n, m), of a query and the
next, lie in panels of so many keys, and fewer in the last, (panels, n / 2, keys, 2) for each entry."""


class Sizes(Arguments):
    """Of every entry: ``n`` queries and ``m`` keys of ``d`` pairs of features, and values of ``d_v``.

    A task has ``rows`` queries, an even number, or keys, a multiple of `PANEL`; an entry has ``blocks`` of them.
    """

    tasks: Size
    blocks: Size
    rows: Size
    n: Size
    m: Size
    d: Size
    d_v: Size
    scratch: Scratch


class Forward(Sizes):
    """query (entries, n, d), key (entries, m, d) and value (entries, m, d_v), in pairs of features; output
    (entries, n, 2 d_v) in bfloat16.

    Where weights are kept, ``scores`` (entries, n, m) become them, and ``pairs`` are written, of what is rounded.
    """

    query: Reals
    key: Reals
    value: Reals
    output: Bytes
    scores: OptionalReals
    pairs: OptionalReals
    weights: OfWeights


class QueryGradients(Sizes):
    """The same operands, and the gradient of the output like it; gradients of queries (entries, n, 2 d) in bfloat16.

    ``scores`` are weights (entries, n, m) where they were kept; where not, ``pairs`` are written. Pairs of gradients of
    scores always are.
    """

    query: Reals
    key: Reals
    value: Reals
    gradient: Reals
    scores: OptionalReals
    pairs: Reals
    pairs_of_gradients: Reals
    of_query: OptionalBytes
    weights: OfWeights
    gradients: OfGradients


class KeyGradients(Sizes):
    """Queries, the gradient of the output and both kinds of pairs; gradients of keys (entries, m, 2 d) and of values
    (entries, m, 2 d_v) in bfloat16."""

    query: Reals
    gradient: Reals
    pairs: Reals
    pairs_of_gradients: Reals
    of_key: OptionalBytes
    of_value: OptionalBytes


def half(count: Extent) -> Extent:
    """Pairs of so many rows."""
    return (count + 1) // 2


def forward_scratch(rows: Extent, m: Extent, d: Extent, d_v: Extent) -> tuple[Extent, ...]:
    """Reals of a thread: keys, values, scores, rounded weights, and sums of the output."""
    return _whole(d * m, half(m) * d_v * 2, rows * m, rows * half(m), rows * d_v * 2)


def query_scratch(rows: Extent, m: Extent, d: Extent, d_v: Extent, *, kept: bool) -> tuple[Extent, ...]:
    """Reals of a thread: values, keys, gradients of weights, those of scores, rounded, and sums of the gradients.

    Where weights are not ``kept`` also keys in columns, scores, and rounded weights.
    """
    own = d_v * m, half(m) * d * 2, rows * m, rows * half(m), rows * d * 2
    return _whole(*own) if kept else _whole(*own, d * m, rows * m, rows * half(m))


def key_scratch(n: Extent, d: Extent, d_v: Extent) -> tuple[Extent, ...]:
    """Reals of a thread: queries, gradients of the output, and sums of either kind of gradient for a panel."""
    return _whole(half(n) * d * 2, half(n) * d_v * 2, d * 2 * PANEL, d_v * 2 * PANEL)


def _whole(*sizes: Extent) -> tuple[Extent, ...]:
    return tuple(in_registers(size, LANES) for size in sizes)


class Rows(NamedTuple):
    """Some queries of an entry: the number of the first in it and among all, and how many."""

    k: Kernel[Any]
    entry: Value
    begin: Value
    length: Value
    first: Value

    def each(self, body: Callable[[Value, Value], None]) -> None:
        """The body for each, with its number here and among all."""
        with self.k.loop(0, self.length) as i:
            body(i, self.first + i)

    def write_pairs(self, rounded: BytePointer, pairs: RealPointer) -> None:
        """Pairs of these rows, written to the panels of all entries."""
        k, g = self.k, self.k.argument
        of_entry, step = pairs + self.entry * (half(g.n) * g.m), half(g.m) * 4
        with k.loop(0, g.m, PANEL) as j:
            width = k.minimum(g.m - j, k.integer(PANEL))
            target = of_entry + (j * half(g.n) + self.begin // 2 * width)
            row_pairs(k, RowPairs(rounded + j * 2, target, self.length, width, step, width))

    def dots(self, operand: RealPointer, columns: RealPointer, sums: RealPointer, depth: Value) -> None:
        """Sums over so many pairs of features of these rows of an operand times columns, one for each key."""
        left, m, one = operand + self.first * depth, self.k.argument.m, self.k.integer(1)
        multiply(self.k, Product(left, columns, sums, self.length, m, depth, depth, one))

    def times(self, rounded: BytePointer, right: RealPointer, sums: RealPointer, columns: Value) -> None:
        """Sums over keys of rounded rows times pairs of rows."""
        k, depth = self.k, half(self.k.argument.m)
        left, one = RealPointer(rounded.address), k.integer(1)
        multiply(k, Product(left, right, sums, self.length, columns, depth, depth, one))


def rows_of(k: Kernel[Any], task: Value) -> Rows:
    """The queries of a task."""
    g = k.argument
    entry, begin = task // g.blocks, task % g.blocks * g.rows
    return Rows(k, entry, begin, k.minimum(g.rows, g.n - begin), entry * g.n + begin)


def rows_in_pairs(k: Kernel[Any], source: RealPointer, target: RealPointer, rows: Value, columns: Value) -> None:
    """Rows of so many pairs of features become pairs of rows."""
    numbers = columns * 2
    row_pairs(k, RowPairs(BytePointer(source.address), target, rows, numbers, columns * 4, numbers))


def write(k: Kernel[Any], sums: RealPointer, result: BytePointer, first: Value, rows: Value, columns: Value) -> None:
    """Sums of so many rows become numbers of a result, in bfloat16."""
    target = result + first * columns * 2

    def put(c: Value, inside: Inside) -> None:
        store_stored(k, load(k, inside, sums, c), inside, target, c, "bfloat16")

    vectors(k, rows * columns, put)


def _defined(k: Kernel[Any]) -> None:
    define_transpose(k)
    define_row_pairs(k)
    define_multiply(k, pairs=True)


def _rounded_row(k: Kernel[Any], rounded: BytePointer, i: Value) -> BytePointer:
    """A row of weights in pairs; that of an odd number ends with 0."""
    m: Value = k.argument.m
    row = rounded + i * (half(m) * 4)
    with k.when((m % 2).is_nonzero()):
        k.store_stored(k.full(0.0), row, m * 2, "bfloat16", first=True)
    return row


def _weigh(own: Rows, keys: RealPointer, scores: RealPointer, rounded: BytePointer) -> None:
    """Scores of some queries, which become weights, and are rounded."""
    k, g = own.k, own.k.argument
    own.dots(g.query, keys, scores, g.d)
    own.each(
        lambda i, row: weights_of_row(k, g.weights, g.m, scores + i * g.m, _rounded_row(k, rounded, i), row)
    )  # fmt: skip


@compiled
def forward_kernel() -> Kernel[Forward]:
    """The output, log Σ exp where it is wanted, and weights where they are kept."""
    k = Kernel("paired_forward", Forward, 32)
    _defined(k)
    g = k.argument
    with k.tasks(g.tasks) as task:
        own = rows_of(k, task)
        parts = k.parts(g.scratch.of(k.thread), forward_scratch(g.rows, g.m, g.d, g.d_v))
        keys, values, scores, weights, sums = parts
        rounded, kept = BytePointer(weights.address), g.weights.kept.is_nonzero()
        transpose_all(k, g.key + own.entry * (g.m * g.d), keys, g.m, g.d)
        rows_in_pairs(k, g.value + own.entry * (g.m * g.d_v), values, g.m, g.d_v)
        _weigh(own, keys, k.select(kept, g.scores + own.first * g.m, scores), rounded)
        with k.when(kept):
            own.write_pairs(rounded, g.pairs)
        own.times(rounded, values, sums, g.d_v * 2)
        write(k, sums, g.output, own.first, own.length, g.d_v * 2)
    return k


@compiled
def query_gradients_kernel(kept: bool) -> Kernel[QueryGradients]:
    """Gradients of queries, and pairs of the gradients of scores; weights are ``kept``, or computed again."""
    k = Kernel("paired_query_gradients", QueryGradients, 32)
    _defined(k)
    g = k.argument
    with k.tasks(g.tasks) as task:
        own = rows_of(k, task)
        parts = k.parts(g.scratch.of(k.thread), query_scratch(g.rows, g.m, g.d, g.d_v, kept=kept))
        values, keys, of_weights, of_scores, sums, *more = parts
        rounded, key = BytePointer(of_scores.address), g.key + own.entry * (g.m * g.d)
        if kept:
            weights = g.scores + own.first * g.m
        else:
            columns, weights, rounded_weights = more
            transpose_all(k, key, columns, g.m, g.d)
            _weigh(own, columns, weights, BytePointer(rounded_weights.address))
            own.write_pairs(BytePointer(rounded_weights.address), g.pairs)
        transpose_all(k, g.value + own.entry * (g.m * g.d_v), values, g.m, g.d_v)
        own.dots(g.gradient, values, of_weights, g.d_v)

        def of_row(i: Value, row: Value) -> None:
            given = weights + i * g.m, of_weights + i * g.m
            gradients_of_row(k, g.gradients, g.m, given, _rounded_row(k, rounded, i), row)

        own.each(of_row)
        own.write_pairs(rounded, g.pairs_of_gradients)
        with k.when(g.of_query.is_given()):
            rows_in_pairs(k, key, keys, g.m, g.d)
            own.times(rounded, keys, sums, g.d * 2)
            write(k, sums, g.of_query, own.first, own.length, g.d * 2)
    return k


@compiled
def key_gradients_kernel() -> Kernel[KeyGradients]:
    """Gradients of keys and values."""
    k = Kernel("paired_key_gradients", KeyGradients, 32)
    _defined(k)
    g = k.argument
    with k.tasks(g.tasks) as task:
        entry, begin = task // g.blocks, task % g.blocks * g.rows
        depth, end = half(g.n), k.minimum(g.m, begin + g.rows)
        queries, gradients, of_keys, of_values = k.parts(g.scratch.of(k.thread), key_scratch(g.n, g.d, g.d_v))
        for left, right, order, sums, d, result in (
            (g.pairs_of_gradients, g.query, queries, of_keys, g.d, g.of_key),
            (g.pairs, g.gradient, gradients, of_values, g.d_v, g.of_value),
        ):
            with k.when(result.is_given()):
                rows_in_pairs(k, right + entry * (g.n * d), order, g.n, d)
                with k.loop(begin, end, PANEL) as j:
                    panel, width = left + (entry * g.m + j) * depth, k.minimum(g.m - j, k.integer(PANEL))
                    multiply(k, Product(panel, order, sums, width, d * 2, depth, k.integer(1), width))
                    write(k, sums, result, entry * g.m + j, width, d * 2)
    return k
