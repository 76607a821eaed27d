"""Scaled dot-product attention for one block of query rows, in one pass over the keys.

Scores and output are kept transposed, one query in each lane: maxima and sums over keys are then those of whole
vectors, keys and values are read as scalars where they lie, and only queries and results are turned, once a block.
Keys come in blocks of 64; a mask is read as 64 bits for each query, and blocks and tiles without an attendable key are
left out, whatever the mask's pattern. Excluded scores become -inf whatever they were; a NaN in the result, which
a value of an excluded key may have caused, raises a flag.
"""

from typing import NamedTuple

from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, Value, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import exp2

from .tiles import TILE_ROWS, TILE_VECTORS, Square, Sums, add_tile_product, define_turn, turn, width, zeros

KEYS = 64

SHARED = ("tasks", "chunks", "heads", "n", "m", "d", "d_v", "d_whole", "v_whole", "causal", "scale",
          "query", "query_batch", "query_head", "query_row", "key", "key_batch", "key_head", "key_row",
          "value", "value_batch", "value_head", "value_row", "mask", "mask_batch", "mask_head", "mask_row",
          "output", "output_batch", "output_head", "output_row",
          "top", "inverse", "scratch", "scratch_size")  # fmt: skip
FORWARD_FIELDS = (*SHARED, "flag")


class Task:
    """One block of query rows of one head."""

    def __init__(self, k: Kernel, entry: Value, first: Value) -> None:
        g = k.argument
        self.k, self.entry, self.first = k, entry, first
        self.batch, self.head = entry // g["heads"], entry % g["heads"]
        self.lanes = width(k.bits)
        self.rows = k.minimum(g["n"] - first, k.integer(self.lanes))
        self.stop = k.select(g["causal"].compare("!=", 0), k.minimum(g["m"], first + self.lanes), g["m"])
        self.masked = g["mask"].compare("!=", 0)
        self.narrow = self.rows.compare("<=", k.lanes)

    def base(self, name: str, size: int | None = None) -> Value:
        """Address of the head's first row."""
        g = self.k.argument
        offset = self.batch * g[f"{name}_batch"] + self.head * g[f"{name}_head"]
        return g[name] + offset * (self.k.size if size is None else size)

    def row_of(self, lane: "Value | int") -> Value:
        """Number of the query in a lane; beyond the last, the last."""
        return self.k.minimum(self.first + lane, self.k.argument["n"] - 1)

    def rows_like(self, name: str, columns: str, target: Value) -> "Rows":
        """The rows of an operand with a row for each query, to be packed at `target`."""
        return Rows(self.base(name), self.k.argument[f"{name}_row"], self.k.argument[columns], target)

    def pack(self, rows: "Rows") -> None:
        """Turn the block's rows; columns in whole registers, with zeros."""
        k = self.k
        step, every = k.integer(self.lanes), k.integer(k.lanes)
        with k.loop(0, step, k.lanes) as lane, k.loop(0, rows.columns, k.lanes) as column:
            number = self.row_of(lane)
            base = rows.base + (number * rows.step + column) * k.size
            own = Square(base, rows.step, k.argument["n"] - number, rows.columns - column)
            turn(k, own, Square(rows.packed + (column * step + lane) * k.size, step, every, every))


class Rows(NamedTuple):
    """Rows of reals: address, distance in reals, length, and where they are packed."""

    base: Value
    step: Value
    columns: Value
    packed: Value


