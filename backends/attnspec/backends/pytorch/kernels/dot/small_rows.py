"""Parts of the kernels for few queries and keys: rows, products, weighted sums.

The tiled kernels put one query in each lane, so that few queries leave lanes empty, and transpose operands. Here
features are in the lanes, and rows are read as stored. Only if many queries share a head of keys are half dtypes
widened once for all of them, and keys transposed for tiles of queries. A task is a head of keys with all queries that
share it, so that every sum has a fixed order. Excluded keys enter no sum, even if they hold NaN.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, Flag, Real, Scratch, Size
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel
from attnspec.backends.pytorch.kernels.llvm.machine_code import HAS_512_BITS
from attnspec.backends.pytorch.kernels.llvm.registers import (
    Inside,
    groups,
    in_registers,
    load,
    load_stored,
    store_stored,
    vectors,
)
from attnspec.backends.pytorch.kernels.llvm.sums import add_product, zeros
from attnspec.backends.pytorch.kernels.llvm.transposition import Square, transpose
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, RealPointer, Value, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import sums_of_lanes

from .decode_arguments import StridedBytes
from .tiled_arguments import OptionalStridedBooleans, Strided
from .tiles import groups_of_vectors

VECTORS_AT_ONCE = (8, 4, 1)
"""Numbers of vectors of columns that are summed in registers together, largest first."""

TILE = 4
"""Queries or keys of a tile, whose sums stay in registers."""

VECTORS_PER_TILE_ROW = (4, 1) if HAS_512_BITS else (3, 2, 1)
"""`VECTORS_AT_ONCE` for each row of a tile."""

MANY_QUERIES = 8
"""Queries per key head from which half dtypes are widened once; keys are then transposed for tiles."""


class Small(Arguments):
    """Arguments shared by the forward and backward kernels.

    query (b, heads, n, d), key (b, heads_k, m, d), value (b, heads_k, m, d_v); ``group`` heads of queries share a head
    of keys. mask (b, heads, n, m). ``weights`` (b, heads, n, m rounded up to whole registers). If ``causal``, a query
    sees the keys up to its own number.
    """

    tasks: Size
    heads_k: Size
    group: Size
    n: Size
    m: Size
    d: Size
    d_v: Size
    causal: Flag
    scale: Real
    log2_scale: Real
    query: StridedBytes
    key: StridedBytes
    value: StridedBytes
    mask: OptionalStridedBooleans
    scratch: Scratch


F = TypeVar("F", bound=Small)
R = TypeVar("R", RealPointer, BytePointer)


class Rows(Generic[R]):
    """Rows of reals, or of bytes of a half dtype: address, distance and length."""

    def __init__(self, base: R, step: Value, columns: Value) -> None:
        self.base: R = base
        self.step, self.columns = step, columns

    def row(self, number: Value) -> R:
        """The address of a row."""
        return self.base + number * self.step


AnyRows: TypeAlias = Rows[RealPointer] | Rows[BytePointer]

Weigh: TypeAlias = Callable[[list[Value], Sequence[Inside], list[list[Variable]]], None]
"""Function that adds to the sums of some columns, for each row."""

Write: TypeAlias = Callable[[Value, Inside, Value], None]
"""Function that receives a register's sums, its existing lanes and its first column."""


