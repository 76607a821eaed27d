"""softmax(scale·QKᵀ)V of bfloat16 by products of pairs, some rows of an entry at a time, which stay in the cache.

Matrices lie in memory one number after another. What a product reads as its right matrix is put in order for it by
each task, in memory of its thread: keys and values as columns of pairs where features are summed over, and as pairs of
rows where keys or queries are.

Gradients of queries are sums over keys, those of keys and values over queries: two kernels, each of whose tasks has
all terms of its sums, which therefore have one order.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from attnspec.backends.pytorch.kernels.dot.few_rows import in_registers
from attnspec.backends.pytorch.kernels.dot.weight_rows import OfGradients, OfWeights, gradients_of_row, weights_of_row
from attnspec.backends.pytorch.kernels.llvm.arguments import (
    Arguments,
    OptionalBytes,
    OptionalReals,
    Reals,
    Scratch,
    Size,
)
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.matmul import Product, define_multiply, multiply
from attnspec.backends.pytorch.kernels.llvm.registers import Inside, load, store_stored, vectors
from attnspec.backends.pytorch.kernels.llvm.row_pairs import RowPairs, define_row_pairs, row_pairs
from attnspec.backends.pytorch.kernels.llvm.transposition import Square, define_transpose, transpose
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, Extent, RealPointer, Value

LANES = 16
"""Of the registers in which pairs are multiplied."""

PANEL = 48
"""Keys that lie together in pairs of weights: whole registers, and whole tiles of a product."""


class Sizes(Arguments):
    """Of every entry: ``n`` queries and ``m`` keys of ``d`` and ``d_v`` pairs of features.

    A task has ``rows`` of either, of which an entry has ``blocks``. Pairs of weights and of gradients of scores lie in
    panels of keys, (entries, panels, n / 2, `PANEL`), as the products of key gradients read them.
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
    """Rows of queries, as pairs of features, and their output in bfloat16.

    ``scores`` (entries, n, m) become weights if these are kept; then ``pairs`` of them are written too.
    """

    query: Reals
    key: Reals
    value: Reals
    output: OptionalBytes
    scores: Reals
    pairs: OptionalReals
    weights: OfWeights


class QueryGradients(Sizes):
    """Rows of queries, gradients of their output, and their own gradients in bfloat16.

    ``scores`` (entries, n, m) are weights that were kept, or of no size. Without them ``pairs`` are written; those of
    gradients of scores always are.
    """

    query: Reals
    key: Reals
    value: Reals
    gradient: Reals
    scores: Reals
    pairs: Reals
    pairs_of_gradients: Reals
    of_query: OptionalBytes
    weights: OfWeights
    gradients: OfGradients


class KeyGradients(Sizes):
    """Pairs of weights and of gradients of scores, some panels of which are a task; queries and gradients of the output
    as pairs of features; gradients of keys and values, in bfloat16."""

    query: Reals
    gradient: Reals
    pairs: Reals
    pairs_of_gradients: Reals
    of_key: OptionalBytes
    of_value: OptionalBytes


def pairs_of_entry(n: Extent, m: Extent) -> Extent:
    """Reals that its pairs of weights take."""
    return (m + (PANEL - 1)) // PANEL * PANEL * ((n + 1) // 2)


def forward_scratch(rows: Extent, m: Extent, d: Extent, d_v: Extent) -> tuple[Extent, ...]:
    """Reals of a thread: keys, values, scores, rounded weights, and sums of the output."""
    sizes = d * m, (m + 1) // 2 * d_v * 2, rows * m, rows * ((m + 1) // 2), rows * d_v * 2
    return tuple(in_registers(size, LANES) for size in sizes)


def query_scratch(rows: Extent, m: Extent, d: Extent, d_v: Extent) -> tuple[Extent, ...]:
    """Reals of a thread: values, keys twice, scores, gradients of weights, both rounded, and sums of the gradients."""
    half = (m + 1) // 2
    sizes = d_v * m, d * m, half * d * 2, rows * m, rows * m, rows * half, rows * half, rows * d * 2
    return tuple(in_registers(size, LANES) for size in sizes)


def key_scratch(n: Extent, d: Extent, d_v: Extent) -> tuple[Extent, ...]:
    """Reals of a thread: queries, gradients, and sums of either for a panel."""
    sizes = (n + 1) // 2 * d * 2, (n + 1) // 2 * d_v * 2, d * 2 * PANEL, d_v * 2 * PANEL
    return tuple(in_registers(size, LANES) for size in sizes)