class KeyBlock:
    """64 keys from `first` on, of which those from `low` to `high` hold every attendable one."""

    def __init__(self, task: Task, first: Value, words: Value) -> None:
        k = task.k
        self.task, self.first, self.words = task, first, words
        self._low, self._high = Variable(k, first), Variable(k, k.minimum(task.stop, first + KEYS))
        with k.when(task.masked):
            some = Variable(k, k.integer(0))
            mask, step = task.base("mask", 1), k.argument["mask_row"]
            with k.loop(0, k.integer(task.lanes)) as lane:
                bits = k.bits_of_bytes(mask + task.row_of(lane) * step, first, task.stop - first)
                k.store_words(bits, words, lane, task.lanes)
                some.set(some.get() | bits)
            whole = k.lowest_bit(some.get()) // TILE_ROWS * TILE_ROWS
            self._low.set(first + whole)
            self._high.set(k.minimum(self._high.get(), first + k.bit_length(some.get())))
        self.low, self.high = self._low.get(), self._high.get()

    def any(self) -> Value:
        """Whether any key is attendable."""
        return self.low.compare("<", self.high)

    def rows_of(self, base: Value, step: Value, key: Value) -> list[tuple[Value, int]]:
        """Rows of keys or values of a tile; beyond the last key, the last."""
        k = self.task.k
        numbers = [k.minimum(key + r, k.argument["m"] - 1) for r in range(TILE_ROWS)]
        return [(base + number * step * k.size, 0) for number in numbers]

    def plain(self, key: Value) -> Value:
        """Whether every pair of the tile is attendable."""
        k = self.task.k
        visible = k.argument["causal"].compare("==", 0) | (key + (TILE_ROWS - 1)).compare("<=", self.task.first)
        return visible & k.argument["mask"].compare("==", 0)

    def allowed(self, key: Value, c: int) -> Value:
        """Booleans for one key and the c-th vector of queries: attendable, and a key below `high`."""
        k, task = self.task.k, self.task
        here = k.select(key.compare("<", self.high), k.integer(k.lanes), k.integer(0))
        found = Variable(k, k.lanes_below(here))
        with k.when(k.argument["causal"].compare("!=", 0)):
            found.set(found.get() & k.lanes_from(key - task.first - c * k.lanes))
        with k.when(task.masked):
            bit = key - self.first
            at = bit // k.bits * task.lanes + c * k.lanes
            found.set(found.get() & k.lanes_with_bit(self.words, at, bit % k.bits))
        return found.get()


def store_tile(k: Kernel, values: list[list[Value]], base: Value, offset: Value, stride: int) -> None:
    """Write a tile to rows `stride` reals apart."""
    for r, row in enumerate(values):
        for c, value in enumerate(row):
            k.store(value, base, offset + r * stride + c * k.lanes)


def values_of(sums: Sums) -> list[list[Value]]:
    """The sums of a tile."""
    return [[x.get() for x in row] for row in sums]


