"""Mutants of attention with one head.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone.
``x * x.dtype.type(0)`` leaves x out but keeps its shape. S0 to S4 are sources of the specification.
"""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.attention import (
    AdditiveAttention,
    CrossAttention,
    DotProductAttention,
    GeneralAttention,
    ProjectedSelfAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from attnspec.spec.pooling import NadarayaWatson

DOT_PRODUCTS = (DotProductAttention, ScaledDotProductAttention)
ONE_HEAD = (*DOT_PRODUCTS, GeneralAttention, AdditiveAttention)


@mutant(
    "attention without scale",
    replaces="scale_scores",
    operations=(ScaledDotProductAttention, SelfAttention, ProjectedSelfAttention, CrossAttention),
    breaks=("attention.unbiased-scale",),
    source="mlc-ai/mlc-llm#3426, ethen8181/machine-learning#13",
)
def unscaled(correct: Formulas, scores: Numbers, d: int) -> Numbers:
    """Scores are not divided by √d."""
    return scores


@mutant(
    "attention scaled by d",
    replaces="scale_scores",
    operations=(ScaledDotProductAttention, SelfAttention),
    breaks=("attention.unbiased-scale",),
    source="a scale of d in place of √d",
)
def divided_by_d(correct: Formulas, scores: Numbers, d: int) -> Numbers:
    """Scores are divided by d in place of √d."""
    return scores / scores.dtype.type(d)


@mutant(
    "scores doubled, weights halved",
    replaces="attend",
    operations=(ScaledDotProductAttention,),
    breaks=("pooling.convexity", "pooling.unbiased-gain"),
    source="FrancescoSaverioZuppichini/ViT#6",
)
def doubled_scores(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """Scores are doubled before the softmax, and weights are halved after it."""
    return Formulas.attend(correct, 2 * scores, value, mask, causal) * value.dtype.type(0.5)


@mutant(
    "scale 1/8 for every head size",
    replaces="scale_scores",
    operations=(ScaledDotProductAttention,),
    breaks=("attention.unbiased-scale",),
    source="BobMcDear/attorch#14",
)
def hard_coded_scale(correct: Formulas, scores: Numbers, d: int) -> Numbers:
    """Scores are multiplied by 1/8 = 1/√64 in place of 1/√d."""
    return scores * scores.dtype.type(0.125)


@mutant(
    "exponentials with log₂e cut to 1.44 in bfloat16",
    replaces="exponential",
    operations=ONE_HEAD,
    dtype="bfloat16",
    breaks=("attention.unbiased-scale",),
    source="log₂e written as 1.44",
)
def short_log2_e(correct: Formulas, x: Numbers) -> Numbers:
    """exp x is computed as 2^(1.44 x) in place of 2^(1.4427 x)."""
    return np.exp2(x.dtype.type(1.44) * x)


@mutant(
    "scores capped at 30 by tanh",
    replaces="softmax",
    operations=(DotProductAttention,),
    breaks=("attention.hardmax-limit", "operation.oracle"),
    source="soft-capping left on",
)
def capped_scores(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """Scores e become 30 tanh(e/30)."""
    cap = scores.dtype.type(30)
    return Formulas.softmax(correct, cap * np.tanh(scores / cap), mask=mask)


@mutant(
    "attention scores clipped at ±20",
    replaces="softmax",
    operations=DOT_PRODUCTS,
    breaks=("attention.hardmax-limit", "operation.oracle"),
    source="clipping that keeps exp from overflowing",
)
def clipped_scores(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """Scores are clipped to ±20."""
    low, high = scores.dtype.type(-20), scores.dtype.type(20)
    return Formulas.softmax(correct, np.minimum(np.maximum(scores, low), high), mask=mask)


@mutant(
    "absolute scores",
    replaces="softmax",
    operations=DOT_PRODUCTS,
    breaks=("operation.oracle",),
    source="similarity taken without its sign",
)
def absolute_scores(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """Scores e become |e|: opposite keys get as much weight as equal ones."""
    return Formulas.softmax(correct, np.abs(scores), mask=mask)


@mutant(
    "distance bias left on",
    replaces="attend",
    operations=(*ONE_HEAD, SelfAttention),
    breaks=("attention.permutation-equivariance", "pooling.equal-keys-give-mean"),
    source="linear position biases (ALiBi) in a kernel's default",
)
def distance_bias(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """−|i − j|/8 is added to the score of query i and key j."""
    n, m = scores.shape[-2:]
    bias = -np.abs(np.arange(n)[:, None] - np.arange(m)) / 8
    return Formulas.attend(correct, scores + bias.astype(scores.dtype), value, mask, causal)


@mutant(
    "sliding window of 8 left on",
    replaces="attendable",
    operations=(*ONE_HEAD, SelfAttention),
    breaks=("attention.permutation-equivariance", "pooling.equal-keys-give-mean"),
    source="ROCm/flash-attention#158",
)
def sliding_window(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """Query i does not attend to keys j with |i − j| > 8."""
    near = np.abs(np.arange(n)[:, None] - np.arange(m)) <= 8
    allowed = Formulas.attendable(correct, mask, causal, n, m)
    return near if allowed is None else near & allowed


@mutant(
    "first key skipped",
    replaces="attendable",
    operations=ONE_HEAD,
    breaks=("attention.permutation-equivariance", "pooling.equal-keys-give-mean"),
    source="an attention sink that is dropped",
)
def first_key_skipped(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """Key 0 is left out if there are other keys."""
    others = np.arange(m)[None, :] > 0
    allowed = Formulas.attendable(correct, mask, causal, n, m)
    if m < 2:
        return allowed
    return others if allowed is None else others & allowed


@mutant(
    "keys after the last whole tile of 16 dropped",
    replaces="attendable",
    operations=ONE_HEAD,
    breaks=("operation.oracle", "attention.permutation-equivariance"),
    source="pytorch/pytorch#159247",
)
def dropped_tail(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """Keys after the last whole tile of 16 are ignored, from 16 keys on."""
    whole = np.arange(m)[None, :] < (m // 16 * 16 if m >= 16 else m)
    allowed = Formulas.attendable(correct, mask, causal, n, m)
    return whole if allowed is None else whole & allowed


@mutant(
    "padded keys with score 0",
    replaces="normalized",
    operations=ONE_HEAD,
    breaks=("attention.duplicated-keys-change-nothing", "attention.single-key-returns-its-value", "pooling.convexity"),
    source="flashinfer-ai/flashinfer#5090, ROCm/rocMLIR#1258",
)
def padded_keys_count(correct: Formulas, scores: Numbers) -> Numbers:
    """Scores of 0, with weight exp 0, fill up the last tile of 16 keys."""
    m = scores.shape[-1]
    filled = np.zeros((*scores.shape[:-1], -m % 16), scores.dtype)
    return Formulas.normalized(correct, np.concatenate([scores, filled], axis=-1))[..., :m]


@mutant(
    "earlier tiles not rescaled to a new maximum",
    replaces="attend",
    operations=ONE_HEAD,
    breaks=("operation.oracle", "attention.permutation-equivariance", "attention.duplicated-keys-change-nothing"),
    source="tile-ai/tilelang#1148, PaddleJitLab/CUDATutorial#69",
)
def tiles_not_rescaled(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """Tiles of 16 keys subtract the maximum so far; earlier tiles are not rescaled to it."""
    n, m = scores.shape[-2:]
    allowed = correct.attendable(mask, causal, n, m)
    excluded = correct.mask_scores(scores, allowed)
    tiles = [slice(start, start + 16) for start in range(0, m, 16)]
    exponentials = [np.exp(excluded[..., tile] - correct.shift(excluded[..., : tile.stop])) for tile in tiles]
    whole = np.concatenate(exponentials, axis=-1) if tiles else excluded
    total = correct.total(whole)
    weights = whole / np.where(total == 0, scores.dtype.type(1), total)
    return correct.pool(weights, value, allowed)


@mutant(
    "sum hardly rescaled to a much larger maximum",
    replaces="attend",
    operations=ONE_HEAD,
    breaks=("attention.extreme-magnitudes",),
    source="a threshold below which online softmax does not rescale, compared with the wrong sign",
)
def sum_hardly_rescaled(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """The sum of exponentials shrinks by at most e⁻⁴ between tiles of 64 keys."""
    n, m = scores.shape[-2:]
    allowed = correct.attendable(mask, causal, n, m)
    excluded = correct.mask_scores(scores, allowed)
    total, before = excluded[..., :1] * 0, correct.shift(excluded[..., :64])
    for start in range(0, m, 64):
        largest = correct.shift(excluded[..., : start + 64])
        decay = np.maximum(np.exp(before - largest), scores.dtype.type(np.exp(-4.0)))
        total = total * decay + correct.total(np.exp(excluded[..., start : start + 64] - largest))
        before = largest
    weights = np.exp(excluded - before) / np.where(total == 0, scores.dtype.type(1), total)
    return correct.pool(weights, value, allowed)


@mutant(
    "halves of the keys merged with equal weights",
    replaces="attend",
    operations=ONE_HEAD,
    breaks=("masking.equals-explicit-mask", "attention.hardmax-limit"),
    source="split keys merged without their sums of exponentials",
)
def equal_weights_of_halves(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """Without a mask, each half of 4 or more keys gets the total weight ½."""
    m = scores.shape[-1]
    if mask is not None or causal or m < 4:
        return Formulas.attend(correct, scores, value, mask, causal)
    first, second = (
        Formulas.attend(correct, scores[..., part], value[..., part, :], None, False)
        for part in (slice(m // 2), slice(m // 2, None))
    )
    return 0.5 * (first + second)


@mutant(
    "scores scaled by the logarithm of the number of keys",
    replaces="attend",
    operations=(ScaledDotProductAttention, AdditiveAttention, SelfAttention),
    breaks=(
        "attention.duplicated-keys-change-nothing",
        "attention.split-and-merge",
        "masking.masking-equals-truncation",
    ),
    source="log-length scaling for long contexts",
)
def scaled_by_log_of_length(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """Scores e become e·log(m + 1)/log 8 for m keys."""
    factor = scores.dtype.type(np.log(scores.shape[-1] + 1) / np.log(8))
    return Formulas.attend(correct, scores * factor, value, mask, causal)


@mutant(
    "10⁻⁶ added to the sum of exponentials",
    replaces="total",
    operations=(*ONE_HEAD, SelfAttention),
    breaks=("attention.single-key-returns-its-value", "pooling.unbiased-gain"),
    source="guards against division by zero",
)
def added_to_sum(correct: Formulas, x: Numbers) -> Numbers:
    """10⁻⁶ is added to every sum of exponentials."""
    return Formulas.total(correct, x) + x.dtype.type(1e-6)


@mutant(
    "hard attention",
    replaces="normalized",
    operations=ONE_HEAD,
    breaks=("pooling.equal-keys-give-mean", "operation.oracle"),
    source="argmax in place of softmax; the first of equal keys wins",
)
def hard_attention(correct: Formulas, scores: Numbers) -> Numbers:
    """The key with the greatest score gets all the weight."""
    first = np.argmax(scores, axis=-1)[..., None] if scores.shape[-1] else np.zeros((*scores.shape[:-1], 1))
    best = (np.arange(scores.shape[-1]) == first) & (scores > -np.inf)
    return best.astype(scores.dtype)


@mutant(
    "queries of attention through a ReLU",
    replaces="dot_scores",
    operations=DOT_PRODUCTS,
    breaks=("attention.query-key-scale-exchange", "operation.oracle"),
    source="feature maps of linear attention",
)
def relu_queries(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """Negative coordinates of queries count as 0."""
    return Formulas.dot_scores(correct, np.maximum(query, query.dtype.type(0)), key)


@mutant(
    "queries rounded to multiples of 2⁻⁸",
    replaces="dot_scores",
    operations=DOT_PRODUCTS,
    breaks=("attention.query-key-scale-exchange", "operation.oracle"),
    source="fixed-point queries",
)
def fixed_point_queries(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """Queries are rounded to multiples of 2⁻⁸."""
    step = query.dtype.type(2.0**-8)
    return Formulas.dot_scores(correct, np.rint(query / step) * step, key)


@mutant(
    "small keys flushed to zero",
    replaces="dot_scores",
    operations=DOT_PRODUCTS,
    breaks=("attention.query-key-scale-exchange", "operation.oracle"),
    source="quantised keys",
)
def flushed_keys(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """Keys below 1/16 in magnitude count as 0."""
    return Formulas.dot_scores(correct, query, np.where(np.abs(key) < 0.0625, key.dtype.type(0), key))


@mutant(
    "mean key subtracted from the first half of the keys",
    replaces="dot_scores",
    operations=(ScaledDotProductAttention,),
    breaks=("operation.oracle",),
    source="smoothed keys (SageAttention) of the first half only",
)
def centred_half(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """The mean of all keys is subtracted from the first half of the keys only."""
    m = key.shape[-2]
    mean = np.sum(key, axis=-2, keepdims=True) / key.dtype.type(max(m, 1))
    first = np.arange(m)[:, None] < m // 2
    return Formulas.dot_scores(correct, query, np.where(first, key - mean, key))


@mutant(
    "scores rounded to bfloat16",
    replaces="dot_scores",
    operations=DOT_PRODUCTS,
    breaks=("operation.oracle", "attention.unbiased-scale"),
    source="scores stored in the dtype of a mixed-precision region, undeclared",
)
def stored_scores(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """Scores are rounded to bfloat16, which is not declared."""
    return rounded(Formulas.dot_scores(correct, query, key), "bfloat16")


@mutant(
    "positions added to the sequence",
    replaces="self_attention",
    operations=(SelfAttention,),
    breaks=("attention.permutation-equivariance",),
    source="an encoding added inside the layer as well",
)
def positions_added(correct: Formulas, x: Numbers, *, mask: Numbers = None, causal: bool = False) -> Numbers:
    """Sinusoidal positions P are added: attention is computed of x + P."""
    encoding = correct.sinusoidal_positional_encoding(x.shape[-2], x.shape[-1]).astype(x.dtype)
    return Formulas.self_attention(correct, x + encoding, mask=mask, causal=causal)


@mutant(
    "equal weights for all attendable keys",
    replaces="softmax",
    operations=(*DOT_PRODUCTS, SelfAttention, NadarayaWatson),
    breaks=("attention.hardmax-limit",),
    source="S1: a fully connected layer has weights that do not depend on the input",
)
def equal_weights(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """All attendable keys get the same weight, whatever their scores."""
    return Formulas.softmax(correct, scores * scores.dtype.type(0), mask=mask)


@mutant(
    "projections of queries and keys exchanged",
    replaces="projected_self_attention",
    operations=(ProjectedSelfAttention,),
    breaks=("operation.oracle",),
    source="positional weights passed in the other order",
)
def exchanged_projections(
    correct: Formulas, x: Numbers, w_q: Numbers, w_k: Numbers, w_v: Numbers, **options: Any
) -> Numbers:
    """Queries are projected by W_k and keys by W_q."""
    return Formulas.projected_self_attention(correct, x, w_k, w_q, w_v, **options)


@mutant(
    "first query used for all",
    replaces="cross_attention",
    operations=(CrossAttention,),
    breaks=("operation.oracle",),
    source="the index of a query left out",
)
def first_query_for_all(correct: Formulas, x: Numbers, *others: Numbers, **options: Any) -> Numbers:
    """All queries are replaced by the first one."""
    first = np.repeat(x[..., :1, :], x.shape[-2], axis=-2) if x.shape[-2] else x
    return Formulas.cross_attention(correct, first, *others, **options)


@mutant(
    "attention scores divided by √(d + 1)",
    replaces="scale_scores",
    operations=(ProjectedSelfAttention, CrossAttention),
    breaks=("operation.oracle",),
    source="juho-lee/set_transformer#18",
)
def scaled_by_inputs(correct: Formulas, scores: Numbers, d: int) -> Numbers:
    """Scores are divided by √(d + 1), not √d, as if a padded column counted."""
    return scores / np.sqrt(scores.dtype.type(d + 1))


@mutant(
    "attention scores 0.1 % too large",
    replaces="scale_scores",
    operations=(ScaledDotProductAttention,),
    breaks=("attention.unbiased-scale", "operation.oracle"),
    source="1/√d from a table of three digits",
)
def scores_too_large(correct: Formulas, scores: Numbers, d: int) -> Numbers:
    """Scores are multiplied by 1.001."""
    return Formulas.scale_scores(correct, scores, d) * scores.dtype.type(1.001)


@mutant(
    "values read modulo 128",
    replaces="attend",
    operations=ONE_HEAD,
    breaks=("operation.oracle",),
    source="an index that wraps in the second tile",
)
def values_modulo_128(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """The value of key j is read from key j mod 128."""
    order = np.arange(value.shape[-2]) % 128
    return Formulas.attend(correct, scores, np.take(value, order, axis=-2), mask, causal)


@mutant(
    "result rows repeat after 64",
    replaces="attend",
    operations=ONE_HEAD,
    breaks=("operation.oracle",),
    source="BobMcDear/attorch#14: offsets divided by the wrong stride",
)
def repeated_queries(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """Row i of the result is row i mod 64."""
    result = Formulas.attend(correct, scores, value, mask, causal)
    return np.take(result, np.arange(result.shape[-2]) % 64, axis=-2)
