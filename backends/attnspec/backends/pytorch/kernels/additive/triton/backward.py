# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Backward kernels. They recompute scores and weights tile by tile; nothing of size n*m is stored.

With dS the gradient of the scores, da_ic = w_c sum_j dS_ij 4r(1 - r), db_jc likewise over i, and dw_c = sum_ij dS_ij
(1 - 2r), which under a softmax is -2 sum dS r because each row of dS sums to 0. A tile is 16 queries by WIDE keys, and
one warp computes it, so that sums over queries stay within a thread and sums over keys within the warp. A program adds
up the gradients of its tiles in buffers of its own, without atomics; the operator adds the buffers in a fixed order.
"""

import triton
import triton.language as tl

from attnspec.backends.pytorch.kernels.additive.triton.factors import BLOCK
from attnspec.backends.pytorch.kernels.additive.triton.forward import allowed_bits, is_allowed, mask_start
from attnspec.backends.pytorch.kernels.additive.triton.terms import (
    LOG2_E,
    fixed_layout,
    largest_of,
    logistic,
    narrow_column,
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
def load_sums(grad_query, grad_key, r_sum, WIDE: tl.constexpr):
    """One hidden unit's sums of earlier tiles.

    They are loaded before the terms are computed, which hides the latency of memory. The barrier after each tile makes
    them visible in any register layout.
    """
    over_keys = tl.load(grad_query + tl.arange(0, BLOCK)[:, None])
    over_queries = tl.load(grad_key + tl.arange(0, WIDE)[None, :])
    return over_keys, over_queries, tl.load(r_sum)


@triton.jit
def store_sums(terms, r_terms, over_keys, over_queries, over_all, grad_query, grad_key, r_sum, WIDE: tl.constexpr):
    """Add one hidden unit's terms of the tile to the sums.

    `r_terms` are summed over all pairs, `terms` over queries and over keys. In another order the sums take more
    registers than a thread has.
    """
    tl.store(r_sum, over_all + tl.sum(tl.sum(r_terms, 0), 0))
    tl.store(grad_key + tl.arange(0, WIDE)[None, :], over_queries + tl.sum(terms, 0, keep_dims=True))
    tl.store(grad_query + tl.arange(0, BLOCK)[:, None], over_keys + tl.sum(terms, 1, keep_dims=True))


@triton.jit
def factor_gradients(d_score, query, query_stride, key, key_stride, grad_query, grad_key, r_sum, hidden,
                     WIDE: tl.constexpr, INTERPRET: tl.constexpr):  # fmt: skip
    """Add d_score r(1 - r) to the gradients and d_score r to `r_sum`.

    All pointers are at the first of `hidden` units. 1 - r is computed as E (F r): the difference would cancel where r
    is near 1, and EF may overflow. F r is at least half of F or of 1/E, so it does not underflow. Terms that share a
    reciprocal would take as many instructions.
    """
    for _ in range(hidden):
        over_keys, over_queries, over_all = load_sums(grad_query, grad_key, r_sum, WIDE)
        e = narrow_column(query, BLOCK, WIDE, INTERPRET)
        f = tl.load(key + tl.arange(0, WIDE)[None, :])
        r = reciprocal(1.0 + e * f, INTERPRET)
        r_terms = d_score * r
        terms = r_terms * (e * (f * r))
        store_sums(terms, r_terms, over_keys, over_queries, over_all, grad_query, grad_key, r_sum, WIDE)
        query += query_stride
        key += key_stride
        grad_query += query_stride
        grad_key += key_stride
        r_sum += 1


@triton.jit
def pointwise_gradients(d_score, query, query_length, query_stride, key, key_length, key_stride, flip, grad_query,
                        grad_key, r_sum, first, end, hidden,
                        WIDE: tl.constexpr, INTERPRET: tl.constexpr):  # fmt: skip
    """`factor_gradients` from the projections. A pair whose d_score is 0 adds nothing, even if its r is NaN."""
    for c in range(first, end):
        over_keys, over_queries, over_all = load_sums(grad_query, grad_key, r_sum, WIDE)
        x = raw_sum(query, query_length, key, key_length, c, hidden, BLOCK, WIDE)
        r, variance = logistic(x * tl.load(flip + c), INTERPRET)
        terms = tl.where(d_score == 0.0, 0.0, d_score * variance)
        r_terms = tl.where(d_score == 0.0, 0.0, d_score * r)
        store_sums(terms, r_terms, over_keys, over_queries, over_all, grad_query, grad_key, r_sum, WIDE)
        grad_query += query_stride
        grad_key += key_stride
        r_sum += 1


@triton.jit
def product(x, y, acc, PRECISION: tl.constexpr, INTERPRET: tl.constexpr):
    """acc + x @ y on tensor cores; x is rounded to y's dtype where that is 16 bits wide."""
    x = x.to(y.dtype)
    if INTERPRET:
        return tl.dot(x.to(tl.float32), y.to(tl.float32), acc, input_precision="ieee")
    else:  # noqa: RET505 (a branch at compile time)
        return tl.dot(x, y, acc, input_precision=PRECISION)


