"""Kernel of additive scores for one block of query rows, from factors.

With E = exp(2a) and F = exp(2b), tanh(a+b) = 1 - 2/(1 + EF), so that with k = max|w|/w

    sum_h w tanh(a+b) = sum_h w - 2 max|w| sum_h 1/X,    X = k(1 + EF) = E'F + k,  E' = kE.

tanh is odd, so a, b and w of a unit may all be negated. They are, where that makes the signs of the weights alternate:
the terms 1/X, which may all be near 1/2, then cancel instead of adding up, and their sum does not lose digits.

Three units share one division, 1/X + 1/Y + 1/Z = ((X+Y)Z + XY)/(XYZ): with the weight inside X the numerator of a pair
costs an addition only. On a processor with one 512-bit multiply-add a cycle and a division every six (Zen 4), three is
the best number: measured 21 G terms/s for threes, 20 for fours, 19 for pairs, 14-17 for estimates with a Newton step.

X is clamped to the cube root of the largest real, where 1/X is negligible; a tile whose factors cannot reach the clamp
skips it and computes the same bits. If |a| and |b| of a pair (query, key) are both large, factors are out of range: the
kernel then computes exp(2(a+b)) pointwise, lane by lane, so that no result depends on another query or key.
"""

from collections.abc import Callable

from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.values import RealPointer, Value, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import exp

from .arguments import Scores, Scoring
from .factors import OUT_OF_RANGE
from .tiles import CHUNK, GROUP, KEY_TILE, ROW_TILE, key_lanes

AHEAD = 8192
"""Prefetch distance in bytes for the key factors of a single query: about 20 groups ahead."""


