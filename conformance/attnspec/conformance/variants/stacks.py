"""Variants of layer norm, feed-forward layers, patches and interpolation."""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.variants.registry import variant
from attnspec.spec.transformer import (
    GELU,
    AddRMSNorm,
    DecoderLayer,
    EncoderLayer,
    EncoderStack,
    FeedForward,
    FeedForwardParameters,
    GatedFeedForward,
    LayerNorm,
    LayerNormParameters,
    RMSNorm,
)
from attnspec.spec.vision import (
    AttentionGate,
    AttentionSkip,
    Interpolate,
    PatchEmbedding,
    PatchEmbeddingParameters,
    VitEncoder,
)


@variant(
    "variance from one pass, declared",
    operations=(LayerNorm,),
    precision={"float32": "ieee32+one-pass-variance"},
    differentiable=False,
)
class OnePass(Formulas):
    """The variance is E[x²] − E[x]²."""

    def layer_norm(self, x: Numbers, parameters: LayerNormParameters[Numbers], *, epsilon: float = 1e-5) -> Numbers:
        """Layer norm with both sums in one pass; a negative variance becomes 0."""
        p, mean = parameters, np.mean(x, axis=-1, keepdims=True)
        variance = np.maximum(np.mean(x * x, axis=-1, keepdims=True) - mean * mean, 0)
        return p.gain * (x - mean) / np.sqrt(variance + x.dtype.type(self.epsilon(epsilon))) + p.bias


@variant("variance updated element by element", operations=(LayerNorm, EncoderLayer), differentiable=False)
class Welford(Formulas):
    """The variance follows Welford's recurrence, in one pass without cancellation."""

    def layer_norm(self, x: Numbers, parameters: LayerNormParameters[Numbers], *, epsilon: float = 1e-5) -> Numbers:
        """Layer norm by running mean and running sum of squares."""
        p = parameters
        mean, squares = np.zeros_like(x[..., :1]), np.zeros_like(x[..., :1])
        for i in range(x.shape[-1]):
            new = x[..., i : i + 1]
            before, mean = mean, mean + (new - mean) / x.dtype.type(i + 1)
            squares = squares + (new - before) * (new - mean)
        variance = squares / x.dtype.type(max(x.shape[-1], 1))
        return p.gain * (x - mean) / np.sqrt(variance + x.dtype.type(self.epsilon(epsilon))) + p.bias


@variant("deviations multiplied by a reciprocal root", operations=(LayerNorm, EncoderStack, VitEncoder))
class ReciprocalRoot(Formulas):
    """Rows are (x − μ)·(1/σ), then multiplied by the gain."""

    def layer_norm(self, x: Numbers, parameters: LayerNormParameters[Numbers], *, epsilon: float = 1e-5) -> Numbers:
        """Layer norm with one division per row."""
        p = parameters
        centred = x - np.mean(x, axis=-1, keepdims=True)
        root = 1 / np.sqrt(self.variance(centred) + x.dtype.type(self.epsilon(epsilon)))
        return (centred * root) * p.gain + p.bias


@variant("rows multiplied by the reciprocal root mean square", operations=(RMSNorm, AddRMSNorm))
class ReciprocalRootMeanSquare(Formulas):
    """Rows are multiplied by 1/√(s + ε), then by the weight."""

    def rms_norm(self, x: Numbers, weight: Numbers, *, epsilon: float = 1e-6) -> Numbers:
        """RMS normalization with one division per row."""
        return x * (1 / self.root_mean_square(x, epsilon)) * self.rms_factor(weight)


@variant("erf by a polynomial of 1/(1 + p|x|)", operations=(GELU,), dtypes=("float32",), differentiable=False)
class PolynomialErf(Formulas):
    """erf is formula 7.1.26 of Abramowitz and Stegun, with errors below 1.5 · 10⁻⁷."""

    def erf(self, x: Numbers) -> Numbers:
        """1 − P(t) exp(−x²) of |x|, with its sign; t = 1/(1 + p|x|)."""
        real = x.dtype.type
        t = 1 / (1 + real(0.3275911) * np.abs(x))
        polynomial = np.zeros_like(t)
        for coefficient in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
            polynomial = (polynomial + real(coefficient)) * t
        return np.sign(x) * (1 - polynomial * np.exp(-(x * x)))


