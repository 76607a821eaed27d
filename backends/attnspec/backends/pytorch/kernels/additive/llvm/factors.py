"""Kernels of factors exp(2a) of queries and exp(2b) of keys, with range flags.

exp(2(a+b)) is the product of a query's and a key's factors, unless these are out of range. A flip of -1 negates both a
and b of its hidden unit; a ratio is max|w|/w of its unit's weight w. `scores` says what both are good for.
"""

from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, Reals, Size
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.registers import Inside, load, store, vectors
from attnspec.backends.pytorch.kernels.llvm.values import Value, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import exp

from .tiles import KEY_TILE, key_lanes

# exp(2a) is computed at BOUND for |a| beyond it: correct with |b| up to FIT, since tanh rounds to 1.
# BOUND leaves room for ratios max|w|/w up to 2**24 and 2**53: units of smaller weight vanish in rounding.
BOUND = {32: 34.5, 64: 334.0}
FIT = {32: 25.0, 64: 314.0}

ROWS = 32
"""Query rows per task."""

OUT_OF_RANGE = 3
"""Least sum of a query's and a key's flag that rules out factors. The score is then computed pointwise.

Flags of 0 and 2 may meet, where tanh rounds to 1, and so may 1 and 1; 1 and 2 may not, nor anything with a NaN.
"""


class QueryFactors(Arguments):
    """Arguments of `query_factor_kernel`.

    raw (rows, h), flip (h), ratio (h), factor (rows, h), flag (rows), maximum (tasks, h).
    """

    tasks: Size
    rows: Size
    h: Size
    raw: Reals
    flip: Reals
    ratio: Reals
    factor: Reals
    flag: Reals
    maximum: Reals


class KeyBlocks(Arguments):
    """Arguments of `block_kernel`: tasks are blocks; raw (entries, m, h), block (entries, blocks, h, keys)."""

    tasks: Size
    m: Size
    h: Size
    raw: Reals
    block: Reals


class KeyFactors(Arguments):
    """Arguments of `key_factor_kernel`; tasks are blocks of keys.

    raw (entries, m, h), flip (h), factor (entries, blocks, h, keys), flag (entries, blocks, keys), maximum (entries,
    blocks, h).
    """

    tasks: Size
    m: Size
    h: Size
    raw: Reals
    flip: Reals
    factor: Reals
    flag: Reals
    maximum: Reals


def _exponential(k: Kernel, x: Value) -> Value:
    """Return exp(2x), never 0, infinite or NaN."""
    bound = BOUND[k.bits]
    return exp(k, k.maximum(k.minimum(x, k.full(bound)), k.full(-bound)) * 2.0)


def query_factor(k: Kernel, x: Value, ratio: Value) -> Value:
    """Return ratio * exp(2x), bounded by a quarter of the largest power of two."""
    bound = k.full(2.0**125 if k.bits == 32 else 2.0**1021)
    return k.maximum(k.minimum(_exponential(k, x) * ratio, bound), k.full(0.0) - bound)


class RowFlag:
    """Range flag of a row: 0 if all of it is within FIT, 1 within BOUND, 2 beyond, 3 if it holds a NaN."""

    def __init__(self, k: Kernel) -> None:
        self.k = k
        self.largest, self.nan = Variable(k, k.full(0.0)), Variable(k, k.full(0.0))

    def include(self, x: Value) -> None:
        """Include part of one row, or one element of a row per lane."""
        k = self.k
        self.largest.set(k.maximum(k.magnitude(x), self.largest.get()))
        self.nan.set(k.select(x.compare("!=", x), k.full(1.0), self.nan.get()))

    def of_lanes(self) -> Value:
        """Return the flags of as many rows as there are lanes."""
        return self._flag(self.largest.get(), self.nan.get())

    def of_row(self) -> Value:
        """Return the flag of one row whose parts lie in all lanes, in every lane."""
        return self._flag(self.k.max(self.largest.get()), self.k.max(self.nan.get()))

    def _flag(self, largest: Value, nan: Value) -> Value:
        k = self.k
        flag = k.select(largest.compare(">", FIT[k.bits]), k.full(1.0), k.full(0.0))
        flag = k.select(largest.compare(">", BOUND[k.bits]), k.full(2.0), flag)
        return k.select(nan.compare("!=", 0.0), k.full(float(OUT_OF_RANGE)), flag)