def capacity(bits: int, units: int) -> float:
    """Return the clamp of X that keeps a product of `units` of them finite."""
    return 2.0 ** ((126 if bits == 32 else 1020) // units)


class Block:
    """One task's block of scores: a batch entry and a chunk of query rows.

    It has ``rows`` queries from ``first`` on, and ``keys`` keys that one of them may see, in ``key_blocks``. ``padded``
    is the number of all keys in whole blocks. ``scores`` is the thread's scratch memory, rows ``stride`` apart.
    """

    def __init__(self, k: Kernel[Scoring], task: Value, rows: int) -> None:
        g = k.argument
        self.batch = task // g.chunks
        self.chunk = k.from_both_ends(task % g.chunks, g.chunks)
        self.first = self.chunk * rows
        self.rows = k.minimum(g.n - self.first, k.integer(rows))
        visible = k.minimum(g.m, self.first + rows)
        self.keys = k.select(g.causal.is_nonzero(), visible, g.m)
        self.key_blocks = (self.keys + (key_lanes(k.bits) - 1)) // key_lanes(k.bits)
        self.padded = (g.m + (key_lanes(k.bits) - 1)) // key_lanes(k.bits) * key_lanes(k.bits)
        self.stride = g.stride
        self.scores = g.scratch.of(k.thread)


def sum_of_reciprocals(k: Kernel, x: list[Value]) -> Value:
    """Return the sum of reciprocals of one to four values, with one division."""
    if len(x) == 1:
        return k.full(1.0) / x[0]
    first, pair = x[0] + x[1], x[0] * x[1]
    if len(x) == 2:
        return first / pair
    if len(x) == 3:
        return k.fma(first, x[2], pair) / (pair * x[2])
    other = x[2] * x[3]
    return k.fma(first, other, pair * (x[2] + x[3])) / (pair * other)


def last_group(h: int) -> int:
    """Return the number of units in the last group; 0 if all groups have `GROUP`."""
    return min(h, GROUP + 1) if h % GROUP == 1 else h % GROUP


def _clamp(k: Kernel, x: Value, units: int) -> Value:
    bound = capacity(k.bits, units)
    return k.maximum(k.minimum(x, k.full(bound)), k.full(-bound))


def _factored(k: Kernel[Scoring], rows: list[Value], keys: RealPointer, clamp: bool, ahead: bool) -> list[list[Value]]:
    """Return scores of a tile from factors; `rows` are offsets of query rows.

    ``ahead`` prefetches later keys: with one query, reading the factors takes all the time. In the module's formula,
    ``es`` are E', ``fs`` F, ``ks`` k and ``xs`` X of a group of hidden units.
    """
    g, lanes, h = k.argument.terms, k.lanes, k.argument.h
    sums = [[Variable(k, k.full(0.0)) for _ in range(KEY_TILE)] for _ in rows]

    def group(units: list[Value]) -> None:
        ks = [k.broadcast(g.ratio, u) for u in units]
        fs = [[k.load(keys, u * (KEY_TILE * lanes) + t * lanes) for u in units] for t in range(KEY_TILE)]
        for row, total in zip(rows, sums, strict=True):
            es = [k.broadcast(g.query_factor, row + u) for u in units]
            for t in range(KEY_TILE):
                xs = [k.fma(e, f, c) for e, f, c in zip(es, fs[t], ks, strict=True)]
                total[t].add(sum_of_reciprocals(k, [_clamp(k, x, len(units)) for x in xs] if clamp else xs))

    # a single remaining unit joins the last group instead of having its own division
    whole = h - k.select((h % GROUP).compare("==", 1), k.minimum(h, k.integer(GROUP + 1)), h % GROUP)
    with k.loop(0, whole, GROUP) as u:
        if ahead:
            for i in range(GROUP * KEY_TILE):
                k.prefetch(keys, u * (KEY_TILE * lanes) + i * lanes + AHEAD // k.size)
        group([u + i for i in range(GROUP)])
    for unit_count in (*range(1, GROUP), GROUP + 1):  # the other possible sizes of the last group
        with k.when((h - whole).compare("==", unit_count)):
            group([whole + i for i in range(unit_count)])
    offset, scale = k.broadcast(g.offset, 0), k.broadcast(g.minus_two_scale, 0)
    return [[k.fma(scale, s.get(), offset) for s in row] for row in sums]


def _pointwise(k: Kernel[Scoring], rows: list[Value], keys: RealPointer) -> list[list[Value]]:
    g, lanes = k.argument.terms, k.lanes
    sums = [[Variable(k, k.full(0.0)) for _ in range(KEY_TILE)] for _ in rows]
    with k.loop(0, k.argument.h) as u:
        weight = k.broadcast(g.weight, u)
        for t in range(KEY_TILE):
            b = k.load(keys, u * (KEY_TILE * lanes) + t * lanes)
            for row, total in zip(rows, sums, strict=True):
                x = bounded_exponential(k, k.broadcast(g.query_raw, row + u) + b) + 1.0
                total[t].add(weight * (k.full(1.0) - k.full(2.0) / x))
    return [[s.get() for s in row] for row in sums]


def bounded_exponential(k: Kernel, x: Value) -> Value:
    """Return exp(2x), finite unless x is NaN; tanh rounds to 1 long before the bound."""
    top = k.full(40.0 if k.bits == 32 else 300.0)
    return exp(k, k.select(x.compare(">", top), top, x) * 2.0)


def cut_slope(k: Kernel, slope: Value) -> Value:
    """Return the slope tanh', or 0 if it is below the unit roundoff; NaN stays.

    Where it is, tanh rounds to ±1.
    Much smaller slopes would make later products subnormal, and slow.
    """
    return k.select(slope.compare("<", 2.0 ** (-24 if k.bits == 32 else -53)), k.full(0.0), slope)


def emit_scores(k: Kernel[Scoring], block: Block, row_tile: int,
                set_needed: Callable[[Variable, list[Value], Value], None] | None = None, single: bool = False,
                ) -> None:  # fmt: skip
    """Emit the block's scores, divided by `Weight.unit`.

    `set_needed(needed, query numbers, first key)` sets `needed` to 0 if no query of a tile may attend to any of its
    keys; such tiles are skipped.
    """
    g, terms, lanes, h = k.argument, k.argument.terms, k.lanes, k.argument.h
    a_batch = k.load_int(g.a_index, block.batch)
    b_batch = k.load_int(g.b_index, block.batch)
    width = KEY_TILE * lanes
    with k.loop(0, block.key_blocks) as j:
        key_offset = (b_batch * block.padded + j * width) * h
        keys = terms.key_factor + key_offset
        with k.loop(0, block.rows, row_tile) as i:
            numbers = [k.minimum(block.first + i + t, g.n - 1) for t in range(row_tile)]
            needed = Variable(k, k.integer(1))
            if set_needed is not None:
                set_needed(needed, numbers, j * width)
            with k.when(needed.get().is_nonzero()):
                rows = [(a_batch * g.n + r) * h for r in numbers]
                target = [(i + t) * block.stride + j * width for t in range(row_tile)]
                clamped = Variable(k, k.integer(0))
                with k.when(terms.clamp_tiles.is_given()):
                    clamped.set(k.load_int(terms.clamp_tiles, b_batch * (block.padded // width) + j))
                with k.when(clamped.get().is_zero()) as otherwise:
                    _store(k, block, target, _factored(k, rows, keys, clamp=False, ahead=single))
                with otherwise():
                    _store(k, block, target, _factored(k, rows, keys, clamp=True, ahead=single))
                with k.when(terms.pointwise.is_nonzero()):
                    _emit_pointwise(k, block, rows, target, key_offset,
                                    query_numbers=[a_batch * g.n + r for r in numbers],
                                    key_number=b_batch * block.padded + j * width)  # fmt: skip


def _store(k: Kernel, block: Block, target: list[Value], scores: list[list[Value]]) -> None:
    for offset, row in zip(target, scores, strict=True):
        for t, score in enumerate(row):
            k.store(score, block.scores, offset + t * k.lanes)


def _emit_pointwise(k: Kernel[Scoring], block: Block, rows: list[Value], target: list[Value], key_offset: Value,
                 query_numbers: list[Value], key_number: Value) -> None:  # fmt: skip
    """Replace the scores of pairs whose factors are out of range."""
    g = k.argument.terms
    flags = [k.load(g.key_flag, key_number + t * k.lanes) for t in range(KEY_TILE)]
    pointwise = [[(k.broadcast(g.query_flag, q) + f).compare(">=", OUT_OF_RANGE) for f in flags] for q in query_numbers]
    pairs = [pair for row in pointwise for pair in row]
    any_pair = pairs[0]
    for pair in pairs[1:]:
        any_pair = any_pair | pair
    with k.when(k.any(any_pair)):
        for offset, chosen, scores in zip(target, pointwise, _pointwise(k, rows, g.key_raw + key_offset), strict=True):
            for t in range(KEY_TILE):
                old = k.load(block.scores, offset + t * k.lanes)
                k.store(k.select(chosen[t], scores[t], old), block.scores, offset + t * k.lanes)


@compiled
def scores_kernel(bits: int) -> Kernel[Scores]:
    """Write raw scores, (batches, n, m)."""
    k = Kernel("scores", Scores, bits)
    g = k.argument
    with k.tasks(g.tasks) as task:
        block = Block(k, task, CHUNK)
        emit_scores(k, block, ROW_TILE)
        with k.loop(0, block.rows) as i, k.loop(0, g.m, k.lanes) as j:
            row = (block.batch * g.n + block.first + i) * g.m
            score = k.load(block.scores, i * block.stride + j) * k.broadcast(g.terms.unit, 0)
            k.store_lanes(score, k.lanes_below(g.m - j), g.output, row + j)
    return k
