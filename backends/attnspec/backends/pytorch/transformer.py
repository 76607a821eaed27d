"""Transformer operations. Protocols: ``attnspec.spec.transformer``."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.kernels.dot.sdpa import attend as dot_attention
from attnspec.backends.pytorch.kernels.root_mean_square import normalized
from attnspec.backends.pytorch.multihead import attend_in_heads, per_head
from attnspec.backends.pytorch.positional import sinusoids
from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.backends.pytorch.runtime.autocast import follows_autocast, ignores_autocast
from attnspec.backends.pytorch.runtime.products import project, wide_linear
from attnspec.backends.pytorch.runtime.ranges import refuse_out_of_range
from attnspec.backends.pytorch.runtime.tables import embedding_rows
from attnspec.backends.pytorch.seq2seq import token_probabilities
from attnspec.spec import (
    GELU,
    AddRMSNorm,
    CachedDecoderStep,
    DecoderLayer,
    DecoderLayerParameters,
    DecoderOnly,
    DecoderStack,
    EncoderDecoder,
    EncoderDecoderParameters,
    EncoderLayer,
    EncoderLayerParameters,
    EncoderOnly,
    EncoderStack,
    FeedForward,
    FeedForwardParameters,
    GatedFeedForward,
    GatedFeedForwardParameters,
    KeyValueCache,
    LanguageModelParameters,
    LayerNorm,
    LayerNormParameters,
    RMSNorm,
    implements,
)
from attnspec.spec.contract.tree import Shape

__all__ = [
    "add_rms_norm",
    "cached_decoder_step",
    "decoder_layer",
    "decoder_only",
    "decoder_stack",
    "encoder_decoder",
    "encoder_layer",
    "encoder_only",
    "encoder_stack",
    "feed_forward",
    "gated_feed_forward",
    "gelu",
    "layer_norm",
    "rms_norm",
]

_layer_norm = Check("layer_norm")
_rms_norm = Check("rms_norm")
_add_rms_norm = Check("add_rms_norm")
_encoder_stack = Check("encoder_stack")
_feed_forward = Check("feed_forward")
_gelu = Check("gelu")
_gated_feed_forward = Check("gated_feed_forward")
_encoder_layer = Check("encoder_layer")
_decoder_layer = Check("decoder_layer")
_decoder_stack = Check("decoder_stack")
_cached_step = Check("cached_decoder_step")
_encoder_decoder = Check("encoder_decoder")
_decoder_only = Check("decoder_only")
_encoder_only = Check("encoder_only")

EPSILON = 1e-5
"""Number that layer normalization adds to the variance."""


def normalize(x: Tensor, parameters: LayerNormParameters[Tensor], epsilon: float = EPSILON) -> Tensor:
    """Normalize the last dimension of x, in the dtype of x."""
    gain, bias = parameters.gain.to(x.dtype), parameters.bias.to(x.dtype)
    return torch.layer_norm(x, x.shape[-1:], gain, bias, epsilon)


def _apply_network(x: Tensor, parameters: FeedForwardParameters[Tensor]) -> Tensor:
    """Apply the feed-forward network to the last dimension, in float32 for half dtypes."""
    p = parameters
    return wide_linear(wide_linear(x, p.w_1, p.b_1).relu(), p.w_2, p.b_2)


@implements(LayerNorm[Tensor])
@ignores_autocast
def layer_norm(
    x: Float[Tensor, "*batch d"], parameters: LayerNormParameters[Tensor], *, epsilon: float = EPSILON
) -> Float[Tensor, "*batch d"]:
    """PyTorch's layer normalization; half dtypes in float32."""
    _layer_norm(x, parameters, epsilon)
    return normalize(upcast(x), parameters, epsilon).to(x.dtype)


@implements(RMSNorm[Tensor])
@ignores_autocast
def rms_norm(
    x: Float[Tensor, "*batch d"], weight: Float[Tensor, " d"], *, epsilon: float = 1e-6
) -> Float[Tensor, "*batch d"]:
    """x / √(mean x² + ε) w; half dtypes in float32."""
    _rms_norm(x, weight, epsilon)
    return normalized(upcast(x), upcast(weight), epsilon).to(x.dtype)


@implements(AddRMSNorm[Tensor])
@ignores_autocast
def add_rms_norm(
    x: Float[Tensor, "*#batch d"],
    residual: Float[Tensor, "*#batch d"],
    weight: Float[Tensor, " d"],
    *,
    epsilon: float = 1e-6,
) -> tuple[Float[Tensor, "*batch d"], Float[Tensor, "*batch d"]]:
    """RMS normalization of the sum, and the sum; half dtypes in float32."""
    _add_rms_norm(x, residual, weight, epsilon)
    total = upcast(x) + upcast(residual)
    return normalized(total, upcast(weight), epsilon).to(x.dtype), total.to(x.dtype)


