# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Backward kernels. They recompute scores and weights tile by tile; nothing of size n*m is stored.

With dS the gradient of the scores, da_ic = w_c sum_j dS_ij 4r(1 - r), db_jc likewise over i, and dw_c = sum_ij dS_ij
(1 - 2r), which under a softmax is -2 sum dS r because each row of dS sums to 0. A program owns WIDE rows of one side
and walks over the other side 16 at a time, so that the sum over the walked side stays within a thread. It adds up its
rows' gradients in global memory, without atomics: no other program writes them, and the order is fixed.
"""

import triton
import triton.language as tl

from attnspec.backends.pytorch.kernels.additive.triton.factors import BLOCK
from attnspec.backends.pytorch.kernels.additive.triton.forward import allowed_bits, is_allowed, mask_start
from attnspec.backends.pytorch.kernels.additive.triton.terms import (
    LIMIT_PAIR,
    LOG2_E,
    fixed_layout,
    largest_of,
    logistic,
    product_terms,
    raw_sum,
    reciprocal,
    score_total,
)


@triton.jit
def delta_kernel(out, grad, delta, rows, d_v, BD: tl.constexpr):
    """delta = sum over d_v of out * grad, for 16 rows."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BD), tl.float32)
    for d in range(0, d_v, BD):
        column = d + tl.arange(0, BD)[None, :]
        inside = (at[:, None] < rows) & (column < d_v)
        offset = at[:, None].to(tl.int64) * d_v + column
        x = tl.load(out + offset, mask=inside, other=0.0).to(tl.float32)
        total += x * tl.load(grad + offset, mask=inside, other=0.0).to(tl.float32)
    tl.store(delta + at, tl.sum(total, 1), mask=at < rows)


@triton.jit
def add_column(target, amount):
    """Add `amount` to `target`. The barrier after each tile makes earlier sums visible in any register layout."""
    tl.store(target, tl.load(target) + amount)


@triton.jit
def pair_gradients(d_score, narrow, narrow_stride, wide, wide_stride, grad, r_sum, hidden, WIDE: tl.constexpr,
                   R_SUM: tl.constexpr, INTERPRET: tl.constexpr):  # fmt: skip
    """Add sum_narrow d_score r(1 - r) to `grad` per hidden unit, two terms per reciprocal.

    1 - r is computed as EF r: the difference would cancel where r is near 1.
    """
    at = tl.arange(0, WIDE)[None, :]
    for _ in range(0, hidden, 2):
        ef_x = product_terms(narrow, wide, BLOCK, WIDE)
        ef_y = product_terms(narrow + narrow_stride, wide + wide_stride, BLOCK, WIDE)
        y = 1.0 + ef_y
        both = reciprocal(ef_x * y + y, INTERPRET)
        rx = both * ef_y + both
        ry = both * ef_x + both
        add_column(grad + at, tl.sum(d_score * rx * (ef_x * rx), 0, keep_dims=True))
        add_column(grad + wide_stride + at, tl.sum(d_score * ry * (ef_y * ry), 0, keep_dims=True))
        if R_SUM:
            add_column(r_sum + at, tl.sum(d_score * rx, 0, keep_dims=True))
            add_column(r_sum + wide_stride + at, tl.sum(d_score * ry, 0, keep_dims=True))
        narrow += 2 * narrow_stride
        wide += 2 * wide_stride
        grad += 2 * wide_stride
        r_sum += 2 * wide_stride


@triton.jit
def single_gradients(d_score, narrow, narrow_stride, wide, wide_stride, grad, r_sum, hidden, WIDE: tl.constexpr,
                     R_SUM: tl.constexpr, INTERPRET: tl.constexpr):  # fmt: skip
    """`pair_gradients` with one reciprocal per term."""
    at = tl.arange(0, WIDE)[None, :]
    for _ in range(hidden):
        ef = tl.minimum(product_terms(narrow, wide, BLOCK, WIDE), 8.5e37)  # 0 times infinity otherwise
        r = reciprocal(1.0 + ef, INTERPRET)
        add_column(grad + at, tl.sum(d_score * r * (ef * r), 0, keep_dims=True))
        if R_SUM:
            add_column(r_sum + at, tl.sum(d_score * r, 0, keep_dims=True))
        narrow += narrow_stride
        wide += wide_stride
        grad += wide_stride
        r_sum += wide_stride


@triton.jit
def pointwise_gradients(d_score, narrow, narrow_length, wide, wide_length, wide_stride, flip, grad, r_sum, hidden,
                     WIDE: tl.constexpr, R_SUM: tl.constexpr, INTERPRET: tl.constexpr):  # fmt: skip
    """`pair_gradients` from the projections. A pair whose d_score is 0 adds nothing, even if its r is NaN."""
    at = tl.arange(0, WIDE)[None, :]
    for c in range(hidden):
        x = raw_sum(narrow, narrow_length, wide, wide_length, c, hidden, BLOCK, WIDE)
        r, variance = logistic(x * tl.load(flip + c), INTERPRET)
        add_column(grad + at, tl.sum(tl.where(d_score == 0.0, 0.0, d_score * variance), 0, keep_dims=True))
        if R_SUM:
            add_column(r_sum + at, tl.sum(tl.where(d_score == 0.0, 0.0, d_score * r), 0, keep_dims=True))
        grad += wide_stride
        r_sum += wide_stride


