"""Tiled forward kernel: one block of queries at a time, in one pass over the keys.

Scores and output are kept transposed, one query per lane: maxima and sums over keys are then those of whole vectors,
keys and values are read as scalars in place, and only queries and results are transposed, once per block. Keys come in
blocks of 64. A mask is read as 64 bits per query; blocks and tiles without an attendable key are skipped, whatever the
mask's pattern. Excluded scores become -inf, even NaN. A NaN in the result is reported, because an excluded value
may have caused it: 0 times infinity is NaN.
"""

from typing import NamedTuple

from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, Result, Scratch, Size
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.memory import Index
from attnspec.backends.pytorch.kernels.llvm.sums import Sums, add_product, zeros
from attnspec.backends.pytorch.kernels.llvm.transposition import Square, define_transpose, transpose
from attnspec.backends.pytorch.kernels.llvm.values import IntPointer, RealPointer, Value, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import exp2, log, tanh

from .tiled_arguments import KEYS, Operands, Strided, forward_scratch
from .tiles import TILE_ROWS, TILE_VECTORS, add_tile_product, width


class Forward(Arguments):
    """Arguments of `forward_kernel`; ``tasks`` are query blocks of all heads, ``nan`` reports a NaN."""

    tasks: Size
    operands: Operands
    scratch: Scratch
    nan: Result


def of_batch(k: Kernel, numbers: IntPointer, batch: Value, otherwise: Value) -> Value:
    """The integer of a batch element, or ``otherwise`` if ``numbers`` is None."""
    number = Variable(k, otherwise)
    with k.when(numbers.is_given()):
        number.set(k.load_int(numbers, batch))
    return number.get()


