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

from .decode_arguments import StridedBytes
from .small_rows import TILE, KeyHead, Rows, Small, Weigh, Write, weigh_tile
from .tiled_arguments import Strided


class Backward(Small):
    """Arguments of `backward_kernel`: gradients of results (read) and of operands (written)."""

    weights: Reals
    gradient: StridedBytes
    logarithms_gradient: OptionalReals
    query_gradient: StridedBytes
    key_gradient: StridedBytes
    value_gradient: StridedBytes


def backward_scratch(
    lanes: int, stored: str, copied: bool, group: Extent, n: Extent, m: Extent, d: Extent, d_v: Extent
) -> tuple[Extent | int, ...]:  # fmt: skip
    """Scratch reals per thread, in the order of `backward_kernel`, which unpacks them.

    Only half dtypes need copies: of queries and gradients, and if ``copied`` of keys and values.
    """
    d, d_v, m_whole = in_registers(d, lanes), in_registers(d_v, lanes), in_registers(m, lanes)
    if stored == "real":
        return group * n * m_whole, m_whole * d_v, 0, 0, 0, 0
    transposed, keys, values = m_whole * d_v * copied, m * d * copied, m * d_v * copied
    return group * n * m_whole, transposed, keys, values, group * n * d, group * n * d_v


def gradients_of_scores(
    emit: KeyHead[Backward], member: Value, i: Value, weights: RealPointer, scores: RealPointer
) -> None:
    """Replace the gradients of a query's weights by those of its scores."""
    k, g, zero = emit.k, emit.k.argument, emit.k.full(0.0)
    stop, mask, total = emit.stop(i), emit.mask_row(member, i), Variable(k, zero)
    # through the softmax: (gradient of the weight − their mean by weight)·weight
    with k.loop(0, stop, k.lanes) as j:
        product = k.load(weights, j) * k.load(scores, j)
        total.add(k.select(emit.attendable(mask, stop, j), product, zero))
    mean = Variable(k, k.sum(total.get()))
    with k.when(g.logarithms_gradient.is_given()):
        mean.set(mean.get() - k.broadcast(g.logarithms_gradient, emit.number(member, i)))
    with k.loop(0, stop, k.lanes) as j:
        of_score = k.load(weights, j) * (k.load(scores, j) - mean.get()) * g.scale.load()
        k.store(k.select(emit.attendable(mask, stop, j), of_score, zero), scores, j)


class Column(NamedTuple):
    """Terms of a key's or value's gradient: rows of all queries, whose weights are ``m_whole`` reals apart."""

    emit: KeyHead[Backward]
    weights: RealPointer
    operand: Strided[BytePointer]
    columns: Value
    copy: RealPointer

    def rows(self, member: Value) -> tuple[Rows[RealPointer], RealPointer]:
        """Rows of a head's queries, and their weights for the first key."""
        emit, g = self.emit, self.emit.k.argument
        copied_rows = self.copy + member * (g.n * in_registers(self.columns, emit.k.lanes))
        rows = emit.reals(self.operand, emit.head(member), self.columns, copied_rows)
        return rows, self.weights + member * g.n * emit.m_whole

    def start(self, j: Value) -> Value:
        """The first query that sees a key."""
        k, g = self.emit.k, self.emit.k.argument
        return k.select(g.causal.is_nonzero(), k.minimum(j, g.n), k.integer(0))

    def key_terms(self, j: Value) -> Weigh:
        """Return a function that adds the terms of one key."""
        emit, k, g = self.emit, self.emit.k, self.emit.k.argument

        def add(places: list[Value], insides: Sequence[Inside], sums: list[list[Variable]]) -> None:
            with k.loop(0, g.group) as member:
                rows, weights = self.rows(member)
                mask = emit.mask_row(member, k.integer(0)) + j, g.mask.row
                add_rows = emit.weigh(weights + j, emit.m_whole, rows, start=self.start(j), stop=g.n, mask=mask)
                add_rows(places, insides, sums)

        return add

    def tile_terms(self, first: Value) -> Weigh:
        """Return a function that adds a tile's terms: queries that see only some of its keys, then the others."""
        emit, k, g = self.emit, self.emit.k, self.emit.k.argument
        common, no_mask = self.start(first + (TILE - 1)), (BytePointer(k.integer(0)), k.integer(1))

        def add(places: list[Value], insides: Sequence[Inside], sums: list[list[Variable]]) -> None:
            with k.loop(0, g.group) as member:
                rows, weights = self.rows(member)
                key_weights = [weights + (first + r) for r in range(TILE)]
                for r in range(TILE - 1):
                    add_further = emit.weigh(key_weights[r], emit.m_whole, rows, self.start(first + r), common, no_mask)
                    add_further(places, insides, sums[r : r + 1])
                emit.weigh_together(key_weights, emit.m_whole, rows, common, g.n)(places, insides, sums)

        return add


