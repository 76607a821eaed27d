"""Functions of whole vector registers in a kernel: exponentials, a logarithm, and a transposition."""

import math
import struct
from collections.abc import Sequence

import llvmlite.ir as ir

from attnspec.backends.pytorch.kernels.llvm.arithmetic import Arithmetic
from attnspec.backends.pytorch.kernels.llvm.values import INT32, Builder, Value

_LN2_ROUNDING = 2.3190468138462996e-17
"""ln 2 minus `math.log(2.0)`."""


def _ln2(bits: int) -> tuple[float, float]:
    """ln 2 as a sum; the first term has few bits, so that integer multiples are exact."""
    high = math.floor(math.ldexp(math.log(2.0), bits)) / 2.0**bits
    return high, math.log(2.0) - high + _LN2_ROUNDING


def exp(k: Arithmetic, x: Value) -> Value:
    """exp(x) to about one unit in the last place; 0 below the smallest normal, NaN for NaN; x must not overflow."""
    mantissa, bias = (23, 127) if k.bits == 32 else (52, 1023)
    lowest = -(bias - 1.5) * math.log(2.0)
    # 2**mantissa * 1.5 rounds a small real to an integer that its low bits then hold
    magic = 1.5 * 2.0**mantissa
    high, low = _ln2(11 if k.bits == 32 else 32)
    clamped = k.select(x.compare("<", lowest), k.full(lowest), x)
    rounded = k.fma(clamped, k.full(1.0 / math.log(2.0)), k.full(magic))
    power = rounded - magic
    fraction = k.fma(power, k.full(-low), k.fma(power, k.full(-high), clamped))
    degree = 7 if k.bits == 32 else 13
    series = k.full(1.0 / math.factorial(degree))
    for i in reversed(range(degree)):
        series = k.fma(series, fraction, k.full(1.0 / math.factorial(i)))
    b = k.builder
    shift = ir.Constant(k.word, [mantissa] * k.lanes)
    scaled = b.add(b.bitcast(series.ssa, k.word), b.shl(b.bitcast(rounded.ssa, k.word), shift))
    result = Value(k, b.bitcast(scaled, k.vector))
    result = k.select(x.compare("!=", x), x, result)
    return k.select(x.compare("<", lowest), k.full(0.0), result)


def exp2(k: Arithmetic, x: Value) -> Value:
    """2**x for x <= 1 to about one unit in the last place; 0 below the smallest normal, NaN for NaN."""
    mantissa, bias, degree = (23, 127, 7) if k.bits == 32 else (52, 1023, 13)
    # an integer and the exponent's bias, in the low bits of a real
    magic = 1.5 * 2.0**mantissa + bias
    clamped = k.maximum(k.full(-bias), x)
    rounded = clamped + magic
    fraction = clamped - (rounded - magic)
    series, *others = (k.full(math.log(2.0) ** i / math.factorial(i)) for i in reversed(range(degree + 1)))
    for coefficient in others:
        series = k.fma(series, fraction, coefficient)
    b = k.builder
    shift = ir.Constant(k.word, [mantissa] * k.lanes)
    return series * Value(k, b.bitcast(b.shl(b.bitcast(rounded.ssa, k.word), shift), k.vector))


def tanh(k: Arithmetic, x: Value) -> Value:
    """tanh(x) to some units in the last place, also for small x; NaN for NaN."""
    mantissa, bias, degree = (23, 127, 7) if k.bits == 32 else (52, 1023, 13)
    magic = 1.5 * 2.0**mantissa + bias
    # exp(−2|x|) − 1 = 2**whole·(exp(fraction) − 1) + (2**whole − 1); the first bracket is a series without 1
    exponent = k.maximum(k.full(-bias), k.magnitude(x) * (-2.0 / math.log(2.0)))
    rounded = exponent + magic
    fraction = exponent - (rounded - magic)
    series, *others = (k.full(math.log(2.0) ** i / math.factorial(i)) for i in reversed(range(1, degree + 1)))
    for coefficient in others:
        series = k.fma(series, fraction, coefficient)
    b = k.builder
    shift = ir.Constant(k.word, [mantissa] * k.lanes)
    power = Value(k, b.bitcast(b.shl(b.bitcast(rounded.ssa, k.word), shift), k.vector))
    less = k.fma(power, series * fraction, power - 1.0)
    magnitude = less / (k.full(-2.0) - less)
    return k.select(x.compare("<", 0.0), k.full(0.0) - magnitude, magnitude)


