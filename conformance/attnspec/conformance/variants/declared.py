"""Variants with declared deviations at edge cases."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.variants.registry import variant
from attnspec.spec.attention import AdditiveAttention, ScaledDotProductAttention
from attnspec.spec.contract.operation import Operation
from attnspec.spec.kernels import (
    AxialRotaryEmbedding,
    GroupedQueryAttention,
    PagedAttention,
    PositionsFromMask,
    RotaryEmbedding,
    RotaryFrequencies,
    VariableLengthAttention,
)
from attnspec.spec.normalization import Softmax
from attnspec.spec.pooling import AveragePooling, NadarayaWatson
from attnspec.spec.positional import SinusoidalPositionalEncoding
from attnspec.spec.recurrent import (
    GRU,
    LSTM,
    BidirectionalGRU,
    BidirectionalLSTM,
    GRUCell,
    GRUParameters,
    LSTMCell,
    LSTMParameters,
    StackedGRU,
    StackedLSTM,
)
from attnspec.spec.scoring import DotScores
from attnspec.spec.seq2seq import BahdanauContext
from attnspec.spec.transformer import (
    GELU,
    AddRMSNorm,
    CachedDecoderStep,
    DecoderLayer,
    DecoderOnly,
    EncoderStack,
    RMSNorm,
)


@variant(
    "fully masked rows are uniform, declared",
    operations=(
        Softmax,
        ScaledDotProductAttention,
        BahdanauContext,
        GroupedQueryAttention,
        EncoderStack,
        DecoderLayer,
        CachedDecoderStep,
        DecoderOnly,
    ),
    declares={"fully_masked": "uniform"},
)
class Uniform(Formulas):
    """Masked scores are the least finite number: fully masked rows are uniform."""

    def mask_scores(self, scores: Numbers, mask: Numbers) -> Numbers:
        """Scores with the least finite number at masked keys."""
        return scores if mask is None else np.where(mask, scores, np.finfo(scores.dtype).min)

    def pool(self, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
        """Weighted sums in which fully masked rows pool all values."""
        allowed = None if mask is None else mask | ~np.any(mask, axis=-1, keepdims=True)
        return Formulas.pool(self, weights, value, allowed)


@variant(
    "fully masked rows are NaN, declared",
    operations=(Softmax, ScaledDotProductAttention),
    declares={"fully_masked": "nan"},
)
class NotANumber(Formulas):
    """Fully masked rows compute −∞ − −∞ and are NaN."""

    def shift(self, scores: Numbers) -> Numbers:
        """The maximum of each row, even if it is −∞."""
        return np.max(scores, axis=-1, keepdims=True, initial=-np.inf)


@variant(
    "rows without keys NaN under (1, m) masks, 0 under (n, m) masks, declared",
    operations=(Softmax, ScaledDotProductAttention),
    declares={"fully_masked": {"full": "zero", "queries-alike": "nan"}},
)
class ByShapeOfMask(Formulas):
    """Rows without keys are NaN under a mask that all queries share, else 0."""

    def mask_scores(self, scores: Numbers, mask: Numbers) -> Numbers:
        """Scores with −∞ at masked keys; NaN in rows without keys under shared masks."""
        hidden = Formulas.mask_scores(self, scores, mask)
        if mask is None or mask.shape[-2] != 1 or mask.ndim < scores.ndim or scores.shape[-2] == 1:
            return hidden
        return np.where(mask.any(-1, keepdims=True), hidden, scores.dtype.type(np.nan))


@variant(
    "rows without keys raise, declared",
    operations=(Softmax, ScaledDotProductAttention),
    declares={"fully_masked": "error"},
)
class NeedsKeysInEveryRow(Formulas):
    """Rows without attendable keys raise."""

    def mask_scores(self, scores: Numbers, mask: Numbers) -> Numbers:
        """Scores with −∞ at masked keys; ``ValueError`` for a row without keys."""
        if mask is not None and mask.shape[-1] and not mask.any(-1).all():
            raise ValueError("mask: expected a key in every row; got a row without keys")
        return Formulas.mask_scores(self, scores, mask)


@variant(
    "calls without keys raise, declared",
    operations=(ScaledDotProductAttention, AveragePooling),
    declares={"no_keys": "error"},
)
class NeedsKeys(Formulas):
    """Calls without keys raise."""

    def attend(self, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
        """Attention; ``ValueError`` for m = 0."""
        self._require_keys(value)
        return Formulas.attend(self, scores, value, mask, causal)

    def average_pooling(self, value: Numbers, *, mask: Numbers = None) -> Numbers:
        """Mean of the values; ``ValueError`` for m = 0."""
        self._require_keys(value)
        return Formulas.average_pooling(self, value, mask=mask)

    def _require_keys(self, value: Numbers) -> None:
        if not value.shape[-2]:
            raise ValueError("expected at least one key; got none")


@variant(
    "results without keys are NaN, declared",
    operations=(ScaledDotProductAttention, AveragePooling),
    declares={"no_keys": "nan"},
)
class NaNWithoutKeys(Formulas):
    """Results without keys are NaN."""

    def pool(self, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
        """Weighted sums; NaN without keys."""
        result = Formulas.pool(self, weights, value, mask)
        return result if value.shape[-2] else result + np.nan * np.ones_like(result)

    def average_pooling(self, value: Numbers, *, mask: Numbers = None) -> Numbers:
        """Mean of the values; NaN without values."""
        result = Formulas.average_pooling(self, value, mask=mask)
        return result if value.shape[-2] else result + np.nan * np.ones_like(result)


@variant(
    "causal at the bottom right, declared",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    declares={"causal_alignment": "bottom-right"},
)
class BottomRight(Formulas):
    """The causal mask is aligned at the bottom right: the last query sees every key."""

    def attendable(self, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
        """The mask joined with j ≤ i + m − n."""
        if not causal:
            return mask
        triangle = np.tri(n, m, m - n, dtype=bool)
        return triangle if mask is None else mask & triangle


@variant(
    "all distances from the bottom right, declared",
    operations=(GroupedQueryAttention, VariableLengthAttention),
    declares={"causal_alignment": "bottom-right"},
)
class DistancesFromBottomRight(Formulas):
    """Causal masks, windows and linear biases place query i at i + m − n. FlashAttention does so."""

    def attendable(self, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
        """The mask joined with j ≤ i + m − n."""
        return self.join_masks(mask, (None, 0), None, n, m) if causal else mask

    def join_masks(self, mask: Numbers, window: Any, lengths: Numbers, n: int, m: int) -> Numbers:
        """Join a window around i + m − n and the lengths with ``mask``."""
        left, right = (None, None) if window is None else window
        beyond = np.arange(m) - np.arange(n)[:, None] - (m - n)
        near = np.ones((n, m), bool) if left is None else beyond >= -left
        near = near if right is None else near & (beyond <= right)
        return Formulas.join_masks(self, near if mask is None else mask & near, None, lengths, n, m)

    def distances(self, n: int, m: int) -> Numbers:
        """Distances |i + m − n − j|."""
        return np.abs(np.arange(n)[:, None] + (m - n) - np.arange(m))


@variant(
    "query heads interleaved, declared",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention),
    declares={"head_groups": "interleaved"},
)
class InterleavedHeads(Formulas):
    """Query head r reads key head r mod heads_k."""

    def repeat_heads(self, x: Numbers, group: int) -> Numbers:
        """The key heads one after the other, ``group`` times."""
        return np.concatenate([x] * group, axis=-3)


@variant(
    "signed distances from the bottom right, declared",
    operations=(GroupedQueryAttention, VariableLengthAttention),
    declares={"alibi_distances": "signed", "causal_alignment": "bottom-right"},
)
class SignedDistances(Formulas):
    """Linear biases raise the scores of later keys."""

    def attendable(self, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
        """The mask joined with j ≤ i + m − n."""
        triangle = np.tri(n, m, m - n, dtype=bool) if causal else None
        return mask if triangle is None else triangle if mask is None else mask & triangle

    def sliding_window_mask(self, n: int, m: int, *, window: Any = None) -> Numbers:
        """The keys in a window around i + m − n."""
        left, right = (None, None) if window is None else window
        beyond = np.arange(m) - np.arange(n)[:, None] - (m - n)
        near = np.ones((n, m), bool) if left is None else beyond >= -left
        return near if right is None else near & (beyond <= right)

    def distances(self, n: int, m: int) -> Numbers:
        """The distances i + m − n − j, negative for later keys."""
        return np.arange(n)[:, None] + (m - n) - np.arange(m)


@variant(
    "NaN under the mask propagates, declared",
    operations=(ScaledDotProductAttention, NadarayaWatson, AveragePooling),
    declares={"masked_nonfinite": "propagates"},
)
class Propagates(Formulas):
    """Weights of 0 multiply masked values: NaN propagates."""

    def pool(self, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
        """Weighted sums of all values, masked ones included."""
        return self.attention_pooling(weights, value)

    def average_pooling(self, value: Numbers, *, mask: Numbers = None) -> Numbers:
        """Mean of the values times the mask as 0 and 1."""
        multiplied = value if mask is None else value * mask[..., None].astype(value.dtype)
        return np.sum(multiplied, axis=-2) / self.count_keys(multiplied.shape[:-1], mask, value.dtype)


@variant(
    "NaN turned into numbers, declared",
    operations=(ScaledDotProductAttention, BahdanauContext),
    declares={"attendable_nan": "hidden", "nan_queries": "hidden"},
    differentiable=False,
)
class NaNToNumber(Formulas):
    """NaN in the result becomes a number by nan_to_num."""

    def pool(self, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
        """Weighted sums with 0 in place of NaN."""
        return np.nan_to_num(Formulas.pool(self, weights, value, mask))


@variant("rows of −∞ are 0, declared", operations=(Softmax,), declares={"minus_infinity": "zero"})
class Guarded(Formulas):
    """A guarded sum makes rows of −∞ 0, as if −∞ meant masked."""

    def undefined_weights(self, scores: Numbers, mask: Numbers) -> Numbers:
        """False everywhere: no row is undefined."""
        return np.zeros(scores.shape, bool)


@variant("rows of −∞ are uniform, declared", operations=(Softmax,), declares={"minus_infinity": "uniform"})
class UniformAtMinusInfinity(Formulas):
    """Rows of −∞ have equal weights, as rows of equal finite scores have."""

    def mask_scores(self, scores: Numbers, mask: Numbers) -> Numbers:
        """Scores with −∞ at masked keys; 0 at attendable keys of rows of −∞."""
        low = Formulas.undefined_weights(self, scores, mask)
        return np.where(low, scores.dtype.type(0), Formulas.mask_scores(self, scores, mask))

    def undefined_weights(self, scores: Numbers, mask: Numbers) -> Numbers:
        """False everywhere: no row is undefined."""
        return np.zeros(scores.shape, bool)


@variant(
    "NaN in queries read as 0, declared",
    operations=(ScaledDotProductAttention, NadarayaWatson),
    declares={"nan_queries": "hidden"},
    differentiable=False,
)
class NaNQueriesHidden(Formulas):
    """NaN in a query is read as 0."""

    def scaled_dot_product_attention(self, query: Numbers, *arrays: Numbers, **options: Any) -> Numbers:
        """Attention by queries without NaN."""
        return Formulas.scaled_dot_product_attention(self, _without_nan(query), *arrays, **options)

    def nadaraya_watson(self, query: Numbers, *arrays: Numbers, **options: Any) -> Numbers:
        """Kernel regression by queries without NaN."""
        return Formulas.nadaraya_watson(self, _without_nan(query), *arrays, **options)


def _without_nan(x: Numbers) -> Numbers:
    return np.where(np.isnan(x), x.dtype.type(0), x)


@variant("odd widths raise, declared", operations=(SinusoidalPositionalEncoding,), declares={"odd_encoding": "error"})
class EvenOnly(Formulas):
    """Odd widths raise, because sines and cosines come in pairs."""

    def frequencies(self, d: int) -> Numbers:
        """Frequencies; ``ValueError`` for an odd width."""
        if d % 2:
            raise ValueError(f"expected an even width; got {d}")
        return Formulas.frequencies(self, d)


@variant(
    "reset gate after the product, declared",
    operations=(GRUCell, GRU, BidirectionalGRU, StackedGRU),
    declares={"gru_reset": "after"},
)
class ResetAfter(Formulas):
    """The reset gate multiplies the product, as in cuDNN and torch.nn.GRU."""

    def gru_candidate(self, x: Numbers, h: Numbers, reset: Numbers, p: GRUParameters[Numbers]) -> Numbers:
        """Candidate with R ⊙ (H W_hh)."""
        return self.state_activation(self.reset_after_product(x, h, reset, p))


@variant(
    "update gate of the candidate, declared",
    operations=(GRUCell, GRU, BidirectionalGRU, StackedGRU),
    declares={"gru_update": "candidate"},
)
class UpdateOfCandidate(Formulas):
    """The update gate multiplies the candidate, as in haiku."""

    def gru_update(self, update: Numbers, h: Numbers, candidate: Numbers) -> Numbers:
        """The new state (1 − Z) ⊙ H + Z ⊙ H̃."""
        return h + update * (candidate - h)


@variant(
    "1 added in the forget gate, declared",
    operations=(LSTMCell, LSTM, BidirectionalLSTM, StackedLSTM),
    declares={"lstm_forget_bias": "plus-one"},
)
class ForgetPlusOne(Formulas):
    """The forget gate is σ(… + 1), as in haiku and in TensorFlow 1."""

    def forget_bias(self, p: LSTMParameters[Numbers]) -> Numbers:
        """The bias plus 1."""
        return 1 + p.b_f


@variant(
    "1 added to RMS weights, declared",
    operations=(RMSNorm, AddRMSNorm),
    dtypes=("float32", "bfloat16"),
    declares={"rms_weight": "plus-one"},
)
class RMSPlusOne(Formulas):
    """Weights are deviations of the factor from 1, as in Gemma."""

    def rms_factor(self, weight: Numbers) -> Numbers:
        """The weight plus 1."""
        return 1 + weight


@variant("GELU by tanh, declared", operations=(GELU,), declares={"gelu_form": "tanh"})
class GELUByTanh(Formulas):
    """The probability is approximated with tanh, as in GPT-2."""

    def normal_probability(self, x: Numbers) -> Numbers:
        """(1 + tanh(√(2/π) x (1 + 0.044715 x²)))/2."""
        real = x.dtype.type
        return real(0.5) * (1 + np.tanh(real(np.sqrt(2 / np.pi)) * x * (1 + real(0.044715) * (x * x))))


@variant(
    "rotary pairs of halves, declared",
    operations=(RotaryEmbedding, AxialRotaryEmbedding),
    declares={"rotary_pairs": "halves"},
)
class Halves(Formulas):
    """Features i and i + d/2 are turned together, as in Llama's weights."""

    def split_pairs(self, x: Numbers) -> tuple[Numbers, Numbers]:
        """The first and the second half of the features."""
        half = x.shape[-1] // 2
        return x[..., :half], x[..., half:]

    def join_pairs(self, first: Numbers, second: Numbers) -> Numbers:
        """One half after the other."""
        return np.concatenate([first, second], axis=-1)


