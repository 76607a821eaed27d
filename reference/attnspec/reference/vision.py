"""Attention in vision: patches and transformers of images, attention gates, spatial attention."""

import numpy as np
from jaxtyping import Float

from attnspec.reference.attention import project
from attnspec.reference.defining.definition import defines
from attnspec.reference.normalization import sigmoid, softmax
from attnspec.reference.scoring import additive_scores
from attnspec.reference.seq2seq import concatenated
from attnspec.reference.transformer import encoder_stack, layer_norm
from attnspec.spec.transformer import EncoderLayerParameters, LayerNormParameters
from attnspec.spec.vision import (
    AttentionGate,
    AttentionGateParameters,
    AttentionSkip,
    Interpolate,
    PatchEmbedding,
    PatchEmbeddingParameters,
    Patchify,
    SpatialAttention,
    VitEncoder,
)

__all__ = [
    "attention_gate",
    "attention_skip",
    "interpolate",
    "patch_embedding",
    "patchify",
    "spatial_attention",
    "vit_encoder",
]


@defines(Patchify[np.ndarray])
def patchify(
    image: Float[np.ndarray, "*batch height width channels"], patch: int
) -> Float[np.ndarray, "*batch patches features"]:
    """Cut pixels (row, i, column, j, channel) into patches (row, column); their features are (i, j, channel)."""
    *batch, height, width, channels = image.shape
    rows, columns = height // patch, width // patch
    pixels = np.reshape(image, (*batch, rows, patch, columns, patch, channels))
    return np.reshape(np.swapaxes(pixels, -4, -3), (*batch, rows * columns, patch * patch * channels))


@defines(PatchEmbedding[np.ndarray])
def patch_embedding(
    image: Float[np.ndarray, "*batch height width channels"],
    parameters: PatchEmbeddingParameters[np.ndarray],
) -> Float[np.ndarray, "*batch tokens d"]:
    """Z₀ = [x_class; W x₁; …; W x_N] + P: class token and projected patches, plus positions."""
    d, patch, *_ = parameters.w.shape
    projected = project(patchify(image, patch), np.reshape(parameters.w, (d, -1))) + parameters.positions[1:]
    token = np.broadcast_to(parameters.class_token + parameters.positions[:1], (*projected.shape[:-2], 1, d))
    embedded: np.ndarray = np.concatenate([token, projected], axis=-2)
    return embedded


@defines(VitEncoder[np.ndarray])
def vit_encoder(
    image: Float[np.ndarray, "*batch height width channels"],
    embedding: PatchEmbeddingParameters[np.ndarray],
    layers: tuple[EncoderLayerParameters[np.ndarray], ...],
    final_norm: LayerNormParameters[np.ndarray],
) -> Float[np.ndarray, "*batch d"]:
    """y = LN(f_L(… f₁(Z₀) …))₀: the class token's row, after all layers f_l."""
    encoded = encoder_stack(patch_embedding(image, embedding), layers, norm="pre")
    return layer_norm(encoded[..., 0, :], final_norm)


@defines(Interpolate[np.ndarray])
def interpolate(
    x: Float[np.ndarray, "*batch slices_from rows_from columns_from channels"],
    slices: int,
    rows: int,
    columns: int,
    *,
    align_corners: bool = False,
) -> Float[np.ndarray, "*batch {slices} {rows} {columns} channels"]:
    """yᵢ = (1 − λ) x_⌊t⌋ + λ x_⌊t⌋₊₁ along each axis; t = (i + ½)a/b − ½ or i(a − 1)/(b − 1)."""
    for axis, size in zip((-4, -3, -2), (slices, rows, columns), strict=True):
        x = np.moveaxis(along_rows(np.moveaxis(x, axis, -2), size, align_corners), -2, axis)
    return x


