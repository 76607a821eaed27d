"""Tiled backward kernel: gradients for one head and a range of its keys.

Nothing of size n*m is stored. With the weights P = exp(score - maximum)*reciprocal, which are computed again, and D =
sum over columns of gradient*output:

    dV = P'G,   dP = GV',   dS = factor*scale * P*(dP - D),   dQ = dS K,   dK = dS'Q.

The factor is the derivative of a capped score, 1 without a cap.
All five products run on the tiles of the forward pass: scores, weights and their gradients with one query per lane,
gradients of keys and values with one column per lane. A task owns its keys' gradients; the gradient of the queries is a
sum over the ranges, each of which writes its own.
"""

from typing import NamedTuple

from attnspec.backends.pytorch.kernels.llvm import arguments
from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, OptionalReals, Real, Size
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.sums import add_product, zeros
from attnspec.backends.pytorch.kernels.llvm.transposition import define_transpose
from attnspec.backends.pytorch.kernels.llvm.values import RealPointer, Value, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import exp2

from .tiled_arguments import KEYS, Operands, StridedReals, backward_scratch
from .tiled_forward import KeyBlock, QueryBlock, Rows, of_batch, pool, store_rows, store_tile, values_of
from .tiles import TILE_ROWS, TILE_VECTORS, add_tile_product, groups_of_vectors, width


class Backward(Arguments):
    """Arguments of `backward_kernel`; a task is one of ``ranges`` of ``range`` keys, of one head.

    ``gradient`` is that of the output, ``row_gradient`` (b, h, n) that of the rows' log Σ exp, None for zeros.
    ``query_gradient`` (ranges, b, h, n, d) is written; ``key_gradient`` (b, h, m_padded, d_padded) and
    ``value_gradient`` (b, h, m_padded, v_padded), per head of queries, are added to. None if not needed.
    """

    tasks: Size
    operands: Operands
    scratch: arguments.Scratch
    range: Size
    ranges: Size
    m_padded: Size
    scale: Real
    gradient: StridedReals
    row_gradient: OptionalReals
    query_gradient: OptionalReals
    key_gradient: OptionalReals
    value_gradient: OptionalReals


class Scratch(NamedTuple):
    """Scratch memory of a task: operands of its query block, sums, weights, score gradients."""

    queries: RealPointer
    gradients: RealPointer
    query_rows: RealPointer
    gradient_rows: RealPointer
    totals: RealPointer
    weights: RealPointer
    score_gradients: RealPointer
    deltas: RealPointer
    mask_bits: RealPointer


def _copy(k: Kernel, task: QueryBlock, rows: Rows, padded: Value, target: RealPointer) -> None:
    """Copy rows; padding, and rows without an attendable key, become zeros."""
    o = task.operands
    with k.loop(0, k.integer(task.lanes)) as i:
        row = rows.base + task.row_of(i) * rows.step
        reciprocal = k.broadcast(o.reciprocal, task.entry * o.n + task.row_of(i))
        exists = i.compare("<", task.rows) & k.any(reciprocal.compare("!=", 0.0))
        with k.loop(0, padded, k.lanes) as column:
            inside = k.lanes_below(k.select(exists, rows.columns - column, k.integer(0)))
            k.store(k.load_lanes(inside, row, column), target, i * padded + column)


def _dot_rows(k: Kernel[Backward], task: QueryBlock, gradient: RealPointer, target: RealPointer) -> None:
    """Store for each query the sum of gradient*output, minus the gradient of log Σ exp."""
    o, of_rows = task.operands, k.argument.row_gradient
    base = task.head_of(o.output)
    with k.loop(0, k.integer(task.lanes)) as i:
        total = Variable(k, k.full(0.0))
        row = base + task.row_of(i) * o.output.row
        with k.loop(0, o.d_v, k.lanes) as c:
            output = k.load_lanes(k.lanes_below(o.d_v - c), row, c)
            total.set(k.fma(k.load(gradient, i * o.v_padded + c), output, total.get()))
        total.set(k.sum(total.get()))
        with k.when(of_rows.is_given()):
            total.set(total.get() - k.broadcast(of_rows, task.entry * o.n + task.row_of(i)))
        k.store_first(total.get(), target, i)


def _add_outer(k: Kernel[Backward], block: KeyBlock, weights: RealPointer, rows: RealPointer, columns: Value,
               target: RealPointer) -> None:  # fmt: skip
    """target[key] += the sum over queries of weights[key, query]*rows[query]."""
    lanes, first_row = width(k.bits), block.queries.entry * k.argument.m_padded
    with k.loop(block.low, block.high, TILE_ROWS) as key:
        key_weights = weights + (key - block.first) * lanes
        scalars = [(key_weights, r * lanes) for r in range(TILE_ROWS)]
        for count, column in groups_of_vectors(k, columns):
            at = [(first_row + key + r) * columns + column for r in range(TILE_ROWS)]
            sums = [[Variable(k, k.load(target, row + c * k.lanes)) for c in range(count)] for row in at]
            add_product(k, sums, scalars, 1, rows + column, columns, (0, block.queries.rows))
            for row, values in zip(at, values_of(sums), strict=True):
                for c, value in enumerate(values):
                    k.store(value, target, row + c * k.lanes)