@compiled
def backward_kernel(bits: int, stored: str, masked: bool, copied: bool) -> Kernel[Backward]:
    """Kernel for gradients of query, key and value; ``copied`` half operands are widened once."""
    k = Kernel("dot_small_backward", Backward, bits)
    define_transpose(k)
    g, zero, unit = k.argument, k.integer(0), k.integer(1)
    with k.tasks(g.tasks) as number:
        emit = KeyHead(k, stored, masked, copied, number)
        sizes = backward_scratch(k.lanes, stored, copied, g.group, g.n, g.m, g.d, g.d_v)
        parts = k.parts(g.scratch.of(k.thread), sizes)
        score_gradients, transposed_values, key_copy, value_copy, query_copy, gradient_copy = parts
        key, value = emit.of_keys(g.key, g.d, key_copy), emit.of_keys(g.value, g.d_v, value_copy)
        emit.put_into_columns(value, transposed_values)
        with k.loop(0, g.group) as member:
            head = emit.head(member)
            emit.read(g.query, head, g.n, g.d, query_copy + member * (g.n * in_registers(g.d, k.lanes)))
            own_copy = gradient_copy + member * (g.n * in_registers(g.d_v, k.lanes))
            gradient = emit.read(g.gradient, head, g.n, g.d_v, own_copy)
            all_scores = score_gradients + member * g.n * emit.m_whole
            all_weights = g.weights + emit.number(member, zero) * emit.m_whole

            def writer(i: Value) -> Write:
                return emit.writer(emit.row_of(g.query_gradient, head, i))

            if emit.has_tiles:
                with k.loop(0, emit.in_tiles, TILE) as first:
                    each = [all_scores + (first + r) * emit.m_whole for r in range(TILE)]
                    rows = [gradient.row(first + r) for r in range(TILE)]
                    emit.products(rows, value, transposed_values, emit.stop(first + (TILE - 1)), each)
                    with k.loop(first, first + TILE) as i:
                        offset = i * emit.m_whole
                        gradients_of_scores(emit, member, i, all_weights + offset, all_scores + offset)
                    emit.pool(g.d, weigh_tile(emit, first, each, key), [writer(first + r) for r in range(TILE)])
            with k.loop(emit.in_tiles, g.n) as i:
                scores, mask = all_scores + i * emit.m_whole, (emit.mask_row(member, i), unit)
                emit.row_products(gradient.row(i), value, emit.stop(i), scores)
                gradients_of_scores(emit, member, i, all_weights + i * emit.m_whole, scores)
                add = emit.weigh(scores, step=unit, rows=key, start=zero, stop=emit.stop(i), mask=mask)
                emit.pool(g.d, add, [writer(i)])
        head_weights = g.weights + number * (g.group * g.n * emit.m_whole)
        for weights, operand, columns, copy, result in (
            (score_gradients, g.query, g.d, query_copy, g.key_gradient),
            (head_weights, g.gradient, g.d_v, gradient_copy, g.value_gradient),
        ):  # fmt: skip
            column = Column(emit, weights, operand, columns, copy)
            tiled = zero if masked else g.m // TILE * TILE
            if not masked:
                with k.loop(0, tiled, TILE) as first:
                    writers = [emit.writer(emit.row_of(result, emit.head_k, first + r)) for r in range(TILE)]
                    emit.pool(columns, column.tile_terms(first), writers)
            with k.loop(tiled, g.m) as j:
                emit.pool(columns, column.key_terms(j), [emit.writer(emit.row_of(result, emit.head_k, j))])
    return k