class QueryBlock:
    """One block of query rows of one head.

    Its first query is at `position` and sees keys `earliest` to `latest`, each further query one later; `length` keys
    exist.
    """

    def __init__(self, k: Kernel, operands: Operands, entry: Value, first: Value) -> None:
        o = operands
        self.k, self.operands, self.entry, self.first = k, o, entry, first
        self.batch, self.head = entry // o.heads, entry % o.heads
        self.lanes = width(k.bits)
        self.rows = k.minimum(o.n - first, k.integer(self.lanes))
        self.length = of_batch(k, o.lengths, self.batch, o.m)
        self.position = first + of_batch(k, o.offsets, self.batch, k.integer(0))
        self.earliest, self.latest = self.position - o.left, self.position + o.right
        self.start = k.maximum(k.integer(0), self.earliest) // KEYS * KEYS
        self.stop = k.minimum(self.length, self.latest + self.lanes)
        self.masked = o.mask.base.is_given()
        self.vectors = (self.rows + (k.lanes - 1)) // k.lanes

    def head_of(self, operand: Strided[RealPointer]) -> RealPointer:
        """Address of the first row of the block's head."""
        return operand.of_head(self.batch, self.head)

    def key_head_of(self, operand: Strided[RealPointer]) -> RealPointer:
        """First row of the head of keys or values that the block's head shares."""
        return operand.of_head(self.batch, self.head // self.operands.group)

    def row_of(self, lane: Index) -> Value:
        """Number of the query in a lane; lanes past the last query repeat it."""
        return self.k.minimum(self.first + lane, self.operands.n - 1)

    def rows_of(self, operand: Strided[RealPointer], columns: Value, target: RealPointer) -> "Rows":
        """The head's rows of an operand (one per query), to be transposed to `target`."""
        return Rows(self.head_of(operand), operand.row, columns, target)

    def transpose(self, rows: "Rows") -> None:
        """Transpose the block's rows; zeros pad columns to whole registers."""
        k = self.k
        step, all_lanes = k.integer(self.lanes), k.integer(k.lanes)
        with k.loop(0, step, k.lanes) as lane, k.loop(0, rows.columns, k.lanes) as column:
            number = self.row_of(lane)
            base = rows.base + (number * rows.step + column)
            source = Square(base, rows.step, self.operands.n - number, rows.columns - column)
            transpose(k, source, Square(rows.transposed + (column * step + lane), step, all_lanes, all_lanes))


class Rows(NamedTuple):
    """Rows of reals: address, distance in reals, length, and target of their transpose."""

    base: RealPointer
    step: Value
    columns: Value
    transposed: RealPointer


class KeyBlock:
    """Up to 64 keys from `first` on; every attendable one lies between `low` and `high`."""

    def __init__(self, queries: QueryBlock, first: Value, mask_bits: RealPointer) -> None:
        k, mask = queries.k, queries.operands.mask
        self.queries, self.first, self.mask_bits = queries, first, mask_bits
        self._low = Variable(k, k.maximum(first, queries.earliest // TILE_ROWS * TILE_ROWS))
        self._high = Variable(k, k.minimum(queries.stop, first + KEYS))
        with k.when(queries.masked):
            any_bits = Variable(k, k.integer(0))
            rows = mask.of_head(queries.batch, queries.head)
            with k.loop(0, k.integer(queries.lanes)) as lane:
                bits = k.bits_of_bytes(rows + queries.row_of(lane) * mask.row, first, queries.stop - first)
                k.store_words(bits, mask_bits, lane, queries.lanes)
                any_bits.set(any_bits.get() | bits)
            whole = k.lowest_bit(any_bits.get()) // TILE_ROWS * TILE_ROWS
            self._low.set(k.maximum(self._low.get(), first + whole))
            self._high.set(k.minimum(self._high.get(), first + k.bit_length(any_bits.get())))
        self.low, self.high = self._low.get(), self._high.get()

    def any(self) -> Value:
        """Boolean: any key is attendable."""
        return self.low.compare("<", self.high)

    def rows_of(self, base: RealPointer, step: Value, key: Value) -> list[tuple[RealPointer, int]]:
        """Rows of a tile of keys or values; rows past the last key repeat it."""
        k, m = self.queries.k, self.queries.operands.m
        numbers = [k.minimum(key + r, m - 1) for r in range(TILE_ROWS)]
        return [(base + number * step, 0) for number in numbers]

    def all_attendable(self, key: Value) -> Value:
        """Boolean: every pair of the tile is attendable, and no score needs `adjusted`."""
        queries, o, last = self.queries, self.queries.operands, key + (TILE_ROWS - 1)
        near = last.compare("<=", queries.latest) & key.compare(">=", queries.earliest + (queries.lanes - 1))
        exist = o.lengths.is_null() | last.compare("<", queries.length)
        return near & exist & o.mask.base.is_null() & o.adjusts.is_zero()

    def attendable(self, key: Value, c: int) -> Value:
        """Booleans for a key and the c-th vector of queries: attendable, and the key is below `high`."""
        k, queries = self.queries.k, self.queries
        here = k.select(key.compare("<", self.high), k.integer(k.lanes), k.integer(0))
        lanes = Variable(k, k.lanes_below(here))
        with k.when(queries.operands.banded.is_nonzero()):
            before, behind = key - queries.latest - c * k.lanes, key - queries.earliest - c * k.lanes
            lanes.set(lanes.get() & k.lanes_from(before) & k.lanes_below(behind + 1))
        with k.when(queries.masked):
            bit = key - self.first
            word = bit // k.bits * queries.lanes + c * k.lanes
            lanes.set(lanes.get() & k.lanes_with_bit(self.mask_bits, word, bit % k.bits))
        return lanes.get()

    def adjusted(self, score: Value, key: Value, c: int) -> tuple[Value, Value]:
        """Scores of a key and the c-th vector of queries after cap, slopes and bias; d(capped)/d(score)."""
        k, queries, o = self.queries.k, self.queries, self.queries.operands
        adjusted, derivative = Variable(k, score), Variable(k, k.full(1.0))
        with k.when(o.capped.is_nonzero()):
            t = tanh(k, score * o.over_cap.load())
            adjusted.set(t * o.cap.load())
            derivative.set(k.fma(k.full(0.0) - t, t, k.full(1.0)))
        with k.when(o.slopes.is_given()):
            distance = k.magnitude(k.reals_from(queries.position + c * k.lanes - key))
            adjusted.set(k.fma(k.full(0.0) - k.broadcast(o.slopes, queries.head), distance, adjusted.get()))
        with k.when(o.bias.base.is_given()):
            column = k.minimum(key, o.m - 1)
            places = [queries.row_of(c * k.lanes + lane) * o.bias.row + column for lane in range(k.lanes)]
            bias = k.gather(queries.head_of(o.bias), [k.constant(place, key) for place in places])
            adjusted.set(k.fma(bias, o.over_scale.load(), adjusted.get()))
        return adjusted.get(), derivative.get()


def store_tile(k: Kernel, values: list[list[Value]], base: RealPointer, offset: Value, stride: int) -> None:
    """Write a tile to rows `stride` reals apart."""
    for r, row in enumerate(values):
        for c, value in enumerate(row):
            k.store(value, base, offset + r * stride + c * k.lanes)


def values_of(sums: Sums) -> list[list[Value]]:
    """Current values of a tile's sums."""
    return [[x.get() for x in row] for row in sums]


@compiled
def forward_kernel(bits: int) -> Kernel[Forward]:
    """Kernel for output, row maximum, reciprocal row sum and log Σ exp, as in `Operands`."""
    k = Kernel("dot_forward", Forward, bits)
    define_transpose(k)
    g, o, lanes = k.argument, k.argument.operands, width(bits)
    columns = range(TILE_VECTORS)
    with k.tasks(g.tasks) as number:
        entry = number // o.query_blocks
        task = QueryBlock(k, o, entry, k.from_both_ends(number % o.query_blocks, o.query_blocks) * lanes)
        sizes = forward_scratch(bits, o.d_padded, o.v_padded)
        queries, weights, pooled, mask_bits = k.parts(g.scratch.of(k.thread), sizes)
        task.transpose(task.rows_of(o.query, o.d, queries))
        with k.loop(0, o.v_padded * lanes, k.lanes) as i:
            k.store(k.full(0.0), pooled, i)
        scale, lowest = o.log2_scale.load(), k.full(float("-inf"))
        maximum = [Variable(k, lowest) for _ in columns]
        total = [Variable(k, k.full(0.0)) for _ in columns]
        attends = [Variable(k, k.lanes_below(k.integer(0))) for _ in columns]
        keys, values = task.key_head_of(o.key), task.key_head_of(o.value)
        with k.loop(task.start, task.stop, KEYS) as first:
            block = KeyBlock(task, first, mask_bits)
            with k.when(block.any()):
                largest = [Variable(k, x.get()) for x in maximum]
                with k.loop(block.low, block.high, TILE_ROWS) as key:
                    sums = zeros(k, TILE_ROWS, TILE_VECTORS)
                    key_rows = block.rows_of(keys, o.key.row, key)
                    add_tile_product(k, task.vectors, sums, key_rows, 1, queries, lanes, (0, o.d))
                    scores, at = values_of(sums), (key - first) * lanes
                    store_tile(k, scores, weights, at, lanes)
                    with k.when(block.all_attendable(key)) as otherwise:
                        for c in columns:
                            attends[c].set(k.lanes_below(k.integer(k.lanes)))
                        for row in scores:
                            for c in columns:
                                largest[c].set(k.maximum(row[c], largest[c].get()))
                    with otherwise(), k.loop(0, k.integer(TILE_ROWS)) as r:
                        for c in columns:
                            place = at + r * lanes + c * k.lanes
                            attendable = block.attendable(key + r, c)
                            attends[c].set(attends[c].get() | attendable)
                            score = Variable(k, k.load(weights, place))
                            with k.when(o.adjusts.is_nonzero()):
                                score.set(block.adjusted(score.get(), key + r, c)[0])  # without its derivative
                            score.set(k.select(attendable, score.get(), lowest))
                            largest[c].set(k.maximum(score.get(), largest[c].get()))
                            k.store(score.get(), weights, place)
                shift = []
                shrink = []
                for c in columns:
                    new = largest[c].get()
                    new = k.select(new.compare("==", lowest), k.full(0.0), new)
                    shift.append(new)
                    shrink.append(exp2(k, (maximum[c].get() - new) * scale))
                    maximum[c].set(largest[c].get())
                    total[c].set(total[c].get() * shrink[c])
                for c in columns:
                    with k.loop((block.low - first) * lanes, (block.high - first) * lanes, lanes) as at:
                        weight = exp2(k, (k.load(weights, at + c * k.lanes) - shift[c]) * scale)
                        k.store(weight, weights, at + c * k.lanes)
                        total[c].add(weight)
                pool(k, block, values, o.value.row, o.d_v, weights - first * lanes, pooled, shrink)
        _finish(k, task, pooled, *([x.get() for x in xs] for xs in (attends, maximum, total)))
    return k


def pool(k: Kernel, block: KeyBlock, rows: RealPointer, row: Value, columns: Value, weights: RealPointer,
         pooled: RealPointer, shrink: list[Value] | None = None) -> None:  # fmt: skip
    """pooled[column] = shrink*pooled[column] + the sum over keys of rows[key, column]*weights[key]."""
    lanes = width(k.bits)
    depth = block.low, block.high

    def tile(column: Value, last: bool) -> None:
        sums: Sums = []
        for r in range(TILE_ROWS):
            old = [k.load(pooled, (column + r) * lanes + c * k.lanes) for c in range(TILE_VECTORS)]
            sums.append([Variable(k, x * shrink[c] if shrink else x) for c, x in enumerate(old)])
        if last:
            # columns past the last repeat it; their results are never read
            scalars = [(rows + k.minimum(column + r, columns - 1), 0) for r in range(TILE_ROWS)]
            add_product(k, sums, scalars, row, weights, lanes, depth)
        else:
            base = rows + column
            scalars = [(base, r) for r in range(TILE_ROWS)]
            add_tile_product(k, block.queries.vectors, sums, scalars, row, weights, lanes, depth)
        store_tile(k, values_of(sums), pooled, column * lanes, lanes)

    whole = columns // TILE_ROWS * TILE_ROWS
    with k.loop(0, whole, TILE_ROWS) as column:
        tile(column, False)
    with k.loop(whole, columns, TILE_ROWS) as column:
        tile(column, True)


def store_rows(k: Kernel, task: QueryBlock, columns: RealPointer, count: Value, target: RealPointer,
               row: Value) -> None:  # fmt: skip
    """Write transposed sums as rows `row` reals apart."""
    step, all_lanes = k.integer(width(k.bits)), k.integer(k.lanes)
    with k.loop(0, step, k.lanes) as lane, k.loop(0, count, k.lanes) as column:
        number = task.first + lane
        source = Square(columns + (column * step + lane), step, all_lanes, all_lanes)
        place = target + (number * row + column)
        transpose(k, source, Square(place, row, task.operands.n - number, count - column))


def _finish(k: Kernel[Forward], task: QueryBlock, pooled: RealPointer, attends: list[Value], maximum: list[Value],
            total: list[Value]) -> None:  # fmt: skip
    """Divide by the sums and write the rows, zeros where no key was attendable."""
    o, has_nan = task.operands, Variable(k, k.integer(0))
    for c in range(TILE_VECTORS):
        reciprocal = k.select(attends[c], k.full(1.0) / total[c], k.full(0.0))
        inside = k.lanes_below(task.rows - c * k.lanes)
        at = task.entry * o.n + task.first + c * k.lanes
        k.store_lanes(k.select(attends[c], maximum[c], k.full(0.0)), inside, o.maximum, at)
        k.store_lanes(reciprocal, inside, o.reciprocal, at)
        with k.when(o.logarithms.is_given()):
            logarithm = k.fma(maximum[c], o.scale.load(), log(k, total[c]))
            k.store_lanes(k.select(attends[c], logarithm, k.full(float("-inf"))), inside, o.logarithms, at)
        with k.loop(0, o.d_v) as column:
            place = column * task.lanes + c * k.lanes
            value = k.load(pooled, place) * reciprocal
            k.store(value, pooled, place)
            nan = k.any(value.compare("!=", value) & inside)
            has_nan.set(has_nan.get() | k.select(nan, k.integer(1), k.integer(0)))
    store_rows(k, task, pooled, o.d_v, task.head_of(o.output), o.output.row)
    with k.when(has_nan.get().is_nonzero()):
        k.store_int(has_nan.get(), k.argument.nan, 0)