def along_rows(x: np.ndarray, size: int, align_corners: bool) -> np.ndarray:
    """Interpolate x (*batch, a, d) linearly to (*batch, size, d)."""
    a = x.shape[-2]
    if a == size:
        return np.broadcast_to(x, x.shape)
    i, half = np.asarray(np.arange(size), dtype=x.dtype, like=x), x.dtype.type(0.5)
    position = i * (a - 1) / max(size - 1, 1) if align_corners else (i + half) * a / size - half
    lower, is_integer, in_range = _floor(a, size, align_corners)
    fraction = np.where(in_range, position - lower.astype(x.dtype), 0)[:, None]
    # The last term is 0 in exact arithmetic. It is needed where rounding moves a position below its exact integer.
    interpolated: np.ndarray = (
        x[..., lower, :] * (1 - fraction)
        + x[..., np.minimum(lower + 1, a - 1), :] * fraction
        + x[..., np.maximum(lower - is_integer, 0), :] * np.maximum(-fraction, 0)
    )
    return interpolated


def _floor(a: int, size: int, align_corners: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Exact facts about positions t clipped to 0..a−1: ⌊t⌋, t is an integer, t was not clipped; each (size,)."""
    i = np.arange(size)
    numerator, denominator = (i * (a - 1), max(size - 1, 1)) if align_corners else ((2 * i + 1) * a - size, 2 * size)
    clipped = np.clip(numerator, 0, (a - 1) * denominator)
    return clipped // denominator, clipped % denominator == 0, clipped == numerator


@defines(AttentionGate[np.ndarray])
def attention_gate(
    x: Float[np.ndarray, "*#batch slices rows columns d_x"],
    gating: Float[np.ndarray, "*#batch slices_from rows_from columns_from d_g"],
    parameters: AttentionGateParameters[np.ndarray],
) -> tuple[Float[np.ndarray, "*batch slices rows columns d_x"], Float[np.ndarray, "*batch slices rows columns"]]:
    """x̂ = α x; α = σ(ψᵀ max(0, W_x x + (W_g g)↑ + b_g) + b_ψ), where ↑ interpolates to the grid of x."""
    p = parameters
    signal = interpolate(project(gating, p.w_g), *x.shape[-4:-1])
    hidden = np.maximum(project(x, p.w_x) + signal + p.b_g, 0)
    coefficients = sigmoid((hidden @ p.psi[:, None])[..., 0] + p.b_psi)
    return coefficients[..., None] * x, coefficients


@defines(AttentionSkip[np.ndarray])
def attention_skip(
    x: Float[np.ndarray, "*#batch slices rows columns d_x"],
    gating: Float[np.ndarray, "*#batch slices_from rows_from columns_from d_g"],
    parameters: AttentionGateParameters[np.ndarray],
) -> Float[np.ndarray, "*batch slices rows columns d_x+d_g"]:
    """[x̂; g↑] with the gated x̂, where ↑ interpolates to the grid of x."""
    gated, _ = attention_gate(x, gating, parameters)
    return concatenated(gated, interpolate(gating, *x.shape[-4:-1]))


@defines(SpatialAttention[np.ndarray])
def spatial_attention(
    state: Float[np.ndarray, "*#batch d_s"],
    features: Float[np.ndarray, "*#batch rows columns d_h"],
    w_q: Float[np.ndarray, "h d_s"],
    w_k: Float[np.ndarray, "h d_h"],
    w_v: Float[np.ndarray, " h"],
) -> tuple[Float[np.ndarray, "*batch d_h"], Float[np.ndarray, "*batch rows columns"]]:
    """c = Σ α_rc h_rc over all rows and columns; α = softmax(w_vᵀ tanh(W_q s + W_k h_rc))."""
    *batch, rows, columns, d = features.shape
    places = np.reshape(features, (*batch, rows * columns, d))
    weights = softmax(additive_scores(state[..., None, :], places, w_q, w_k, w_v))
    context = (weights @ places)[..., 0, :]
    return context, np.reshape(weights[..., 0, :], (*weights.shape[:-2], rows, columns))
