"""Where the factors of queries and keys serve: decided by one kernel from the largest ones and the flags."""

from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, Integers, Reals, Result, Size
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.registers import Inside, load, vectors
from attnspec.backends.pytorch.kernels.llvm.values import RealPointer, Value, Variable

from .factors import DIRECT_FLAGS


class Reach(Arguments):
    """Arguments of `reach_kernel`.

    ``query_flag`` (rows), ``key_flag`` (keys), ``query_maximum`` (query_groups, h), ``key_maximum`` (key_groups, h),
    ``ratio`` (h), and ``limit`` (h) of what EF + ratio may be without a clamp. It writes to ``clamped`` (key_groups)
    which groups of keys need one, and 1 to ``clamps`` if any does, to ``direct`` if a pair may have no factors.
    """

    rows: Size
    keys: Size
    query_groups: Size
    key_groups: Size
    h: Size
    query_flag: Reals
    key_flag: Reals
    query_maximum: Reals
    key_maximum: Reals
    ratio: Reals
    limit: Reals
    clamped: Integers
    clamps: Result
    direct: Result


@compiled
def reach_kernel(bits: int) -> Kernel[Reach]:
    """What `Reach` says."""
    k = Kernel("reach", Reach, bits)
    g, zero, one = k.argument, k.integer(0), k.integer(1)
    with k.loop(0, g.key_groups) as group:
        k.store_int(zero, g.clamped, group)

    def of_units(u: Value, inside: Inside) -> None:
        largest = Variable(k, k.full(0.0))
        with k.loop(0, g.query_groups) as group:
            largest.set(k.maximum(load(k, inside, g.query_maximum, group * g.h + u), largest.get()))
        ratio, limit = k.magnitude(load(k, inside, g.ratio, u)), load(k, inside, g.limit, u)
        with k.loop(0, g.key_groups) as group:
            most = k.fma(largest.get(), load(k, inside, g.key_maximum, group * g.h + u), ratio)
            with k.when(k.any(k.negation(most.compare("<=", limit)))):
                k.store_int(one, g.clamped, group)
                k.store_int(one, g.clamps, 0)

    vectors(k, g.h, of_units)
    flags = _largest(k, g.query_flag, g.rows) + _largest(k, g.key_flag, g.keys)
    with k.when(k.any(flags.compare(">=", float(DIRECT_FLAGS)))):
        k.store_int(one, g.direct, 0)
    return k


def _largest(k: Kernel[Reach], flags: RealPointer, count: Value) -> Value:
    """The largest of so many flags, in every lane."""
    largest = Variable(k, k.full(0.0))
    vectors(k, count, lambda i, inside: largest.set(k.maximum(load(k, inside, flags, i), largest.get())))
    return k.max(largest.get())
