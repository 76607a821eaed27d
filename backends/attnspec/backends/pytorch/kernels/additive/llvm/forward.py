"""Additive scores and attention for one block of query rows: factors in, weighted values out.

With E = exp(2a) and F = exp(2b), tanh(a+b) = 1 - 2/(1 + EF), so that with k = max|w|/w

    sum_h w tanh(a+b) = sum_h w - 2 max|w| sum_h 1/X,    X = k(1 + EF) = E'F + k,  E' = kE.

Three units share one division, 1/X + 1/Y + 1/Z = ((X+Y)Z + XY)/(XYZ): with the weight inside X the numerator of a pair
costs an addition only. On a processor with one 512-bit multiply-add a cycle and a division every six (Zen 4), three is
the best number: measured 21 G terms/s for threes, 20 for fours, 19 for pairs, 14-17 for estimates with a Newton step.

X is clamped to the cube root of the largest real, where 1/X no longer counts; a tile whose factors cannot reach the
clamp skips it and computes the same bits. A pair (query, key) in which both |a| and |b| are large has no factors: there
the kernel takes exp(2(a+b)) itself ("direct"), lane by lane, so that no result depends on another query or key.
"""

from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, Value, Variable
from attnspec.backends.pytorch.kernels.llvm.machine_code import register_bytes
from attnspec.backends.pytorch.kernels.llvm.vector_functions import exp

WIDE = register_bytes() == 64
ROW_TILE = 4  # query rows and vectors of keys whose scores are in registers at once
KEY_TILE = 2 if WIDE else 1
PRODUCT_ROWS = 6 if WIDE else 4  # the same for the product with the values
PRODUCT_VECTORS = 4 if WIDE else 2
AHEAD = 8192  # bytes of key factors that a single query asks for before it needs them
AHEAD_IN_VALUES = 16384  # the same for values
UNFIT = 3  # a query and a key whose flags sum to this have no factors together
CHUNK = 24  # query rows of one task, a multiple of both

SHARED = ("tasks", "batches", "chunks", "n", "m", "h", "causal", "stride", "scratch", "scratch_size")
SCORING = ("a_index", "b_index", "query_factor", "key_factor", "scale", "offset", "minus_two_scale", "unit",
           "clamp_tiles", "direct", "query_raw", "key_raw", "weight", "query_flag", "key_flag")  # fmt: skip
ATTENDING = ("mask", "mask_index", "mask_row", "value_index", "value", "d", "output", "weights")
SCORES_FIELDS = (*SHARED, *SCORING, "output")
ATTEND_FIELDS = (*SHARED, *SCORING, *ATTENDING)


def key_lanes(bits: int) -> int:
    """Keys in one block of the key factors."""
    return KEY_TILE * register_bytes() * 8 // bits


