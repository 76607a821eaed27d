# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Kernel of decoding, one query per batch element, bound by reading keys and values.

The keys are split over programs, and joined by `forward.combine_kernel`. Exponentials of keys are computed here, not
cached: the step reads 4 (or 2) bytes per term, so memory at 3.35 TB/s limits it to 0.8 (1.7) T terms/s, below the 2.5 T
of the special functions (1.5 operations a term). A cached exp(2b) would be float32, twice the bytes of 16-bit inputs,
and could overflow.
"""

import triton
import triton.language as tl

from attnspec.backends.pytorch.kernels.additive.triton.forward import mask_start
from attnspec.backends.pytorch.kernels.additive.triton.terms import LOG2_E, reciprocal


@triton.jit
def hidden_terms(query, key, weight, c, hidden, key_valid):
    """1 + exp(2(a + b)), at most 2^60, and w; c (1, BH) numbers the hidden units, for keys (BK, 1)."""
    inside = c < hidden
    a = tl.load(query + c, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(key + c, mask=key_valid & inside, other=0.0).to(tl.float32)
    w = tl.load(weight + c, mask=inside, other=0.0).to(tl.float32)
    x = a + b
    power = x * (2.0 * LOG2_E)
    # a clamp would turn NaN into a number
    power = tl.where(power > 60.0, 60.0, power)
    return 1.0 + tl.exp2(power), w


@triton.jit
def step_kernel(query, key, weight, value, mask, largest_out, denominator_out, sum_out, m, hidden, d_v, per_split,
                splits, inner, mask_outer, mask_inner, mask_key,
                BK: tl.constexpr, BH: tl.constexpr, BD: tl.constexpr, MASK: tl.constexpr,
                INTERPRET: tl.constexpr):  # fmt: skip
    """Partial attention over one split's keys of one batch element, BK at a time; grid (batch * splits)."""
    batch = tl.program_id(0) // splits
    batch64 = batch.to(tl.int64)
    split = tl.program_id(0) % splits
    key += batch64 * m * hidden
    value += batch64 * m * d_v
    query += batch64 * hidden
    if MASK:
        mask = mask_start(mask, batch, inner, mask_outer, mask_inner)
    d = tl.arange(0, BD)[None, :]
    largest = -float("inf")
    denominator = 0.0
    acc = tl.zeros((BD,), tl.float32)
    end = tl.minimum(m, (split + 1) * per_split)
    for first in range(split * per_split, end, BK):
        row = first + tl.arange(0, BK)
        allowed = row < end
        if MASK:
            allowed = allowed & (tl.load(mask + row.to(tl.int64) * mask_key, mask=allowed, other=0) != 0)
        if tl.max(allowed.to(tl.int32), 0) > 0:
            allowed_column = allowed[:, None]
            rows = key + row[:, None].to(tl.int64) * hidden
            partial = tl.zeros((BK, BH), tl.float32)
            for c in range(0, hidden, 2 * BH):
                x, wx = hidden_terms(query, rows, weight, c + tl.arange(0, BH)[None, :], hidden, allowed_column)
                y, wy = hidden_terms(query, rows, weight, c + BH + tl.arange(0, BH)[None, :], hidden, allowed_column)
                partial += (wx * y + wy * x) * reciprocal(x * y, INTERPRET)
            score = tl.where(allowed, tl.sum(partial, 1) * (-2.0 * LOG2_E), -float("inf"))
            new = tl.maximum(largest, tl.max(score, 0))
            shift = tl.where(new == -float("inf"), 0.0, new)
            p = tl.exp2(score - shift)
            decay = tl.exp2(largest - shift)
            denominator = denominator * decay + tl.sum(p, 0)
            v = tl.load(value + row[:, None].to(tl.int64) * d_v + d, mask=allowed_column & (d < d_v), other=0.0)
            acc = acc * decay + tl.sum(p[:, None] * v.to(tl.float32), 0)
            largest = new
    tl.store(largest_out + tl.program_id(0), largest)
    tl.store(denominator_out + tl.program_id(0), denominator)
    at = tl.arange(0, BD)
    tl.store(sum_out + tl.program_id(0).to(tl.int64) * d_v + at, acc, mask=at < d_v)
