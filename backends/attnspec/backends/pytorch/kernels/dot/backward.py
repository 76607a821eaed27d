"""Gradients of scaled dot-product attention for one head and a range of its keys, without n*m numbers in memory.

With the weights P = exp(score - top)*inverse, which are computed again, and D = sum over columns of gradient*output:

    dV = P'G,   dP = GV',   dS = scale * P*(dP - D),   dQ = dS K,   dK = dS'Q.

All five products run on the tiles of the forward pass: scores, weights and their gradients with one query in each lane,
gradients of keys and values with one column in each. A task owns its keys' gradients; the gradient of the queries is a
sum over the ranges, each of which writes its own.
"""

from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, Value, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import exp2

from .forward import KEYS, SHARED, KeyBlock, Rows, Task, pool, store_tile, turn_back, values_of
from .tiles import TILE_ROWS, TILE_VECTORS, add_product, add_tile_product, define_turn, width, zeros

BACKWARD_FIELDS = (*SHARED, "range", "ranges", "m_whole", "slope",
                   "gradient", "gradient_batch", "gradient_head", "gradient_row",
                   "query_gradient", "key_gradient", "value_gradient")  # fmt: skip


def _copy(k: Kernel, task: Task, rows: Rows, whole: Value, target: Value) -> None:
    """The rows as they lie, with zeros for columns and rows that there are not, and for rows that attend nothing."""
    with k.loop(0, k.integer(task.lanes)) as i:
        address = rows.base + task.row_of(i) * rows.step * k.size
        inverse = k.broadcast(k.argument["inverse"], task.entry * k.argument["n"] + task.row_of(i))
        exists = i.compare("<", task.rows) & k.any(inverse.compare("!=", 0.0))
        with k.loop(0, whole, k.lanes) as column:
            inside = k.lanes_below(k.select(exists, rows.columns - column, k.integer(0)))
            k.store(k.load_lanes(inside, address, column), target, i * whole + column)


def _dot_rows(k: Kernel, task: Task, gradient: Value, target: Value) -> None:
    """For each query the sum of gradient*output."""
    g, base = k.argument, task.base("output")
    with k.loop(0, k.integer(task.lanes)) as i:
        total = Variable(k, k.full(0.0))
        row = base + task.row_of(i) * g["output_row"] * k.size
        with k.loop(0, g["d_v"], k.lanes) as c:
            output = k.load_lanes(k.lanes_below(g["d_v"] - c), row, c)
            total.set(k.fma(k.load(gradient, i * g["v_whole"] + c), output, total.get()))
        k.store_first(k.sum(total.get()), target, i)


def _add_outer(k: Kernel, block: KeyBlock, weights: Value, rows: Value, columns: Value, target: Value) -> None:
    """target[key] += the sum over queries of weights[key, query]*rows[query]."""
    lanes, first_row = width(k.bits), block.task.entry * k.argument["m_whole"]
    with k.loop(block.low, block.high, TILE_ROWS) as key, k.loop(0, columns, lanes) as column:
        own = weights + (key - block.first) * (lanes * k.size)
        at = [(first_row + key + r) * columns + column for r in range(TILE_ROWS)]
        sums = [[Variable(k, k.load(target, row + c * k.lanes)) for c in range(TILE_VECTORS)] for row in at]
        scalars = [(own, r * lanes) for r in range(TILE_ROWS)]
        add_product(k, sums, scalars, 1, rows + column * k.size, columns, (0, block.task.rows))
        for row, values in zip(at, values_of(sums), strict=True):
            for c, value in enumerate(values):
                k.store(value, target, row + c * k.lanes)


class Scratch:
    """Addresses of what one task writes down: operands of its block of queries, sums, weights and their gradients."""

    def __init__(self, k: Kernel) -> None:
        g, size = k.argument, width(k.bits) * k.size
        d_whole, v_whole = g["d_whole"] * size, g["v_whole"] * size
        self.queries = g["scratch"] + k.thread * g["scratch_size"] * k.size
        self.gradients = self.queries + d_whole
        self.query_rows = self.gradients + v_whole
        self.gradient_rows = self.query_rows + d_whole
        self.totals = self.gradient_rows + v_whole
        self.weights = self.totals + d_whole
        self.slopes = self.weights + KEYS * size
        self.deltas = self.slopes + KEYS * size
        self.words = self.deltas + size


