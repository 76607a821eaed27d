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
from attnspec.backends.pytorch.kernels.llvm.registers import Inside, groups, load, load_stored, store_stored, vectors
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, Extent, RealPointer, Value, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import exp2, log, sums_of_lanes

from .arguments import OptionalStridedBooleans, Strided
from .step_arguments import StridedBytes

TOGETHER = (8, 4, 1)
"""Vectors of columns whose sums are in registers at once, as long as there are so many."""


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


Weigh: TypeAlias = Callable[[list[Value], Sequence[Inside], list[Variable]], None]
"""Adds to the sums of some columns."""

Put: TypeAlias = Callable[[Value, Inside, Value], None]
"""Takes the sums of a register of columns, and their first."""


def in_registers(numbers: Extent, lanes: int) -> Extent:
    """So many numbers rounded up to whole registers."""
    return (numbers + (lanes - 1)) // lanes * lanes


def forward_scratch(lanes: int, n: Extent, m: Extent, d: Extent, d_v: Extent) -> tuple[Extent, ...]:
    """Reals of a thread: weights of a query; key, value and the queries of a head, widened."""
    d, d_v = in_registers(d, lanes), in_registers(d_v, lanes)
    return in_registers(m, lanes), m * d, m * d_v, n * d


def backward_scratch(lanes: int, group: Extent, n: Extent, m: Extent, d: Extent, d_v: Extent) -> tuple[Extent, ...]:
    """Reals of a thread: gradients of all scores; key, value, queries and gradients of results, widened."""
    d, d_v = in_registers(d, lanes), in_registers(d_v, lanes)
    return group * n * in_registers(m, lanes), m * d, m * d_v, group * n * d, group * n * d_v


class _Task:
    """A head of keys, with what both kernels do for it."""

    def __init__(self, k: Kernel[Forward] | Kernel[Backward], stored: str, masked: bool, task: Value) -> None:
        g = k.argument
        self.k, self.stored, self.masked, self.task = k, stored, masked, task
        self.batch, self.head_k = task // g.heads_k, task % g.heads_k
        self.m_whole = in_registers(g.m, k.lanes)

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

    def weigh(
        self, weights: RealPointer, step: Value, rows: Rows, start: Value, stop: Value,
        mask: tuple[BytePointer, Value],
    ) -> Weigh:  # fmt: skip
        """Adds weighted rows, those from ``start`` to ``stop`` that bytes of a mask, so far apart, leave."""
        k = self.k

        def add(places: list[Value], insides: Sequence[Inside], sums: list[Variable]) -> None:
            def one(t: Value) -> None:
                weight, row = k.broadcast(weights, t * step), rows.row(t)
                for place, inside, total in zip(places, insides, sums, strict=True):
                    total.set(k.fma(load(k, inside, row, place), weight, total.get()))

            with k.loop(start, stop) as t:
                if self.masked:
                    with k.when(k.load_byte(mask[0], t * mask[1]).is_nonzero()):
                        one(t)
                else:
                    one(t)

        return add

    def pool(self, columns: Value, add: Weigh, put: Put) -> None:
        """The sums of all columns."""
        k, begin = self.k, self.k.integer(0)

        def some(places: list[Value], insides: Sequence[Inside]) -> None:
            sums = [Variable(k, k.full(0.0)) for _ in places]
            add(places, insides, sums)
            for place, inside, total in zip(places, insides, sums, strict=True):
                put(total.get(), inside, place)

        for count in TOGETHER[:-1]:
            wide = count * k.lanes
            end = begin + (columns - begin) // wide * wide
            with k.loop(begin, end, wide) as c:
                some([c + i * k.lanes for i in range(count)], [None] * count)
            begin = end
        rest = begin
        groups(k, columns - rest, 1, lambda places, insides: some([rest + c for c in places], insides))


