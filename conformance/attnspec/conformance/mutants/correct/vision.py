"""Correct formulas of patches, vision transformers, interpolation and attention gates."""

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.transformer import Transformer
from attnspec.spec.transformer import EncoderLayerParameters, LayerNormParameters
from attnspec.spec.vision import AttentionGateParameters, PatchEmbeddingParameters

Grid = tuple[int, int, int]


class Vision(Transformer):
    """Patches, attention gates and attention over feature maps."""

    # Images as sequences -----------------------------------------------------------------------------------------

    def patchify(self, image: Numbers, patch: int) -> Numbers:
        """Flattened patches of an image, row by row."""
        return self.flatten_patches(self.cut_patches(image, patch))

    def cut_patches(self, image: Numbers, patch: int) -> Numbers:
        """Reshape an image to (…, rows, columns, patch, patch, channels)."""
        *batch, height, width, channels = image.shape
        pixels = image.reshape(*batch, height // patch, patch, width // patch, patch, channels)
        return np.swapaxes(pixels, -4, -3)

    def flatten_patches(self, patches: Numbers) -> Numbers:
        """Flatten patches row by row, and the pixels within each patch likewise."""
        *batch, rows, columns, patch, _, channels = patches.shape
        return patches.reshape(*batch, rows * columns, patch * patch * channels)

    def patch_embedding(self, image: Numbers, parameters: PatchEmbeddingParameters[Numbers]) -> Numbers:
        """The class token followed by the projected patches, plus positions."""
        p = parameters
        d, patch, *_ = p.w.shape
        projected = self.project(self.patchify(image, patch), p.w.reshape(d, -1))
        return self.place_tokens(p.class_token, projected, p.positions)

    def place_tokens(self, token: Numbers, projected: Numbers, positions: Numbers) -> Numbers:
        """The class token followed by the patches, plus positions."""
        return self.prepend_token(token, projected) + positions

    def prepend_token(self, token: Numbers, projected: Numbers) -> Numbers:
        """Prepend the class token to the patches."""
        first = np.broadcast_to(token, (*projected.shape[:-2], 1, projected.shape[-1]))
        return np.concatenate([first, projected], axis=-2)

    def vit_encoder(
        self,
        image: Numbers,
        embedding: PatchEmbeddingParameters[Numbers],
        layers: tuple[EncoderLayerParameters[Numbers], ...],
        final_norm: LayerNormParameters[Numbers],
    ) -> Numbers:
        """The normalized class token after embedding and encoder layers."""
        encoded = self.encoder_stack(self.patch_embedding(image, embedding), layers, norm=self.encoder_norm())
        return self.representation(encoded, final_norm)

    def encoder_norm(self) -> str:
        """``norm`` of the encoder layers: "pre"."""
        return "pre"

    def representation(self, encoded: Numbers, final_norm: LayerNormParameters[Numbers]) -> Numbers:
        """The class token, normalized."""
        return self.layer_norm(encoded[..., 0, :], final_norm)

    # Interpolation -----------------------------------------------------------------------------------------------

    def interpolate(self, x: Numbers, slices: int, rows: int, columns: int, *, align_corners: bool = False) -> Numbers:
        """Linear interpolation of a map to another grid, axis by axis."""
        return self.resize(x, (slices, rows, columns), align_corners)

    def resize(self, x: Numbers, grid: Grid, align_corners: bool) -> Numbers:
        """Interpolate a map (…, slices, rows, columns, channels) to another grid."""
        for axis, size in zip((-4, -3, -2), grid, strict=True):
            x = np.moveaxis(self.resize_rows(np.moveaxis(x, axis, -2), size, align_corners), -2, axis)
        return x

    def resize_rows(self, x: Numbers, size: int, align_corners: bool) -> Numbers:
        """Linear interpolation of the rows of x (…, a, d)."""
        last = x.shape[-2] - 1
        t = self.source_positions(size, last + 1, align_corners).astype(x.dtype)
        t = self.clip_coordinates(t, last)
        lower = np.minimum(np.maximum(np.floor(t), 0), last).astype(int)
        share = self.upper_weight((t - lower.astype(x.dtype))[:, None])
        return self.mix_neighbours(x[..., lower, :], x[..., np.minimum(lower + 1, last), :], share)

    def mix_neighbours(self, lower: Numbers, upper: Numbers, share: Numbers) -> Numbers:
        """Mean of two neighbours; ``share`` is the weight of the upper one."""
        return lower * (1 - share) + upper * share

    def source_positions(self, size: int, a: int, align_corners: bool) -> Numbers:
        """Coordinates of ``size`` points on an axis of ``a`` points."""
        i = np.arange(size)
        return i * (a - 1) / max(size - 1, 1) if align_corners else (i + 0.5) * a / size - 0.5

    def clip_coordinates(self, t: Numbers, last: int) -> Numbers:
        """Clip coordinates to 0…last."""
        return np.clip(t, 0, last)

    def upper_weight(self, distance: Numbers) -> Numbers:
        """Weight of the upper neighbour from the distance to the lower one: the distance itself."""
        return distance

    # Gates -------------------------------------------------------------------------------------------------------

    def attention_gate(
        self, x: Numbers, gating: Numbers, parameters: AttentionGateParameters[Numbers]
    ) -> tuple[Numbers, Numbers]:
        """The gated features and the coefficients."""
        coefficients = self.coefficients(x, gating, parameters)
        return self.apply_gate(x, coefficients), coefficients

    def coefficients(self, x: Numbers, gating: Numbers, p: AttentionGateParameters[Numbers]) -> Numbers:
        """One attention coefficient for every point of x."""
        signal = self.upsample(self.project(gating, p.w_g), x)
        hidden = self.relu(self.project(x, p.w_x) + signal + p.b_g)
        return self.gate_activation(self.product(hidden, p.psi[:, None])[..., 0] + p.b_psi)

    def upsample(self, gating: Numbers, x: Numbers) -> Numbers:
        """The gating signal, interpolated to the grid of x."""
        slices, rows, columns = x.shape[-4:-1]
        return self.resize(gating, (slices, rows, columns), False)

    def gate_activation(self, x: Numbers) -> Numbers:
        """The logistic function by tanh, which cannot overflow."""
        half = x.dtype.type(0.5)
        return half * (1 + np.tanh(half * x))

    def apply_gate(self, x: Numbers, coefficients: Numbers) -> Numbers:
        """Features times the coefficient of their point."""
        return coefficients[..., None] * x

    def attention_skip(self, x: Numbers, gating: Numbers, parameters: AttentionGateParameters[Numbers]) -> Numbers:
        """The gated features and the interpolated signal, concatenated."""
        coefficients = self.coefficients(x, gating, parameters)
        return self.join_skip(x, coefficients, self.upsample(gating, x))

    def join_skip(self, x: Numbers, coefficients: Numbers, signal: Numbers) -> Numbers:
        """Concatenate the gated features and the signal."""
        return self.join_features(self.apply_gate(x, coefficients), signal)

    # Attention over a map ----------------------------------------------------------------------------------------

    def spatial_attention(
        self, state: Numbers, features: Numbers, w_q: Numbers, w_k: Numbers, w_v: Numbers
    ) -> tuple[Numbers, Numbers]:
        """The context vector and the map of weights."""
        *batch, rows, columns, d = features.shape
        points = features.reshape(*batch, rows * columns, d)
        scores = self.additive_scores(state[..., None, :], points, w_q, w_k, w_v)[..., 0, :]
        weights = self.normalize_map(scores, rows, columns)
        context = self.product(weights[..., None, :], points)[..., 0, :]
        return context, self.reshape_map(weights, rows, columns)

    def normalize_map(self, scores: Numbers, rows: int, columns: int) -> Numbers:
        """Softmax of the scores of all points, row by row."""
        return self.normalized(scores)

    def reshape_map(self, weights: Numbers, rows: int, columns: int) -> Numbers:
        """Reshape weights (…, rows · columns) to (…, rows, columns)."""
        return weights.reshape(*weights.shape[:-1], rows, columns)