def _prepare(k: Kernel, task: Task, s: Scratch) -> None:
    """Queries and gradients, turned and as rows; D; zeros for the sums."""
    g = k.argument
    own = task.rows_like("query", "d", s.queries), task.rows_like("gradient", "d_v", s.gradients)
    with k.loop(0, k.integer(2)) as which:
        of_query = which.compare("==", 0)
        rows = Rows(*(k.select(of_query, x, y) for x, y in zip(*own, strict=True)))
        task.pack(rows)
        whole = k.select(of_query, g["d_whole"], g["v_whole"])
        _copy(k, task, rows, whole, k.select(of_query, s.query_rows, s.gradient_rows))
    _dot_rows(k, task, s.gradient_rows, s.deltas)
    with k.loop(0, g["d_whole"] * task.lanes, k.lanes) as i:
        k.store(k.full(0.0), s.totals, i)


def _weights_and_slopes(k: Kernel, block: KeyBlock, s: Scratch, rows: tuple[Value, Value], top: list[Value],
                        inverse: list[Value]) -> None:  # fmt: skip
    """P and dS of the block; `rows` are the head's keys and values."""
    g, task, lanes = k.argument, block.task, block.task.lanes
    scale, slope = k.real("scale"), k.real("slope")
    with k.loop(block.low, block.high, TILE_ROWS) as key:
        at, plain = (key - block.first) * lanes, block.plain(key)
        for own, operand, columns, packed, target in (
            (rows[0], "key_row", "d", s.queries, s.weights), (rows[1], "value_row", "d_v", s.gradients, s.slopes)
        ):  # fmt: skip
            sums = zeros(k, TILE_ROWS, TILE_VECTORS)
            scalars = block.rows_of(own, g[operand], key)
            add_tile_product(k, task.narrow, sums, scalars, 1, packed, lanes, (0, g[columns]))
            store_tile(k, values_of(sums), target, at, lanes)
        with k.loop(0, k.integer(TILE_ROWS)) as r:
            for c in range(TILE_VECTORS):
                place = at + r * lanes + c * k.lanes
                weight = Variable(k, exp2(k, (k.load(s.weights, place) - top[c]) * scale) * inverse[c])
                with k.when(k.negation(plain)):
                    weight.set(k.select(block.allowed(key + r, c), weight.get(), k.full(0.0)))
                share = weight.get()
                change = share * (k.load(s.slopes, place) - k.load(s.deltas, c * k.lanes)) * slope
                k.store(share, s.weights, place)
                k.store(k.select(share.compare("==", 0.0), share, change), s.slopes, place)


def _add_to_keys(k: Kernel, block: KeyBlock, s: Scratch) -> None:
    """dK and dV of the block's keys."""
    g = k.argument
    with k.loop(0, k.integer(2)) as which:
        of_key = which.compare("==", 0)
        target = k.select(of_key, g["key_gradient"], g["value_gradient"])
        with k.when(target.compare("!=", 0)):
            factors, vectors = k.select(of_key, s.slopes, s.weights), k.select(of_key, s.query_rows, s.gradient_rows)
            _add_outer(k, block, factors, vectors, k.select(of_key, g["d_whole"], g["v_whole"]), target)


def backward_kernel(bits: int) -> Kernel:
    """Gradients of queries, keys and values, of the last two added to what is there; 0 for one that nobody wants."""
    k = Kernel("dot_backward", BACKWARD_FIELDS, bits)
    define_turn(k)
    g, lanes = k.argument, width(bits)
    with k.tasks(g["tasks"]) as number:
        entry, range_, s = number // g["ranges"], number % g["ranges"], Scratch(k)
        start = range_ * g["range"]
        end = k.minimum(start + g["range"], g["m"])
        earliest = k.select(g["causal"].compare("!=", 0), start // lanes * lanes, k.integer(0))
        with k.loop(earliest, g["n"], lanes) as first:
            task = Task(k, entry, first)
            _prepare(k, task, s)
            rows = [(k.lanes_below(task.rows - c * k.lanes), c * k.lanes) for c in range(TILE_VECTORS)]
            top, inverse = (
                [k.load_lanes(inside, g[field], entry * g["n"] + first + c) for inside, c in rows]
                for field in ("top", "inverse")
            )
            keys, values = task.base("key"), task.base("value")
            with k.loop(start, k.minimum(end, task.stop), KEYS) as first_key:
                block = KeyBlock(task, first_key, s.words)
                with k.when(block.any()):
                    _weights_and_slopes(k, block, s, (keys, values), top, inverse)
                    with k.when(g["query_gradient"].compare("!=", 0)):
                        slopes = s.slopes - first_key * (lanes * k.size)
                        pool(k, keys, g["key_row"], g["d"], slopes, s.totals, block)
                    _add_to_keys(k, block, s)
            with k.when(g["query_gradient"].compare("!=", 0)):
                row = (range_ * (g["tasks"] // g["ranges"]) + entry) * g["n"]
                turn_back(k, task, s.totals, g["d"], g["query_gradient"] + row * g["d"] * k.size, g["d"])
    return k