@compiled
def query_factor_kernel(bits: int) -> Kernel[QueryFactors]:
    """Write ratio * exp(2a) (rows, h), row flags, and maxima per task and unit."""
    k = Kernel("query_factors", QueryFactors, bits)
    g, h = k.argument, k.argument.h
    zero = k.full(0.0)
    with k.tasks(g.tasks) as task:
        with k.loop(0, h) as u:
            k.store_first(zero, g.maximum, task * h + u)
        with k.loop(task * ROWS, k.minimum(g.rows, task * ROWS + ROWS)) as row:
            flag = RowFlag(k)

            def of_units(u: Value, inside: Inside, row: Value = row, flag: RowFlag = flag) -> None:
                x = load(k, inside, g.raw, row * h + u) * load(k, inside, g.flip, u)
                flag.include(x)
                factor = query_factor(k, x, load(k, inside, g.ratio, u))
                store(k, factor, inside, g.factor, row * h + u)
                before, place = load(k, inside, g.maximum, task * h + u), task * h + u
                store(k, k.maximum(before, k.magnitude(factor)), inside, g.maximum, place)

            vectors(k, h, of_units)
            k.store_first(flag.of_row(), g.flag, row)
    return k


@compiled
def key_factor_kernel(bits: int) -> Kernel[KeyFactors]:
    """Write exp(2b) in blocks, flags of keys, and maxima per block and unit.

    Blocks are stored (entries, blocks, h, keys). Missing keys of a last block repeat the last key.
    """
    k = Kernel("key_factors", KeyFactors, bits)
    g, h, width = k.argument, k.argument.h, key_lanes(bits)
    blocks = (g.m + (width - 1)) // width
    zero = k.full(0.0)
    with k.tasks(g.tasks) as task:
        entry, first = task // blocks, task % blocks * width
        numbers = [entry * g.m + k.minimum(first + lane, g.m - 1) for lane in range(width)]
        flags = [RowFlag(k) for _ in range(KEY_TILE)]
        with k.loop(0, h) as u:
            largest, flip = zero, k.broadcast(g.flip, u)
            for t in range(KEY_TILE):
                x = k.gather(g.raw, [number * h + u for number in numbers[t * k.lanes : (t + 1) * k.lanes]]) * flip
                flags[t].include(x)
                factor = _exponential(k, x)
                largest = k.maximum(factor, largest)
                k.store(factor, g.factor, (task * h + u) * width + t * k.lanes)
            k.store_first(k.max(largest), g.maximum, task * h + u)
        for t, flag in enumerate(flags):
            k.store(flag.of_lanes(), g.flag, task * width + t * k.lanes)
    return k


@compiled
def block_kernel(bits: int) -> Kernel[KeyBlocks]:
    """Copy (entries, m, h) to blocks (entries, blocks, h, keys); missing keys repeat the last key."""
    k = Kernel("blocks", KeyBlocks, bits)
    g, h, width = k.argument, k.argument.h, key_lanes(bits)
    blocks = (g.m + (width - 1)) // width
    with k.tasks(g.tasks) as task:
        entry, first = task // blocks, task % blocks * width
        numbers = [entry * g.m + k.minimum(first + lane, g.m - 1) for lane in range(width)]
        with k.loop(0, h) as u:
            for t in range(KEY_TILE):
                x = k.gather(g.raw, [number * h + u for number in numbers[t * k.lanes : (t + 1) * k.lanes]])
                k.store(x, g.block, (task * h + u) * width + t * k.lanes)
    return k