class KeyHead(Generic[F]):
    """Emitter of operations on one head of keys, shared by both kernels."""

    def __init__(self, k: Kernel[F], stored: str, masked: bool, copied: bool, task: Value) -> None:
        g = k.argument
        self.k, self.stored, self.masked, self.task = k, stored, masked, task
        self.reads_reals = copied or stored == "real"
        """True if keys and values are read as reals; otherwise every read widens them."""
        self.batch, self.head_k = task // g.heads_k, task % g.heads_k
        self.m_whole = in_registers(g.m, k.lanes)
        many_queries = (g.group * g.n).compare(">=", MANY_QUERIES)
        self.has_tiles = not masked and self.reads_reals
        """True if queries may form tiles."""
        self.in_tiles = k.select(many_queries, g.n // TILE * TILE, k.integer(0)) if self.has_tiles else k.integer(0)
        """Queries of a head that are in tiles."""
        self.keys_in_columns = g.m.compare(">", max(1, k.lanes // 4))
        """True if tiles read transposed keys; fewer keys would leave most lanes empty."""

    def head(self, member: Value) -> Value:
        """Number of a head of the group."""
        return self.head_k * self.k.argument.group + member

    def number(self, member: Value, i: Value) -> Value:
        """Number of a query among those of all heads."""
        g = self.k.argument
        return (self.task * g.group + member) * g.n + i

    def reals(self, operand: Strided[BytePointer], head: Value, columns: Value, copy: RealPointer) -> Rows[RealPointer]:
        """Rows of a head as reals: in place, or in the widened ``copy``."""
        if self.stored != "real":
            return Rows(copy, in_registers(columns, self.k.lanes), columns)
        first = operand.of_head(self.batch, head)
        return Rows(RealPointer(first.address), operand.row // self.k.size, columns)

    def read(
        self, operand: Strided[BytePointer], head: Value, count: Value, columns: Value, copy: RealPointer
    ) -> Rows[RealPointer]:
        """Widen half dtypes to ``copy``; return the rows of a head as reals."""
        k, first = self.k, operand.of_head(self.batch, head)
        if self.stored != "real":
            with k.loop(0, count) as i:
                row = first + i * operand.row

                def widen(c: Value, inside: Inside) -> None:
                    k.store(load_stored(k, inside, row, c, self.stored), copy, i * in_registers(columns, k.lanes) + c)

                vectors(k, columns, widen)
        return self.reals(operand, head, columns, copy)

    def of_keys(self, operand: Strided[BytePointer], columns: Value, copy: RealPointer) -> AnyRows:
        """Rows of keys or values: half dtypes as stored, or widened if `reads_reals`."""
        if self.reads_reals:
            return self.read(operand, self.head_k, self.k.argument.m, columns, copy)
        return Rows(operand.of_head(self.batch, self.head_k), operand.row, columns)

    def load(self, inside: Inside, row: RealPointer | BytePointer, column: Value) -> Value:
        """Load a register of a row."""
        if isinstance(row, BytePointer):
            return load_stored(self.k, inside, row, column, self.stored)
        return load(self.k, inside, row, column)

    def row_of(self, operand: Strided[BytePointer], head: Value, i: Value) -> BytePointer:
        """Address of a row as stored."""
        return operand.of_head(self.batch, head) + i * operand.row

    def writer(self, row: BytePointer, observe: Callable[[Value], None] | None = None) -> Write:
        """Return a function that passes columns to ``observe``, rounds them once and stores them."""

        def write(value: Value, inside: Inside, column: Value) -> None:
            if observe is not None:
                observe(value)
            store_stored(self.k, value, inside, row, column, self.stored)

        return write

    def stop(self, i: Value) -> Value:
        """Number of keys that a query may see."""
        k, g = self.k, self.k.argument
        return k.select(g.causal.is_nonzero(), k.minimum(i + 1, g.m), g.m)

    def mask_row(self, member: Value, i: Value) -> BytePointer:
        """The address of a query's row of the mask."""
        return self.row_of(self.k.argument.mask, self.head(member), i)

    def attendable(self, mask_row: BytePointer, stop: Value, j: Value) -> Value:
        """Booleans: the lane's key is attendable."""
        inside = self.k.lanes_below(stop - j)
        return self.k.load_bytes(mask_row, j, inside) if self.masked else inside

    def row_products(self, row: RealPointer, rows: AnyRows, count: Value, target: RealPointer) -> None:
        """Store the products of a row with others, in whole registers; padding repeats the last."""
        k = self.k
        with k.loop(0, count, k.lanes) as j:
            others = [rows.row(k.minimum(j + r, count - 1)) for r in range(k.lanes)]
            sums = [Variable(k, k.full(0.0)) for _ in others]

            def add(c: Value, inside: Inside) -> None:
                x = load(k, inside, row, c)
                for other, total in zip(others, sums, strict=True):
                    total.set(k.fma(self.load(inside, other, c), x, total.get()))

            vectors(k, rows.columns, add)
            k.store(sums_of_lanes(k, [x.get() for x in sums]), target, j)

    def put_into_columns(self, rows: AnyRows, target: RealPointer) -> None:
        """Transpose keys or values to ``target`` for `products`, if queries form tiles."""
        k, g, all_lanes = self.k, self.k.argument, self.k.integer(self.k.lanes)
        if not self.has_tiles or isinstance(rows.base, BytePointer):
            return
        wanted = k.select(self.keys_in_columns, self.in_tiles, k.integer(0)).is_nonzero()
        with k.when(wanted), k.loop(0, g.m, k.lanes) as j, k.loop(0, rows.columns, k.lanes) as c:
            source = Square(rows.base + j * rows.step + c, rows.step, g.m - j, rows.columns - c)
            transpose(k, source, Square(target + (c * self.m_whole + j), self.m_whole, all_lanes, all_lanes))

    def products(
        self, rows: list[RealPointer], others: AnyRows, columns: RealPointer, count: Value, targets: list[RealPointer]
    ) -> None:
        """Store `row_products` for each row of a tile; ``columns`` holds the transposed others, if any."""
        with self.k.when(self.keys_in_columns) as otherwise:
            self._by_columns(rows, columns, others.columns, count, targets)
        with otherwise():
            self._by_rows(rows, others, count, targets)

    def _by_rows(self, rows: list[RealPointer], others: AnyRows, count: Value, targets: list[RealPointer]) -> None:
        k = self.k
        products = [Variable(k, k.full(0.0)) for _ in rows]
        with k.loop(0, count) as j:
            other, sums = others.row(j), [Variable(k, k.full(0.0)) for _ in rows]

            def add(c: Value, inside: Inside) -> None:
                x = self.load(inside, other, c)
                for row, total in zip(rows, sums, strict=True):
                    total.set(k.fma(load(k, inside, row, c), x, total.get()))

            vectors(k, others.columns, add)
            before = k.lanes_below(j)  # the lanes that already hold their products
            for products_of_row, total in zip(products, sums, strict=True):
                products_of_row.set(k.select(before, products_of_row.get(), k.sum(total.get())))
        for target, products_of_row in zip(targets, products, strict=True):
            k.store(products_of_row.get(), target, 0)

    def _by_columns(
        self, rows: list[RealPointer], others: RealPointer, depth: Value, count: Value, targets: list[RealPointer]
    ) -> None:
        k = self.k
        for vectors_, j in groups_of_vectors(k, in_registers(count, k.lanes)):
            sums = zeros(k, len(rows), vectors_)
            add_product(k, sums, [(row, 0) for row in rows], 1, others + j, self.m_whole, (0, depth))
            for target, totals in zip(targets, sums, strict=True):
                for v, total in enumerate(totals):
                    k.store(total.get(), target, j + v * k.lanes)

    def weigh_together(
        self, weights: list[RealPointer], step: Value, rows: AnyRows, start: Value, stop: Value
    ) -> Weigh:
        """Return a function that adds rows ``start`` to ``stop`` to each sum of a tile."""
        k = self.k

        def add(places: list[Value], insides: Sequence[Inside], sums: list[list[Variable]]) -> None:
            with k.loop(start, stop) as t:
                row = rows.row(t)
                loaded = [self.load(inside, row, place) for place, inside in zip(places, insides, strict=True)]
                for row_weights, totals in zip(weights, sums, strict=True):
                    weight = k.broadcast(row_weights, t * step)
                    for x, total in zip(loaded, totals, strict=True):
                        total.set(k.fma(x, weight, total.get()))

        return add

    def weigh(
        self, weights: RealPointer, step: Value, rows: AnyRows, start: Value, stop: Value,
        mask: tuple[BytePointer, Value],
    ) -> Weigh:  # fmt: skip
        """Return a function that adds weighted rows; ``weights`` are ``step`` reals apart.

        If the kernel is masked, ``mask`` (address, byte distance from row to row) excludes some.
        """
        k = self.k

        def add(places: list[Value], insides: Sequence[Inside], sums: list[list[Variable]]) -> None:
            def add_row(t: Value) -> None:
                weight, row = k.broadcast(weights, t * step), rows.row(t)
                for place, inside, total in zip(places, insides, sums[0], strict=True):
                    total.set(k.fma(self.load(inside, row, place), weight, total.get()))

            with k.loop(start, stop) as t:
                if self.masked:
                    with k.when(k.load_byte(mask[0], t * mask[1]).is_nonzero()):
                        add_row(t)
                else:
                    add_row(t)

        return add

    def pool(self, columns: Value, add: Weigh, writers: list[Write]) -> None:
        """Store the sums of all columns, for one row or a tile of rows."""
        k, begin = self.k, self.k.integer(0)

        def pool_columns(places: list[Value], insides: Sequence[Inside]) -> None:
            sums = [[Variable(k, k.full(0.0)) for _ in places] for _ in writers]
            add(places, insides, sums)
            for write, totals in zip(writers, sums, strict=True):
                for place, inside, total in zip(places, insides, totals, strict=True):
                    write(total.get(), inside, place)

        for count in (VECTORS_AT_ONCE if len(writers) == 1 else VECTORS_PER_TILE_ROW)[:-1]:
            wide = count * k.lanes
            end = begin + (columns - begin) // wide * wide
            with k.loop(begin, end, wide) as c:
                pool_columns([c + i * k.lanes for i in range(count)], [None] * count)
            begin = end
        start = begin
        groups(k, columns - start, 1, lambda places, insides: pool_columns([start + c for c in places], insides))


def weigh_tile(emit: KeyHead[F], first: Value, weights: list[RealPointer], rows: AnyRows) -> Weigh:
    """Return a function that adds the whole tile's keys, then each query's further keys."""
    k, unit = emit.k, emit.k.integer(1)
    common, no_mask = emit.stop(first), (BytePointer(k.integer(0)), unit)

    def add(places: list[Value], insides: Sequence[Inside], sums: list[list[Variable]]) -> None:
        emit.weigh_together(weights, unit, rows, k.integer(0), common)(places, insides, sums)
        for r in range(1, TILE):
            add_further = emit.weigh(weights[r], unit, rows, start=common, stop=emit.stop(first + r), mask=no_mask)
            add_further(places, insides, sums[r : r + 1])

    return add
