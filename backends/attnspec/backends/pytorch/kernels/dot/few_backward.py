"""Backward kernel for few queries and keys: gradients of queries, then of keys and values.

It reads the weights that the forward kernel stored.
"""

from collections.abc import Sequence
from typing import NamedTuple

from attnspec.backends.pytorch.kernels.llvm.arguments import OptionalReals, Reals
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.registers import Inside, in_registers
from attnspec.backends.pytorch.kernels.llvm.transposition import define_transpose
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, Extent, RealPointer, Value, Variable

from .arguments import Strided
from .few_rows import TILE, Few, HeadOfKeys, Put, Rows, Weigh, of_queries
from .step_arguments import StridedBytes


class Backward(Few):
    """Arguments of `backward_kernel`: gradients of results (read) and of operands (written)."""

    weights: Reals
    gradient: StridedBytes
    of_logarithms: OptionalReals
    of_query: StridedBytes
    of_key: StridedBytes
    of_value: StridedBytes


def backward_scratch(
    lanes: int, stored: str, copied: bool, group: Extent, n: Extent, m: Extent, d: Extent, d_v: Extent
) -> tuple[Extent | int, ...]:  # fmt: skip
    """Scratch reals per thread: gradients of all scores; transposed values; ``copied`` key; ``copied`` value; widened
    queries; widened gradients of results."""
    d, d_v, m_whole = in_registers(d, lanes), in_registers(d_v, lanes), in_registers(m, lanes)
    if stored == "real":
        return group * n * m_whole, m_whole * d_v, 0, 0, 0, 0
    transposed, keys, values = m_whole * d_v * copied, m * d * copied, m * d_v * copied
    return group * n * m_whole, transposed, keys, values, group * n * d, group * n * d_v


def gradients_of_scores(
    own: HeadOfKeys[Backward], member: Value, i: Value, weights: RealPointer, scores: RealPointer
) -> None:
    """Replace the gradients of a query's weights by those of its scores."""
    k, g, zero = own.k, own.k.argument, own.k.full(0.0)
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


class Column(NamedTuple):
    """Terms of a key's or value's gradient: all queries' rows, with weights ``m_whole`` apart."""

    own: HeadOfKeys[Backward]
    weights: RealPointer
    operand: Strided[BytePointer]
    columns: Value
    copy: RealPointer

    def rows(self, member: Value) -> tuple[Rows[RealPointer], RealPointer]:
        """Rows of a head's queries, and their weights for the first key."""
        own, g = self.own, self.own.k.argument
        place = self.copy + member * (g.n * in_registers(self.columns, own.k.lanes))
        rows = own.lying(self.operand, own.head(member), self.columns, place)
        return rows, self.weights + member * g.n * own.m_whole

    def start(self, j: Value) -> Value:
        """The first query that sees a key."""
        k, g = self.own.k, self.own.k.argument
        return k.select(g.causal.is_nonzero(), k.minimum(j, g.n), k.integer(0))

    def of_key(self, j: Value) -> Weigh:
        """Return a function that adds the terms of one key."""
        own, k, g = self.own, self.own.k, self.own.k.argument

        def add(places: list[Value], insides: Sequence[Inside], sums: list[list[Variable]]) -> None:
            with k.loop(0, g.group) as member:
                rows, weights = self.rows(member)
                mask = own.mask_row(member, k.integer(0)) + j, g.mask.row
                own.weigh(weights + j, own.m_whole, rows, self.start(j), g.n, mask)(places, insides, sums)

        return add

    def of_tile(self, first: Value) -> Weigh:
        """Return a function that adds a tile's terms: each key's further queries, then common ones."""
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
def backward_kernel(bits: int, stored: str, masked: bool, copied: bool) -> Kernel[Backward]:
    """Kernel for gradients of query, key and value; ``copied`` half operands are widened once."""
    k = Kernel("dot_few_backward", Backward, bits)
    define_transpose(k)
    g, zero, one = k.argument, k.integer(0), k.integer(1)
    with k.tasks(g.tasks) as number:
        own = HeadOfKeys(k, stored, masked, copied, number)
        sizes = backward_scratch(k.lanes, stored, copied, g.group, g.n, g.m, g.d, g.d_v)
        of_scores, values, *copies = k.parts(g.scratch.of(k.thread), sizes)
        key, value = own.of_keys(g.key, g.d, copies[0]), own.of_keys(g.value, g.d_v, copies[1])
        own.put_into_columns(value, values)
        with k.loop(0, g.group) as member:
            head = own.head(member)
            own.read(g.query, head, g.n, g.d, copies[2] + member * (g.n * in_registers(g.d, k.lanes)))
            gradient = own.read(g.gradient, head, g.n, g.d_v, copies[3] + member * (g.n * in_registers(g.d_v, k.lanes)))
            all_scores = of_scores + member * g.n * own.m_whole
            all_weights = g.weights + own.number(member, zero) * own.m_whole

            def into(i: Value, head: Value = head, own: HeadOfKeys[Backward] = own) -> Put:
                return own.into(own.row_of(g.of_query, head, i))

            if own.has_tiles:
                with k.loop(0, own.in_tiles, TILE) as first:
                    each = [all_scores + (first + r) * own.m_whole for r in range(TILE)]
                    rows = [gradient.row(first + r) for r in range(TILE)]
                    own.products(rows, value, values, own.stop(first + (TILE - 1)), each)
                    with k.loop(first, first + TILE) as i:
                        at = i * own.m_whole
                        gradients_of_scores(own, member, i, all_weights + at, all_scores + at)
                    own.pool(g.d, of_queries(own, first, each, key), [into(first + r) for r in range(TILE)])
            with k.loop(own.in_tiles, g.n) as i:
                scores, mask = all_scores + i * own.m_whole, (own.mask_row(member, i), one)
                own.dots(gradient.row(i), value, own.stop(i), scores)
                gradients_of_scores(own, member, i, all_weights + i * own.m_whole, scores)
                own.pool(g.d, own.weigh(scores, one, key, zero, own.stop(i), mask), [into(i)])
        every = g.weights + number * (g.group * g.n * own.m_whole)
        for weights, operand, columns, copy, result in (
            (of_scores, g.query, g.d, copies[2], g.of_key), (every, g.gradient, g.d_v, copies[3], g.of_value)
        ):  # fmt: skip
            column = Column(own, weights, operand, columns, copy)
            tiled = zero if masked else g.m // TILE * TILE
            if not masked:
                with k.loop(0, tiled, TILE) as first:
                    puts = [own.into(own.row_of(result, own.head_k, first + r)) for r in range(TILE)]
                    own.pool(columns, column.of_tile(first), puts)
            with k.loop(tiled, g.m) as j:
                own.pool(columns, column.of_key(j), [own.into(own.row_of(result, own.head_k, j))])
    return k