def log(k: Arithmetic, x: Value) -> Value:
    """log(x) of normal numbers above 0, to about one unit in the last place; NaN for NaN."""
    mantissa, terms = (23, 5) if k.bits == 32 else (52, 11)
    high, low = _ln2(11)
    b = k.builder
    # x = 2**power·m, with the mantissa m between √½ and √2
    half = ir.Constant(k.word, [_bits(math.sqrt(0.5), k.bits)] * k.lanes)
    shift = ir.Constant(k.word, [mantissa] * k.lanes)
    power = b.ashr(b.sub(b.bitcast(x.ssa, k.word), half), shift)
    m = Value(k, b.bitcast(b.sub(b.bitcast(x.ssa, k.word), b.shl(power, shift)), k.vector))
    whole = Value(k, b.sitofp(power, k.vector))
    ratio = (m - 1.0) / (m + 1.0)
    square = ratio * ratio
    series, *others = (k.full(2.0 / (2 * i + 1)) for i in reversed(range(1, terms)))
    for coefficient in others:
        series = k.fma(series, square, coefficient)
    # log(m) = 2 artanh(ratio)
    near = k.fma(ratio * square, series, k.fma(whole, k.full(low), ratio * 2.0))
    return k.select(x.compare("!=", x), x, k.fma(whole, k.full(high), near))


def _bits(x: float, bits: int) -> int:
    real, integer = ("f", "i") if bits == 32 else ("d", "q")
    integer_bits: int = struct.unpack(integer, struct.pack(real, x))[0]
    return integer_bits


def transposed(k: Builder, rows: Sequence[Value]) -> list[Value]:
    """Transpose rows, as many as lanes: lane r of result c is lane c of row r."""
    vectors, step = list(rows), 1
    while step < k.lanes:
        for i in range(k.lanes):
            if not i & step:
                vectors[i], vectors[i + step] = _exchanged_segments(k, vectors[i], vectors[i + step], step)
        step *= 2
    return vectors


def interleaved(k: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    """Interleave 16-bit elements of x and y: lower, then upper halves of every 16 bytes."""
    kind = ir.VectorType(ir.IntType(16), 2 * k.lanes)
    first, second = (k.builder.bitcast(v.ssa, kind) for v in (x, y))
    halves = []
    for half in (0, 4):
        order = [2 * k.lanes * (i % 2) + i // 8 * 8 + half + i % 8 // 2 for i in range(2 * k.lanes)]
        pairs = k.builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(INT32, 2 * k.lanes), order))
        halves.append(Value(k, k.builder.bitcast(pairs, k.vector)))
    return halves[0], halves[1]


def deinterleaved(k: Builder, low: Value, high: Value) -> tuple[Value, Value]:
    """Undo `interleaved`: the lanes of both halves in their original order."""
    halves = []
    for start in (0, k.lanes):
        lanes = range(start, start + k.lanes)
        order = [i // 8 * 4 + i % 4 + k.lanes * (i % 8 // 4) for i in lanes]
        kind = ir.Constant(ir.VectorType(INT32, k.lanes), order)
        halves.append(Value(k, k.builder.shuffle_vector(low.ssa, high.ssa, kind)))
    return halves[0], halves[1]


def sums_of_lanes(k: Builder, rows: Sequence[Value]) -> Value:
    """Sums of rows, as many as lanes: lane r is the sum of the lanes of row r."""
    vectors, step = list(rows), 1
    while step < k.lanes:
        pairs = [_exchanged_segments(k, vectors[i], vectors[i + 1], step) for i in range(0, len(vectors), 2)]
        vectors, step = [low + high for low, high in pairs], 2 * step
    return vectors[0]


def _exchanged_segments(k: Builder, x: Value, y: Value, step: int) -> tuple[Value, Value]:
    """Cut x and y into segments of ``step`` lanes: the even segments of both, then the odd."""
    lanes, kind = range(k.lanes), ir.VectorType(INT32, k.lanes)
    low = [j if not j & step else k.lanes + j - step for j in lanes]
    high = [j + step if not j & step else k.lanes + j for j in lanes]
    first, second = (k.builder.shuffle_vector(x.ssa, y.ssa, ir.Constant(kind, chosen)) for chosen in (low, high))
    return Value(k, first), Value(k, second)
