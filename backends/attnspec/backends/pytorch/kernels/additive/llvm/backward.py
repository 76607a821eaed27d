"""Gradients of additive attention: every tanh is recomputed from the factors, nothing of size n*m*h exists.

With r = 1/(1 + EF): sech^2(a+b) = 4r(1-r) with 1-r = EF r, so for the gradient s of the scores

    da_ih = 4 w_h sum_j s_ij r(1-r),   db_jh = 4 w_h sum_i s_ij r(1-r),   dw_h = sum_ij s_ij - 2 sum_ij s_ij r.

The first sum of dw vanishes under a softmax only; raw scores need it. Each task owns some hidden units of one batch
entry, all queries and keys of it, so that every sum is taken in one order whatever the number of threads.
"""

from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, Value, Variable

from .forward import (
    CHUNK,
    KEY_TILE,
    PRODUCT_ROWS,
    WIDE,
    Finish,
    capacity,
    direct_exponential,
    emit_product,
    key_lanes,
)

ROWS = 8 if WIDE else 4  # query rows whose scores' gradients are in registers at once
UNIT_ROWS = 4  # the same in the gradients of the units
UNITS = 8  # hidden units of one task

SHARED = ("tasks", "batches", "chunks", "n", "m", "stride")
PRODUCT = (*SHARED, "d", "causal", "weights", "grad_output")
SCORE_FIELDS = (*PRODUCT, "value_block", "value_index", "delta", "score_grad", "extent")
VALUE_FIELDS = (*PRODUCT, "grad_value")
UNIT_FIELDS = (*SHARED, "h", "a_index", "b_index", "query", "key", "weight", "clamp", "scratch", "score_grad", "extent",
               "grad_query", "grad_key", "grad_weight")  # fmt: skip


