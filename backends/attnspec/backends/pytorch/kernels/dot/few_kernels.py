"""Attention of few queries and keys, forward and backward: one kernel each, which computes one query after another.

Kernels for many queries have a query in each lane, so that few leave lanes empty, and transpose what they read. Here
features lie in the lanes; rows are read as they are stored, and half dtypes widened once a head. What is excluded is
not read, whatever it holds. A task is a head of keys with all queries that share it, so that every sum has one order.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from attnspec.backends.pytorch.kernels.llvm.arguments import (
    Arguments,
    Flag,
    OptionalBytes,
    OptionalReals,
    Real,
    Reals,
    Result,
    Scratch,
    Size,
)
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.machine_code import HAS_512_BITS
from attnspec.backends.pytorch.kernels.llvm.registers import Inside, groups, load, load_stored, store_stored, vectors
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, Extent, RealPointer, Value, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import exp2, log, sums_of_lanes

from .arguments import OptionalStridedBooleans, Strided
from .step_arguments import StridedBytes
from .tiles import Square, define_transpose, transpose

TOGETHER = (8, 4, 1)
"""Vectors of columns whose sums are in registers at once, as long as there are so many."""

TILE = 4
"""Rows of a tile, of queries or keys, whose sums are in registers at once."""

OF_TILE = (4, 1) if HAS_512_BITS else (2, 1)
"""`TOGETHER` for each row of a tile."""

WORTH_TRANSPOSING = 8
"""Queries of a head of keys from which keys are transposed for tiles."""


class Few(Arguments):
    """What both kernels take.

    query (b, heads, n, d), key (b, heads_k, m, d) and value (b, heads_k, m, d_v), of which ``group`` heads of queries
    share a head; mask (b, heads, n, m). ``weights`` are (b, heads, n, m in whole registers). A query sees the keys up
    to its own number if ``causal``.
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


class Forward(Few):
    """Arguments of `forward_kernel`: ``weights`` and ``logarithms`` (b, heads, n) if they are wanted.

    ``strange`` becomes 1 where a score is not finite or a result is NaN.
    """

    weights: OptionalReals
    output: StridedBytes
    logarithms: OptionalBytes
    strange: Result


class Backward(Few):
    """Arguments of `backward_kernel`: gradients of results, and of operands, which are written."""

    weights: Reals
    gradient: StridedBytes
    of_logarithms: OptionalReals
    of_query: StridedBytes
    of_key: StridedBytes
    of_value: StridedBytes


class Rows(NamedTuple):
    """Rows of reals: the address of the first, their distance, and their length."""

    base: RealPointer
    step: Value
    columns: Value

    def row(self, number: Value) -> RealPointer:
        """The address of a row."""
        return self.base + number * self.step


Weigh: TypeAlias = Callable[[list[Value], Sequence[Inside], list[list[Variable]]], None]
"""Adds to the sums of some columns, of each row."""

Put: TypeAlias = Callable[[Value, Inside, Value], None]
"""Takes the sums of a register of columns, and their first."""


def in_registers(numbers: Extent, lanes: int) -> Extent:
    """So many numbers rounded up to whole registers."""
    return (numbers + (lanes - 1)) // lanes * lanes


def forward_scratch(lanes: int, n: Extent, m: Extent, d: Extent, d_v: Extent) -> tuple[Extent, ...]:
    """Reals of a thread: weights of a tile; keys transposed; key, value and the queries of a head, widened."""
    d, d_v, m_whole = in_registers(d, lanes), in_registers(d_v, lanes), in_registers(m, lanes)
    return m_whole * TILE, m_whole * d, m * d, m * d_v, n * d


def backward_scratch(lanes: int, group: Extent, n: Extent, m: Extent, d: Extent, d_v: Extent) -> tuple[Extent, ...]:
    """Reals of a thread: gradients of all scores; values transposed; key, value, queries and gradients of results,
    widened."""
    d, d_v, m_whole = in_registers(d, lanes), in_registers(d_v, lanes), in_registers(m, lanes)
    return group * n * m_whole, m_whole * d_v, m * d, m * d_v, group * n * d, group * n * d_v


