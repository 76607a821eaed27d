# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Kernels that prepare queries and keys: exponentials, their ranges, the scaled weights.

A score is Σ w − 2 Σ w/(1 + E), with E = exp(2a) exp(2b) the product of a query's and a key's factor. `terms` computes
it by ratios max|w|/w (1 + E), three of which (X, Y, Z) share a reciprocal where their product cannot overflow; the
ranges written here bound that product. One pass reads the projections, writes the factors transposed (the score kernels
read them contiguous along rows) and bounds each row's exponents against overflow; PyTorch operations would need eight
launches and as many passes. The exponential's argument is reduced in two steps (Cody and Waite): the hardware's exp2 of
a rounded product would lose |2a| ulps, 5e-6 at a = 40.
"""

import triton
import triton.language as tl

from attnspec.backends.pytorch.kernels.additive.triton.terms import LOG2_E

BLOCK = tl.constexpr(16)
SMALLEST_WEIGHT = tl.constexpr(2.0**-36)
LARGEST_EXPONENT = tl.constexpr(124.0)
# ln 2 in two parts; the first has 15 bits, so that its product with an exponent is exact
LN2_HIGH = tl.constexpr(0.693145751953125)
LN2_LOW = tl.constexpr(1.4286068203094172e-06)


@triton.jit
def weights_kernel(weight, ratio, flip, constants, hidden, hidden_padded, BH: tl.constexpr):
    """Write flip and ratio of each hidden unit, and constants = (max|w|, sum w flip).

    tanh is odd: w tanh(x) = (w flip) tanh(flip x) with flip = +1 or -1. The flips make the signs of w flip
    alternate: the terms w r, each near w/2, then cancel instead of adding up, and their sum does not lose digits.
    ratio = max|w| / (w flip). |w| is raised to 2^-36 max|w|, which moves a score by less than 2^-12 of the
    rounding of its sum; padded hidden units get the same and cancel in the softmax.
    """
    at = tl.arange(0, BH)
    largest = tl.zeros((BH,), tl.float32)
    total = tl.zeros((BH,), tl.float32)
    for c in range(0, hidden, BH):
        w = tl.load(weight + c + at, mask=c + at < hidden, other=0.0).to(tl.float32)
        largest = tl.where(tl.abs(w) <= largest, largest, tl.abs(w))
        total += tl.where((c + at) % 2 == 0, tl.abs(w), -tl.abs(w))
    largest_weight = tl.max(largest, 0)
    scale = tl.where(largest_weight > 0.0, largest_weight, 1.0)
    for c in range(0, hidden_padded, BH):
        w = tl.load(weight + c + at, mask=c + at < hidden, other=0.0).to(tl.float32)
        u = tl.abs(w) / scale
        u = tl.where(u < SMALLEST_WEIGHT, SMALLEST_WEIGHT, u)
        sign = tl.where((c + at) % 2 == 0, 1.0, -1.0)
        tl.store(ratio + c + at, sign / u, mask=c + at < hidden_padded)
        tl.store(flip + c + at, tl.where(w < 0.0, -sign, sign), mask=c + at < hidden_padded)
    tl.store(constants, largest_weight)
    tl.store(constants + 1, tl.sum(total, 0))


@triton.jit
def exponential(x):
    """exp(2x) within 3 ulp for |2x| <= 87."""
    y = 2.0 * x
    k = tl.floor(y * LOG2_E + 0.5)
    f = (y - k * LN2_HIGH) - k * LN2_LOW
    half = tl.floor(k * 0.5)
    return tl.exp2(f * LOG2_E) * tl.exp2(half) * tl.exp2(k - half)


@triton.jit
def three_parts(x):
    """Split the float32 x into bfloat16 numbers: high, middle and low, of 8 bits each, whose sum is x."""
    high = x.to(tl.bfloat16)
    remainder = x - high.to(tl.float32)
    middle = remainder.to(tl.bfloat16)
    return high, middle, (remainder - middle.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def factor_column(row, c, valid, hidden, ratio, flip, SCALED: tl.constexpr):
    """E, log2(1/u), log2 E and the single-term exponent bound for hidden units c; padding gives E = 0."""
    inside = valid & (c < hidden)
    x = tl.load(row + c, mask=inside, other=0.0).to(tl.float32) * tl.load(flip + c)
    power = x * (2.0 * LOG2_E)
    factor = tl.where(inside, exponential(x), 0.0)
    margin = tl.log2(tl.abs(tl.load(ratio + c))) if SCALED else tl.zeros_like(x)
    log2_factor = tl.where(inside, tl.maximum(power, 0.0), 0.0)
    size = tl.where(inside, tl.abs(power), 0.0) + margin
    # a comparison that is False for NaN: NaN becomes infinity, because the maximum would drop NaN
    size = tl.where(size <= LARGEST_EXPONENT, size, float("inf"))
    return factor, margin, log2_factor, size


@triton.jit
def factors_kernel(raw, ratio, flip, scaled, unscaled, ranges, value, parts, nonfinite, rows,
                   rows_padded, hidden, hidden_stored, d_v, d_padded, part_stride,
                   GROUPS: tl.constexpr, BV: tl.constexpr,
                   SCALED: tl.constexpr, UNSCALED: tl.constexpr, PARTS: tl.constexpr):  # fmt: skip
    """Transposed factors (B, hidden_stored, rows_padded) of 16 rows of raw (B, rows, hidden).

    ranges (B, rows_padded) bounds log2|XYZ| of `triple_total` and is infinite where a factor is not a normal number.
    With PARTS, parts receives the block's value rows, padded with 0: unchanged
    (1 part), or as bfloat16 numbers that sum to the float32 (3 parts). NaN and infinity become 0 in `parts`, and
    `nonfinite` (B, blocks) is 1 for blocks that held any.
    """
    blocks = rows_padded // BLOCK
    batch = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    at = block * BLOCK + tl.arange(0, BLOCK)
    valid = (at < rows)[:, None]
    row = raw + (batch.to(tl.int64) * rows + at[:, None]) * hidden
    base = batch.to(tl.int64) * hidden_stored * rows_padded + at[:, None]
    bound = tl.zeros((BLOCK, GROUPS), tl.float32)
    largest_size = tl.zeros((BLOCK, GROUPS), tl.float32)
    for g in range(0, hidden_stored // 3, GROUPS):
        group = g + tl.arange(0, GROUPS)[None, :]
        group_bound = tl.zeros((BLOCK, GROUPS), tl.float32)
        for k in tl.static_range(3):
            c = 3 * group + k
            stored = c < hidden_stored
            inside = tl.minimum(c, hidden_stored - 1)
            factor, margin, log2_factor, size = factor_column(row, inside, valid & stored, hidden, ratio, flip, SCALED)
            target = base + inside.to(tl.int64) * rows_padded
            if SCALED:
                tl.store(scaled + target, factor * tl.load(ratio + inside), mask=stored)
            if UNSCALED:
                tl.store(unscaled + target, factor, mask=stored)
            group_bound += log2_factor + margin
            if SCALED:
                group_bound += 1.0
            largest_size = tl.maximum(largest_size, tl.where(stored, size, 0.0))
        bound = tl.maximum(bound, group_bound)
    reach = tl.max(largest_size, 1)
    row_bound = tl.where(reach <= LARGEST_EXPONENT, tl.max(bound, 1), float("inf"))
    tl.store(ranges + batch.to(tl.int64) * rows_padded + at, row_bound)
    if PARTS > 0:
        part_stride = tl.cast(part_stride, tl.int64)  # twice 2^30 elements is no 32-bit integer
        has_nonfinite = tl.zeros((BLOCK, BV), tl.int32)
        for d in range(0, d_padded, BV):
            column = d + tl.arange(0, BV)[None, :]
            v = tl.load(value + (batch.to(tl.int64) * rows + at[:, None]) * d_v + column,
                        mask=valid & (column < d_v), other=0.0)  # fmt: skip
            finite = tl.abs(v.to(tl.float32)) < float("inf")
            has_nonfinite = tl.where(finite, has_nonfinite, 1)
            v = tl.where(finite, v, 0.0)
            target = parts + (batch.to(tl.int64) * rows_padded + at[:, None]) * d_padded + column
            if PARTS == 1:
                tl.store(target, v)
            else:
                high, middle, low = three_parts(v)
                tl.store(target, high)
                tl.store(target + part_stride, middle)
                tl.store(target + 2 * part_stride, low)
        tl.store(nonfinite + tl.program_id(0), tl.max(tl.max(has_nonfinite, 1), 0).to(tl.float32))
