"""Kernels of additive attention's gradients, which recompute every tanh from the factors.

Nothing of size n*m*h is stored.

With a = W_q q, b = W_k k, E = exp 2a, F = exp 2b and r = 2/(1 + EF): tanh(a+b) = 1-r and sech^2(a+b) = r(2-r) with
2-r = EF r, so for the gradient s of the scores

    da_ih = w_h sum_j s_ij r(2-r),   db_jh = w_h sum_i s_ij r(2-r),   dw_h = sum_ij s_ij - sum_ij s_ij r.

The first sum of dw is 0 under a softmax, and needed for raw scores. Each task owns some hidden units of one batch
entry, with all its queries and keys, so that the order of every sum does not depend on the number of threads.
"""

from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, Flag, Integers, Reals, Scratch, Size
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.machine_code import HAS_512_BITS
from attnspec.backends.pytorch.kernels.llvm.registers import Inside, load, store, vectors
from attnspec.backends.pytorch.kernels.llvm.values import Extent, RealPointer, Value, Variable

from .products import Finish, emit_product
from .scores import bounded_exponential, capacity, cut_slope
from .tiles import CHUNK, KEY_TILE, PRODUCT_ROWS, key_lanes

ROWS = 8 if HAS_512_BITS else 4
"""Query rows per tile of score gradients, all in registers."""
UNIT_ROWS = 4
"""Query rows per tile in the gradients of hidden units."""
UNITS = 8
"""Hidden units per task."""


class Backward(Arguments):
    """Common arguments; a task is one of ``chunks`` of queries, keys or hidden units per batch entry.

    ``stride`` is the distance between rows of weights and of score gradients.
    """

    tasks: Size
    chunks: Size
    n: Size
    m: Size
    stride: Size


class ScoreGradient(Backward):
    """Arguments of `score_gradient_kernel`.

    ``weights`` (batches, n, stride), ``grad_output`` (batches, n, d), ``value_block`` the values in blocks of keys,
    ``output`` (batches, n, d). Written are ``score_grad`` (batches, n in whole tiles, stride) and ``extent`` (batches,
    tiles, 2): each tile's range of key blocks where ``score_grad`` is not 0. Rows of ``score_grad`` from n on are not
    written: the caller sets them to 0, since `unit_gradient_kernel` adds them.
    """

    d: Size
    causal: Flag
    weights: Reals
    grad_output: Reals
    value_block: Reals
    value_index: Integers
    output: Reals
    score_grad: Reals
    extent: Integers


class ValueGradient(Backward):
    """Arguments of `value_gradient_kernel`; ``grad_value`` (batches, m, d) is written."""

    d: Size
    causal: Flag
    weights: Reals
    grad_output: Reals
    grad_value: Reals


class UnitGradient(Backward):
    """Arguments of `unit_gradient_kernel`.

    ``query`` (entries, n, h) and ``key`` (entries, blocks, h, keys) are factors, or a and b themselves; ``clamp`` is 1
    if products of factors need a clamp. ``grad_query`` (batches, n, h), ``grad_key`` (batches, m, h) and
    ``grad_weight`` (batches, h) are written.
    """

    h: Size
    a_index: Integers
    b_index: Integers
    query: Reals
    key: Reals
    weight: Reals
    clamp: Flag
    scratch: Scratch
    score_grad: Reals
    extent: Integers
    grad_query: Reals
    grad_key: Reals
    grad_weight: Reals


class WeightGradient(Arguments):
    """Arguments of `weight_gradient_kernel`: ``of_entries`` (entries, h); ``total`` (h) is written."""

    entries: Size
    h: Size
    of_entries: Reals
    total: Reals


def unit_scratch(stride: Extent) -> tuple[Extent, Extent]:
    """Counts of reals per thread: key factors of a task's hidden units, and sums of their gradients."""
    return stride * UNITS, stride * UNITS


