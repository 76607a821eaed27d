"""Kernel that finds key blocks that need a clamp, and pairs that cannot use factors.

Factors in range may have products so large that those of a group of hidden units overflow: a clamp bounds each term.
Factors out of range are wrong themselves: such pairs are computed pointwise. `scores` derives both.
"""

from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, Integers, Reals, Result, Size
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.registers import Inside, load, vectors
from attnspec.backends.pytorch.kernels.llvm.values import RealPointer, Value, Variable

from .factors import OUT_OF_RANGE


class FactorRange(Arguments):
    """Arguments of `factor_range_kernel`.

    ``query_flag`` (rows), ``key_flag`` (keys), ``query_maximum`` (query_groups, h), ``key_maximum`` (key_groups, h),
    ``ratio`` (h); ``limit`` (h) is the largest EF + ratio that needs no clamp. The kernel writes 1 to ``clamped``
    (key_groups) for groups of keys that need a clamp, to ``clamps`` if any does, and to ``pointwise`` if a
    pair's factors may be out of range, so that it must be computed pointwise.
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
    pointwise: Result


@compiled
def factor_range_kernel(bits: int) -> Kernel[FactorRange]:
    """Set the flags of `FactorRange`: clamped groups of keys, any clamp, any pointwise pair."""
    k = Kernel("factor_range", FactorRange, bits)
    g, off, on = k.argument, k.integer(0), k.integer(1)
    with k.loop(0, g.key_groups) as group:
        k.store_int(off, g.clamped, group)

    def of_units(u: Value, inside: Inside) -> None:
        largest = Variable(k, k.full(0.0))
        with k.loop(0, g.query_groups) as group:
            largest.set(k.maximum(load(k, inside, g.query_maximum, group * g.h + u), largest.get()))
        ratio, limit = k.magnitude(load(k, inside, g.ratio, u)), load(k, inside, g.limit, u)
        with k.loop(0, g.key_groups) as group:
            most = k.fma(largest.get(), load(k, inside, g.key_maximum, group * g.h + u), ratio)
            with k.when(k.any(k.negation(most.compare("<=", limit)))):  # not ">": a NaN needs a clamp
                k.store_int(on, g.clamped, group)
                k.store_int(on, g.clamps, 0)

    vectors(k, g.h, of_units)
    flags = _largest(k, g.query_flag, g.rows) + _largest(k, g.key_flag, g.keys)
    with k.when(k.any(flags.compare(">=", float(OUT_OF_RANGE)))):
        k.store_int(on, g.pointwise, 0)
    return k


def _largest(k: Kernel[FactorRange], flags: RealPointer, count: Value) -> Value:
    largest = Variable(k, k.full(0.0))
    vectors(k, count, lambda i, inside: largest.set(k.maximum(load(k, inside, flags, i), largest.get())))
    return k.max(largest.get())