def _prepare(k: Kernel[Backward], task: QueryBlock, s: Scratch) -> None:
    """Store queries and gradients, transposed and as rows; compute D; zero the sums."""
    o = task.operands
    of_queries = task.rows_of(o.query, o.d, s.queries)
    of_gradients = task.rows_of(k.argument.gradient, o.d_v, s.gradients)
    # a loop over queries and gradients, so that their code is compiled once
    with k.loop(0, k.integer(2)) as which:
        is_query = which.is_zero()
        rows = Rows(
            k.select(is_query, of_queries.base, of_gradients.base),
            k.select(is_query, of_queries.step, of_gradients.step),
            k.select(is_query, of_queries.columns, of_gradients.columns),
            k.select(is_query, of_queries.transposed, of_gradients.transposed),
        )
        task.transpose(rows)
        padded = k.select(is_query, o.d_padded, o.v_padded)
        _copy(k, task, rows, padded, k.select(is_query, s.query_rows, s.gradient_rows))
    _dot_rows(k, task, s.gradient_rows, s.deltas)
    with k.loop(0, o.d_padded * task.lanes, k.lanes) as i:
        k.store(k.full(0.0), s.totals, i)


def _score_gradients(k: Kernel[Backward], block: KeyBlock, s: Scratch, keys: RealPointer, values: RealPointer,
                     maximum: list[Value], reciprocal: list[Value]) -> None:  # fmt: skip
    """Store P and dS of the block; `keys` and `values` are those of the head."""
    task = block.queries
    o, lanes = task.operands, task.lanes
    log2_scale, scale = o.log2_scale.load(), k.argument.scale.load()
    with k.loop(block.low, block.high, TILE_ROWS) as key:
        at, all_attendable = (key - block.first) * lanes, block.all_attendable(key)
        for rows, row, columns, transposed, target in (
            (keys, o.key.row, o.d, s.queries, s.weights),
            (values, o.value.row, o.d_v, s.gradients, s.score_gradients),
        ):
            sums = zeros(k, TILE_ROWS, TILE_VECTORS)
            scalars = block.rows_of(rows, row, key)
            add_tile_product(k, task.vectors, sums, scalars, 1, transposed, lanes, (0, columns))
            store_tile(k, values_of(sums), target, at, lanes)
        with k.loop(0, k.integer(TILE_ROWS)) as r:
            for c in range(TILE_VECTORS):
                place = at + r * lanes + c * k.lanes
                score, derivative = Variable(k, k.load(s.weights, place)), Variable(k, scale)
                with k.when(o.adjusts.is_nonzero()):  # a cap, slopes or a bias
                    adjusted, factor = block.adjusted(score.get(), key + r, c)
                    score.set(adjusted)
                    derivative.set(factor * scale)
                exponential = exp2(k, (score.get() - maximum[c]) * log2_scale)
                weight = Variable(k, exponential * reciprocal[c])
                with k.when(k.negation(all_attendable)):
                    weight.set(k.select(block.attendable(key + r, c), weight.get(), k.full(0.0)))
                p = weight.get()
                gradient = p * (k.load(s.score_gradients, place) - k.load(s.deltas, c * k.lanes)) * derivative.get()
                k.store(p, s.weights, place)
                # an excluded pair has gradient 0, even if its dP is NaN
                k.store(k.select(p.compare("==", 0.0), p, gradient), s.score_gradients, place)


def _add_to_keys(k: Kernel[Backward], block: KeyBlock, s: Scratch) -> None:
    """Add the block's terms to the gradients of keys and of values, if wanted."""
    g, o = k.argument, block.queries.operands
    # a loop over both gradients, so that their code is compiled once
    with k.loop(0, k.integer(2)) as which:
        is_key = which.is_zero()
        target = k.select(is_key, g.key_gradient, g.value_gradient)
        with k.when(target.is_given()):
            factors = k.select(is_key, s.score_gradients, s.weights)
            rows = k.select(is_key, s.query_rows, s.gradient_rows)
            _add_outer(k, block, factors, rows, k.select(is_key, o.d_padded, o.v_padded), target)


@compiled
def backward_kernel(bits: int) -> Kernel[Backward]:
    """Kernel for gradients of queries, keys and values, as in `Backward`."""
    k = Kernel("dot_backward", Backward, bits)
    define_transpose(k)
    g, o, lanes = k.argument, k.argument.operands, width(bits)
    with k.tasks(g.tasks) as number:
        entry, range_ = number // g.ranges, number % g.ranges
        s = Scratch(*k.parts(g.scratch.of(k.thread), backward_scratch(bits, o.d_padded, o.v_padded)))
        start = range_ * g.range
        end = k.minimum(start + g.range, o.m)
        offset = of_batch(k, o.offsets, entry // o.heads, k.integer(0))
        earliest = k.maximum(k.integer(0), start - o.right - offset) // lanes * lanes
        latest = k.minimum(o.n, end + o.left - offset)
        with k.loop(earliest, latest, lanes) as first:
            task = QueryBlock(k, o, entry, first)
            _prepare(k, task, s)
            rows = [(k.lanes_below(task.rows - c * k.lanes), c * k.lanes) for c in range(TILE_VECTORS)]
            maximum, reciprocal = (
                [k.load_lanes(inside, numbers, entry * o.n + first + c) for inside, c in rows]
                for numbers in (o.maximum, o.reciprocal)
            )
            keys, values = task.key_head_of(o.key), task.key_head_of(o.value)
            with k.loop(k.maximum(start, task.start), k.minimum(end, task.stop), KEYS) as first_key:
                block = KeyBlock(task, first_key, s.mask_bits)
                with k.when(block.any()):
                    _score_gradients(k, block, s, keys, values, maximum, reciprocal)
                    with k.when(g.query_gradient.is_given()):
                        # `pool` counts keys from the head's first, the scratch memory from the block's
                        weights = s.score_gradients - first_key * lanes
                        pool(k, block, keys, o.key.row, o.d, weights, s.totals)
                    _add_to_keys(k, block, s)
            with k.when(g.query_gradient.is_given()):
                row = (range_ * (g.tasks // g.ranges) + entry) * o.n
                store_rows(k, task, s.totals, o.d, g.query_gradient + row * o.d, o.d)
    return k