@compiled
def score_gradient_kernel(bits: int, single: bool) -> Kernel[ScoreGradient]:
    """Write weights * (grad_output value^T - grad_output . output), and per tile the range where it is not 0.

    `single` is for n = 1, as in decoding.
    """
    k = Kernel("score_gradient_single" if single else "score_gradient", ScoreGradient, bits)
    row_count = 1 if single else ROWS
    g, width, lanes = k.argument, key_lanes(bits), k.lanes
    key_blocks = (g.m + (width - 1)) // width
    stride, padded = g.stride, key_blocks * width
    tiles = (g.n + (ROWS - 1)) // ROWS
    with k.tasks(g.tasks) as task:
        batch = task // g.chunks
        first = k.from_both_ends(task % g.chunks, g.chunks) * CHUNK
        visible = k.select(g.causal.is_nonzero(), k.minimum(g.m, first + CHUNK), g.m)
        end = (visible + (width - 1)) // width
        value = g.value_block + k.load_int(g.value_index, batch) * padded * g.d
        with k.loop(first, k.minimum(g.n, first + CHUNK), ROWS) as i:
            numbers = [k.minimum(i + r, g.n - 1) for r in range(row_count)]
            rows = [batch * g.n + number for number in numbers]
            low, high = Variable(k, key_blocks), Variable(k, k.integer(0))
            deltas = [_dot(k, g.grad_output + row * g.d, g.output + row * g.d, g.d) for row in rows]
            with k.loop(0, end) as j:
                block = value + j * width * g.d
                for row in rows:  # rows are too far apart for the hardware prefetcher
                    for t in range(KEY_TILE):
                        k.prefetch(g.weights, row * stride + j * width + t * lanes)
                sums = [[Variable(k, k.full(0.0)) for _ in range(KEY_TILE)] for _ in rows]
                with k.loop(0, g.d) as c:
                    vs = [k.load(block, c * width + t * lanes) for t in range(KEY_TILE)]
                    for row, total in zip(rows, sums, strict=True):
                        s = k.broadcast(g.grad_output, row * g.d + c)
                        for t in range(KEY_TILE):
                            total[t].set(k.fma(s, vs[t], total[t].get()))
                any_nonzero = None
                results = []
                for row, total, delta in zip(rows, sums, deltas, strict=True):
                    for t in range(KEY_TILE):
                        weight = k.load(g.weights, row * stride + j * width + t * lanes)
                        is_zero = weight.compare("==", 0.0)
                        results.append(k.select(is_zero, k.full(0.0), weight * (total[t].get() - delta)))
                        is_nonzero = weight.compare("!=", 0.0)
                        any_nonzero = is_nonzero if any_nonzero is None else any_nonzero | is_nonzero
                for r in range(row_count):
                    with k.when((i + r).compare("<", g.n)):
                        offset = (batch * tiles * ROWS + i + r) * stride + j * width
                        for t in range(KEY_TILE):
                            k.store(results[r * KEY_TILE + t], g.score_grad, offset + t * lanes)
                assert any_nonzero is not None
                with k.when(k.any(any_nonzero)):
                    low.set(k.minimum(low.get(), j))
                    high.set(j + 1)
            tile = (batch * tiles + i // ROWS) * 2
            k.store_int(low.get(), g.extent, tile)
            k.store_int(high.get(), g.extent, tile + 1)
    return k


def _dot(k: Kernel[ScoreGradient], x: RealPointer, y: RealPointer, count: Value) -> Value:
    total = Variable(k, k.full(0.0))
    with k.loop(0, count, k.lanes) as c:
        total.set(k.fma(k.load(x, c), k.load(y, c), total.get()))
    return k.sum(total.get())


@compiled
def value_gradient_kernel(bits: int) -> Kernel[ValueGradient]:
    """Write weights^T grad_output, (batch, m, d)."""
    k = Kernel("value_gradient", ValueGradient, bits)
    g = k.argument
    stride = g.stride
    with k.tasks(g.tasks) as task:
        batch, first = task // g.chunks, k.from_both_ends(task % g.chunks, g.chunks) * CHUNK
        start = k.select(g.causal.is_nonzero(), k.minimum(first, g.n), k.integer(0))
        vectors = g.grad_output + batch * g.n * g.d
        with k.loop(first, k.minimum(g.m, first + CHUNK), PRODUCT_ROWS) as j:
            rows = [batch * g.n * stride + k.minimum(j + r, g.m - 1) for r in range(PRODUCT_ROWS)]
            finish = Finish(k, g.grad_value, (batch * g.m + j) * g.d, g.d, g.m - j)
            emit_product(k, g.weights, rows, stride, (start, g.n), vectors, g.d, finish)
    return k


@compiled
def unit_gradient_kernel(bits: int, pointwise: bool, single: bool) -> Kernel[UnitGradient]:
    """Write da (entries, n, h), db (entries, m, h) and sum_ij s r (entries, h).

    From factors, or with `pointwise` from a and b; `single` is for n = 1.
    """
    name = "unit_gradient" + "_pointwise" * pointwise + "_single" * single
    k = Kernel(name, UnitGradient, bits)
    g, lanes, h = k.argument, k.lanes, k.argument.h
    width = key_lanes(bits)
    blocks = (g.m + (width - 1)) // width
    stride = g.stride
    with k.tasks(g.tasks) as task:
        batch, first = task // g.chunks, task % g.chunks * UNITS
        count = k.minimum(k.integer(UNITS), h - first)
        keys, key_sums = k.parts(g.scratch.of(k.thread), unit_scratch(stride))
        source = k.load_int(g.b_index, batch) * blocks
        with k.loop(0, count) as u:
            k.store_first(k.full(0.0), g.grad_weight, batch * h + first + u)
            with k.loop(0, blocks) as block:
                for t in range(KEY_TILE):
                    key = k.load(g.key, ((source + block) * h + first + u) * width + t * lanes)
                    k.store(key, keys, u * stride + block * width + t * lanes)
                    k.store(k.full(0.0), key_sums, u * stride + block * width + t * lanes)
        tile = _UnitTile(k, batch, first, keys, key_sums, pointwise, single)
        pairs = count // 2 * 2
        with k.when(g.clamp.is_zero()) as otherwise:
            tile.walk(k.integer(0), pairs, 2, clamp=False)
        if not pointwise:
            with otherwise():
                tile.walk(k.integer(0), pairs, 2, clamp=True)
        tile.walk(pairs, count, 1, clamp=True)  # a last unit without a partner: always, it costs little
        with k.loop(0, g.m) as j, k.loop(0, count) as u:
            weight = k.broadcast(g.weight, first + u)
            gradient = k.broadcast(key_sums, u * stride + j) * weight
            k.store_first(gradient, g.grad_key, (batch * g.m + j) * h + first + u)
    return k


class _UnitTile:
    """Gradients over all pairs (query, key) of one task's hidden units."""

    def __init__(self, k: Kernel[UnitGradient], batch: Value, first: Value, keys: RealPointer, key_sums: RealPointer,
                 pointwise: bool, single: bool) -> None:  # fmt: skip
        self.k, self.batch, self.first, self.keys, self.key_sums = k, batch, first, keys, key_sums
        self.stride, self.pointwise, self.single = k.argument.stride, pointwise, single
        self.a_rows = k.load_int(k.argument.a_index, batch) * k.argument.n

    def walk(self, start: Value, stop: Value, units: int, clamp: bool) -> None:
        """Process the hidden units from `start` to `stop`, `units` at a time."""
        k, g = self.k, self.k.argument
        tiles = (g.n + (ROWS - 1)) // ROWS
        width = key_lanes(k.bits)
        with k.loop(0, tiles) as tile:
            low = k.load_int(g.extent, (self.batch * tiles + tile) * 2) * width
            high = k.load_int(g.extent, (self.batch * tiles + tile) * 2 + 1) * width
            for part in range(0, 1 if self.single else ROWS, UNIT_ROWS):
                numbers = [tile * ROWS + (part + r) for r in range(1 if self.single else UNIT_ROWS)]
                gradients = [(self.batch * tiles * ROWS + number) * self.stride for number in numbers]
                with k.when(numbers[0].compare("<", g.n)), k.loop(start, stop, units) as u:
                    self._columns(numbers, gradients, [u + i for i in range(units)], low, high, clamp)

    def _columns(self, numbers: list[Value], gradients: list[Value], units: list[Value], low: Value, high: Value,
                 clamp: bool) -> None:  # fmt: skip
        """Accumulate the gradients of these query rows and hidden units over keys `low` to `high`."""
        k, g = self.k, self.k.argument
        zero = k.full(0.0)
        rows = [(self.a_rows + k.minimum(i, g.n - 1)) * g.h + self.first for i in numbers]
        es = [[k.broadcast(g.query, row + u) for u in units] for row in rows]
        sums = [[Variable(k, zero) for _ in units] for _ in rows]
        totals = [Variable(k, zero) for _ in units]
        with k.loop(low, high, k.lanes) as j:
            places = [u * self.stride + j for u in units]
            keys = [k.load(self.keys, place) for place in places]
            key_sums = [Variable(k, k.load(self.key_sums, place)) for place in places]
            for e, gradient, query_sum in zip(es, gradients, sums, strict=True):
                s = k.load(g.score_grad, gradient + j)
                for i, (t, r) in enumerate(self._terms(e, keys, clamp)):
                    q = s * r
                    # r(2-r) is EF r² here: the difference 2 - r would cancel, and r² alone underflow. `cut_slope` makes
                    # tiny slopes 0 for a single query only; summed over several, they are nothing beside the largest.
                    change = s * cut_slope(k, r * t * r) if self.single else q * (r * t)
                    if self.pointwise:  # r is NaN for a NaN key, even an excluded one
                        q, change = (k.select(s.compare("==", 0.0), s, x) for x in (q, change))
                    totals[i].add(q)
                    query_sum[i].add(change)
                    key_sums[i].add(change)
            for place, total in zip(places, key_sums, strict=True):
                k.store(total.get(), self.key_sums, place)
        for i, u in enumerate(units):
            weight = k.broadcast(g.weight, self.first + u)
            for number, query_sum in zip(numbers, sums, strict=True):
                with k.when(number.compare("<", g.n)):
                    place = (self.batch * g.n + number) * g.h + self.first + u
                    k.store_first(k.sum(query_sum[i].get()) * weight, g.grad_query, place)
            place = self.batch * g.h + self.first + u
            k.store_first(k.broadcast(g.grad_weight, place) + k.sum(totals[i].get()), g.grad_weight, place)

    def _terms(self, e: list[Value], f: list[Value], clamp: bool) -> list[tuple[Value, Value]]:
        """Return EF and r = 2/(1 + EF) of one or two units; two share one division."""
        k, two = self.k, self.k.full(2.0)
        if self.pointwise:
            ts = [bounded_exponential(k, x + y) for x, y in zip(e, f, strict=True)]
            return [(t, two / (t + 1.0)) for t in ts]
        ts = [x * y for x, y in zip(e, f, strict=True)]
        if clamp:
            ts = [k.minimum(t, k.full(capacity(k.bits, len(ts)))) for t in ts]
        xs = [t + 1.0 for t in ts]
        if len(xs) == 1:
            return [(ts[0], two / xs[0])]
        both = two / (xs[0] * xs[1])
        return [(ts[0], xs[1] * both), (ts[1], xs[0] * both)]


@compiled
def weight_gradient_kernel(bits: int) -> Kernel[WeightGradient]:
    """Write minus the sum over the entries, by compensated summation: rounding errors are summed separately."""
    k = Kernel("weight_gradient", WeightGradient, bits)
    g = k.argument

    def of_units(u: Value, inside: Inside) -> None:
        total, lost = Variable(k, k.full(0.0)), Variable(k, k.full(0.0))
        with k.loop(0, g.entries) as entry:
            x, before = load(k, inside, g.of_entries, entry * g.h + u), total.get()
            after = before + x
            added = after - before
            lost.add((before - (after - added)) + (x - added))
            total.set(after)
        store(k, (total.get() + lost.get()) * -1.0, inside, g.total, u)

    vectors(k, g.h, of_units)
    return k
