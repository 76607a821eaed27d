"""Forward kernel for few queries and keys, by query or tile; heads may share keys."""

from attnspec.backends.pytorch.kernels.llvm.arguments import OptionalBytes, OptionalReals, Result
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.registers import in_registers, size_of
from attnspec.backends.pytorch.kernels.llvm.transposition import define_transpose
from attnspec.backends.pytorch.kernels.llvm.values import Extent, RealPointer, Value, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import exp2, log

from .decode_arguments import StridedBytes
from .small_rows import TILE, AnyRows, KeyHead, Small, Write, weigh_tile


class Forward(Small):
    """Arguments of `forward_kernel`; ``weights`` and ``logarithms`` (b, heads, n) are optional.

    ``nonfinite`` becomes 1 if a score is not finite or a result is NaN; the caller then discards the results, and the
    formula computes the call. `g` is short for these arguments, `k` for the kernel that emits code.
    """

    weights: OptionalReals
    output: StridedBytes
    logarithms: OptionalBytes
    nonfinite: Result


def forward_scratch(
    lanes: int, stored: str, copied: bool, n: Extent, m: Extent, d: Extent, d_v: Extent
) -> tuple[Extent | int, ...]:  # fmt: skip
    """Scratch reals per thread, in the order of `forward_kernel`, which unpacks them.

    Only half dtypes need copies: of a head's queries, and if ``copied`` of its keys and values.
    """
    d, d_v, m_whole = in_registers(d, lanes), in_registers(d_v, lanes), in_registers(m, lanes)
    if stored == "real":
        return m_whole * TILE, m_whole * d, 0, 0, 0
    return m_whole * TILE, m_whole * d * copied, m * d * copied, m * d_v * copied, n * d


class Queries:
    """Emitter of the forward pass of one head's queries: weights of a row, then its output."""

    def __init__(self, emit: KeyHead[Forward], nonfinite: Variable, member: Value, value: AnyRows) -> None:
        self.emit, self.nonfinite, self.member, self.value = emit, nonfinite, member, value
        self.g = emit.k.argument

    def flag_if(self, booleans: Value) -> None:
        """Set ``nonfinite`` if any lane is true."""
        k, nonfinite = self.emit.k, self.nonfinite
        nonfinite.set(nonfinite.get() | k.select(k.any(booleans), k.integer(1), k.integer(0)))

    def weights(self, i: Value, weights: RealPointer) -> None:
        """Replace the scores of a query by its weights."""
        k = self.emit.k
        if self.emit.masked:
            self._weights(i, weights)
        else:
            # an only key needs no exponential; under a mask it may be excluded
            with k.when(self.g.m.compare("==", 1)) as otherwise:
                self._weight_of_only_key(i, weights)
            with otherwise():
                self._weights(i, weights)

    def _weight_of_only_key(self, i: Value, weights: RealPointer) -> None:
        """Store weight 1 for the only key; flag a score that is not finite."""
        k, g, score = self.emit.k, self.g, self.emit.k.load(weights, 0)
        # score - score is NaN if the score is not finite
        self.flag_if(k.lanes_below(k.integer(1)) & (score - score).compare("!=", 0.0))
        k.store(k.full(1.0), weights, 0)
        with k.when(g.logarithms.is_given()):
            byte = self.emit.number(self.member, i) * size_of(k, self.emit.stored)
            k.store_stored(score * g.scale.load(), g.logarithms, byte, self.emit.stored, lane_0=True)

    def _weights(self, i: Value, weights: RealPointer) -> None:
        emit, k, g = self.emit, self.emit.k, self.g
        lowest, zero, size = k.full(float("-inf")), k.full(0.0), size_of(k, emit.stored)
        row, stop, mask = emit.number(self.member, i), emit.stop(i), emit.mask_row(self.member, i)
        maximum = Variable(k, lowest)
        with k.loop(0, stop, k.lanes) as j:
            attendable, score = emit.attendable(mask, stop, j), k.load(weights, j)
            self.flag_if(attendable & (score - score).compare("!=", 0.0))
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
        empty = row_sum.compare("==", 0.0)
        reciprocal = k.select(empty, zero, k.full(1.0) / row_sum)
        with k.loop(0, stop, k.lanes) as j:
            k.store(k.load(weights, j) * reciprocal, weights, j)
        with k.when(g.logarithms.is_given()):
            logarithm = k.fma(largest, g.scale.load(), log(k, row_sum))
            k.store_stored(k.select(empty, lowest, logarithm), g.logarithms, row * size, emit.stored, lane_0=True)

    def writer(self, i: Value) -> Write:
        """Return a function that stores the output of a query."""
        row = self.emit.row_of(self.g.output, self.emit.head(self.member), i)
        return self.emit.writer(row, lambda x: self.flag_if(x.compare("!=", x)))

    def single(self, i: Value, weights: RealPointer) -> None:
        """Store the output of a query, from its scores."""
        emit, zero, unit = self.emit, self.emit.k.integer(0), self.emit.k.integer(1)
        self.weights(i, weights)
        mask = emit.mask_row(self.member, i), unit
        add = emit.weigh(weights, step=unit, rows=self.value, start=zero, stop=emit.stop(i), mask=mask)
        emit.pool(self.g.d_v, add, [self.writer(i)])

    def tile(self, first: Value, weights: list[RealPointer], step: Value) -> None:
        """Store the outputs of a tile; rows of weights are ``step`` reals apart."""
        emit, k = self.emit, self.emit.k
        with k.loop(0, k.integer(TILE)) as r:
            self.weights(first + r, weights[0] + r * step)
        add = weigh_tile(emit, first, weights, self.value)
        emit.pool(self.g.d_v, add, [self.writer(first + r) for r in range(TILE)])


