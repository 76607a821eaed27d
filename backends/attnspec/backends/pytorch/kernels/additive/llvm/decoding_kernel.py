"""One decoding step as a single kernel: query factors, scores, weights, pooled values.

Keys and values evict everything else from the caches, even the Python interpreter, so that a few Python calls between
two kernels would take half as long as reading them. Queries out of the factors' range are left to `forward`'s kernel.
"""

from attnspec.backends.pytorch.kernels.llvm.arguments import Reals, Result
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.values import Value, Variable

from .arguments import Attend
from .factors import OUT_OF_RANGE, RowFlag, query_factor
from .forward import emit_attention
from .scores import Block, capacity
from .tiles import GROUP


class Decoding(Attend):
    """Arguments of `decoding_kernel`: those of `Attend` with one query per entry, whose factors it computes.

    ``flip`` (h) is that of `layout.Weight`; ``key_maximum`` (h) holds the largest key factor of each hidden unit,
    ``key_maximum_flag`` the largest key flag. ``redo`` becomes 1 if a query is out of the factors' range.
    """

    flip: Reals
    key_maximum: Reals
    key_maximum_flag: Reals
    redo: Result


@compiled
def decoding_kernel(bits: int) -> Kernel[Decoding]:
    """Write contexts (batch, d) of queries ``query_raw`` (batch, h), and their factors."""
    k = Kernel("decoding_step", Decoding, bits)
    g = k.argument
    with k.tasks(g.tasks) as task:
        block = Block(k, task, 1)
        with k.when(_write_factors(k, block)) as otherwise:
            emit_attention(k, block, single=True)
        with otherwise():
            k.store_int(k.integer(1), g.redo, 0)
    return k


def _write_factors(k: Kernel[Decoding], block: Block) -> Value:
    """Write the query's factors; return whether they are valid with every key, without a clamp."""
    g, terms, h = k.argument, k.argument.terms, k.argument.h
    row = k.load_int(g.a_index, block.batch) * h
    row_flag, clamps = RowFlag(k), Variable(k, k.full(0.0))
    with k.loop(0, h, k.lanes) as u:
        inside = k.lanes_below(h - u)
        x = k.load_lanes(inside, terms.query_raw, row + u) * k.load_lanes(inside, g.flip, u)
        ratio = k.load_lanes(inside, terms.ratio, u)
        factor = query_factor(k, x, ratio)
        k.store_lanes(factor, inside, terms.query_factor, row + u)
        row_flag.include(x)
        reach = k.magnitude(factor) * k.load_lanes(inside, g.key_maximum, u) + k.magnitude(ratio)
        clamps.set(k.select(reach.compare("<=", capacity(k.bits, GROUP + 1)), clamps.get(), k.full(1.0)))
    fits = (row_flag.of_row() + k.broadcast(g.key_maximum_flag, 0)).compare("<", OUT_OF_RANGE)
    return k.any(fits & k.max(clamps.get()).compare("==", 0.0))
