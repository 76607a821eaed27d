"""Correct formulas of vision."""

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.transformer import Transformer
from attnspec.spec.transformer import EncoderLayerParameters, LayerNormParameters
from attnspec.spec.vision import AttentionGateParameters, PatchEmbeddingParameters

Grid = tuple[int, int, int]


class Vision(Transformer):
    """Patches, gates and attention over maps."""

    # Images as sequences -----------------------------------------------------------------------------------------

    def patchify(self, image: Numbers, patch: int) -> Numbers:
        """Patches in order, each flattened."""
        return self.in_order(self.cut(image, patch))

    def cut(self, image: Numbers, patch: int) -> Numbers:
        """An image as (…, rows, columns, patch, patch, channels)."""
        *batch, height, width, channels = image.shape
        pixels = image.reshape(*batch, height // patch, patch, width // patch, patch, channels)
        return np.swapaxes(pixels, -4, -3)

    def in_order(self, patches: Numbers) -> Numbers:
        """Row by row, and so inside of each."""
        *batch, rows, columns, patch, _, channels = patches.shape
        return patches.reshape(*batch, rows * columns, patch * patch * channels)

    def patch_embedding(self, image: Numbers, parameters: PatchEmbeddingParameters[Numbers]) -> Numbers:
        """Projected patches behind the class token, with positions."""
        p = parameters
        d, patch, *_ = p.w.shape
        projected = self.project(self.patchify(image, patch), p.w.reshape(d, -1))
        return self.placed(p.class_token, projected, p.positions)

    def placed(self, token: Numbers, projected: Numbers, positions: Numbers) -> Numbers:
        """The class token, then the patches; each with its position."""
        return self.with_token(token, projected) + positions

    def with_token(self, token: Numbers, projected: Numbers) -> Numbers:
        """The class token in front."""
        first = np.broadcast_to(token, (*projected.shape[:-2], 1, projected.shape[-1]))
        return np.concatenate([first, projected], axis=-2)

    def vit_encoder(
        self,
        image: Numbers,
        embedding: PatchEmbeddingParameters[Numbers],
        layers: tuple[EncoderLayerParameters[Numbers], ...],
        final_norm: LayerNormParameters[Numbers],
    ) -> Numbers:
        """Embedding, layers, class token, normalization."""
        encoded = self.encoder_stack(self.patch_embedding(image, embedding), layers, norm=self.image_norm())
        return self.representation(encoded, final_norm)

    def image_norm(self) -> str:
        """Where the layers normalize."""
        return "pre"

    def representation(self, encoded: Numbers, final_norm: LayerNormParameters[Numbers]) -> Numbers:
        """The class token, normalized."""
        return self.layer_norm(encoded[..., 0, :], final_norm)

    # Interpolation -----------------------------------------------------------------------------------------------

    def interpolate(self, x: Numbers, slices: int, rows: int, columns: int, *, align_corners: bool = False) -> Numbers:
        """Axis by axis."""
        return self.on_grid(x, (slices, rows, columns), align_corners)

    def on_grid(self, x: Numbers, grid: Grid, align_corners: bool) -> Numbers:
        """A map (…, slices, rows, columns, channels) on another grid."""
        for axis, size in zip((-4, -3, -2), grid, strict=True):
            x = np.moveaxis(self.along_rows(np.moveaxis(x, axis, -2), size, align_corners), -2, axis)
        return x

    def along_rows(self, x: Numbers, size: int, align_corners: bool) -> Numbers:
        """Linear interpolation of the rows of x (…, a, d)."""
        last = x.shape[-2] - 1
        t = self.source_positions(size, last + 1, align_corners).astype(x.dtype)
        t = self.within(t, last)
        lower = np.minimum(np.maximum(np.floor(t), 0), last).astype(int)
        share = self.share((t - lower.astype(x.dtype))[:, None])
        return self.mixed(x[..., lower, :], x[..., np.minimum(lower + 1, last), :], share)

    def mixed(self, lower: Numbers, upper: Numbers, share: Numbers) -> Numbers:
        """The mean of two neighbours by the weight of the upper one."""
        return lower * (1 - share) + upper * share

    def source_positions(self, size: int, a: int, align_corners: bool) -> Numbers:
        """Where every place lies among a places."""
        i = np.arange(size)
        return i * (a - 1) / max(size - 1, 1) if align_corners else (i + 0.5) * a / size - 0.5

    def within(self, t: Numbers, last: int) -> Numbers:
        """No position lies beyond the outermost places."""
        return np.clip(t, 0, last)

    def share(self, distance: Numbers) -> Numbers:
        """The weight of the upper neighbour, by the distance from the lower one."""
        return distance

    # Gates -------------------------------------------------------------------------------------------------------

    def attention_gate(
        self, x: Numbers, gating: Numbers, parameters: AttentionGateParameters[Numbers]
    ) -> tuple[Numbers, Numbers]:
        """Gated features and coefficients."""
        coefficients = self.coefficients(x, gating, parameters)
        return self.gated(x, coefficients), coefficients

    def coefficients(self, x: Numbers, gating: Numbers, p: AttentionGateParameters[Numbers]) -> Numbers:
        """One coefficient for every place of x."""
        signal = self.upsampled(self.project(gating, p.w_g), x)
        hidden = self.rectified(self.project(x, p.w_x) + signal + p.b_g)
        return self.coefficient(self.product(hidden, p.psi[:, None])[..., 0] + p.b_psi)

    def upsampled(self, gating: Numbers, x: Numbers) -> Numbers:
        """The signal on the grid of x."""
        slices, rows, columns = x.shape[-4:-1]
        return self.on_grid(gating, (slices, rows, columns), False)

    def coefficient(self, x: Numbers) -> Numbers:
        """The logistic function, which cannot overflow."""
        half = x.dtype.type(0.5)
        return half * (1 + np.tanh(half * x))

    def gated(self, x: Numbers, coefficients: Numbers) -> Numbers:
        """Features times the coefficient of their place."""
        return coefficients[..., None] * x

    def attention_skip(self, x: Numbers, gating: Numbers, parameters: AttentionGateParameters[Numbers]) -> Numbers:
        """Gated features and the signal on their grid."""
        coefficients = self.coefficients(x, gating, parameters)
        return self.skipped(x, coefficients, self.upsampled(gating, x))

    def skipped(self, x: Numbers, coefficients: Numbers, signal: Numbers) -> Numbers:
        """Gated features, then the signal."""
        return self.beside(self.gated(x, coefficients), signal)

    # Attention over a map ----------------------------------------------------------------------------------------

    def spatial_attention(
        self, state: Numbers, features: Numbers, w_q: Numbers, w_k: Numbers, w_v: Numbers
    ) -> tuple[Numbers, Numbers]:
        """Context and map of weights."""
        *batch, rows, columns, d = features.shape
        places = features.reshape(*batch, rows * columns, d)
        scores = self.additive_scores(state[..., None, :], places, w_q, w_k, w_v)[..., 0, :]
        weights = self.over_places(scores, rows, columns)
        context = self.product(weights[..., None, :], places)[..., 0, :]
        return context, self.as_map(weights, rows, columns)

    def over_places(self, scores: Numbers, rows: int, columns: int) -> Numbers:
        """Weights of all places, row by row, from their scores."""
        return self.normalized(scores)

    def as_map(self, weights: Numbers, rows: int, columns: int) -> Numbers:
        """Weights (…, places) as (…, rows, columns)."""
        return weights.reshape(*weights.shape[:-1], rows, columns)