@compiled
def forward_kernel(bits: int, stored: str, masked: bool, copied: bool) -> Kernel[Forward]:
    """Kernel for output, optional weights and log Σ exp; ``copied`` half operands are widened once."""
    k = Kernel("dot_small", Forward, bits)
    define_transpose(k)
    g, nonfinite = k.argument, Variable(k, k.integer(0))
    with k.tasks(g.tasks) as number:
        emit = KeyHead(k, stored, masked, copied, number)
        tile_weights, transposed_keys, key_copy, value_copy, query_copy = k.parts(
            g.scratch.of(k.thread), forward_scratch(k.lanes, stored, copied, g.n, g.m, g.d, g.d_v)
        )
        key, value = emit.of_keys(g.key, g.d, key_copy), emit.of_keys(g.value, g.d_v, value_copy)
        emit.put_into_columns(key, transposed_keys)
        with k.loop(0, g.group) as member:
            query = emit.read(g.query, emit.head(member), g.n, g.d, query_copy)
            queries = Queries(emit, nonfinite, member, value)

            def weights_of(i: Value) -> RealPointer:  # in memory for the backward pass if there is one
                saved = g.weights + emit.number(member, i) * emit.m_whole
                return k.select(g.weights.is_given(), saved, tile_weights)

            if emit.has_tiles:
                with k.loop(0, emit.in_tiles, TILE) as first:
                    weights = [weights_of(first) + emit.m_whole * r for r in range(TILE)]
                    rows = [query.row(first + r) for r in range(TILE)]
                    emit.products(rows, key, transposed_keys, emit.stop(first + (TILE - 1)), weights)
                    queries.tile(first, weights, emit.m_whole)
            with k.loop(emit.in_tiles, g.n) as i:
                emit.row_products(query.row(i), key, emit.stop(i), weights_of(i))
                queries.single(i, weights_of(i))
    with k.when(nonfinite.get().is_nonzero()):
        k.store_int(nonfinite.get(), g.nonfinite, 0)
    return k
