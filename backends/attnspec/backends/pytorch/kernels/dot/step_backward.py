"""Gradients of one query in each head against many keys, bound by reading keys and values and writing their gradients.

Half dtypes are widened in registers and rounded as they are written. A task is a head; its keys come one after another,
each with its value, whose scores are computed again.
"""

from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, Real, Reals, Scratch, Size
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, RealPointer, Value, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import exp2

from .step_arguments import StridedBytes

KEYS = 2
"""Keys whose sums are in registers at once."""


class StepBackward(Arguments):
    """Arguments of `backward_kernel`; ``tasks`` are heads of all batch elements.

    query and ``of_query`` (b, heads, d), ``gradient`` and output (b, heads, d_v), ``maximum`` and ``reciprocal`` (b,
    heads) are contiguous; ``of_key`` and ``of_value`` are stored as keys and values are.
    """

    tasks: Size
    heads: Size
    m: Size
    d: Size
    d_v: Size
    scale: Real
    log2_scale: Real
    query: Reals
    key: StridedBytes
    value: StridedBytes
    output: Reals
    maximum: Reals
    reciprocal: Reals
    gradient: Reals
    of_query: Reals
    of_key: StridedBytes
    of_value: StridedBytes
    scratch: Scratch


@compiled
def backward_kernel(bits: int, stored: str) -> Kernel[StepBackward]:
    """Gradients of query, key and value, for keys and values stored so."""
    k = Kernel("dot_step_backward", StepBackward, bits)
    g, size = k.argument, k.size if stored == "real" else 2

    def products(row: BytePointer, other: RealPointer, width: Value) -> Value:
        total = Variable(k, k.full(0.0))
        with k.loop(0, width, k.lanes) as c:
            total.set(k.fma(k.load_stored(row, c * size, stored), k.load(other, c), total.get()))
        return k.sum(total.get())

    with k.tasks(g.tasks) as task:
        batch, head = task // g.heads, task % g.heads
        query, gradient, output = g.query + task * g.d, g.gradient + task * g.d_v, g.output + task * g.d_v
        sums = g.scratch.of(k.thread)
        keys, values, of_keys, of_values = (x.of_head(batch, head) for x in (g.key, g.value, g.of_key, g.of_value))
        maximum, reciprocal = k.broadcast(g.maximum, task), k.broadcast(g.reciprocal, task)
        delta = Variable(k, k.full(0.0))
        with k.loop(0, g.d_v, k.lanes) as c:
            delta.set(k.fma(k.load(gradient, c), k.load(output, c), delta.get()))
        mean = k.sum(delta.get())
        with k.loop(0, g.d, k.lanes) as c:
            k.store(k.full(0.0), sums, c)
        with k.loop(0, g.m) as j:
            key, value = keys + j * g.key.row, values + j * g.value.row
            score, of_weight = products(key, query, g.d), products(value, gradient, g.d_v)
            weight = exp2(k, (score - maximum) * g.log2_scale.load()) * reciprocal
            of_score = weight * (of_weight - mean) * g.scale.load()
            own = of_keys + j * g.of_key.row
            with k.loop(0, g.d, k.lanes) as c:
                k.store(k.fma(of_score, k.load_stored(key, c * size, stored), k.load(sums, c)), sums, c)
                k.store_stored(of_score * k.load(query, c), own, c * size, stored)
            own = of_values + j * g.of_value.row
            with k.loop(0, g.d_v, k.lanes) as c:
                k.store_stored(weight * k.load(gradient, c), own, c * size, stored)
        target = g.of_query + task * g.d
        with k.loop(0, g.d, k.lanes) as c:
            k.store(k.load(sums, c), target, c)
    return k