@compiled
def forward_kernel(bits: int, stored: str, masked: bool) -> Kernel[Forward]:
    """Output, and on request weights and log Σ exp, of operands that are stored so."""
    k = Kernel("dot_few", Forward, bits)
    g, lowest, zero, one = k.argument, k.full(float("-inf")), k.full(0.0), k.integer(1)
    strange, size = Variable(k, k.integer(0)), k.size if stored == "real" else 2

    def note(booleans: Value) -> None:
        strange.set(strange.get() | k.select(k.any(booleans), k.integer(1), k.integer(0)))

    with k.tasks(g.tasks) as number:
        own = _Task(k, stored, masked, number)
        parts = k.parts(g.scratch.of(k.thread), forward_scratch(k.lanes, g.n, g.m, g.d, g.d_v))
        key = own.read(g.key, own.head_k, g.m, g.d, parts[1])
        value = own.read(g.value, own.head_k, g.m, g.d_v, parts[2])
        with k.loop(0, g.group) as member:
            head = own.head(member)
            query = own.read(g.query, head, g.n, g.d, parts[3])
            with k.loop(0, g.n) as i:
                row, stop, mask = own.number(member, i), own.stop(i), own.mask_row(member, i)
                weights = k.select(g.weights.is_given(), g.weights + row * own.m_whole, parts[0])
                own.dots(query.row(i), key, stop, weights)
                maximum = Variable(k, lowest)
                with k.loop(0, stop, k.lanes) as j:
                    attendable, score = own.attendable(mask, stop, j), k.load(weights, j)
                    note(attendable & (score - score).compare("!=", 0.0))
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
                    k.store_stored(k.select(none, lowest, logarithm), g.logarithms, row * size, stored, first=True)
                target = own.row_of(g.output, head, i)

                put = own.into(target, lambda x: note(x.compare("!=", x)))
                own.pool(g.d_v, own.weigh(weights, one, value, k.integer(0), stop, (mask, one)), put)
    with k.when(strange.get().is_nonzero()):
        k.store_int(strange.get(), g.strange, 0)
    return k


@compiled
def backward_kernel(bits: int, stored: str, masked: bool) -> Kernel[Backward]:
    """Gradients of query, key and value, all stored alike."""
    k = Kernel("dot_few_backward", Backward, bits)
    g, zero, one = k.argument, k.full(0.0), k.integer(1)
    with k.tasks(g.tasks) as number:
        own = _Task(k, stored, masked, number)
        sizes = backward_scratch(k.lanes, g.group, g.n, g.m, g.d, g.d_v)
        of_scores, *copies = k.parts(g.scratch.of(k.thread), sizes)
        key = own.read(g.key, own.head_k, g.m, g.d, copies[0])
        value = own.read(g.value, own.head_k, g.m, g.d_v, copies[1])

        with k.loop(0, g.group) as member:
            head = own.head(member)
            own.read(g.query, head, g.n, g.d, copies[2] + member * (g.n * in_registers(g.d, k.lanes)))
            gradient = own.read(g.gradient, head, g.n, g.d_v, copies[3] + member * (g.n * in_registers(g.d_v, k.lanes)))
            with k.loop(0, g.n) as i:
                row, stop, mask = own.number(member, i), own.stop(i), own.mask_row(member, i)
                weights, scores = g.weights + row * own.m_whole, of_scores + (member * g.n + i) * own.m_whole
                own.dots(gradient.row(i), value, stop, scores)
                total = Variable(k, zero)
                with k.loop(0, stop, k.lanes) as j:
                    product = k.load(weights, j) * k.load(scores, j)
                    total.add(k.select(own.attendable(mask, stop, j), product, zero))
                mean = Variable(k, k.sum(total.get()))
                with k.when(g.of_logarithms.is_given()):
                    mean.set(mean.get() - k.broadcast(g.of_logarithms, row))
                with k.loop(0, stop, k.lanes) as j:
                    of_score = k.load(weights, j) * (k.load(scores, j) - mean.get()) * g.scale.load()
                    k.store(k.select(own.attendable(mask, stop, j), of_score, zero), scores, j)
                target = own.row_of(g.of_query, head, i)
                own.pool(g.d, own.weigh(scores, one, key, k.integer(0), stop, (mask, one)), own.into(target))
        with k.loop(0, g.m) as j:
            start = k.select(g.causal.is_nonzero(), k.minimum(j, g.n), k.integer(0))

            def of_column(
                weights: RealPointer, operand: Strided[BytePointer], columns: Value, copy: RealPointer,
                j: Value = j, start: Value = start, own: _Task = own,
            ) -> Weigh:  # fmt: skip
                """The rows of all queries, each with its weight of the key."""

                def add(places: list[Value], insides: Sequence[Inside], sums: list[Variable]) -> None:
                    with k.loop(0, g.group) as member:
                        place = copy + member * (g.n * in_registers(columns, own.k.lanes))
                        rows = own.lying(operand, own.head(member), columns, place)
                        mask = own.mask_row(member, k.integer(0)) + j, g.mask.row
                        first = weights + (member * g.n * own.m_whole + j)
                        own.weigh(first, own.m_whole, rows, start, g.n, mask)(places, insides, sums)

                return add

            all_weights = g.weights + number * (g.group * g.n * own.m_whole)
            for weights, operand, columns, copy, result in (
                (of_scores, g.query, g.d, copies[2], g.of_key), (all_weights, g.gradient, g.d_v, copies[3], g.of_value)
            ):  # fmt: skip
                row_of_key = own.row_of(result, own.head_k, j)
                own.pool(columns, of_column(weights, operand, columns, copy), own.into(row_of_key))
    return k
