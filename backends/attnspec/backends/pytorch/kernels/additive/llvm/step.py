"""One decoding step in one call: factors of the queries, scores, weights, pooled values.

What a step reads evicts everything else from the caches, the interpreter too, so that a few calls of Python between two
kernels would take half as long as the reading. Queries that need more than factors are left to the general kernels.
"""

from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, Value, Variable

from .factors import RowFlag, query_factor
from .forward import ATTEND_FIELDS, UNFIT, Block, capacity, emit_attention

STEP_FIELDS = (*ATTEND_FIELDS, "key_top", "key_top_flag", "redo")


def step_kernel(bits: int) -> Kernel:
    """Contexts (batch, d) of queries `query_raw` (batch, h), their factors too; `redo` becomes 1 where some need more.

    `key_top` holds the largest factor of the keys in each unit, `key_top_flag` their largest flag.
    """
    k = Kernel("step", STEP_FIELDS, bits)
    g = k.argument
    with k.tasks(g["tasks"]) as task:
        block = Block(k, task, 1)
        fits = _make_factors(k, block)
        with k.when(fits):
            emit_attention(k, block, single=True)
        with k.when(k.negation(fits)):
            k.store_int(k.integer(1), g["redo"], 0)
    return k


def _make_factors(k: Kernel, block: Block) -> Value:
    """Factors of the block's query in place, and whether they serve with every key, without a clamp."""
    g, h = k.argument, k.argument["h"]
    row = k.load_int(g["a_index"], block.batch) * h
    row_flag, beyond = RowFlag(k), Variable(k, k.full(0.0))
    with k.loop(0, h, k.lanes) as u:
        inside = k.lanes_below(h - u)
        x, ratio = k.load_lanes(inside, g["query_raw"], row + u), k.load_lanes(inside, g["scale"], u)
        factor = query_factor(k, x, ratio)
        k.store_lanes(factor, inside, g["query_factor"], row + u)
        row_flag.see(x)
        reach = k.magnitude(factor) * k.load_lanes(inside, g["key_top"], u) + k.magnitude(ratio)
        beyond.set(k.select(reach.compare("<=", capacity(k.bits, 3)), beyond.get(), k.full(1.0)))
    fits = (row_flag.of_all() + k.broadcast(g["key_top_flag"], 0)).compare("<", UNFIT)
    return k.any(fits & k.max(beyond.get()).compare("==", 0.0))
