# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Device functions that sum additive scores over hidden units, for one tile of pairs.

With E = exp(2a) and F = exp(2b), tanh(a + b) = 1 - 2r where r = 1/(1 + EF), so a score is sum(w) - 2 sum(w r). The
functions return `total` = sum_c u_c r_c, u = w / max|w|, in one of three ways (`weights_kernel` explains the flipped
signs):

- triple: three terms share one reciprocal. With X = (1 + EF)/u = 1/u + (E/u) F, one fused multiply-add, the sum
  1/X + 1/Y + 1/Z is ((X + Y) Z + XY)/(XYZ): 8 operations and one reciprocal for three terms. On Hopper the issue rate
  (4 warp instructions per clock and multiprocessor) then allows 1/3.0 terms per slot, and the reciprocal unit (16 lanes
  per clock) is used to 89 %; with two terms per reciprocal that unit would be the limit, 4.0 slots per term. Valid
  while the product XYZ stays below 2^125, which `factors` bounds for each row.
- single: one reciprocal per term; if EF overflows to infinity, r = 0 is correct. Valid while E, F, E/u are normal.
- pointwise: the logistic function of -2(a + b) from exp(-2|a + b|), which neither overflows nor cancels. Any input.

Layout: the wide side lies along the lanes, four consecutive rows per thread; every thread holds the whole narrow side
in registers. A thread thus loads 4 + 16 numbers for 64 terms, without shared memory, 16 bytes at a time: see
`narrow_column`.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import num_threads

LIMIT_TRIPLE = tl.constexpr(125.0)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def reciprocal(x, INTERPRET: tl.constexpr):
    """1/x within 1 ulp for normal x, and 0 for infinity; ordinary division costs about four more instructions."""
    if INTERPRET:
        return 1.0 / x
    else:  # noqa: RET505 (a branch at compile time)
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def logistic(x, INTERPRET: tl.constexpr):
    """r = 1/(1 + exp(2x)) and r(1 - r), both without overflow and without cancellation."""
    t = tl.exp2(tl.abs(x) * (-2.0 * LOG2_E))
    sigma = reciprocal(1.0 + t, INTERPRET)
    r = tl.where(x < 0.0, sigma, t * sigma)
    r = tl.where(x == x, r, x)
    return r, t * sigma * sigma