@triton.jit
def product(x, y, acc, PRECISION: tl.constexpr, INTERPRET: tl.constexpr):
    """acc + x @ y on tensor cores; x is rounded to y's dtype where that is 16 bits wide."""
    x = x.to(y.dtype)
    if INTERPRET:
        return tl.dot(x.to(tl.float32), y.to(tl.float32), acc, input_precision="ieee")
    else:  # noqa: RET505 (a branch at compile time)
        return tl.dot(x, y, acc, input_precision=PRECISION)


@triton.jit
def weight_gradients(narrow, narrow_first, narrow_length, wide, wide_first, wide_length, d_v,
                     WIDE: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
                     INTERPRET: tl.constexpr):  # fmt: skip
    """narrow (rows, d_v) @ wide (rows, d_v)^T for the tile: values against output gradients, in chunks of d_v."""
    total = tl.zeros((BLOCK, WIDE), tl.float32)
    row = narrow_first + tl.arange(0, BLOCK)[:, None]
    column = wide_first + tl.arange(0, WIDE)[None, :]
    for d in range(0, d_v, BD):
        at = d + tl.arange(0, BD)
        x = tl.load(narrow + row.to(tl.int64) * d_v + at[None, :],
                    mask=(row < narrow_length) & (at[None, :] < d_v), other=0.0)  # fmt: skip
        y = tl.load(wide + column.to(tl.int64) * d_v + at[:, None],
                    mask=(column < wide_length) & (at[:, None] < d_v), other=0.0)  # fmt: skip
        total = product(x, y, total, PRECISION, INTERPRET)
    return total


@triton.jit
def add_values(p, grad_out, narrow_first, narrow_length, target, wide_first, wide_length, d_v,
               WIDE: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr, INTERPRET: tl.constexpr):  # fmt: skip
    """target (keys, d_v) += p^T @ grad_out, in chunks of d_v."""
    row = narrow_first + tl.arange(0, BLOCK)[:, None]
    column = wide_first + tl.arange(0, WIDE)[:, None]
    weight = tl.trans(p)
    for d in range(0, d_v, BD):
        at = d + tl.arange(0, BD)[None, :]
        x = tl.load(grad_out + row.to(tl.int64) * d_v + at, mask=(row < narrow_length) & (at < d_v), other=0.0)
        inside = (column < wide_length) & (at < d_v)
        pointer = target + column.to(tl.int64) * d_v + at
        old = tl.load(pointer, mask=inside, other=0.0)
        tl.store(pointer, product(weight, x, old, PRECISION, INTERPRET), mask=inside)


