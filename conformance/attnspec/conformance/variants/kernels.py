"""Variants of attention kernels: grouped heads, caps, sinks, latent keys, parts, rotary angles."""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.variants.registry import variant
from attnspec.conformance.variants.softmaxes import Blocks
from attnspec.spec.kernels import (
    AttentionWeights,
    AxialRotaryEmbedding,
    Dropout,
    GatedOutput,
    GroupedQueryAttention,
    LatentAttention,
    MergeAttention,
    PagedAttention,
    PositionsFromMask,
    RelativePositionBias,
    RollingBufferPositions,
    RotaryEmbedding,
    RotaryFrequencies,
    SigmoidAttention,
    TreeMask,
    VariableLengthAttention,
)

LOG2_E = float(np.log2(np.e))
"""log₂ e."""


@variant(
    "grouped, packed and paged attention in blocks of 16 keys",
    operations=(GroupedQueryAttention, AttentionWeights, VariableLengthAttention, PagedAttention),
)
class GroupedBlocks(Blocks):
    """Flash attention in blocks, with a sink as one more key."""

    def weighted(self, scores: Numbers, values: Numbers, attendable: Numbers) -> tuple[Numbers, Numbers]:
        """Outputs by blocks, with None for the weights."""
        return None, self.attend(scores, values, attendable, False)


@variant("caps from exp(−2|x|)", operations=(GroupedQueryAttention, VariableLengthAttention), differentiable=False)
class CapsByExponentials(Formulas):
    """tanh x is computed as sign(x) (1 − e^(−2|x|)) / (1 + e^(−2|x|))."""

    def capped(self, scores: Numbers, softcap: Any) -> Numbers:
        """Capped scores, by expm1, whose numerator does not cancel."""
        if softcap is None:
            return scores
        cap = scores.dtype.type(softcap)
        twice = -2 * np.abs(scores / cap)
        return np.copysign(-np.expm1(twice) / (1 + np.exp(twice)) * cap, scores)


@variant(
    "sinks in the denominator",
    operations=(GroupedQueryAttention, AttentionWeights, VariableLengthAttention, PagedAttention),
    differentiable=False,
)
class SinksInDenominator(Formulas):
    """The sink b is a term of the denominator: Σ exp(s − M) v / (Σ exp(s − M) + exp(b − M)), M = max(s, b)."""

    def with_sink(
        self, scores: Numbers, values: Numbers, attendable: Numbers, sinks: Numbers
    ) -> tuple[Numbers, Numbers]:
        """Weights and outputs, divided after pooling by the sum with the sink."""
        masked, sink = self.mask_scores(scores, attendable), sinks[:, None, None]
        highest = np.maximum(np.max(masked, axis=-1, keepdims=True, initial=-np.inf), sink)
        weights = self.exponential(masked - highest)
        total = self.total(weights) + self.exponential(sink - highest)
        return weights / total, self.pool(weights, values, attendable) / total


@variant(
    "log-sum-exps through base 2",
    operations=(GroupedQueryAttention, PagedAttention, MergeAttention),
    differentiable=False,
)
class BaseTwo(Formulas):
    """log-sum-exps are (M log₂ e + log₂ Σ exp(s − M)) ln 2."""

    def log_sum_exp(self, scores: Numbers) -> Numbers:
        """log-sum-exp by base 2, as in kernels that multiply scores by log₂ e."""
        shift = self.shift(scores)
        total = self.total(self.exponential(scores - shift))
        two = shift * scores.dtype.type(LOG2_E) + np.log2(total)
        return (two * scores.dtype.type(np.log(2)))[..., 0]


@variant("latent vectors absorbed", operations=(LatentAttention,))
class Absorbed(Formulas):
    """Projections are applied to queries and results: (Q W_K) Cᵀ, not Q (C W_Kᵀ)ᵀ, and (A C) W_Vᵀ, not A (C W_Vᵀ)."""

    def latent_attention(
        self,
        query: Numbers,
        query_rope: Numbers,
        latent: Numbers,
        key_rope: Numbers,
        w_k: Numbers,
        w_v: Numbers,
        *,
        mask: Numbers = None,
        causal: bool = False,
        scale: Any = None,
    ) -> Numbers:
        """Attention on latent vectors, without keys and values of the heads."""
        rows, everyone = latent[..., None, :, :], None if mask is None else mask[..., None, :, :]
        absorbed = self.dot_scores(self.product(query, w_k), rows)
        products = absorbed + self.dot_scores(query_rope, key_rope[..., None, :, :])
        scores = self.scaled_by(products, query.shape[-1] + query_rope.shape[-1], scale)
        return self.project(self.attend(scores, rows, everyone, causal), w_v)


@variant("parts merged one after another", operations=(MergeAttention,), differentiable=False)
class OneAfterAnother(Formulas):
    """Parts are merged by a running maximum, a running sum and a running output."""

    def merge_attention(self, outputs: Numbers, log_sum_exps: Numbers) -> Numbers:
        """Merge the parts in order; parts without keys change nothing."""
        zero, shape = outputs.dtype.type(0), np.broadcast_shapes(outputs.shape[:-2], log_sum_exps.shape[:-1])
        summed, total = np.zeros((*shape, outputs.shape[-1]), outputs.dtype), np.zeros(shape, outputs.dtype)
        highest = np.full(shape, -np.inf, outputs.dtype)
        for part in range(outputs.shape[-2]):
            other = log_sum_exps[..., part]
            above = np.maximum(highest, other)
            safe = np.where(above == -np.inf, zero, above)
            decay, weight = self.exponential(highest - safe), self.exponential(other - safe)
            new = np.where((other == -np.inf)[..., None], zero, outputs[..., part, :])
            summed, total = summed * decay[..., None] + new * weight[..., None], total * decay + weight
            highest = above
        safe = np.where(total == 0, total.dtype.type(1), total)
        return summed / safe[..., None], np.where(total == 0, -np.inf, highest + np.log(safe)).astype(outputs.dtype)