@implements(FeedForward[Tensor])
@follows_autocast
def feed_forward(x: Float[Tensor, "*batch d"], parameters: FeedForwardParameters[Tensor]) -> Float[Tensor, "*batch d"]:
    """Two linear layers with ReLU in between; half dtypes in float32."""
    _feed_forward(x, parameters)
    return _apply_network(x, parameters).to(x.dtype)


@implements(GELU[Tensor])
@ignores_autocast
def gelu(x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """x/2 erfc(−x/√2), which keeps the digits of small results; half dtypes in float32.

    PyTorch's own GELU adds 1 and erf (pytorch/pytorch#187806); on CPUs, oneDNN's erf errs by up to 12 roundings.
    """
    _gelu(x)
    wide = upcast(x)
    return (0.5 * wide * torch.erfc(wide * -math.sqrt(0.5))).to(x.dtype)


@implements(GatedFeedForward[Tensor])
@follows_autocast
def gated_feed_forward(
    x: Float[Tensor, "*batch d"], parameters: GatedFeedForwardParameters[Tensor]
) -> Float[Tensor, "*batch d"]:
    """Three linear layers, silu of the gate; half dtypes in float32."""
    _gated_feed_forward(x, parameters)
    p = parameters
    hidden = functional.silu(wide_linear(x, p.w_gate)) * wide_linear(x, p.w_up)
    return wide_linear(hidden, p.w_down).to(x.dtype)


@implements(EncoderLayer[Tensor])
@follows_autocast
def encoder_layer(
    x: Float[Tensor, "*#batch n d"],
    parameters: EncoderLayerParameters[Tensor],
    *,
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
    norm: Literal["post", "pre"] = "post",
) -> Float[Tensor, "*batch n d"]:
    """One encoder layer; for half dtypes, sums and norms are in float32."""
    _encoder_layer(x, parameters, mask, norm=norm)
    return _apply_encoder_layer(upcast(x), parameters, mask, norm, x.dtype).to(x.dtype)


@implements(EncoderStack[Tensor])
@follows_autocast
def encoder_stack(
    x: Float[Tensor, "*#batch n d"],
    layers: tuple[EncoderLayerParameters[Tensor], ...],
    *,
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
    norm: Literal["post", "pre"] = "post",
) -> Float[Tensor, "*batch n d"]:
    """Encoder layers one after another; half dtypes are float32 between them."""
    shape = _encoder_stack(x, layers, mask, norm=norm)
    y = apply_encoder_layers(upcast(x), layers, mask, norm, x.dtype)
    return y.expand(shape).to(x.dtype, copy=len(layers) == 0).contiguous()


@implements(DecoderLayer[Tensor])
@follows_autocast
def decoder_layer(
    x: Float[Tensor, "*#batch n d"],
    memory: Float[Tensor, "*#batch m d_m"],
    parameters: DecoderLayerParameters[Tensor],
    *,
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
    memory_mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    norm: Literal["post", "pre"] = "post",
) -> Float[Tensor, "*batch n d"]:
    """One decoder layer; for half dtypes, sums and norms are in float32."""
    _decoder_layer(x, memory, parameters, mask, memory_mask, norm=norm)
    return _apply_decoder_layer(upcast(x), memory, parameters, mask, memory_mask, norm).to(x.dtype)


@implements(DecoderStack[Tensor])
@follows_autocast
def decoder_stack(
    x: Float[Tensor, "*#batch n d"],
    memory: Float[Tensor, "*#batch m d_m"],
    layers: tuple[DecoderLayerParameters[Tensor], ...],
    *,
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
    memory_mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    norm: Literal["post", "pre"] = "post",
) -> Float[Tensor, "*batch n d"]:
    """Decoder layers one after another; half dtypes are float32 between them."""
    shape = _decoder_stack(x, memory, layers, mask, memory_mask, norm=norm)
    y = _decode(upcast(x), memory, layers, mask, memory_mask, norm)
    return y.expand(shape).to(x.dtype, copy=len(layers) == 0).contiguous()


@implements(CachedDecoderStep[Tensor])
@follows_autocast
def cached_decoder_step(
    x: Float[Tensor, "*#batch d"],
    cache: KeyValueCache[Tensor],
    memory: Float[Tensor, "*#batch m d_m"],
    parameters: DecoderLayerParameters[Tensor],
    *,
    mask: Bool[Tensor, "*#batch #cached"] | None = None,
    memory_mask: Bool[Tensor, "*#batch #m"] | None = None,
    norm: Literal["post", "pre"] = "post",
) -> tuple[Float[Tensor, "*batch d"], KeyValueCache[Tensor]]:
    """One decoder layer for the next position, which attends to the cached positions and itself."""
    *batch, _ = _cached_step(x, cache, memory, parameters, mask, memory_mask, norm=norm)
    p, w, dtype, cached = parameters, parameters.attention, x.dtype, cache.key.shape[-2]
    row = upcast(x).expand(*batch, -1).unsqueeze(-2)
    normalized_row = (row if norm == "post" else normalize(row, p.attention_norm)).to(dtype)
    key, value = (
        torch.cat((cached_rows.expand(*batch, -1, -1, -1), per_head(normalized_row, weight)), -2)
        for cached_rows, weight in ((cache.key, w.w_k), (cache.value, w.w_v))
    )
    allowed = None
    if mask is not None:
        cached_mask = mask.expand(*mask.shape[:-1], cached)
        allowed = torch.cat((cached_mask, cached_mask.new_ones(*cached_mask.shape[:-1], 1)), -1)[..., None, None, :]

    def attend(y: Tensor) -> Tensor:
        heads = dot_attention(per_head(y.to(dtype), w.w_q), key, value, mask=allowed, causal=False, in_layer=True)
        return upcast(project(heads.transpose(-3, -2).flatten(-2), w.w_o))

    memory_rows = None if memory_mask is None else memory_mask.unsqueeze(-2)
    y = _add_residual(row, attend, p.attention_norm, norm)
    return _finish_decoder_layer(y, memory, p, memory_rows, norm).squeeze(-2).to(dtype), KeyValueCache(key, value)


@implements(EncoderDecoder[Tensor])
@follows_autocast
def encoder_decoder(
    source: Int[Tensor, "*#batch m"],
    target: Int[Tensor, "*#batch n"],
    parameters: EncoderDecoderParameters[Tensor],
    *,
    source_mask: Bool[Tensor, "*#batch #m"] | None = None,
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
) -> Float[Tensor, "*batch n vocabulary"]:
    """Token probabilities of an encoder-decoder; half dtypes are float32 between layers.

    The tokens' range is checked on the CPU alone, and not under transforms such as ``torch.compile``.
    """
    shape, p, dtype = _encoder_decoder(source, target, parameters, source_mask, mask), parameters, parameters.w.dtype
    refuse_out_of_range("encoder_decoder", "source", source, p.source_embedding.shape[0] - 1)
    refuse_out_of_range("encoder_decoder", "target", target, p.target_embedding.shape[0] - 1)
    row_mask = None if source_mask is None else source_mask.unsqueeze(-2)
    memory = apply_encoder_layers(_embed(source, p.source_embedding), p.encoder, row_mask, "post", dtype).to(dtype)
    y = _decode(_embed(target, p.target_embedding), memory, p.decoder, mask, row_mask, "post")
    return _batch_probabilities(y, p.w, p.b, shape)


def _embed(tokens: Tensor, table: Tensor) -> Tensor:
    """Return √d times the embeddings plus sinusoids, in float32 or float64."""
    x = embedding_rows(tokens, upcast(table))
    n, d = x.shape[-2:]
    return torch.add(sinusoids(n, d, dtype=x.dtype, device=x.device), x, alpha=math.sqrt(d))


@implements(DecoderOnly[Tensor])
@follows_autocast
def decoder_only(
    tokens: Int[Tensor, "*#batch n"],
    parameters: LanguageModelParameters[Tensor],
    *,
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
) -> Float[Tensor, "*batch n vocabulary"]:
    """Token probabilities of a causal language model. Tokens are checked as in `encoder_decoder`."""
    shape = _decoder_only(tokens, parameters, mask)
    refuse_out_of_range("decoder_only", "tokens", tokens, parameters.embedding.shape[0] - 1)
    return _language_model(tokens, parameters, mask, shape, causal=True)


@implements(EncoderOnly[Tensor])
@follows_autocast
def encoder_only(
    tokens: Int[Tensor, "*#batch n"],
    parameters: LanguageModelParameters[Tensor],
    *,
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
) -> Float[Tensor, "*batch n vocabulary"]:
    """Token probabilities of a bidirectional model. Tokens are checked as in `encoder_decoder`."""
    shape = _encoder_only(tokens, parameters, mask)
    refuse_out_of_range("encoder_only", "tokens", tokens, parameters.embedding.shape[0] - 1)
    return _language_model(tokens, parameters, mask, shape, causal=False)


def _language_model(
    tokens: Tensor, parameters: LanguageModelParameters[Tensor], mask: Tensor | None, shape: Shape, *, causal: bool
) -> Tensor:
    """Return token probabilities: embeddings plus learned positions, layers, and an output layer."""
    p = parameters
    y = embedding_rows(tokens, upcast(p.embedding)) + upcast(p.positions[: tokens.shape[-1]])
    y = apply_encoder_layers(y, p.layers, mask, "post", p.w.dtype, causal=causal)
    return _batch_probabilities(y, p.w, p.b, shape)


def _batch_probabilities(y: Tensor, w: Tensor, b: Tensor, shape: Shape) -> Tensor:
    return token_probabilities(y, w, b).expand(shape).contiguous()


def apply_encoder_layers(
    y: Tensor,
    layers: tuple[EncoderLayerParameters[Tensor], ...],
    mask: Tensor | None,
    norm: str,
    dtype: torch.dtype,
    *,
    causal: bool = False,
) -> Tensor:
    """Apply encoder layers to y in float32 or float64, with attention in `dtype`."""
    for layer in layers:
        y = _apply_encoder_layer(y, layer, mask, norm, dtype, causal=causal)
    return y


def _decode(
    y: Tensor,
    memory: Tensor,
    layers: tuple[DecoderLayerParameters[Tensor], ...],
    mask: Tensor | None,
    memory_mask: Tensor | None,
    norm: str,
) -> Tensor:
    """Apply decoder layers to y in float32 or float64, with attention in the memory's dtype."""
    for layer in layers:
        y = _apply_decoder_layer(y, memory, layer, mask, memory_mask, norm)
    return y


def _apply_encoder_layer(
    y: Tensor,
    parameters: EncoderLayerParameters[Tensor],
    mask: Tensor | None,
    norm: str,
    dtype: torch.dtype,
    *,
    causal: bool = False,
) -> Tensor:
    """Apply one encoder layer to y in float32 or float64, with attention in `dtype`."""
    p = parameters
    y = _apply_self_attention(y, p, mask, norm, dtype, causal=causal)
    return _add_residual(y, lambda x: _apply_network(x, p.feed_forward), p.feed_forward_norm, norm)


def _apply_self_attention(
    y: Tensor,
    parameters: EncoderLayerParameters[Tensor] | DecoderLayerParameters[Tensor],
    mask: Tensor | None,
    norm: str,
    dtype: torch.dtype,
    *,
    causal: bool,
) -> Tensor:
    """Apply self-attention with its residual connection and normalization."""

    def attend(x: Tensor) -> Tensor:
        x = x.to(dtype)
        return upcast(attend_in_heads(x, x, parameters.attention, mask, causal=causal))

    return _add_residual(y, attend, parameters.attention_norm, norm)


def _apply_decoder_layer(
    y: Tensor,
    memory: Tensor,
    parameters: DecoderLayerParameters[Tensor],
    mask: Tensor | None,
    memory_mask: Tensor | None,
    norm: str,
) -> Tensor:
    """Apply one decoder layer to upcast y, with attention in the memory's dtype."""
    y = _apply_self_attention(y, parameters, mask, norm, memory.dtype, causal=True)
    return _finish_decoder_layer(y, memory, parameters, memory_mask, norm)


def _finish_decoder_layer(
    y: Tensor, memory: Tensor, parameters: DecoderLayerParameters[Tensor], memory_mask: Tensor | None, norm: str
) -> Tensor:
    """Apply attention to the memory, then the feed-forward network."""
    p = parameters

    def look_up(x: Tensor) -> Tensor:
        return upcast(attend_in_heads(x.to(memory.dtype), memory, p.cross_attention, memory_mask))

    y = _add_residual(y, look_up, p.cross_attention_norm, norm)
    return _add_residual(y, lambda x: _apply_network(x, p.feed_forward), p.feed_forward_norm, norm)


def _add_residual(
    y: Tensor, sublayer: Callable[[Tensor], Tensor], parameters: LayerNormParameters[Tensor], norm: str
) -> Tensor:
    """Add a sublayer's output to y; normalize its input ("pre") or the sum ("post")."""
    if norm == "pre":
        return y + sublayer(normalize(y, parameters))
    return normalize(y + sublayer(y), parameters)