class _Task:
    """A head of keys, with what both kernels do for it."""

    def __init__(self, k: Kernel[Forward] | Kernel[Backward], stored: str, masked: bool, task: Value) -> None:
        g = k.argument
        self.k, self.stored, self.masked, self.task = k, stored, masked, task
        self.batch, self.head_k = task // g.heads_k, task % g.heads_k
        self.m_whole = in_registers(g.m, k.lanes)
        many = (g.group * g.n).compare(">=", WORTH_TRANSPOSING)
        self.tiled = k.integer(0) if masked else k.select(many, g.n // TILE * TILE, k.integer(0))
        """Queries of a head that are in tiles."""

    def head(self, member: Value) -> Value:
        """The number of a head of the group."""
        return self.head_k * self.k.argument.group + member

    def number(self, member: Value, i: Value) -> Value:
        """The number of a query among all."""
        g = self.k.argument
        return (self.task * g.group + member) * g.n + i

    def lying(self, operand: Strided[BytePointer], head: Value, columns: Value, copy: RealPointer) -> Rows:
        """The rows of a head as reals: where they are stored, or widened to a copy."""
        if self.stored != "real":
            return Rows(copy, in_registers(columns, self.k.lanes), columns)
        first = operand.of_head(self.batch, head)
        return Rows(RealPointer(first.address), operand.row // self.k.size, columns)

    def read(self, operand: Strided[BytePointer], head: Value, count: Value, columns: Value, copy: RealPointer) -> Rows:
        """The same, after half dtypes are widened."""
        k, first = self.k, operand.of_head(self.batch, head)
        if self.stored != "real":
            with k.loop(0, count) as i:

                def widen(c: Value, inside: Inside, row: BytePointer = first + i * operand.row, i: Value = i) -> None:
                    k.store(load_stored(k, inside, row, c, self.stored), copy, i * in_registers(columns, k.lanes) + c)

                vectors(k, columns, widen)
        return self.lying(operand, head, columns, copy)

    def row_of(self, operand: Strided[BytePointer], head: Value, i: Value) -> BytePointer:
        """The address of a row as it is stored."""
        return operand.of_head(self.batch, head) + i * operand.row

    def into(self, row: BytePointer, look: Callable[[Value], None] | None = None) -> Put:
        """Stores columns of a row, rounded once, after a look at each."""

        def put(value: Value, inside: Inside, column: Value) -> None:
            if look is not None:
                look(value)
            store_stored(self.k, value, inside, row, column, self.stored)

        return put

    def stop(self, i: Value) -> Value:
        """How many keys a query may see."""
        k, g = self.k, self.k.argument
        return k.select(g.causal.is_nonzero(), k.minimum(i + 1, g.m), g.m)

    def mask_row(self, member: Value, i: Value) -> BytePointer:
        """The address of a query's row of the mask."""
        return self.row_of(self.k.argument.mask, self.head(member), i)

    def attendable(self, mask_row: BytePointer, stop: Value, j: Value) -> Value:
        """Booleans: which keys of a register are attended to."""
        inside = self.k.lanes_below(stop - j)
        return self.k.load_bytes(mask_row, j, inside) if self.masked else inside

    def dots(self, row: RealPointer, rows: Rows, count: Value, target: RealPointer) -> None:
        """The products of a row with others, in whole registers; beyond the last the last."""
        k = self.k
        with k.loop(0, count, k.lanes) as j:
            others = [rows.row(k.minimum(j + r, count - 1)) for r in range(k.lanes)]
            sums = [Variable(k, k.full(0.0)) for _ in others]

            def add(c: Value, inside: Inside, others: list[RealPointer] = others, sums: list[Variable] = sums) -> None:
                x = load(k, inside, row, c)
                for other, total in zip(others, sums, strict=True):
                    total.set(k.fma(load(k, inside, other, c), x, total.get()))

            vectors(k, rows.columns, add)
            k.store(sums_of_lanes(k, [x.get() for x in sums]), target, j)

    def transposed(self, rows: Rows, target: RealPointer) -> None:
        """Keys or values with a column for each, as `products` reads them, where there are tiles."""
        k, g, every = self.k, self.k.argument, self.k.integer(self.k.lanes)
        with k.when(self.tiled.is_nonzero()), k.loop(0, g.m, k.lanes) as j, k.loop(0, rows.columns, k.lanes) as c:
            source = Square(rows.row(j) + c, rows.step, g.m - j, rows.columns - c)
            transpose(k, source, Square(target + (c * self.m_whole + j), self.m_whole, every, every))

    def products(
        self, rows: list[RealPointer], others: RealPointer, depth: Value, count: Value, targets: list[RealPointer]
    ) -> None:
        """The same as `dots` for the rows of a tile, with others that are transposed."""
        k, begin = self.k, self.k.integer(0)
        for vectors_ in (2, 1):
            wide = vectors_ * k.lanes
            end = begin + (in_registers(count, k.lanes) - begin) // wide * wide
            with k.loop(begin, end, wide) as j:
                sums = [[Variable(k, k.full(0.0)) for _ in range(vectors_)] for _ in rows]
                places = [others + (j + v * k.lanes) for v in range(vectors_)]
                with k.loop(0, depth) as c:
                    loaded = [k.load(place, c * self.m_whole) for place in places]
                    for row, totals in zip(rows, sums, strict=True):
                        x = k.broadcast(row, c)
                        for other, total in zip(loaded, totals, strict=True):
                            total.set(k.fma(x, other, total.get()))
                for target, totals in zip(targets, sums, strict=True):
                    for v, total in enumerate(totals):
                        k.store(total.get(), target, j + v * k.lanes)
            begin = end

    def weigh_together(self, weights: list[RealPointer], step: Value, rows: Rows, start: Value, stop: Value) -> Weigh:
        """Adds the same rows, from ``start`` to ``stop``, to the sums of each row of a tile."""
        k = self.k

        def add(places: list[Value], insides: Sequence[Inside], sums: list[list[Variable]]) -> None:
            with k.loop(start, stop) as t:
                row = rows.row(t)
                loaded = [load(k, inside, row, place) for place, inside in zip(places, insides, strict=True)]
                for own, totals in zip(weights, sums, strict=True):
                    weight = k.broadcast(own, t * step)
                    for x, total in zip(loaded, totals, strict=True):
                        total.set(k.fma(x, weight, total.get()))

        return add

    def weigh(
        self, weights: RealPointer, step: Value, rows: Rows, start: Value, stop: Value,
        mask: tuple[BytePointer, Value],
    ) -> Weigh:  # fmt: skip
        """Adds weighted rows, those from ``start`` to ``stop`` that bytes of a mask, so far apart, leave."""
        k = self.k

        def add(places: list[Value], insides: Sequence[Inside], sums: list[list[Variable]]) -> None:
            def one(t: Value) -> None:
                weight, row = k.broadcast(weights, t * step), rows.row(t)
                for place, inside, total in zip(places, insides, sums[0], strict=True):
                    total.set(k.fma(load(k, inside, row, place), weight, total.get()))

            with k.loop(start, stop) as t:
                if self.masked:
                    with k.when(k.load_byte(mask[0], t * mask[1]).is_nonzero()):
                        one(t)
                else:
                    one(t)

        return add

    def pool(self, columns: Value, add: Weigh, puts: list[Put]) -> None:
        """The sums of all columns, of a row or of each row of a tile."""
        k, begin = self.k, self.k.integer(0)

        def some(places: list[Value], insides: Sequence[Inside]) -> None:
            sums = [[Variable(k, k.full(0.0)) for _ in places] for _ in puts]
            add(places, insides, sums)
            for put, totals in zip(puts, sums, strict=True):
                for place, inside, total in zip(places, insides, totals, strict=True):
                    put(total.get(), inside, place)

        for count in (TOGETHER if len(puts) == 1 else OF_TILE)[:-1]:
            wide = count * k.lanes
            end = begin + (columns - begin) // wide * wide
            with k.loop(begin, end, wide) as c:
                some([c + i * k.lanes for i in range(count)], [None] * count)
            begin = end
        rest = begin
        groups(k, columns - rest, 1, lambda places, insides: some([rest + c for c in places], insides))


class _Queries:
    """Forward, of the queries of a head: the weights of a row, and its output."""

    def __init__(self, own: _Task, strange: Variable, member: Value, value: Rows) -> None:
        self.own, self.strange, self.member, self.value = own, strange, member, value
        self.g: Forward = own.k.argument  # type: ignore[assignment]

    def note(self, booleans: Value) -> None:
        """Remember that something is not finite."""
        k, strange = self.own.k, self.strange
        strange.set(strange.get() | k.select(k.any(booleans), k.integer(1), k.integer(0)))

    def weights(self, i: Value, weights: RealPointer) -> None:
        """The scores of a query become weights."""
        own, k, g = self.own, self.own.k, self.g
        lowest, zero, size = k.full(float("-inf")), k.full(0.0), k.size if own.stored == "real" else 2
        row, stop, mask = own.number(self.member, i), own.stop(i), own.mask_row(self.member, i)
        maximum = Variable(k, lowest)
        with k.loop(0, stop, k.lanes) as j:
            attendable, score = own.attendable(mask, stop, j), k.load(weights, j)
            self.note(attendable & (score - score).compare("!=", 0.0))
            score = k.select(attendable, score, lowest)
            k.store(score, weights, j)
            maximum.set(k.maximum(score, maximum.get()))
        largest = k.max(maximum.get())
        largest = k.select(largest.compare("==", lowest), zero, largest)
        total, log2_scale = Variable(k, zero), g.log2_scale.load()
        with k.loop(0, stop, k.lanes) as j:
            weight = exp2(k, (k.load(weights, j) - largest) * log2_scale)
            k.store(weight, weights, j)
            total.add(weight)
        row_sum = k.sum(total.get())
        none = row_sum.compare("==", 0.0)
        reciprocal = k.select(none, zero, k.full(1.0) / row_sum)
        with k.loop(0, stop, k.lanes) as j:
            k.store(k.load(weights, j) * reciprocal, weights, j)
        with k.when(g.logarithms.is_given()):
            logarithm = k.fma(largest, g.scale.load(), log(k, row_sum))
            k.store_stored(k.select(none, lowest, logarithm), g.logarithms, row * size, own.stored, first=True)

    def into(self, i: Value) -> Put:
        """Stores the output of a query."""
        row = self.own.row_of(self.g.output, self.own.head(self.member), i)
        return self.own.into(row, lambda x: self.note(x.compare("!=", x)))

    def one(self, i: Value, weights: RealPointer) -> None:
        """The output of a query from its scores."""
        own, zero, one = self.own, self.own.k.integer(0), self.own.k.integer(1)
        self.weights(i, weights)
        mask = own.mask_row(self.member, i), one
        own.pool(self.g.d_v, own.weigh(weights, one, self.value, zero, own.stop(i), mask), [self.into(i)])

    def tile(self, first: Value, weights: list[RealPointer], step: Value) -> None:
        """The outputs of a tile; rows of weights are ``step`` apart."""
        own, k = self.own, self.own.k
        with k.loop(0, k.integer(TILE)) as r:
            self.weights(first + r, weights[0] + r * step)
        add = _of_queries(own, first, weights, self.value)
        own.pool(self.g.d_v, add, [self.into(first + r) for r in range(TILE)])


def _of_queries(own: _Task, first: Value, weights: list[RealPointer], rows: Rows) -> Weigh:
    """Adds the weighted rows of the keys that the queries of a tile see: those of all, and what each sees more."""
    k, one = own.k, own.k.integer(1)
    common, nothing = own.stop(first), (BytePointer(k.integer(0)), one)

    def add(places: list[Value], insides: Sequence[Inside], sums: list[list[Variable]]) -> None:
        own.weigh_together(weights, one, rows, k.integer(0), common)(places, insides, sums)
        for r in range(1, TILE):
            own.weigh(weights[r], one, rows, common, own.stop(first + r), nothing)(places, insides, sums[r : r + 1])

    return add


@compiled
def forward_kernel(bits: int, stored: str, masked: bool) -> Kernel[Forward]:
    """Output, and on request weights and log Σ exp, of operands that are stored so."""
    k = Kernel("dot_few", Forward, bits)
    define_transpose(k)
    g, strange = k.argument, Variable(k, k.integer(0))
    with k.tasks(g.tasks) as number:
        own = _Task(k, stored, masked, number)
        parts = k.parts(g.scratch.of(k.thread), forward_scratch(k.lanes, g.n, g.m, g.d, g.d_v))
        key = own.read(g.key, own.head_k, g.m, g.d, parts[2])
        value = own.read(g.value, own.head_k, g.m, g.d_v, parts[3])
        own.transposed(key, parts[1])
        with k.loop(0, g.group) as member:
            query = own.read(g.query, own.head(member), g.n, g.d, parts[4])
            queries = _Queries(own, strange, member, value)

            def place(i: Value, member: Value = member, own: _Task = own) -> RealPointer:
                kept = g.weights + own.number(member, i) * own.m_whole
                return k.select(g.weights.is_given(), kept, parts[0])

            if not masked:
                with k.loop(0, own.tiled, TILE) as first:
                    weights = [place(first) + own.m_whole * r for r in range(TILE)]
                    rows = [query.row(first + r) for r in range(TILE)]
                    own.products(rows, parts[1], g.d, own.stop(first + (TILE - 1)), weights)
                    queries.tile(first, weights, own.m_whole)
            with k.loop(own.tiled, g.n) as i:
                own.dots(query.row(i), key, own.stop(i), place(i))
                queries.one(i, place(i))
    with k.when(strange.get().is_nonzero()):
        k.store_int(strange.get(), g.strange, 0)
    return k


def _gradients_of_scores(own: _Task, member: Value, i: Value, weights: RealPointer, scores: RealPointer) -> None:
    """Gradients of the weights of a query become those of its scores."""
    k, g, zero = own.k, own.k.argument, own.k.full(0.0)
    assert isinstance(g, Backward)
    stop, mask, total = own.stop(i), own.mask_row(member, i), Variable(k, zero)
    with k.loop(0, stop, k.lanes) as j:
        product = k.load(weights, j) * k.load(scores, j)
        total.add(k.select(own.attendable(mask, stop, j), product, zero))
    mean = Variable(k, k.sum(total.get()))
    with k.when(g.of_logarithms.is_given()):
        mean.set(mean.get() - k.broadcast(g.of_logarithms, own.number(member, i)))
    with k.loop(0, stop, k.lanes) as j:
        of_score = k.load(weights, j) * (k.load(scores, j) - mean.get()) * g.scale.load()
        k.store(k.select(own.attendable(mask, stop, j), of_score, zero), scores, j)


class _Column(NamedTuple):
    """What the gradients of a row of keys or values are sums of: rows of all queries with weights by ``m_whole``."""

    own: _Task
    weights: RealPointer
    operand: Strided[BytePointer]
    columns: Value
    copy: RealPointer

    def rows(self, member: Value) -> tuple[Rows, RealPointer]:
        """The rows of a head, and the weights of the first key."""
        own, g = self.own, self.own.k.argument
        place = self.copy + member * (g.n * in_registers(self.columns, own.k.lanes))
        rows = own.lying(self.operand, own.head(member), self.columns, place)
        return rows, self.weights + member * g.n * own.m_whole

    def start(self, j: Value) -> Value:
        """The first query that sees a key."""
        k, g = self.own.k, self.own.k.argument
        return k.select(g.causal.is_nonzero(), k.minimum(j, g.n), k.integer(0))

    def of_key(self, j: Value) -> Weigh:
        """Adds what belongs to a key."""
        own, k, g = self.own, self.own.k, self.own.k.argument

        def add(places: list[Value], insides: Sequence[Inside], sums: list[list[Variable]]) -> None:
            with k.loop(0, g.group) as member:
                rows, weights = self.rows(member)
                mask = own.mask_row(member, k.integer(0)) + j, g.mask.row
                own.weigh(weights + j, own.m_whole, rows, self.start(j), g.n, mask)(places, insides, sums)

        return add

    def of_tile(self, first: Value) -> Weigh:
        """Adds what belongs to the keys of a tile: of the queries that see all, and of what more see each."""
        own, k, g = self.own, self.own.k, self.own.k.argument
        common, nothing = self.start(first + (TILE - 1)), (BytePointer(k.integer(0)), k.integer(1))

        def add(places: list[Value], insides: Sequence[Inside], sums: list[list[Variable]]) -> None:
            with k.loop(0, g.group) as member:
                rows, weights = self.rows(member)
                each = [weights + (first + r) for r in range(TILE)]
                for r in range(TILE - 1):
                    more = own.weigh(each[r], own.m_whole, rows, self.start(first + r), common, nothing)
                    more(places, insides, sums[r : r + 1])
                own.weigh_together(each, own.m_whole, rows, common, g.n)(places, insides, sums)

        return add


@compiled
def backward_kernel(bits: int, stored: str, masked: bool) -> Kernel[Backward]:
    """Gradients of query, key and value, all stored alike."""
    k = Kernel("dot_few_backward", Backward, bits)
    define_transpose(k)
    g, zero, one = k.argument, k.integer(0), k.integer(1)
    with k.tasks(g.tasks) as number:
        own = _Task(k, stored, masked, number)
        sizes = backward_scratch(k.lanes, g.group, g.n, g.m, g.d, g.d_v)
        of_scores, values, *copies = k.parts(g.scratch.of(k.thread), sizes)
        key = own.read(g.key, own.head_k, g.m, g.d, copies[0])
        value = own.read(g.value, own.head_k, g.m, g.d_v, copies[1])
        own.transposed(value, values)
        with k.loop(0, g.group) as member:
            head = own.head(member)
            own.read(g.query, head, g.n, g.d, copies[2] + member * (g.n * in_registers(g.d, k.lanes)))
            gradient = own.read(g.gradient, head, g.n, g.d_v, copies[3] + member * (g.n * in_registers(g.d_v, k.lanes)))
            all_scores = of_scores + member * g.n * own.m_whole
            all_weights = g.weights + own.number(member, zero) * own.m_whole

            def into(i: Value, head: Value = head, own: _Task = own) -> Put:
                return own.into(own.row_of(g.of_query, head, i))

            if not masked:
                with k.loop(0, own.tiled, TILE) as first:
                    each = [all_scores + (first + r) * own.m_whole for r in range(TILE)]
                    rows = [gradient.row(first + r) for r in range(TILE)]
                    own.products(rows, values, g.d_v, own.stop(first + (TILE - 1)), each)
                    with k.loop(first, first + TILE) as i:
                        at = i * own.m_whole
                        _gradients_of_scores(own, member, i, all_weights + at, all_scores + at)
                    own.pool(g.d, _of_queries(own, first, each, key), [into(first + r) for r in range(TILE)])
            with k.loop(own.tiled, g.n) as i:
                scores, mask = all_scores + i * own.m_whole, (own.mask_row(member, i), one)
                own.dots(gradient.row(i), value, own.stop(i), scores)
                _gradients_of_scores(own, member, i, all_weights + i * own.m_whole, scores)
                own.pool(g.d, own.weigh(scores, one, key, zero, own.stop(i), mask), [into(i)])
        every = g.weights + number * (g.group * g.n * own.m_whole)
        for weights, operand, columns, copy, result in (
            (of_scores, g.query, g.d, copies[2], g.of_key), (every, g.gradient, g.d_v, copies[3], g.of_value)
        ):  # fmt: skip
            column = _Column(own, weights, operand, columns, copy)
            tiled = zero if masked else g.m // TILE * TILE
            if not masked:
                with k.loop(0, tiled, TILE) as first:
                    puts = [own.into(own.row_of(result, own.head_k, first + r)) for r in range(TILE)]
                    own.pool(columns, column.of_tile(first), puts)
            with k.loop(tiled, g.m) as j:
                own.pool(columns, column.of_key(j), [own.into(own.row_of(result, own.head_k, j))])
    return k