@variant(
    "ramp of rotary frequencies by whole indices, declared",
    operations=(RotaryFrequencies,),
    declares={"rotary_ramp": "whole-indices"},
)
class RampByWholeIndices(Formulas):
    """The share of unscaled frequencies falls between two whole indices, as in YaRN's code."""

    def ramp(self, unscaled: Numbers, theta: float, length: float, low: float, high: float) -> Numbers:
        """1 up to the first index, 0 from the last one on."""
        pairs = len(unscaled)
        start, end = (pairs * np.log(length / (2 * np.pi * turns)) / np.log(theta) for turns in (high, low))
        first, last = max(np.floor(start), 0), np.ceil(end)
        return 1 - (np.arange(pairs) - first) / (last - first)


@variant(
    "ramp of rotary frequencies by indices, declared",
    operations=(RotaryFrequencies,),
    declares={"rotary_ramp": "indices"},
)
class RampByIndices(Formulas):
    """The share falls linearly with the logarithm of the rotations, as in gpt-oss."""

    def ramp(self, unscaled: Numbers, theta: float, length: float, low: float, high: float) -> Numbers:
        """1 where a pair makes ``high`` rotations, or is the first; 0 where it makes ``low``."""
        most = min(high, length / (2 * np.pi))
        return np.log(length * unscaled / (2 * np.pi * low)) / np.log(most / low)