@variant("silu divides by 1 + exp(−z)", operations=(GatedFeedForward,))
class DividedSilu(Formulas):
    """silu is z/(1 + exp(−z)), from an exponential of at most 1."""

    def silu(self, x: Numbers) -> Numbers:
        """SiLU by one division; for negative z it is z exp(z)/(exp(z) + 1)."""
        decayed = np.exp(-np.abs(x))
        return x * np.where(x < 0, decayed, x.dtype.type(1)) / (1 + decayed)


@variant(
    "normalized rows rounded before the weight, sums before the norm, declared",
    operations=(RMSNorm, AddRMSNorm),
    dtypes=("bfloat16",),
    precision={"bfloat16": "eager-bfloat16"},
    differentiable=False,
)
class RoundedBeforeWeight(Formulas):
    """Rows are rounded before the weight multiplies them, as in Llama's model code."""

    def rms_norm(self, x: Numbers, weight: Numbers, *, epsilon: float = 1e-6) -> Numbers:
        """RMS normalization with a rounding in its middle."""
        return self.rms_factor(weight) * rounded(x / self.root_mean_square(x, epsilon), "bfloat16")

    def add_rms_norm(
        self, x: Numbers, residual: Numbers, weight: Numbers, *, epsilon: float = 1e-6
    ) -> tuple[Numbers, Numbers]:
        """The norm of the rounded sum, as in vLLM's CUDA kernel (vllm-project/vllm#52104)."""
        total = rounded(x + residual, "bfloat16")
        return self.rms_norm(total, weight, epsilon=epsilon), total


@variant("hidden units in three parts", operations=(FeedForward, DecoderLayer))
class HiddenInParts(Formulas):
    """Thirds of the hidden layer pass through both matrices separately and are summed."""

    def feed_forward(self, x: Numbers, parameters: FeedForwardParameters[Numbers]) -> Numbers:
        """Feed-forward layer in three parts, as if spread over devices."""
        p, rows = parameters, x[..., None, :]  # ``project`` takes matrices: each vector becomes one row
        h = p.w_1.shape[0]
        total = p.b_2
        for i in range(3):
            part = slice(h * i // 3, h * (i + 1) // 3)
            hidden = self.relu(self.project(rows, p.w_1[part]) + p.b_1[part])
            total = total + self.project(hidden, p.w_2[:, part])
        return total[..., 0, :]


@variant("patches by a convolution", operations=(PatchEmbedding, VitEncoder), differentiable=False)
class Convolved(Formulas):
    """Patches are embedded by one product per pixel position, for all patches together."""

    def patch_embedding(self, image: Numbers, parameters: PatchEmbeddingParameters[Numbers]) -> Numbers:
        """Patch embedding by a convolution whose stride is its width."""
        p = parameters
        d, patch, *_ = p.w.shape
        *batch, height, width, channels = image.shape
        patches = height // patch * (width // patch)
        total = np.zeros((*batch, patches, d), image.dtype)
        for i in range(patch):
            for j in range(patch):
                pixels = image[..., i::patch, j::patch, :].reshape(*batch, patches, channels)
                total = total + self.project(pixels, p.w[:, i, j])
        return self.place_tokens(p.class_token, total, p.positions)


@variant("interpolation as a + t(b − a)", operations=(Interpolate, AttentionGate, AttentionSkip))
class Stepped(Formulas):
    """Interpolation is a + t(b − a)."""

    def mix_neighbours(self, lower: Numbers, upper: Numbers, share: Numbers) -> Numbers:
        """Mean of two neighbours by one product."""
        return lower + share * (upper - lower)