@variant(
    "rotary angles in single precision",
    operations=(RotaryEmbedding, AxialRotaryEmbedding),
    dtypes=("float32", "bfloat16", "float16"),
    differentiable=False,
)
class SingleAngles(Formulas):
    """Frequencies and angles are float32, as in model libraries."""

    def angles(self, positions: Numbers, d: int, theta: float) -> Numbers:
        """Angles in float32."""
        exponents = np.arange(0, d, 2, dtype=np.float32) / np.float32(d)
        return positions.astype(np.float32)[..., None] * (np.float32(1) / np.float32(theta) ** exponents)

    def axial_angles(self, positions: Numbers, frequencies: Numbers) -> Numbers:
        """Angles of several axes in float32."""
        return positions.astype(np.float32) @ frequencies.astype(np.float32)


@variant("rotary frequencies by logarithms", operations=(RotaryFrequencies,))
class ByLogarithms(Formulas):
    """Frequencies are computed in single precision, as exponentials of logarithms."""

    def unscaled_frequencies(self, pairs: int, theta: float) -> Numbers:
        """exp(−i log Θ/p), in the dtype of the result."""
        index: Numbers = np.arange(pairs, dtype=self.default)
        return np.exp(-index * self.default(np.log(theta) / pairs))


@variant("rotary in the complex plane", operations=(RotaryEmbedding, AxialRotaryEmbedding), differentiable=False)
class Complex(Formulas):
    """Pairs are rotated as (a + ib)(cos tθ + i sin tθ)."""

    def rotate(self, first: Numbers, second: Numbers, cosine: Numbers, sine: Numbers) -> tuple[Numbers, Numbers]:
        """Both features of every pair, rotated by one complex product."""
        number = (value_of(first) + 1j * value_of(second)) * (cosine + 1j * sine)
        return number.real.astype(first.dtype), number.imag.astype(first.dtype)


@variant("buckets of distances in single precision", operations=(RelativePositionBias,))
class SingleLogarithms(Formulas):
    """Logarithms of distances are float32, as in T5."""

    def logarithmic_buckets(self, distance: Numbers, exact: int, wide: int, max_distance: int) -> Numbers:
        """Whole buckets by a float32 quotient that is not corrected."""
        logarithm = np.log((np.maximum(distance, exact) / exact).astype(np.float32))
        return (logarithm / np.float32(np.log(max_distance / exact)) * np.float32(wide)).astype(np.int64)


@variant("biases by products with the table", operations=(RelativePositionBias,))
class OneHot(Formulas):
    """Rows are products of the table with vectors of one 1."""

    def bucket_rows(self, table: Numbers, bucket: Numbers) -> Numbers:
        """Products of the table."""
        return (bucket[..., None] == np.arange(table.shape[0])).astype(table.dtype) @ table


@variant("sigmoids by tanh", operations=(SigmoidAttention,))
class SigmoidsByTanh(Formulas):
    """Weights are (1 + tanh x/2)/2, as in FlashSigmoid."""

    def sigmoid_of_scores(self, scores: Numbers) -> Numbers:
        """Half of 1 + tanh x/2."""
        half = scores.dtype.type(0.5)
        return half * np.tanh(half * scores) + half


@variant("trees by products of matrices", operations=(TreeMask,))
class Closure(Formulas):
    """Reachable tokens are those of a power of the matrix of parents."""

    def tree_mask(self, parents: Numbers) -> Numbers:
        """Squares of I + P, with P the matrix of parents."""
        own = np.arange(parents.shape[-1])
        reached = (parents[..., None] == own) & self.is_earlier(parents, own)[..., None] | (own[:, None] == own)
        for _ in range(len(own).bit_length()):
            reached = reached @ reached
        return reached


@variant("dropout by a reciprocal", operations=(Dropout,))
class Reciprocal(Formulas):
    """y/(1 − p) is computed as a product with 1/(1 − p)."""

    def dropout(self, weights: Numbers, *, keep: Numbers = None, rate: float = 0.0) -> Numbers:
        """Kept weights times the rounded reciprocal."""
        larger = weights * (weights.dtype.type(1) / weights.dtype.type(1 - rate))
        return larger if keep is None else np.where(keep, larger, larger.dtype.type(0))


@variant(
    "positions of slots by whole rounds",
    operations=(RollingBufferPositions,),
    replaces="rolling_buffer_positions",
)
def rounds_of_slots(correct: Formulas, lengths: Numbers, slots: int) -> Numbers:
    """Slot s has position s + rw, r being the last round that reached it."""
    last, slot = lengths[..., None].astype(np.int64) - 1, np.arange(slots)
    return np.where(slot <= last, slot + (last - slot) // slots * slots, -1)


@variant("positions by counting tokens", operations=(PositionsFromMask,), replaces="positions_from_mask")
def counted_tokens(correct: Formulas, mask: Numbers) -> Numbers:
    """The row of each token of a triangle times the mask."""
    before = np.tri(mask.shape[-1], k=-1, dtype=np.int64)
    return (mask.astype(np.int64) @ before.T) * mask


@variant("gates by division", operations=(GatedOutput,), differentiable=False)
class GatesByDivision(Formulas):
    """The output is divided by 1 + e^(−g), with ∞ where the exponential overflows."""

    def gated_output(self, x: Numbers, gate: Numbers) -> Numbers:
        """Quotients of outputs."""
        with np.errstate(over="ignore"):
            return x / (1 + self.exponential(-gate))
