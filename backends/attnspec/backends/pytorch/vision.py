"""Vision operations. Protocols: ``attnspec.spec.vision``."""

from math import prod

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d
from torch.nn.functional import interpolate as resample

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.runtime.accumulation import times_vector, upcast
from attnspec.backends.pytorch.runtime.autocast import follows_autocast, ignores_autocast
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.products import add_product, operand, wide_linear, wide_product
from attnspec.backends.pytorch.runtime.recording import needs_gradients
from attnspec.backends.pytorch.scoring import projections
from attnspec.backends.pytorch.transformer import apply_encoder_layers, normalize
from attnspec.spec import (
    AttentionGate,
    AttentionGateParameters,
    AttentionSkip,
    EncoderLayerParameters,
    Interpolate,
    LayerNormParameters,
    PatchEmbedding,
    PatchEmbeddingParameters,
    Patchify,
    SpatialAttention,
    VitEncoder,
    implements,
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

_patchify = Check("patchify")
_patch_embedding = Check("patch_embedding")
_vit = Check("vit_encoder")
_interpolate = Check("interpolate")
_gate = Check("attention_gate")
_skip = Check("attention_skip")
_spatial = Check("spatial_attention")

CONVOLUTION_WORK, CONVOLUTION_WORK_WITH_GRADIENTS = 2**23, 2**26
"""Multiply-adds from which a CPU convolution beats copying patches and one product: without, and with gradients."""
LARGEST_CONVOLVED_PATCH = 16
"""Largest patch for which PyTorch's CPU convolution has a fast gradient."""


def _cut_patches(image: Tensor, patch: int) -> Tensor:
    """Copy the patches of an image: (*batch, rows·columns, patch·patch·channels)."""
    *batch, height, width, channels = image.shape
    rows, columns = height // patch, width // patch
    pixels = image.reshape(*batch, rows, patch, columns, patch * channels).transpose(-3, -2)
    copied = pixels.clone(memory_format=torch.contiguous_format)
    return copied.view(*batch, rows * columns, patch * patch * channels)


def _project_patches(image: Tensor, w: Tensor) -> Tensor:
    """Multiply the patches of an image by w (d, patch, patch, channels), unrounded."""
    *batch, height, width, channels = image.shape
    d, patch = w.shape[:2]
    if not _convolution_is_faster(image, w):
        return wide_linear(_cut_patches(image, patch), w.reshape(d, -1))
    images = image.reshape(prod(batch), height, width, channels).permute(0, 3, 1, 2)
    convolved = conv2d(images, w.permute(0, 3, 1, 2), stride=patch)
    return convolved.permute(0, 2, 3, 1).reshape(*batch, (height // patch) * (width // patch), d)


def _convolution_is_faster(image: Tensor, w: Tensor) -> bool:
    """Return whether a convolution is faster; never on GPUs, where it may round to TF32."""
    if not image.is_cpu or image.dtype is not torch.float32:
        return False
    multiply_adds = image.numel() * w.shape[0]
    if needs_gradients(image, w):
        return w.shape[1] <= LARGEST_CONVOLVED_PATCH and multiply_adds >= CONVOLUTION_WORK_WITH_GRADIENTS
    return multiply_adds >= CONVOLUTION_WORK


@implements(Patchify[Tensor])
@ignores_autocast
def patchify(
    image: Float[Tensor, "*batch height width channels"], patch: int
) -> Float[Tensor, "*batch patches features"]:
    """Return the patches as one copy, row by row of the grid."""
    _patchify(image, patch)
    return _cut_patches(image, patch)


def _embed_patches(image: Tensor, parameters: PatchEmbeddingParameters[Tensor]) -> Tensor:
    """Patch embeddings, in float32 for half dtypes."""
    p, positions = parameters, upcast(parameters.positions)
    projected = _project_patches(operand(image), operand(p.w))
    token = upcast(p.class_token) + positions[0]
    return torch.cat((token.expand(*projected.shape[:-2], 1, -1), projected + positions[1:]), -2)


@implements(PatchEmbedding[Tensor])
@follows_autocast
def patch_embedding(
    image: Float[Tensor, "*batch height width channels"], parameters: PatchEmbeddingParameters[Tensor]
) -> Float[Tensor, "*batch tokens d"]:
    """Embed by one product with all patches, or a convolution; half dtypes in float32."""
    _patch_embedding(image, parameters)
    return _embed_patches(image, parameters).to(image.dtype)


@implements(VitEncoder[Tensor])
@follows_autocast
def vit_encoder(
    image: Float[Tensor, "*batch height width channels"],
    embedding: PatchEmbeddingParameters[Tensor],
    layers: tuple[EncoderLayerParameters[Tensor], ...],
    final_norm: LayerNormParameters[Tensor],
) -> Float[Tensor, "*batch d"]:
    """Encode patches and return the normalized class token; half dtypes are float32 between layers."""
    _vit(image, embedding, layers, final_norm)
    y = apply_encoder_layers(_embed_patches(image, embedding), layers, None, "pre", image.dtype)
    return normalize(y[..., 0, :], final_norm).to(image.dtype)


def _resample(x: Tensor, sizes: tuple[int, ...], *, align_corners: bool = False) -> Tensor:
    """Resample x (*batch, slices, rows, columns, channels) to a grid of ``sizes``.

    x is float32 or float64, and returned itself if it has these sizes. Unchanged outer axes are merged into the batch,
    unchanged inner axes into the channels.
    """
    *batch, slices, rows, columns, channels = x.shape
    grid_sizes = (slices, rows, columns)
    changed = [axis for axis in range(3) if grid_sizes[axis] != sizes[axis]]
    if not changed:
        return x
    first, end = changed[0], changed[-1] + 1
    grid, target = grid_sizes[first:end], sizes[first:end]
    if len(grid) == 1:  # PyTorch interpolates 2 or 3 dimensions channels-last without a copy, but copies for 1
        grid, target = (*grid, 1), (*target, 1)
    merged = x.reshape(prod(batch) * prod(grid_sizes[:first]), *grid, prod(grid_sizes[end:]) * channels)
    mode = "bilinear" if len(grid) == 2 else "trilinear"
    y = resample(merged.movedim(-1, 1), target, mode=mode, align_corners=align_corners).movedim(1, -1)
    return y.reshape(*batch, *sizes, channels)


@implements(Interpolate[Tensor])
@ignores_autocast
def interpolate(
    x: Float[Tensor, "*batch slices_from rows_from columns_from channels"],
    slices: int,
    rows: int,
    columns: int,
    *,
    align_corners: bool = False,
) -> Float[Tensor, "*batch {slices} {rows} {columns} channels"]:
    """PyTorch's bilinear or trilinear interpolation, channels last; half dtypes in float32."""
    _interpolate(x, slices, rows, columns, align_corners=align_corners)
    y = _resample(upcast(x), (slices, rows, columns), align_corners=align_corners)
    return y.to(x.dtype, copy=y is x).contiguous()


def _apply_gate(x: Tensor, gating: Tensor, parameters: AttentionGateParameters[Tensor]) -> tuple[Tensor, Tensor]:
    """Return gated x and its coefficients, in float32 or float64."""
    w_x, w_g = operand(parameters.w_x), operand(parameters.w_g)
    b_g, psi, b_psi = (upcast(w) for w in (parameters.b_g, parameters.psi, parameters.b_psi))
    # Projection and bias on the coarser grid cost less and commute with interpolation, which preserves constants.
    signal = _resample(wide_linear(gating, w_g, b_g), tuple(x.shape[-4:-1]))
    if signal.shape[:-1] == x.shape[:-1]:
        hidden = add_product(signal.flatten(0, -2), x.flatten(0, -2), w_x.mT).relu_().view(signal.shape)
    else:
        hidden = (wide_linear(x, w_x) + signal).relu_()
    coefficients = (times_vector(hidden, psi) + b_psi).sigmoid_()
    return coefficients.unsqueeze(-1) * x, coefficients


@implements(AttentionGate[Tensor])
@follows_autocast
def attention_gate(
    x: Float[Tensor, "*#batch slices rows columns d_x"],
    gating: Float[Tensor, "*#batch slices_from rows_from columns_from d_g"],
    parameters: AttentionGateParameters[Tensor],
) -> tuple[Float[Tensor, "*batch slices rows columns d_x"], Float[Tensor, "*batch slices rows columns"]]:
    """Gate x by the gating signal, resampled to its grid; half dtypes in float32."""
    _gate(x, gating, parameters)
    gated, coefficients = _apply_gate(upcast(x), upcast(gating), parameters)
    return gated.to(x.dtype), coefficients.to(x.dtype)


@implements(AttentionSkip[Tensor])
@follows_autocast
def attention_skip(
    x: Float[Tensor, "*#batch slices rows columns d_x"],
    gating: Float[Tensor, "*#batch slices_from rows_from columns_from d_g"],
    parameters: AttentionGateParameters[Tensor],
) -> Float[Tensor, "*batch slices rows columns d_x+d_g"]:
    """Concatenate the gated features and the interpolated signal."""
    _skip(x, gating, parameters)
    wide = upcast(gating)  # one float32 tensor for both uses: their gradients are summed before they are rounded
    gated, _ = _apply_gate(upcast(x), wide, parameters)
    signal = _resample(wide, tuple(x.shape[-4:-1]))
    batch = broadcast(gated.shape[:-1], signal.shape[:-1])
    return torch.cat([y.expand(*batch, y.shape[-1]).to(x.dtype) for y in (gated, signal)], -1)


@implements(SpatialAttention[Tensor])
@follows_autocast
def spatial_attention(
    state: Float[Tensor, "*#batch d_s"],
    features: Float[Tensor, "*#batch rows columns d_h"],
    w_q: Float[Tensor, "h d_s"],
    w_k: Float[Tensor, "h d_h"],
    w_v: Float[Tensor, " h"],
) -> tuple[Float[Tensor, "*batch d_h"], Float[Tensor, "*batch rows columns"]]:
    """Additive attention over all places of the feature map, in plain PyTorch operations.

    With one query, the hidden units of all pairs are no larger than the projected features, so additive-attention
    kernels, which keep them out of memory, gain nothing: on the CPU their gradients take twice the time.
    """
    _spatial(state, features, w_q, w_k, w_v)
    places = upcast(features).flatten(-3, -2)
    a, b = projections(state.unsqueeze(-2), places, w_q, w_k)
    scores = times_vector((a + b).tanh_(), upcast(w_v)).unsqueeze(-2)
    weights = scores.softmax(-1)
    context = wide_product(weights, places, features.dtype).squeeze(-2)
    of_places = weights.reshape(*weights.shape[:-2], *features.shape[-3:-1])
    return context.to(state.dtype), of_places.to(state.dtype)