@triton.jit
def weight_gradients(grad_out, query_first, n, value, key_first, m, d_v,
                     WIDE: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
                     INTERPRET: tl.constexpr):  # fmt: skip
    """grad_out (queries, d_v) @ value (keys, d_v)^T for the tile, in chunks of d_v.

    BD, the features of a chunk, divides d_v.
    """
    total = tl.zeros((BLOCK, WIDE), tl.float32)
    row = query_first + tl.arange(0, BLOCK)[:, None]
    column = key_first + tl.arange(0, WIDE)[None, :]
    for d in range(0, d_v, BD):
        at = d + tl.arange(0, BD)
        x = tl.load(grad_out + row.to(tl.int64) * d_v + at[None, :], mask=row < n, other=0.0)
        y = tl.load(value + column.to(tl.int64) * d_v + at[:, None], mask=column < m, other=0.0)
        total = product(x, y, total, PRECISION, INTERPRET)
    return total


@triton.jit
def add_values(p, grad_out, query_first, n, target, key_first, m, d_v,
               WIDE: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr, INTERPRET: tl.constexpr):  # fmt: skip
    """target (keys, d_v) += p^T @ grad_out, in chunks of BD features; BD divides d_v."""
    row = query_first + tl.arange(0, BLOCK)[:, None]
    column = key_first + tl.arange(0, WIDE)[:, None]
    weight = tl.trans(p)
    for d in range(0, d_v, BD):
        at = d + tl.arange(0, BD)[None, :]
        x = tl.load(grad_out + row.to(tl.int64) * d_v + at, mask=row < n, other=0.0)
        inside = column < m
        pointer = target + column.to(tl.int64) * d_v + at
        old = tl.load(pointer, mask=inside, other=0.0)
        tl.store(pointer, product(weight, x, old, PRECISION, INTERPRET), mask=inside)