declaring_padding = partial(variant, operations=(PositionsFromMask,))
"""Decorator of a variant with other positions of padding."""


@declaring_padding(
    "padding at position 1, declared", declares={"padding_positions": "one"}, replaces="positions_from_mask"
)
def padding_at_1(correct: Formulas, mask: Numbers) -> Numbers:
    """Cumulative sums less 1, then 1 at padding, as transformers generates."""
    return np.where(mask, np.cumsum(mask, axis=-1) - 1, 1)


@declaring_padding(
    "padding at the previous position, declared",
    declares={"padding_positions": "previous"},
    replaces="positions_from_mask",
)
def padding_at_previous(correct: Formulas, mask: Numbers) -> Numbers:
    """Cumulative sums less 1, cut off at 0, as TransformerLens has them."""
    return np.clip(np.cumsum(mask, axis=-1) - 1, 0, None)


@declaring_padding(
    "padding at position −1, declared", declares={"padding_positions": "minus-one"}, replaces="positions_from_mask"
)
def padding_at_minus_1(correct: Formulas, mask: Numbers) -> Numbers:
    """Cumulative sums times the mask, less 1, as OPT has them."""
    return np.cumsum(mask, axis=-1) * mask - 1


@variant(
    "shapes not checked, declared",
    operations=(ScaledDotProductAttention, DotScores),
    declares={"rejection": "unchecked"},
)
class Unchecked(Library):
    """Shapes are for the caller to check."""

    def check(self, operation: Operation, arguments: Mapping[str, Any]) -> None:
        """Check nothing."""


@variant(
    "terms summed in a new order at every call, declared",
    operations=(ScaledDotProductAttention, DotScores),
    declares={"repeatability": "within-budget"},
    differentiable=False,
)
class AnyOrder(Formulas):
    """Terms are added in another order at every call."""

    calls = 0

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Matrix product with the terms permuted by the number of the call."""
        self.calls += 1
        order = np.random.Generator(np.random.PCG64(self.calls)).permutation(a.shape[-1])
        return Formulas.product(self, np.take(a, order, axis=-1), np.take(b, order, axis=-2))