def forward_kernel(bits: int) -> Kernel:
    """Output, and for each query the largest score and one over the sum of the exponentials."""
    k = Kernel("dot_forward", FORWARD_FIELDS, bits)
    define_turn(k)
    g, lanes = k.argument, width(bits)
    columns = range(TILE_VECTORS)
    with k.tasks(g["tasks"]) as number:
        task = Task(k, number // g["chunks"], (g["chunks"] - 1 - number % g["chunks"]) * lanes)
        queries = g["scratch"] + k.thread * g["scratch_size"] * k.size
        weights = queries + g["d_whole"] * (lanes * k.size)
        pooled = weights + KEYS * lanes * k.size
        words = pooled + g["v_whole"] * (lanes * k.size)
        task.pack(task.rows_like("query", "d", queries))
        with k.loop(0, g["v_whole"] * lanes, k.lanes) as i:
            k.store(k.full(0.0), pooled, i)
        scale, nothing = k.real("scale"), k.full(float("-inf"))
        top = [Variable(k, nothing) for _ in columns]
        total = [Variable(k, k.full(0.0)) for _ in columns]
        everybody = k.lanes_below(k.select(task.masked, k.integer(0), k.integer(k.lanes)))
        attends = [Variable(k, everybody) for _ in columns]
        keys, values = task.base("key"), task.base("value")
        with k.loop(0, task.stop, KEYS) as first:
            block = KeyBlock(task, first, words)
            with k.when(block.any()):
                largest = [Variable(k, x.get()) for x in top]
                with k.loop(block.low, block.high, TILE_ROWS) as key:
                    sums = zeros(k, TILE_ROWS, TILE_VECTORS)
                    own = block.rows_of(keys, g["key_row"], key)
                    add_tile_product(k, task.narrow, sums, own, 1, queries, lanes, (0, g["d"]))
                    scores, at = values_of(sums), (key - first) * lanes
                    store_tile(k, scores, weights, at, lanes)
                    plain = block.plain(key)
                    with k.when(plain):
                        for row in scores:
                            for c in columns:
                                largest[c].set(k.maximum(row[c], largest[c].get()))
                    with k.when(k.negation(plain)), k.loop(0, k.integer(TILE_ROWS)) as r:
                        for c in columns:
                            place = at + r * lanes + c * k.lanes
                            allowed = block.allowed(key + r, c)
                            attends[c].set(attends[c].get() | allowed)
                            score = k.select(allowed, k.load(weights, place), nothing)
                            largest[c].set(k.maximum(score, largest[c].get()))
                            k.store(score, weights, place)
                shift = []
                shrink = []
                for c in columns:
                    new = largest[c].get()
                    new = k.select(new.compare("==", nothing), k.full(0.0), new)
                    shift.append(new)
                    shrink.append(exp2(k, (top[c].get() - new) * scale))
                    top[c].set(largest[c].get())
                    total[c].set(total[c].get() * shrink[c])
                with k.loop((block.low - first) * lanes, (block.high - first) * lanes, lanes) as at:
                    for c in columns:
                        weight = exp2(k, (k.load(weights, at + c * k.lanes) - shift[c]) * scale)
                        k.store(weight, weights, at + c * k.lanes)
                        total[c].add(weight)
                from_zero = weights - first * (lanes * k.size)
                pool(k, values, g["value_row"], g["d_v"], from_zero, pooled, block, shrink)
        _finish(k, task, pooled, *([x.get() for x in xs] for xs in (attends, top, total)))
    return k


def pool(k: Kernel, rows: Value, row: Value, columns: Value, weights: Value, pooled: Value, block: KeyBlock,
         shrink: list[Value] | None = None) -> None:  # fmt: skip
    """pooled[column] = shrink*pooled[column] + the sum over keys of rows[key, column]*weights[key]."""
    lanes = width(k.bits)
    with k.loop(0, columns, TILE_ROWS) as column:
        sums: Sums = []
        scalars = []
        for r in range(TILE_ROWS):
            old = [k.load(pooled, (column + r) * lanes + c * k.lanes) for c in range(TILE_VECTORS)]
            sums.append([Variable(k, x * shrink[c] if shrink else x) for c, x in enumerate(old)])
            # beyond the last column, the last: what it gives there is never read
            scalars.append((rows + k.minimum(column + r, columns - 1) * k.size, 0))
        add_tile_product(k, block.task.narrow, sums, scalars, row, weights, lanes, (block.low, block.high))
        store_tile(k, values_of(sums), pooled, column * lanes, lanes)


def turn_back(k: Kernel, task: Task, columns: Value, count: Value, target: Value, row: Value) -> None:
    """Write transposed sums as rows `row` reals apart."""
    step, every = k.integer(width(k.bits)), k.integer(k.lanes)
    with k.loop(0, step, k.lanes) as lane, k.loop(0, count, k.lanes) as column:
        number = task.first + lane
        own = Square(columns + (column * step + lane) * k.size, step, every, every)
        place = target + (number * row + column) * k.size
        turn(k, own, Square(place, row, k.argument["n"] - number, count - column))


def _finish(k: Kernel, task: Task, pooled: Value, attends: list[Value], top: list[Value],
            total: list[Value]) -> None:  # fmt: skip
    """Divide by the sums and write the rows, zeros where no key was attendable."""
    g, odd = k.argument, Variable(k, k.integer(0))
    for c in range(TILE_VECTORS):
        inverse = k.select(attends[c], k.full(1.0) / total[c], k.full(0.0))
        inside = k.lanes_below(task.rows - c * k.lanes)
        at = task.entry * g["n"] + task.first + c * k.lanes
        k.store_lanes(k.select(attends[c], top[c], k.full(0.0)), inside, g["top"], at)
        k.store_lanes(inverse, inside, g["inverse"], at)
        with k.loop(0, g["d_v"]) as column:
            place = column * task.lanes + c * k.lanes
            value = k.load(pooled, place) * inverse
            k.store(value, pooled, place)
            strange = k.any(value.compare("!=", value) & inside)
            odd.set(odd.get() | k.select(strange, k.integer(1), k.integer(0)))
    turn_back(k, task, pooled, g["d_v"], task.base("output"), g["output_row"])
    with k.when(odd.get().compare("!=", 0)):
        k.store_int(odd.get(), g["flag"], 0)
