# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Forward kernels: additive attention by online softmax over key tiles, and raw scores.

Keys may be split over programs, each of which stores its largest score, denominator and weighted sum;
`combine_kernel` joins them by log-sum-exp.
"""

import triton
import triton.language as tl

from attnspec.backends.pytorch.kernels.additive.triton.factors import BLOCK, three_parts
from attnspec.backends.pytorch.kernels.additive.triton.terms import LOG2_E, largest_of, score_total


@triton.jit
def mask_start(mask, batch, inner, mask_outer, mask_inner):
    """Start of one batch element's mask; the batch is two dimensions (outer, inner), stride 0 where broadcast."""
    return mask + (batch // inner).to(tl.int64) * mask_outer + (batch % inner).to(tl.int64) * mask_inner


@triton.jit
def allowed_bits(mask, mask_narrow, mask_wide, narrow_first, wide_first, narrow_length, wide_length,
                 WIDE: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, WIDE_IS_KEY: tl.constexpr):  # fmt: skip
    """Attendable pairs of the tile as bits (1, WIDE): bit r is row r of the narrow side.

    Bits stay in registers while the scores are summed; a tile of Booleans or pointers would not.
    """
    wide = tl.arange(0, WIDE)[None, :]
    bits = tl.where(wide < wide_length - wide_first, (1 << tl.minimum(BLOCK, narrow_length - narrow_first)) - 1, 0)
    if CAUSAL:
        ahead = wide + (wide_first - narrow_first)
        if WIDE_IS_KEY:
            bits = bits & (-1 << tl.minimum(tl.maximum(ahead, 0), BLOCK))
        else:
            bits = bits & ((1 << tl.minimum(tl.maximum(ahead + 1, 0), BLOCK)) - 1)
    if MASK:
        mask += tl.cast(narrow_first, tl.int64) * mask_narrow + tl.cast(wide_first, tl.int64) * mask_wide
        mask += wide * mask_wide
        if mask_narrow == 0:
            bits = tl.where(tl.load(mask, mask=bits != 0, other=0) != 0, bits, 0)
        else:
            for r in range(BLOCK):
                row_bit = tl.full((1, WIDE), 1, tl.int32) << r
                allowed = tl.load(mask, mask=(bits & row_bit) != 0, other=0)
                bits = tl.where(allowed != 0, bits, bits & ~row_bit)
                mask += mask_narrow
    return bits


@triton.jit
def is_allowed(bits):
    """Expand the bits of `allowed_bits` to Booleans (BLOCK, WIDE)."""
    return ((bits >> tl.arange(0, BLOCK)[:, None]) & 1) != 0


@triton.jit
def weighted_values(acc, p, parts, part_stride, d_padded, WIDE: tl.constexpr, BD: tl.constexpr, PARTS: tl.constexpr,
                    INTERPRET: tl.constexpr):  # fmt: skip
    """acc + p @ value for WIDE keys, in quarters of keys equal modulo 4.

    A thread holds four consecutive keys, so a quarter needs no exchange between threads, and only a quarter of the
    values is being loaded at a time. NaN and infinity are 0 in `parts`, see `nonfinite_values`.
    """
    even, odd = p.reshape(BLOCK, WIDE // 4, 2, 2).split()
    p0, p2 = even.split()
    p1, p3 = odd.split()
    at = 4 * tl.arange(0, WIDE // 4)[:, None] * d_padded + tl.arange(0, BD)[None, :]
    part_stride = tl.cast(part_stride, tl.int64)  # twice 2^30 elements is no 32-bit integer
    for k in range(4):
        weight = tl.where(k < 2, tl.where(k == 0, p0, p1), tl.where(k == 2, p2, p3))
        v = tl.load(parts + at)
        if PARTS == 1:
            if INTERPRET:
                acc = tl.dot(weight.to(v.dtype).to(tl.float32), v.to(tl.float32), acc, input_precision="ieee")
            else:
                acc = tl.dot(weight.to(v.dtype), v, acc)
        else:
            # small terms first; with a weight of 1 the sum of the three parts is exact
            high, middle, low = three_parts(weight)
            v_middle = tl.load(parts + part_stride + at)
            acc = tl.dot(high, tl.load(parts + 2 * part_stride + at), acc)
            acc = tl.dot(low, v, acc)
            acc = tl.dot(middle, v_middle, acc)
            acc = tl.dot(middle, v, acc)
            acc = tl.dot(high, v_middle, acc)
            acc = tl.dot(high, v, acc)
        parts += d_padded
    return acc


@triton.jit
def nonfinite_values(acc, p, allowed, value, first, m, d, d_v, WIDE: tl.constexpr):
    """Add terms of NaN and infinite values, only to queries that may attend to them."""
    at = tl.arange(0, WIDE)[None, :]
    for k in range(WIDE):
        key = first + k
        v = tl.load(value + tl.cast(key, tl.int64) * d_v + d, mask=(key < m) & (d < d_v), other=0.0).to(tl.float32)
        weight = tl.sum(tl.where(at == k, p, 0.0), 1)[:, None]
        takes = tl.max(tl.where((at == k) & allowed, 1, 0), 1)[:, None] > 0
        acc += tl.where(takes & ~(tl.abs(v) < float("inf")), weight * v, 0.0)
    return acc


@triton.jit
def scaled_scores(query_scaled, key_factor, n_padded, m_padded, query_raw, key_raw, rows_left, keys_left, ratio, flip,
                  hidden, hidden_stored, query_range, key_range, bits, scale,
                  WIDE: tl.constexpr, INTERPRET: tl.constexpr):  # fmt: skip
    """log2(e) times the tile's scores up to a constant, -inf for excluded pairs."""
    total = score_total(
        query_scaled, key_factor, n_padded, m_padded, query_raw, key_raw, rows_left, keys_left, ratio, flip, hidden,
        hidden_stored, hidden, query_range, key_range, BLOCK, WIDE, INTERPRET,
    )  # fmt: skip
    return tl.where(is_allowed(bits), total * scale, -float("inf"))


@triton.jit
def normalised(acc, denominator):
    """Divide by the denominator, except in empty rows."""
    return acc / tl.where(denominator == 0.0, 1.0, denominator)


@triton.jit
def log_sum_exp(largest, denominator):
    """Return the logarithms to base 2: +inf for an empty row, so that exp2(score - logarithm) is 0 there."""
    empty = denominator == 0.0
    return tl.where(empty, float("inf"), largest + tl.log2(tl.where(empty, 1.0, denominator)))


@triton.jit
def forward_kernel(query_scaled, key_factor, query_raw, key_raw, query_range, key_range, key_nonfinite, ratio, flip,
                   constants, value, parts, mask, out, lse, denominator_out, n, m, n_padded, m_padded, hidden,
                   hidden_stored, d_v, d_padded, part_stride, per_split, inner, mask_outer, mask_inner, mask_query,
                   mask_key, WIDE: tl.constexpr, BD: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
                   SPLIT: tl.constexpr, PARTS: tl.constexpr, INTERPRET: tl.constexpr):  # fmt: skip
    """Attention of 16 queries over a split of the keys, WIDE at a time.

    The grid is (query blocks * batch, chunks of d_v, splits). With SPLIT, lse, denominator_out (rows, splits) and out
    (rows, splits, d_v) receive the largest score, the denominator and the weighted sum of each split, for
    `combine_kernel`; rows are those of the whole batch. Otherwise denominator_out is not written.
    """
    blocks = n_padded // BLOCK
    batch = tl.program_id(0) // blocks
    # last rows first: under a causal mask they have the most keys
    block = blocks - 1 - tl.program_id(0) % blocks
    rows = block * BLOCK + tl.arange(0, BLOCK)
    batch64 = batch.to(tl.int64)
    d = tl.program_id(1) * BD + tl.arange(0, BD)[None, :]
    scale = -2.0 * LOG2_E * tl.load(constants)
    query_range += batch64 * n_padded + block * BLOCK
    largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    denominator = tl.zeros((BLOCK,), tl.float32)
    acc = tl.zeros((BLOCK, BD), tl.float32)
    value += batch64 * m * d_v
    parts += batch64 * m_padded * d_padded + tl.program_id(1) * BD
    query_scaled += batch64 * hidden_stored * n_padded + block * BLOCK
    query_raw += (batch64 * n + block * BLOCK) * hidden
    key_factor += batch64 * hidden_stored * m_padded
    key_raw += batch64 * m * hidden
    key_range += batch64 * m_padded
    key_nonfinite += batch64 * (m_padded // BLOCK)
    if MASK:
        mask = mask_start(mask, batch, inner, mask_outer, mask_inner)
    end = m
    if CAUSAL:
        end = tl.minimum(m, (block + 1) * BLOCK)
    start = 0
    if SPLIT:
        start = tl.program_id(2) * per_split
        end = tl.minimum(end, start + per_split)
    for first in range(start, end, WIDE):
        bits = allowed_bits(mask, mask_query, mask_key, block * BLOCK, first, n, m, WIDE, CAUSAL, MASK, True)
        attends = True
        if MASK:
            attends = tl.max(tl.max(bits, 1), 0) > 0
        if attends:
            first64 = tl.cast(first, tl.int64)
            score = scaled_scores(
                query_scaled, key_factor + first64, n_padded, m_padded, query_raw, key_raw + first64 * hidden,
                n - block * BLOCK, m - first, ratio, flip, hidden, hidden_stored, query_range, key_range + first,
                bits, scale, WIDE, INTERPRET,
            )  # fmt: skip
            new = tl.maximum(largest, tl.max(score, 1))
            shift = tl.where(new == -float("inf"), 0.0, new)
            p = score
            # a loop of one iteration: the compiler would otherwise compute exp2 once for each register layout
            again = first >= 0
            while again:
                p = tl.exp2(p - shift[:, None])
                again = first < 0
            decay = tl.exp2(largest - shift)
            largest = new
            denominator = denominator * decay + tl.sum(p, 1)
            acc = weighted_values(
                acc * decay[:, None], p, parts + first64 * d_padded, part_stride, d_padded, WIDE, BD, PARTS, INTERPRET
            )  # fmt: skip
    shift = tl.where(largest == -float("inf"), 0.0, largest)
    for first in range(start, end, WIDE):
        if largest_of(key_nonfinite + first // BLOCK, WIDE // BLOCK) > 0.0:
            bits = allowed_bits(mask, mask_query, mask_key, block * BLOCK, first, n, m, WIDE, CAUSAL, MASK, True)
            first64 = tl.cast(first, tl.int64)
            score = scaled_scores(
                query_scaled, key_factor + first64, n_padded, m_padded, query_raw, key_raw + first64 * hidden,
                n - block * BLOCK, m - first, ratio, flip, hidden, hidden_stored, query_range, key_range + first,
                bits, scale, WIDE, INTERPRET,
            )  # fmt: skip
            acc = nonfinite_values(
                acc, tl.exp2(score - shift[:, None]), is_allowed(bits), value, first, m, d, d_v, WIDE
            )  # fmt: skip
    at = batch64 * n + rows
    if SPLIT:
        at = at * tl.num_programs(2) + tl.program_id(2)
        if tl.program_id(1) == 0:
            tl.store(denominator_out + at, denominator, mask=rows < n)
    else:
        acc = normalised(acc, denominator[:, None])
        largest = log_sum_exp(largest, denominator)
    tl.store(out + (at[:, None] * d_v + d), acc.to(out.dtype.element_ty), mask=(rows[:, None] < n) & (d < d_v))
    if tl.program_id(1) == 0:
        tl.store(lse + at, largest, mask=rows < n)


@triton.jit
def combine_kernel(largest_in, denominator_in, sum_in, out, lse, splits, d_v, BD: tl.constexpr, LSE: tl.constexpr):
    """Join the splits of one row, in their order; grid (rows, chunks of d_v).

    With LSE, lse (rows) receives the logarithms to base 2; otherwise it is not written.
    """
    row = tl.program_id(0)
    at = tl.program_id(1) * BD + tl.arange(0, BD)
    largest = -float("inf")
    for split in range(splits):
        largest = tl.maximum(largest, tl.load(largest_in + row * splits + split))
    shift = tl.where(largest == -float("inf"), 0.0, largest)
    denominator = 0.0
    acc = tl.zeros((BD,), tl.float32)
    for split in range(splits):
        decay = tl.exp2(tl.load(largest_in + row * splits + split) - shift)
        denominator += tl.load(denominator_in + row * splits + split) * decay
        acc += tl.load(sum_in + (row * splits + split).to(tl.int64) * d_v + at, mask=at < d_v, other=0.0) * decay
    result = normalised(acc, denominator)
    tl.store(out + row.to(tl.int64) * d_v + at, result.to(out.dtype.element_ty), mask=at < d_v)
    if LSE and tl.program_id(1) == 0:
        tl.store(lse + row, log_sum_exp(largest, denominator))


@triton.jit
def scores_kernel(query_scaled, key_factor, query_raw, key_raw, query_range, key_range, ratio, flip, constants, out,
                  batch_size, n, m, n_padded, m_padded, hidden, hidden_stored, units,
                  WIDE: tl.constexpr, INTERPRET: tl.constexpr):  # fmt: skip
    """Raw scores of 16 queries and WIDE keys, summed over `units` of the hidden units.

    The grid is (query blocks * key tiles * batch, parts of hidden units); out is (parts, B, n, m). Parts start at
    multiples of three units, which share a reciprocal.
    """
    blocks = n_padded // BLOCK
    tiles = m_padded // WIDE
    batch = tl.program_id(0) // (blocks * tiles)
    block = tl.program_id(0) // tiles % blocks
    tile = tl.program_id(0) % tiles
    batch64 = batch.to(tl.int64)
    rows = block * BLOCK + tl.arange(0, BLOCK)
    columns = tile * WIDE + tl.arange(0, WIDE)
    part = tl.program_id(1)
    first_unit = part * units
    unit64 = batch64 * hidden_stored + first_unit
    total = score_total(
        query_scaled + (unit64 * n_padded + block * BLOCK), key_factor + (unit64 * m_padded + tile * WIDE), n_padded,
        m_padded, query_raw + ((batch64 * n + block * BLOCK) * hidden + first_unit),
        key_raw + ((batch64 * m + tile * WIDE) * hidden + first_unit), n - block * BLOCK, m - tile * WIDE,
        ratio + first_unit, flip + first_unit, tl.minimum(units, hidden - first_unit),
        tl.minimum(units, hidden_stored - first_unit), hidden, query_range + (batch64 * n_padded + block * BLOCK),
        key_range + (batch64 * m_padded + tile * WIDE), BLOCK, WIDE, INTERPRET,
    )  # fmt: skip
    score = tl.where(part == 0, tl.load(constants + 1), 0.0) - 2.0 * tl.load(constants) * total
    at = ((part * tl.cast(batch_size, tl.int64) + batch64) * n + rows[:, None]) * m + columns[None, :]
    tl.store(out + at, score.to(out.dtype.element_ty), mask=(rows[:, None] < n) & (columns[None, :] < m))