@triton.jit
def gradient_kernel(query_scaled, query_factor, key_factor, query_raw, key_raw, query_range, key_range, ratio,
                    flip, constants, value, mask, lse, delta, grad_out, grad_query, grad_key, r_sum,
                    grad_value, batch_size, n, m, n_padded, m_padded, hidden, hidden_stored,
                    d_v, query_splits, key_splits, hidden_splits, inner, mask_outer, mask_inner,
                    mask_query, mask_key,
                    WIDE: tl.constexpr, BD: tl.constexpr, SCORES: tl.constexpr, CAUSAL: tl.constexpr,
                    MASK: tl.constexpr, PRECISION: tl.constexpr, INTERPRET: tl.constexpr):  # fmt: skip
    """Gradients of the program's blocks of queries, tiles of keys and hidden units.

    These are every `query_splits`-th block, every `key_splits`-th tile, and consecutive units. The grid is (batch *
    query_splits * key_splits, hidden_splits). grad_query (key_splits, B, hidden_stored, n_padded) and grad_key
    (query_splits, B, hidden_stored, m_padded) receive sum dS r(1 - r), r_sum (programs of the first axis,
    hidden_stored) receives sum dS r, and grad_value (query_splits, B, m, d_v) receives P^T grad_out. With SCORES,
    grad_out is the gradient of the raw scores, (B, n, m).
    """
    batch = tl.program_id(0) // (query_splits * key_splits)
    query_split = tl.program_id(0) // key_splits % query_splits
    key_split = tl.program_id(0) % key_splits
    batch64 = batch.to(tl.int64)
    units = tl.cdiv(hidden, hidden_splits)
    first_unit = tl.program_id(1) * units
    end_unit = tl.minimum(first_unit + units, hidden)
    unit64 = batch64 * hidden_stored + first_unit
    query_scaled += batch64 * hidden_stored * n_padded
    query_factor += unit64 * n_padded
    query_raw += batch64 * n * hidden
    query_range += batch64 * n_padded
    key_raw += batch64 * m * hidden
    key_range += batch64 * m_padded
    key_scaled = key_factor + batch64 * hidden_stored * m_padded
    key_factor += unit64 * m_padded
    copy_units = tl.cast(batch_size, tl.int64) * hidden_stored
    grad_query += (key_split * copy_units + unit64) * n_padded
    grad_key += (query_split * copy_units + unit64) * m_padded
    r_sum += tl.program_id(0).to(tl.int64) * hidden_stored + first_unit
    lse += batch64 * n
    delta += batch64 * n
    if not SCORES:
        value += batch64 * m * d_v
        grad_out += batch64 * n * d_v
        grad_value += (query_split * tl.cast(batch_size, tl.int64) + batch64) * m * d_v
    if MASK:
        mask = mask_start(mask, batch, inner, mask_outer, mask_inner)
    scale = -2.0 * LOG2_E * tl.load(constants)
    for key_first in range(key_split * WIDE, m, key_splits * WIDE):
        key64 = tl.cast(key_first, tl.int64)
        key_bound = largest_of(key_range + key_first, WIDE)
        start = query_split * BLOCK
        if CAUSAL:
            start += key_first
        for query_first in range(start, n, query_splits * BLOCK):
            bits = allowed_bits(mask, mask_query, mask_key, query_first, key_first, n, m, WIDE, CAUSAL, MASK, True)
            attends = True
            if MASK:
                attends = tl.max(tl.max(bits, 1), 0) > 0
            if attends:
                query64 = tl.cast(query_first, tl.int64)
                bound = key_bound + largest_of(query_range + query_first, BLOCK)
                query = query_first + tl.arange(0, BLOCK)[:, None]
                if SCORES:
                    at = (batch64 * n + query) * m + (key_first + tl.arange(0, WIDE)[None, :])
                    d_score = tl.load(grad_out + at, mask=is_allowed(bits), other=0.0).to(tl.float32)
                else:
                    total = score_total(
                        query_scaled + query64, key_scaled + key64, n_padded, m_padded, query_raw + query64 * hidden,
                        key_raw + key64 * hidden, n - query_first, m - key_first, ratio, flip, hidden,
                        hidden_stored, hidden, query_range + query_first, key_range + key_first, BLOCK, WIDE, INTERPRET,
                    )  # fmt: skip
                    row_log = tl.load(lse + query, mask=query < n, other=0.0)
                    row_delta = tl.load(delta + query, mask=query < n, other=0.0)
                    p = total * scale - row_log
                    # as in the forward kernel: computed once, not once for each register layout
                    again = query_first >= 0
                    while again:
                        p = tl.where(is_allowed(bits), tl.exp2(p), 0.0)
                        again = query_first < 0
                    if tl.program_id(1) == 0:
                        add_values(
                            p, grad_out, query_first, n, grad_value, key_first, m, d_v, WIDE, BD, PRECISION, INTERPRET
                        )  # fmt: skip
                    dp = weight_gradients(
                        grad_out, query_first, n, value, key_first, m, d_v, WIDE, BD, PRECISION, INTERPRET
                    )  # fmt: skip
                    d_score = tl.where(is_allowed(bits), p * (fixed_layout(dp, BLOCK, WIDE) - row_delta), 0.0)
                if bound < float("inf"):
                    factor_gradients(
                        d_score, query_factor + query64, n_padded, key_factor + key64, m_padded, grad_query + query64,
                        grad_key + key64, r_sum, end_unit - first_unit, WIDE, INTERPRET,
                    )  # fmt: skip
                else:
                    pointwise_gradients(
                        d_score, query_raw + query64 * hidden, n - query_first, n_padded, key_raw + key64 * hidden,
                        m - key_first, m_padded, flip, grad_query + query64, grad_key + key64, r_sum, first_unit,
                        end_unit, hidden, WIDE, INTERPRET,
                    )  # fmt: skip
                tl.debug_barrier()