@triton.jit
def gradient_kernel(query_scaled, query_factor, key_factor, query_raw, key_raw, query_range, key_range, query_log2,
                    key_log2, ratio, flip, constants, value, mask, lse, delta, grad_out, grad, r_sum, grad_value,
                    n, m, n_padded, m_padded, hidden, hidden_groups, hidden_pairs, hidden_stored, d_v,
                    inner, mask_outer, mask_inner, mask_query, mask_key,
                    WIDE: tl.constexpr, BD: tl.constexpr, OWN_QUERY: tl.constexpr, SCORES: tl.constexpr,
                    CAUSAL: tl.constexpr, MASK: tl.constexpr, PRECISION: tl.constexpr,
                    INTERPRET: tl.constexpr):  # fmt: skip
    """Gradients of the program's WIDE queries (OWN_QUERY) or keys; grid (tiles of that side * batch).

    grad (B, hidden_stored, padded) receives sum dS r(1 - r) and, for queries, r_sum receives sum dS r; for keys,
    grad_value receives P^T grad_out. With SCORES, grad_out is the gradient of the raw scores, (B, n, m).
    """
    wide_padded = n_padded if OWN_QUERY else m_padded
    narrow_padded = m_padded if OWN_QUERY else n_padded
    wide_length = n if OWN_QUERY else m
    narrow_length = m if OWN_QUERY else n
    tiles = wide_padded // WIDE
    batch = tl.program_id(0) // tiles
    batch64 = batch.to(tl.int64)
    wide_first = tl.program_id(0) % tiles * WIDE
    query_blocks = n_padded // BLOCK
    key_blocks = m_padded // BLOCK
    query_scaled += batch64 * hidden_stored * n_padded
    query_factor += batch64 * hidden_stored * n_padded
    key_factor += batch64 * hidden_stored * m_padded
    query_raw += batch64 * n * hidden
    key_raw += batch64 * m * hidden
    grad += batch64 * hidden_stored * wide_padded + wide_first
    r_sum += batch64 * hidden_stored * wide_padded + wide_first
    query_range += batch64 * n_padded
    query_log2 += batch64 * query_blocks
    key_range += batch64 * m_padded
    key_log2 += batch64 * key_blocks
    lse += batch64 * n
    delta += batch64 * n
    if not SCORES:
        value += batch64 * m * d_v
        grad_out += batch64 * n * d_v
        grad_value += batch64 * m * d_v
    if MASK:
        mask = mask_start(mask, batch, inner, mask_outer, mask_inner)
    wide_factor = (query_factor if OWN_QUERY else key_factor) + wide_first
    wide_scaled = (query_scaled if OWN_QUERY else key_factor) + wide_first
    wide_raw = (query_raw if OWN_QUERY else key_raw) + tl.cast(wide_first, tl.int64) * hidden
    wide_ranges = (query_range if OWN_QUERY else key_range) + wide_first
    wide_range = largest_of(wide_ranges, WIDE)
    wide_log2 = largest_of((query_log2 if OWN_QUERY else key_log2) + wide_first // BLOCK, WIDE // BLOCK)
    scale = -2.0 * LOG2_E * tl.load(constants)
    start = 0
    end = narrow_length
    if CAUSAL:
        if OWN_QUERY:
            end = tl.minimum(m, wide_first + WIDE)
        else:
            start = wide_first
    for narrow_first in range(start, end, BLOCK):
        if OWN_QUERY:
            bits = allowed_bits(
                mask, mask_key, mask_query, narrow_first, wide_first, m, n, WIDE, CAUSAL, MASK, False
            )  # fmt: skip
        else:
            bits = allowed_bits(mask, mask_query, mask_key, narrow_first, wide_first, n, m, WIDE, CAUSAL, MASK, True)
        attends = True
        if MASK:
            attends = tl.max(tl.max(bits, 1), 0) > 0
        if attends:
            first64 = tl.cast(narrow_first, tl.int64)
            narrow_factor = (key_factor if OWN_QUERY else query_factor) + first64
            narrow_scaled = (key_factor if OWN_QUERY else query_scaled) + first64
            narrow_raw = (key_raw if OWN_QUERY else query_raw) + first64 * hidden
            narrow_ranges = (key_range if OWN_QUERY else query_range) + narrow_first
            bound = wide_range + largest_of(narrow_ranges, BLOCK)
            log2_factor = wide_log2 + tl.load((key_log2 if OWN_QUERY else query_log2) + narrow_first // BLOCK)
            narrow_row = narrow_first + tl.arange(0, BLOCK)[:, None]
            wide_row = wide_first + tl.arange(0, WIDE)[None, :]
            query = wide_row if OWN_QUERY else narrow_row
            if SCORES:
                key = narrow_row if OWN_QUERY else wide_row
                at = (batch64 * n + query) * m + key
                d_score = tl.load(grad_out + at, mask=is_allowed(bits), other=0.0).to(tl.float32)
            else:
                total = score_total(
                    narrow_scaled, wide_scaled, narrow_padded, wide_padded, narrow_raw, wide_raw,
                    narrow_length - narrow_first, wide_length - wide_first, ratio, flip, hidden, hidden_groups * 3,
                    narrow_ranges, wide_ranges, BLOCK, WIDE, INTERPRET,
                )  # fmt: skip
                row_log = tl.load(lse + query, mask=query < n, other=0.0)
                row_delta = tl.load(delta + query, mask=query < n, other=0.0)
                p = total * scale - row_log
                # as in the forward kernel: computed once, not once for each register layout
                again = narrow_first >= 0
                while again:
                    p = tl.where(is_allowed(bits), tl.exp2(p), 0.0)
                    again = narrow_first < 0
                if not OWN_QUERY:
                    add_values(
                        p, grad_out, narrow_first, n, grad_value, wide_first, m, d_v, WIDE, BD, PRECISION, INTERPRET
                    )  # fmt: skip
                if OWN_QUERY:
                    dp = weight_gradients(
                        value, narrow_first, m, grad_out, wide_first, n, d_v, WIDE, BD, PRECISION, INTERPRET
                    )  # fmt: skip
                else:
                    dp = weight_gradients(
                        grad_out, narrow_first, n, value, wide_first, m, d_v, WIDE, BD, PRECISION, INTERPRET
                    )  # fmt: skip
                d_score = tl.where(is_allowed(bits), p * (fixed_layout(dp, BLOCK, WIDE) - row_delta), 0.0)
            if (log2_factor <= LIMIT_PAIR) & (bound < float("inf")):
                pair_gradients(
                    d_score, narrow_factor, narrow_padded, wide_factor, wide_padded, grad, r_sum, hidden_pairs * 2,
                    WIDE, OWN_QUERY, INTERPRET,
                )  # fmt: skip
            else:
                if bound < float("inf"):
                    single_gradients(
                        d_score, narrow_factor, narrow_padded, wide_factor, wide_padded, grad, r_sum, hidden, WIDE,
                        OWN_QUERY, INTERPRET,
                    )  # fmt: skip
                else:
                    pointwise_gradients(
                        d_score, narrow_raw, narrow_length - narrow_first, wide_raw, wide_length - wide_first,
                        wide_padded, flip, grad, r_sum, hidden, WIDE, OWN_QUERY, INTERPRET,
                    )  # fmt: skip
            tl.debug_barrier()