def score_gradient_kernel(bits: int, single: bool) -> Kernel:
    """weights * (grad_output value^T - delta), and per group of rows the range of key blocks where it is not 0.

    `single` for one query.
    """
    k = Kernel("score_gradient_single" if single else "score_gradient", SCORE_FIELDS, bits)
    present = 1 if single else ROWS
    g, width, lanes = k.argument, key_lanes(bits), k.lanes
    key_blocks = (g["m"] + (width - 1)) // width
    stride, padded = g["stride"], key_blocks * width
    tiles = (g["n"] + (ROWS - 1)) // ROWS
    with k.tasks(g["tasks"]) as task:
        batch = task % g["batches"]
        chunk = g["chunks"] - (task // g["batches"]) - 1
        first = chunk * CHUNK
        visible = k.select(g["causal"].compare("!=", 0), k.minimum(g["m"], first + CHUNK), g["m"])
        end = (visible + (width - 1)) // width
        value = g["value_block"] + k.load_int(g["value_index"], batch) * padded * g["d"] * k.size
        with k.loop(first, k.minimum(g["n"], first + CHUNK), ROWS) as i:
            numbers = [k.minimum(i + r, g["n"] - 1) for r in range(present)]
            rows = [batch * g["n"] + number for number in numbers]
            low, high = Variable(k, key_blocks), Variable(k, k.integer(0))
            with k.loop(0, end) as j:
                block = value + j * width * g["d"] * k.size
                for row in rows:  # rows are too far apart for the hardware to foresee
                    for t in range(KEY_TILE):
                        k.prefetch(g["weights"], row * stride + j * width + t * lanes)
                sums = [[Variable(k, k.full(0.0)) for _ in range(KEY_TILE)] for _ in rows]
                with k.loop(0, g["d"]) as c:
                    vs = [k.load(block, c * width + t * lanes) for t in range(KEY_TILE)]
                    for row, total in zip(rows, sums, strict=True):
                        s = k.broadcast(g["grad_output"], row * g["d"] + c)
                        for t in range(KEY_TILE):
                            total[t].set(k.fma(s, vs[t], total[t].get()))
                found = None
                results = []
                for row, total in zip(rows, sums, strict=True):
                    delta = k.broadcast(g["delta"], row)
                    for t in range(KEY_TILE):
                        weight = k.load(g["weights"], row * stride + j * width + t * lanes)
                        none = weight.compare("==", 0.0)
                        results.append(k.select(none, k.full(0.0), weight * (total[t].get() - delta)))
                        some = weight.compare("!=", 0.0)
                        found = some if found is None else found | some
                for r in range(present):
                    with k.when((i + r).compare("<", g["n"])):
                        offset = (batch * tiles * ROWS + i + r) * stride + j * width
                        for t in range(KEY_TILE):
                            k.store(results[r * KEY_TILE + t], g["score_grad"], offset + t * lanes)
                assert found is not None
                with k.when(k.any(found)):
                    low.set(k.minimum(low.get(), j))
                    high.set(j + 1)
            tile = (batch * tiles + i // ROWS) * 2
            k.store_int(low.get(), g["extent"], tile)
            k.store_int(high.get(), g["extent"], tile + 1)
    return k


def value_gradient_kernel(bits: int) -> Kernel:
    """weights^T grad_output, (batch, m, d)."""
    k = Kernel("value_gradient", VALUE_FIELDS, bits)
    g = k.argument
    stride = g["stride"]
    with k.tasks(g["tasks"]) as task:
        batch, first = task % g["batches"], task // g["batches"] * CHUNK
        start = k.select(g["causal"].compare("!=", 0), k.minimum(first, g["n"]), k.integer(0))
        vectors = g["grad_output"] + batch * g["n"] * g["d"] * k.size
        with k.loop(first, k.minimum(g["m"], first + CHUNK), PRODUCT_ROWS) as j:
            rows = [batch * g["n"] * stride + k.minimum(j + r, g["m"] - 1) for r in range(PRODUCT_ROWS)]
            finish = Finish(k, g["grad_value"], (batch * g["m"] + j) * g["d"], g["d"], g["m"] - j)
            emit_product(k, g["weights"], rows, stride, (start, g["n"]), vectors, g["d"], finish)
    return k


def unit_gradient_kernel(bits: int, direct: bool, single: bool) -> Kernel:
    """da (entries, n, h), db (entries, m, h) and sum_ij s r (entries, h); from factors or from a and b.

    `single` for one query.
    """
    name = "unit_gradient" + "_direct" * direct + "_single" * single
    k = Kernel(name, UNIT_FIELDS, bits)
    g, lanes, h = k.argument, k.lanes, k.argument["h"]
    width = key_lanes(bits)
    blocks = (g["m"] + (width - 1)) // width
    stride = g["stride"]
    with k.tasks(g["tasks"]) as task:
        batch, first = task % g["batches"], task // g["batches"] * UNITS
        count = k.minimum(k.integer(UNITS), h - first)
        keys = g["scratch"] + k.thread * stride * (2 * UNITS * k.size)
        along = keys + stride * (UNITS * k.size)
        source = k.load_int(g["b_index"], batch) * blocks
        with k.loop(0, count) as u:
            k.store_first(k.full(0.0), g["grad_weight"], batch * h + first + u)
            with k.loop(0, blocks) as block:
                for t in range(KEY_TILE):
                    key = k.load(g["key"], ((source + block) * h + first + u) * width + t * lanes)
                    k.store(key, keys, u * stride + block * width + t * lanes)
                    k.store(k.full(0.0), along, u * stride + block * width + t * lanes)
        tile = _UnitTile(k, batch, first, keys, along, stride, direct, single)
        pairs = count // 2 * 2
        for clamp in (False,) if direct else (False, True):
            with k.when(g["clamp"].compare("==", int(clamp))):
                tile.walk(k.integer(0), pairs, 2, clamp)
        tile.walk(pairs, count, 1, False)
        with k.loop(0, g["m"]) as j, k.loop(0, count) as u:
            weight = k.broadcast(g["weight"], first + u) * 4.0
            gradient = k.broadcast(along, u * stride + j) * weight
            k.store_first(gradient, g["grad_key"], (batch * g["m"] + j) * h + first + u)
    return k


class _UnitTile:
    """Walks over all pairs (query, key) of some hidden units of one batch entry."""

    def __init__(self, k: Kernel, batch: Value, first: Value, keys: Value, along: Value, stride: Value, direct: bool,
                 single: bool):  # fmt: skip
        self.k, self.batch, self.first, self.keys, self.along = k, batch, first, keys, along
        self.stride, self.direct, self.single = stride, direct, single
        self.a_rows = k.load_int(k.argument["a_index"], batch) * k.argument["n"]

    def walk(self, start: Value, stop: Value, units: int, clamp: bool) -> None:
        k, g = self.k, self.k.argument
        tiles = (g["n"] + (ROWS - 1)) // ROWS
        width = key_lanes(k.bits)
        with k.loop(0, tiles) as tile:
            low = k.load_int(g["extent"], (self.batch * tiles + tile) * 2) * width
            high = k.load_int(g["extent"], (self.batch * tiles + tile) * 2 + 1) * width
            for part in range(0, 1 if self.single else ROWS, UNIT_ROWS):
                numbers = [tile * ROWS + (part + r) for r in range(1 if self.single else UNIT_ROWS)]
                slopes = [(self.batch * tiles * ROWS + number) * self.stride for number in numbers]
                with k.when(numbers[0].compare("<", g["n"])), k.loop(start, stop, units) as u:
                    self._columns(numbers, slopes, [u + i for i in range(units)], low, high, clamp)

    def _columns(self, numbers: list[Value], slopes: list[Value], units: list[Value], low: Value, high: Value,
                 clamp: bool) -> None:  # fmt: skip
        k, g = self.k, self.k.argument
        zero = k.full(0.0)
        rows = [(self.a_rows + k.minimum(i, g["n"] - 1)) * g["h"] + self.first for i in numbers]
        es = [[k.broadcast(g["query"], row + u) for u in units] for row in rows]
        sums = [[Variable(k, zero) for _ in units] for _ in rows]
        totals = [Variable(k, zero) for _ in units]
        with k.loop(low, high, k.lanes) as j:
            places = [u * self.stride + j for u in units]
            keys = [k.load(self.keys, place) for place in places]
            along = [Variable(k, k.load(self.along, place)) for place in places]
            for e, slope, across in zip(es, slopes, sums, strict=True):
                s = k.load(g["score_grad"], slope + j)
                for i, (t, r) in enumerate(self._terms(e, keys, clamp)):
                    q = s * r
                    change = q * r * t  # s r (1 - r); the difference would cancel where r is near 1
                    if self.direct:  # r is NaN for a key that is NaN, also where it is excluded
                        q, change = (k.select(s.compare("==", 0.0), s, x) for x in (q, change))
                    totals[i].add(q)
                    across[i].add(change)
                    along[i].add(change)
            for place, total in zip(places, along, strict=True):
                k.store(total.get(), self.along, place)
        for i, u in enumerate(units):
            weight = k.broadcast(g["weight"], self.first + u) * 4.0
            for number, across in zip(numbers, sums, strict=True):
                with k.when(number.compare("<", g["n"])):
                    place = (self.batch * g["n"] + number) * g["h"] + self.first + u
                    k.store_first(k.sum(across[i].get()) * weight, g["grad_query"], place)
            place = self.batch * g["h"] + self.first + u
            k.store_first(k.broadcast(g["grad_weight"], place) + k.sum(totals[i].get()), g["grad_weight"], place)

    def _terms(self, e: list[Value], f: list[Value], clamp: bool) -> list[tuple[Value, Value]]:
        """EF and r = 1/(1 + EF) of one or two units; two share one division."""
        k, one = self.k, self.k.full(1.0)
        if self.direct:
            ts = [direct_exponential(k, x + y) for x, y in zip(e, f, strict=True)]
            return [(t, one / (t + 1.0)) for t in ts]
        ts = [x * y for x, y in zip(e, f, strict=True)]
        if clamp or len(ts) == 1:
            ts = [k.minimum(t, k.full(capacity(k.bits, len(ts)))) for t in ts]
        xs = [t + 1.0 for t in ts]
        if len(xs) == 1:
            return [(ts[0], one / xs[0])]
        both = one / (xs[0] * xs[1])
        return [(ts[0], xs[1] * both), (ts[1], xs[0] * both)]