def capacity(bits: int, units: int) -> float:
    """The clamp of X where `units` of them are multiplied."""
    return 2.0 ** ((126 if bits == 32 else 1020) // units)


class Block:
    """Names of one task: a batch entry and a chunk of query rows."""

    def __init__(self, k: Kernel, task: Value, rows: int):
        g = k.argument
        self.batch = task % g["batches"]
        # the last chunk first: under a causal mask it is the longest
        self.chunk = g["chunks"] - (task // g["batches"]) - 1
        self.first = self.chunk * rows
        self.rows = k.minimum(g["n"] - self.first, k.integer(rows))
        visible = k.minimum(g["m"], self.first + rows)
        self.keys = k.select(g["causal"].compare("!=", 0), visible, g["m"])
        self.key_blocks = (self.keys + (key_lanes(k.bits) - 1)) // key_lanes(k.bits)
        self.padded = (g["m"] + (key_lanes(k.bits) - 1)) // key_lanes(k.bits) * key_lanes(k.bits)
        self.stride = g["stride"]
        self.scratch = g["scratch"] + k.thread * g["scratch_size"] * k.size


def shared_quotient(k: Kernel, x: list[Value]) -> Value:
    """Sum of the reciprocals of one, two or three values by one division."""
    if len(x) == 1:
        return k.full(1.0) / x[0]
    if len(x) == 2:
        return (x[0] + x[1]) / (x[0] * x[1])
    pair = x[0] * x[1]
    return k.fma(x[0] + x[1], x[2], pair) / (pair * x[2])


def _clamp(k: Kernel, x: Value, units: int) -> Value:
    top = capacity(k.bits, units)
    return k.maximum(k.minimum(x, k.full(top)), k.full(-top))


def _factored(k: Kernel, rows: list[Value], keys: Value, clamp: bool) -> list[list[Value]]:
    """Scores of a tile from the factors; `rows` are offsets of query rows in units."""
    g, lanes, h = k.argument, k.lanes, k.argument["h"]
    sums = [[Variable(k, k.full(0.0)) for _ in range(KEY_TILE)] for _ in rows]

    def group(units: list[Value]) -> None:
        ks = [k.broadcast(g["scale"], u) for u in units]
        fs = [[k.load(keys, u * (KEY_TILE * lanes) + t * lanes) for u in units] for t in range(KEY_TILE)]
        for row, total in zip(rows, sums, strict=True):
            es = [k.broadcast(g["query_factor"], row + u) for u in units]
            for t in range(KEY_TILE):
                xs = [k.fma(e, f, c) for e, f, c in zip(es, fs[t], ks, strict=True)]
                total[t].add(shared_quotient(k, [_clamp(k, x, len(units)) for x in xs] if clamp else xs))

    whole = h // 3 * 3
    with k.loop(0, whole, 3) as u:
        if len(rows) == 1:  # one query: the time is that of reading the factors
            for i in range(3 * KEY_TILE):
                k.prefetch(keys, u * (KEY_TILE * lanes) + i * lanes + AHEAD // k.size)
        group([u, u + 1, u + 2])
    with k.when((h - whole).compare("==", 1)):
        group([whole])
    with k.when((h - whole).compare("==", 2)):
        group([whole, whole + 1])
    offset, scale = k.broadcast(g["offset"], 0), k.broadcast(g["minus_two_scale"], 0)
    return [[k.fma(scale, s.get(), offset) for s in row] for row in sums]


def _direct(k: Kernel, rows: list[Value], keys: Value) -> list[list[Value]]:
    """Scores of a tile from a and b themselves."""
    g, lanes = k.argument, k.lanes
    sums = [[Variable(k, k.full(0.0)) for _ in range(KEY_TILE)] for _ in rows]
    with k.loop(0, g["h"]) as u:
        weight = k.broadcast(g["weight"], u)
        for t in range(KEY_TILE):
            b = k.load(keys, u * (KEY_TILE * lanes) + t * lanes)
            for row, total in zip(rows, sums, strict=True):
                total[t].add(weight / (direct_exponential(k, k.broadcast(g["query_raw"], row + u) + b) + 1.0))
    offset = k.broadcast(g["offset"], 0)
    return [[k.fma(k.full(-2.0), s.get(), offset) for s in row] for row in sums]


def direct_exponential(k: Kernel, x: Value) -> Value:
    """exp(2x), finite unless x is NaN."""
    top = k.full(40.0 if k.bits == 32 else 300.0)
    return exp(k, k.select(x.compare(">", top), top, x) * 2.0)


def emit_scores(k: Kernel, block: Block, row_tile: int, masked: bool) -> None:
    """Scores of the block, in units, into its scratch rows; tiles without an attendable key are left as they are."""
    g, lanes, h = k.argument, k.lanes, k.argument["h"]
    a_batch = k.load_int(g["a_index"], block.batch)
    b_batch = k.load_int(g["b_index"], block.batch)
    width = KEY_TILE * lanes
    with k.loop(0, block.key_blocks) as j:
        key_offset = (b_batch * block.padded + j * width) * h * k.size
        keys = g["key_factor"] + key_offset
        with k.loop(0, block.rows, row_tile) as i:
            numbers = [k.minimum(block.first + i + t, g["n"] - 1) for t in range(row_tile)]
            needed = Variable(k, k.integer(1))
            if masked:
                with k.when(g["mask"].compare("!=", 0)):
                    needed.set(_any_attendable(k, block, numbers, j * width))
            with k.when(needed.get().compare("!=", 0)):
                rows = [(a_batch * g["n"] + r) * h for r in numbers]
                target = [(i + t) * block.stride + j * width for t in range(row_tile)]
                clamped = Variable(k, k.integer(0))
                with k.when(g["clamp_tiles"].compare("!=", 0)):
                    clamped.set(k.load_byte(g["clamp_tiles"], (b_batch * (block.padded // width) + j)))
                for clamp in (False, True):
                    with k.when(clamped.get().compare("==", int(clamp))):
                        for offset, scores in zip(target, _factored(k, rows, keys, clamp), strict=True):
                            for t in range(KEY_TILE):
                                k.store(scores[t], block.scratch, offset + t * lanes)
                with k.when(g["direct"].compare("!=", 0)):
                    _emit_direct(k, block, rows, target, key_offset, [a_batch * g["n"] + r for r in numbers],
                                 b_batch * block.padded + j * width)  # fmt: skip


def _emit_direct(k: Kernel, block: Block, rows: list[Value], target: list[Value], key_offset: Value,
                 query_numbers: list[Value], key_number: Value) -> None:  # fmt: skip
    """Replace the scores of the pairs that have no factors."""
    g = k.argument
    flags = [k.load(g["key_flag"], key_number + t * k.lanes) for t in range(KEY_TILE)]
    unfit = [[(k.broadcast(g["query_flag"], q) + f).compare(">=", UNFIT) for f in flags] for q in query_numbers]
    every = [u for row in unfit for u in row]
    some = every[0]
    for u in every[1:]:
        some = some | u
    with k.when(k.any(some)):
        for offset, chosen, scores in zip(target, unfit, _direct(k, rows, g["key_raw"] + key_offset), strict=True):
            for t in range(KEY_TILE):
                old = k.load(block.scratch, offset + t * k.lanes)
                k.store(k.select(chosen[t], scores[t], old), block.scratch, offset + t * k.lanes)


def _any_attendable(k: Kernel, block: Block, numbers: list[Value], first_key: Value) -> Value:
    g = k.argument
    found = None
    for number in numbers:
        row = mask_row(k, block, number)
        for t in range(KEY_TILE):
            key = first_key + t * k.lanes
            bits = k.load_bytes(row, key, k.lanes_below(g["m"] - key))
            found = bits if found is None else found | bits
    assert found is not None
    return k.select(k.any(found), k.integer(1), k.integer(0))


def mask_row(k: Kernel, block: Block, number: Value) -> Value:
    """Address of the mask's row of query `number`."""
    g = k.argument
    return g["mask"] + k.load_int(g["mask_index"], block.batch) + number * g["mask_row"]


def emit_product(k: Kernel, scalars: Value, rows: list[Value], inner_step: Value, inner: tuple[Value, Value],
                 vectors: Value, d: Value, finish: "Finish") -> None:  # fmt: skip
    """Rows r of sum_t scalars[rows[r] + t*inner_step] * vectors[t, :], t in `inner`, d a multiple of lanes."""
    wide = PRODUCT_VECTORS * k.lanes

    def columns(first: Value, count: int) -> None:
        sums = [[Variable(k, k.full(0.0)) for _ in range(count)] for _ in rows]
        with k.loop(inner[0], inner[1]) as t:
            vs = [k.load(vectors, t * d + first + c * k.lanes) for c in range(count)]
            for r, row in enumerate(rows):
                s = k.broadcast(scalars, row + t * inner_step)
                for c in range(count):
                    sums[r][c].set(k.fma(s, vs[c], sums[r][c].get()))
        for r in range(len(rows)):
            finish(r, first, [s.get() for s in sums[r]])

    whole = d // wide * wide
    with k.loop(0, whole, wide) as first:
        columns(first, PRODUCT_VECTORS)
    with k.loop(whole, d, k.lanes) as first:
        columns(first, 1)


def emit_row_product(k: Kernel, scalars: Value, inner: tuple[Value, Value], vectors: Value, d: Value, sums: Value,
                     finish: "Finish") -> None:  # fmt: skip
    """The product for one row: reads the vectors in the order of memory, with the d sums in memory at `sums`."""
    with k.loop(0, d, k.lanes) as c:
        k.store(k.full(0.0), sums, c)

    # One vector at a time: several would be as many streams of memory, and each as much slower.
    with k.loop(inner[0], inner[1]) as t:
        share = k.broadcast(scalars, t)
        with k.loop(0, d, k.lanes) as c:
            k.prefetch(vectors, t * d + c + AHEAD_IN_VALUES // k.size)
            k.store(k.fma(share, k.load(vectors, t * d + c), k.load(sums, c)), sums, c)
    with k.loop(0, d, k.lanes) as c:
        finish(0, c, [k.load(sums, c)])


class Finish:
    """Stores row r of a product, scaled by `scale(r)`, if that row exists."""

    def __init__(self, k: Kernel, base: Value, offset: Value, stride: Value, count: Value, scale: Value | None = None):
        self.k, self.base, self.offset, self.stride, self.count, self.scale = k, base, offset, stride, count, scale

    def __call__(self, row: int, first: Value, sums: list[Value]) -> None:
        """Columns from `first` on."""
        k = self.k
        with k.when(self.count.compare(">", row)):
            for c, total in enumerate(sums):
                scaled = total if self.scale is None else total * k.broadcast(self.scale, row)
                k.store(scaled, self.base, self.offset + self.stride * row + first + c * k.lanes)


def scores_kernel(bits: int) -> Kernel:
    """Raw scores, (batch, n, m)."""
    k = Kernel("scores", SCORES_FIELDS, bits)
    g = k.argument
    with k.tasks(g["tasks"]) as task:
        block = Block(k, task, CHUNK)
        emit_scores(k, block, ROW_TILE, masked=False)
        with k.loop(0, block.rows) as i, k.loop(0, g["m"], k.lanes) as j:
            row = (block.batch * g["n"] + block.first + i) * g["m"]
            score = k.load(block.scratch, i * block.stride + j) * k.broadcast(g["unit"], 0)
            k.store_lanes(score, k.lanes_below(g["m"] - j), g["output"], row + j)
    return k


def attend_kernel(bits: int, single: bool) -> Kernel:
    """Attention output, (batch, n, d), and on request the weights, (batch, n, m rounded up); `single` for one query."""
    k = Kernel("attend_single" if single else "attend", ATTEND_FIELDS, bits)
    with k.tasks(k.argument["tasks"]) as task:
        emit_attention(k, Block(k, task, 1 if single else CHUNK), single)
    return k


def emit_attention(k: Kernel, block: Block, single: bool) -> None:
    """Scores, weights and pooled values of a block; `single` for one of one row."""
    g = k.argument
    rows, row_tile, product_rows = (1, 1, 1) if single else (CHUNK, ROW_TILE, PRODUCT_ROWS)
    emit_scores(k, block, row_tile, masked=True)
    inverse = block.scratch + block.stride * (rows * k.size)
    unmasked = g["mask"].compare("==", 0)
    low = Variable(k, k.select(unmasked, k.integer(0), block.keys))
    high = Variable(k, k.select(unmasked, block.keys, k.integer(0)))
    with k.loop(0, block.rows) as i:
        _softmax_row(k, block, i, inverse, low, high)
    value = g["value"] + k.load_int(g["value_index"], block.batch) * g["m"] * g["d"] * k.size
    with k.loop(0, block.rows, product_rows) as i:
        output = (block.batch * g["n"] + block.first + i) * g["d"]
        finish = Finish(k, g["output"], output, g["d"], block.rows - i, inverse + i * k.size)
        inner = low.get(), high.get()
        if single:
            emit_row_product(k, block.scratch, inner, value, g["d"], inverse + 64, finish)
        else:
            scores = [(i + r) * block.stride for r in range(product_rows)]
            emit_product(k, block.scratch, scores, k.integer(1), inner, value, g["d"], finish)


def _softmax_row(k: Kernel, block: Block, i: Value, inverse: Value, low: Variable, high: Variable) -> None:
    """Scores of a row into exp(score - maximum), exactly 0 where not attendable, and one over their sum.

    Under a mask the range low..high grows to hold the row's attendable keys.
    """
    g = k.argument
    number = block.first + i
    row = block.scratch + i * block.stride * k.size
    limit = k.select(g["causal"].compare("!=", 0), k.minimum(number + 1, g["m"]), g["m"])
    end = block.key_blocks * (KEY_TILE * k.lanes)
    lowest = k.full(float("-inf"))
    top = Variable(k, lowest)
    with k.loop(0, end, k.lanes) as j:
        attendable = Variable(k, k.lanes_below(limit - j))
        with k.when(g["mask"].compare("!=", 0)):
            attendable.set(k.load_bytes(mask_row(k, block, number), j, attendable.get()))
            with k.when(k.any(attendable.get())):
                low.set(k.minimum(low.get(), j))
                high.set(k.maximum(high.get(), k.minimum(j + k.lanes, block.keys)))
        score = k.select(attendable.get(), k.load(row, j), lowest)
        k.store(score, row, j)
        top.set(k.maximum(score, top.get()))  # in this order a NaN is passed over
    largest = k.max(top.get())
    largest = k.select(largest.compare("==", lowest), k.full(0.0), largest)
    total, unit = Variable(k, k.full(0.0)), k.broadcast(g["unit"], 0)
    with k.loop(0, end, k.lanes) as j:
        weight = exp(k, (k.load(row, j) - largest) * unit)
        k.store(weight, row, j)
        total.add(weight)
    whole = k.sum(total.get())
    scale = k.select(whole.compare("==", 0.0), k.full(0.0), k.full(1.0) / whole)
    k.store_first(scale, inverse, i)
    with k.when(g["weights"].compare("!=", 0)):
        saved = (block.batch * g["n"] + number) * block.stride
        with k.loop(0, end, k.lanes) as j:
            weight = k.load(row, j)
            # an excluded key keeps its 0 in a row that is NaN
            k.store(k.select(weight.compare("==", 0.0), weight, weight * scale), g["weights"], saved + j)