@triton.jit
def narrow_column(narrow, NARROW: tl.constexpr, WIDE: tl.constexpr, INTERPRET: tl.constexpr):
    """Column of NARROW consecutive numbers, aligned to 16 bytes, that the kernel does not write.

    Triton would load them one by one. Here every thread loads all of them, 16 bytes at a time, and joins them in an
    order in which they stay in their registers. That takes fewer instructions where a thread needs half of them.
    """
    if INTERPRET or 2 * num_threads() > WIDE:
        return tl.load(narrow + tl.arange(0, NARROW)[:, None])
    else:  # noqa: RET505 (a branch at compile time)
        address = (narrow + 4 * tl.arange(0, NARROW // 4)[:, None]).to(tl.int64)
        x0, x1, x2, x3 = tl.inline_asm_elementwise(
            "ld.global.nc.v4.f32 {$0, $1, $2, $3}, [$4];", "=f,=f,=f,=f,l", [address],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1,
        )  # fmt: skip
        return tl.join(tl.join(x0, x2), tl.join(x1, x3)).reshape(NARROW, 1)


@triton.jit
def product_terms(narrow, wide, NARROW: tl.constexpr, WIDE: tl.constexpr, INTERPRET: tl.constexpr):
    """E times F of one hidden unit for the tile; from scalar pointers, so a column needs one address register."""
    return narrow_column(narrow, NARROW, WIDE, INTERPRET) * tl.load(wide + tl.arange(0, WIDE)[None, :])


@triton.jit
def triple_total(narrow, narrow_stride, wide, wide_stride, ratio, hidden,
                 NARROW: tl.constexpr, WIDE: tl.constexpr, INTERPRET: tl.constexpr):  # fmt: skip
    """`total` by three terms per reciprocal. `narrow` and `wide` point to the tile's first row of hidden unit 0."""
    total = tl.zeros((NARROW, WIDE), tl.float32)
    for _ in range(0, hidden, 3):
        x = tl.load(ratio) + product_terms(narrow, wide, NARROW, WIDE, INTERPRET)
        y = tl.load(ratio + 1) + product_terms(narrow + narrow_stride, wide + wide_stride, NARROW, WIDE, INTERPRET)
        third = product_terms(narrow + 2 * narrow_stride, wide + 2 * wide_stride, NARROW, WIDE, INTERPRET)
        z = tl.load(ratio + 2) + third
        xy = x * y
        total += ((x + y) * z + xy) * reciprocal(xy * z, INTERPRET)
        ratio += 3
        narrow += 3 * narrow_stride
        wide += 3 * wide_stride
    return total


@triton.jit
def single_total(narrow, narrow_stride, wide, wide_stride, ratio, hidden,
                 NARROW: tl.constexpr, WIDE: tl.constexpr, INTERPRET: tl.constexpr):  # fmt: skip
    """`total` by one reciprocal per term."""
    total = tl.zeros((NARROW, WIDE), tl.float32)
    for _ in range(hidden):
        total += reciprocal(tl.load(ratio) + product_terms(narrow, wide, NARROW, WIDE, INTERPRET), INTERPRET)
        ratio += 1
        narrow += narrow_stride
        wide += wide_stride
    return total


@triton.jit
def raw_sum(narrow, narrow_length, wide, wide_length, c, hidden, NARROW: tl.constexpr, WIDE: tl.constexpr):
    """a + b of hidden unit c for the tile, from the projections (rows, hidden); 0 beyond the lengths."""
    row = tl.arange(0, NARROW)[:, None]
    column = tl.arange(0, WIDE)[None, :]
    x = tl.load(narrow + row * hidden + c, mask=row < narrow_length, other=0.0).to(tl.float32)
    return x + tl.load(wide + column * hidden + c, mask=column < wide_length, other=0.0).to(tl.float32)


@triton.jit
def pointwise_total(narrow, narrow_length, wide, wide_length, ratio, flip, units, hidden,
                 NARROW: tl.constexpr, WIDE: tl.constexpr, INTERPRET: tl.constexpr):  # fmt: skip
    """`total` from the projections instead of factors."""
    total = tl.zeros((NARROW, WIDE), tl.float32)
    for c in range(units):
        x = raw_sum(narrow, narrow_length, wide, wide_length, c, hidden, NARROW, WIDE)
        r, _ = logistic(x * tl.load(flip + c), INTERPRET)
        total += r / tl.load(ratio + c)
    return total


@triton.jit
def score_total(narrow, wide, narrow_stride, wide_stride, narrow_raw, wide_raw, narrow_length, wide_length,
                ratio, flip, units, units_padded, hidden, narrow_range, wide_range,
                NARROW: tl.constexpr, WIDE: tl.constexpr, INTERPRET: tl.constexpr):  # fmt: skip
    """`total` of some hidden units for the tile: each pair in the cheapest way that its two ranges allow.

    So a pair's result depends on no other row, bit for bit. All pointers are at the tile's first rows and at the first
    of `units` hidden units, of which the projections' rows have `hidden`; the lengths count from there.
    """
    low = tl.load(narrow_range + tl.arange(0, NARROW)[:, None])
    high = tl.load(wide_range + tl.arange(0, WIDE)[None, :])
    largest = tl.max(low) + tl.max(high)
    total = tl.zeros((NARROW, WIDE), tl.float32)
    if largest <= LIMIT_TRIPLE:
        total = triple_total(narrow, narrow_stride, wide, wide_stride, ratio, units_padded, NARROW, WIDE, INTERPRET)
    else:
        bound = low + high
        if tl.min(low) + tl.min(high) <= LIMIT_TRIPLE:
            total = triple_total(narrow, narrow_stride, wide, wide_stride, ratio, units_padded, NARROW, WIDE, INTERPRET)
        single = single_total(narrow, narrow_stride, wide, wide_stride, ratio, units, NARROW, WIDE, INTERPRET)
        total = tl.where(bound <= LIMIT_TRIPLE, total, single)
        if largest == float("inf"):
            pointwise = pointwise_total(
                narrow_raw, narrow_length, wide_raw, wide_length, ratio, flip, units, hidden, NARROW, WIDE, INTERPRET
            )
            total = tl.where(bound < float("inf"), total, pointwise)
    return total


@triton.jit
def fixed_layout(x, NARROW: tl.constexpr, WIDE: tl.constexpr):
    """Return x (NARROW, WIDE) unchanged, through a scan over an axis of one element.

    The compiler propagates a matrix product's register layout through elementwise operations and reductions into the
    loops over the hidden units, where it costs shuffles, and computes the softmax once per layout. A scan stops this
    propagation; over one element it costs nothing.
    """
    return tl.cumsum(x[None, :, :], 0).reshape(NARROW, WIDE)


@triton.jit
def largest_of(numbers, COUNT: tl.constexpr):
    """Return the largest of COUNT consecutive numbers."""
    return tl.max(tl.load(numbers + tl.arange(0, COUNT)), 0)
