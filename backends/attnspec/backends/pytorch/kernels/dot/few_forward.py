"""Forward kernel for few queries and keys, by query or tile; heads may share keys."""

from attnspec.backends.pytorch.kernels.llvm.arguments import OptionalBytes, OptionalReals, Result
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.registers import in_registers, size_of
from attnspec.backends.pytorch.kernels.llvm.transposition import define_transpose
from attnspec.backends.pytorch.kernels.llvm.values import Extent, RealPointer, Value, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import exp2, log

from .few_rows import TILE, AnyRows, Few, HeadOfKeys, Put, of_queries
from .step_arguments import StridedBytes


class Forward(Few):
    """Arguments of `forward_kernel`; ``weights`` and ``logarithms`` (b, heads, n) are optional.

    ``strange`` becomes 1 if a score is not finite or a result is NaN.
    """

    weights: OptionalReals
    output: StridedBytes
    logarithms: OptionalBytes
    strange: Result


def forward_scratch(
    lanes: int, stored: str, copied: bool, n: Extent, m: Extent, d: Extent, d_v: Extent
) -> tuple[Extent | int, ...]:  # fmt: skip
    """Scratch reals per thread: weights of a tile; transposed keys; ``copied`` key; ``copied`` value; widened queries
    of a head."""
    d, d_v, m_whole = in_registers(d, lanes), in_registers(d_v, lanes), in_registers(m, lanes)
    if stored == "real":
        return m_whole * TILE, m_whole * d, 0, 0, 0
    return m_whole * TILE, m_whole * d * copied, m * d * copied, m * d_v * copied, n * d


class Queries:
    """Emitter of the forward pass of one head's queries: weights of a row, then its output."""

    def __init__(self, own: HeadOfKeys[Forward], strange: Variable, member: Value, value: AnyRows) -> None:
        self.own, self.strange, self.member, self.value = own, strange, member, value
        self.g = own.k.argument

    def note(self, booleans: Value) -> None:
        """Set ``strange`` if any lane is true."""
        k, strange = self.own.k, self.strange
        strange.set(strange.get() | k.select(k.any(booleans), k.integer(1), k.integer(0)))

    def weights(self, i: Value, weights: RealPointer) -> None:
        """Replace the scores of a query by its weights."""
        k = self.own.k
        if self.own.masked:
            self._weights(i, weights)
        else:
            with k.when(self.g.m.compare("==", 1)) as otherwise:
                self._weight_of_one(i, weights)
            with otherwise():
                self._weights(i, weights)

    def _weight_of_one(self, i: Value, weights: RealPointer) -> None:
        """Store weight 1 for the only key; note a score that is not finite."""
        k, g, score = self.own.k, self.g, self.own.k.load(weights, 0)
        self.note(k.lanes_below(k.integer(1)) & (score - score).compare("!=", 0.0))
        k.store(k.full(1.0), weights, 0)
        with k.when(g.logarithms.is_given()):
            byte = self.own.number(self.member, i) * size_of(k, self.own.stored)
            k.store_stored(score * g.scale.load(), g.logarithms, byte, self.own.stored, first=True)

    def _weights(self, i: Value, weights: RealPointer) -> None:
        own, k, g = self.own, self.own.k, self.g
        lowest, zero, size = k.full(float("-inf")), k.full(0.0), size_of(k, own.stored)
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
        """Return the function that stores the output of a query."""
        row = self.own.row_of(self.g.output, self.own.head(self.member), i)
        return self.own.into(row, lambda x: self.note(x.compare("!=", x)))

    def one(self, i: Value, weights: RealPointer) -> None:
        """Store the output of a query, from its scores."""
        own, zero, one = self.own, self.own.k.integer(0), self.own.k.integer(1)
        self.weights(i, weights)
        mask = own.mask_row(self.member, i), one
        own.pool(self.g.d_v, own.weigh(weights, one, self.value, zero, own.stop(i), mask), [self.into(i)])

    def tile(self, first: Value, weights: list[RealPointer], step: Value) -> None:
        """Store the outputs of a tile; rows of weights are ``step`` reals apart."""
        own, k = self.own, self.own.k
        with k.loop(0, k.integer(TILE)) as r:
            self.weights(first + r, weights[0] + r * step)
        add = of_queries(own, first, weights, self.value)
        own.pool(self.g.d_v, add, [self.into(first + r) for r in range(TILE)])


@compiled
def forward_kernel(bits: int, stored: str, masked: bool, copied: bool) -> Kernel[Forward]:
    """Kernel for output, optional weights and log Σ exp; ``copied`` half operands are widened once."""
    k = Kernel("dot_few", Forward, bits)
    define_transpose(k)
    g, strange = k.argument, Variable(k, k.integer(0))
    with k.tasks(g.tasks) as number:
        own = HeadOfKeys(k, stored, masked, copied, number)
        parts = k.parts(g.scratch.of(k.thread), forward_scratch(k.lanes, stored, copied, g.n, g.m, g.d, g.d_v))
        key, value = own.of_keys(g.key, g.d, parts[2]), own.of_keys(g.value, g.d_v, parts[3])
        own.put_into_columns(key, parts[1])
        with k.loop(0, g.group) as member:
            query = own.read(g.query, own.head(member), g.n, g.d, parts[4])
            queries = Queries(own, strange, member, value)

            def place(i: Value, member: Value = member, own: HeadOfKeys[Forward] = own) -> RealPointer:
                kept = g.weights + own.number(member, i) * own.m_whole
                return k.select(g.weights.is_given(), kept, parts[0])

            if own.has_tiles:
                with k.loop(0, own.in_tiles, TILE) as first:
                    weights = [place(first) + own.m_whole * r for r in range(TILE)]
                    rows = [query.row(first + r) for r in range(TILE)]
                    own.products(rows, key, parts[1], own.stop(first + (TILE - 1)), weights)
                    queries.tile(first, weights, own.m_whole)
            with k.loop(own.in_tiles, g.n) as i:
                own.dots(query.row(i), key, own.stop(i), place(i))
                queries.one(i, place(i))
    with k.when(strange.get().is_nonzero()):
        k.store_int(strange.get(), g.strange, 0)
    return k