class Rows(NamedTuple):
    """Some rows of an entry, and the number of the first among those of all entries."""

    k: Kernel[Any]
    entry: Value
    begin: Value
    length: Value
    first: Value

    def each(self, body: Callable[[Value, Value], None]) -> None:
        """The body for each, with its number here and among all."""
        with self.k.loop(0, self.length) as i:
            body(i, self.first + i)

    def pairs(self, of_entry: RealPointer, rounded: BytePointer) -> None:
        """Pairs of rounded rows, written to the panels of an entry."""
        k, g, width = self.k, self.k.argument, self.k.integer(PANEL)
        half, step = (g.n + 1) // 2, (g.m + 1) // 2 * 4
        with k.loop(0, g.m, PANEL) as j:
            target = of_entry + (j * half + self.begin // 2 * PANEL)
            columns = k.minimum(g.m - j, width)
            row_pairs(k, RowPairs(rounded + j * 2, target, self.length, columns, step, width))

    def columns_summed(self, rounded: BytePointer, right: RealPointer, sums: RealPointer, columns: Value) -> None:
        """Rounded rows times pairs of rows, one for each key."""
        k, half = self.k, (self.k.argument.m + 1) // 2
        left, one = RealPointer(rounded.address), k.integer(1)
        multiply(k, Product(left, right, sums, self.length, columns, half, half, one))


def rows_of(k: Kernel[Any], task: Value) -> Rows:
    """The rows of a task."""
    g = k.argument
    entry, begin = task // g.blocks, task % g.blocks * g.rows
    return Rows(k, entry, begin, k.minimum(g.rows, g.n - begin), entry * g.n + begin)


def in_columns(k: Kernel[Any], source: RealPointer, target: RealPointer, rows: Value, columns: Value) -> None:
    """Rows of pairs become columns."""
    with k.loop(0, rows, k.lanes) as i, k.loop(0, columns, k.lanes) as c:
        there, across = rows - i, columns - c
        transpose(
            k,
            Square(source + (i * columns + c), columns, there, across),
            Square(target + (c * rows + i), rows, across, there),
        )


def in_pairs(k: Kernel[Any], source: RealPointer, target: RealPointer, rows: Value, columns: Value) -> None:
    """Rows of so many pairs of features become pairs of rows."""
    numbers = columns * 2
    row_pairs(k, RowPairs(BytePointer(source.address), target, rows, numbers, columns * 4, numbers))


def _rounded_row(k: Kernel[Any], rounded: BytePointer, i: Value) -> BytePointer:
    """A row of weights in pairs; that of an odd number ends with 0."""
    m: Value = k.argument.m
    row = rounded + i * ((m + 1) // 2 * 4)
    with k.when((m % 2).is_nonzero()):
        k.store_stored(k.full(0.0), row, m * 2, "bfloat16", first=True)
    return row


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


def _weigh(own: Rows, keys: RealPointer, scores: RealPointer, rounded: BytePointer) -> None:
    """Scores of some queries, which become weights, and are rounded."""
    k, g = own.k, own.k.argument
    one = k.integer(1)
    multiply(k, Product(g.query + own.first * g.d, keys, scores, own.length, g.m, g.d, g.d, one))
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
        rounded = BytePointer(weights.address)
        in_columns(k, g.key + own.entry * (g.m * g.d), keys, g.m, g.d)
        in_pairs(k, g.value + own.entry * (g.m * g.d_v), values, g.m, g.d_v)
        written = k.select(g.weights.kept.is_nonzero(), g.scores + own.first * g.m, scores)
        _weigh(own, keys, written, rounded)
        with k.when(g.weights.kept.is_nonzero()):
            own.pairs(g.pairs + own.entry * pairs_of_entry(g.n, g.m), rounded)
        own.columns_summed(rounded, values, sums, g.d_v * 2)
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
        parts = k.parts(g.scratch.of(k.thread), query_scratch(g.rows, g.m, g.d, g.d_v))
        values, keys, key_pairs, scores, of_weights, weights, of_scores, sums = parts
        rounded = BytePointer(of_scores.address)
        key, pairs = g.key + own.entry * (g.m * g.d), own.entry * pairs_of_entry(g.n, g.m)
        in_columns(k, g.value + own.entry * (g.m * g.d_v), values, g.m, g.d_v)
        if kept:
            scores = g.scores + own.first * g.m
        else:
            in_columns(k, key, keys, g.m, g.d)
            _weigh(own, keys, scores, BytePointer(weights.address))
            own.pairs(g.pairs + pairs, BytePointer(weights.address))
        left, one = g.gradient + own.first * g.d_v, k.integer(1)
        multiply(k, Product(left, values, of_weights, own.length, g.m, g.d_v, g.d_v, one))

        def of_row(i: Value, row: Value) -> None:
            given = scores + i * g.m, of_weights + i * g.m
            gradients_of_row(k, g.gradients, g.m, given, _rounded_row(k, rounded, i), row)

        own.each(of_row)
        own.pairs(g.pairs_of_gradients + pairs, rounded)
        with k.when(g.of_query.is_given()):
            in_pairs(k, key, key_pairs, g.m, g.d)
            own.columns_summed(rounded, key_pairs, sums, g.d * 2)
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
        half, end = (g.n + 1) // 2, k.minimum(g.m, begin + g.rows)
        queries, gradients, of_keys, of_values = k.parts(g.scratch.of(k.thread), key_scratch(g.n, g.d, g.d_v))
        pairs, one, width = entry * pairs_of_entry(g.n, g.m), k.integer(1), k.integer(PANEL)
        for left, right, order, sums, d, result in (
            (g.pairs_of_gradients, g.query, queries, of_keys, g.d, g.of_key),
            (g.pairs, g.gradient, gradients, of_values, g.d_v, g.of_value),
        ):
            with k.when(result.is_given()):
                in_pairs(k, right + entry * (g.n * d), order, g.n, d)
                with k.loop(begin, end, PANEL) as j:
                    panel, count = left + (pairs + j * half), k.minimum(width, end - j)
                    multiply(k, Product(panel, order, sums, count, d * 2, half, one, width))
                    write(k, sums, result, entry * g.m + j, count, d * 2)
    return k
