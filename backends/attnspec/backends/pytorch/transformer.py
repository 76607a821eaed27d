"""Transformer operations. Protocols: ``attnspec.spec.transformer``."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import linear

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.kernels.dot.sdpa import attend as dot_attention
from attnspec.backends.pytorch.multihead import attend_in_heads, per_head
from attnspec.backends.pytorch.positional import sinusoids
from attnspec.backends.pytorch.runtime.accumulation import projected, widened
from attnspec.backends.pytorch.runtime.autocast import keeps, lowers
from attnspec.backends.pytorch.runtime.ranges import refuse_outside
from attnspec.backends.pytorch.runtime.tables import rows
from attnspec.backends.pytorch.seq2seq import distribution
from attnspec.spec import (
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
    KeyValueCache,
    LanguageModelParameters,
    LayerNorm,
    LayerNormParameters,
    implements,
)
from attnspec.spec.contract.tree import Shape

__all__ = [
    "cached_decoder_step",
    "decoder_layer",
    "decoder_only",
    "decoder_stack",
    "encoder_decoder",
    "encoder_layer",
    "encoder_only",
    "encoder_stack",
    "feed_forward",
    "layer_norm",
]

_layer_norm = Check("layer_norm")
_encoder_stack = Check("encoder_stack")
_feed_forward = Check("feed_forward")
_encoder_layer = Check("encoder_layer")
_decoder_layer = Check("decoder_layer")
_decoder_stack = Check("decoder_stack")
_cached_step = Check("cached_decoder_step")
_encoder_decoder = Check("encoder_decoder")
_decoder_only = Check("decoder_only")
_encoder_only = Check("encoder_only")

EPSILON = 1e-5
"""Number that layer normalization adds to the variance."""


def normalized(x: Tensor, parameters: LayerNormParameters[Tensor]) -> Tensor:
    """Layer normalization over the last dimension, in the dtype of x."""
    gain, bias = parameters.gain.to(x.dtype), parameters.bias.to(x.dtype)
    return torch.layer_norm(x, x.shape[-1:], gain, bias, EPSILON)


def _two_layers(x: Tensor, parameters: FeedForwardParameters[Tensor]) -> Tensor:
    """The feed-forward network on the last dimension, in float32 for half dtypes."""
    p = parameters
    return linear(linear(x, widened(p.w_1), widened(p.b_1)).relu(), widened(p.w_2), widened(p.b_2))


@implements(LayerNorm[Tensor])
@keeps
def layer_norm(x: Float[Tensor, "*batch d"], parameters: LayerNormParameters[Tensor]) -> Float[Tensor, "*batch d"]:
    """PyTorch's layer normalization; half dtypes in float32."""
    _layer_norm(x, parameters)
    return normalized(widened(x), parameters).to(x.dtype)


@implements(FeedForward[Tensor])
@lowers
def feed_forward(x: Float[Tensor, "*batch d"], parameters: FeedForwardParameters[Tensor]) -> Float[Tensor, "*batch d"]:
    """Two linear layers with ReLU in between; half dtypes in float32."""
    _feed_forward(x, parameters)
    return _two_layers(widened(x), parameters).to(x.dtype)


@implements(EncoderLayer[Tensor])
@lowers
def encoder_layer(
    x: Float[Tensor, "*#batch n d"],
    parameters: EncoderLayerParameters[Tensor],
    *,
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
    norm: Literal["post", "pre"] = "post",
) -> Float[Tensor, "*batch n d"]:
    """One encoder layer: attention in the dtype of x; sums and norms of half dtypes in float32."""
    _encoder_layer(x, parameters, mask, norm=norm)
    return _layer(widened(x), parameters, mask, norm, x.dtype).to(x.dtype)


@implements(EncoderStack[Tensor])
@lowers
def encoder_stack(
    x: Float[Tensor, "*#batch n d"],
    layers: tuple[EncoderLayerParameters[Tensor], ...],
    *,
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
    norm: Literal["post", "pre"] = "post",
) -> Float[Tensor, "*batch n d"]:
    """Encoder layers one after another; half dtypes are float32 between them."""
    shape = _encoder_stack(x, layers, mask, norm=norm)
    y = encoded(widened(x), layers, mask, norm, x.dtype)
    return y.expand(shape).to(x.dtype, copy=len(layers) == 0).contiguous()


@implements(DecoderLayer[Tensor])
@lowers
def decoder_layer(
    x: Float[Tensor, "*#batch n d"],
    memory: Float[Tensor, "*#batch m d_m"],
    parameters: DecoderLayerParameters[Tensor],
    *,
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
    memory_mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    norm: Literal["post", "pre"] = "post",
) -> Float[Tensor, "*batch n d"]:
    """One decoder layer: both attentions in the dtype of x; sums and norms of half dtypes in float32."""
    _decoder_layer(x, memory, parameters, mask, memory_mask, norm=norm)
    return _decode(widened(x), memory, parameters, mask, memory_mask, norm).to(x.dtype)


@implements(DecoderStack[Tensor])
@lowers
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
    y = _decoded(widened(x), memory, layers, mask, memory_mask, norm)
    return y.expand(shape).to(x.dtype, copy=len(layers) == 0).contiguous()


@implements(CachedDecoderStep[Tensor])
@lowers
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
    """One decoder layer for the next position, which attends to the cached ones and itself."""
    *batch, _ = _cached_step(x, cache, memory, parameters, mask, memory_mask, norm=norm)
    p, w, dtype, cached = parameters, parameters.attention, x.dtype, cache.key.shape[-2]
    row = widened(x).expand(*batch, -1).unsqueeze(-2)
    own = (row if norm == "post" else normalized(row, p.attention_norm)).to(dtype)
    key, value = (
        torch.cat((before.expand(*batch, -1, -1, -1), per_head(own, weight)), -2)
        for before, weight in ((cache.key, w.w_k), (cache.value, w.w_v))
    )
    allowed = None
    if mask is not None:
        every = mask.expand(*mask.shape[:-1], cached)
        allowed = torch.cat((every, every.new_ones(*every.shape[:-1], 1)), -1)[..., None, None, :]

    def attend(y: Tensor) -> Tensor:
        heads = dot_attention(per_head(y.to(dtype), w.w_q), key, value, mask=allowed, causal=False, in_layer=True)
        return widened(projected(heads.transpose(-3, -2).flatten(-2), w.w_o))

    seen = None if memory_mask is None else memory_mask.unsqueeze(-2)
    y = _added(row, attend, p.attention_norm, norm)
    return _looked_up(y, memory, p, seen, norm).squeeze(-2).to(dtype), KeyValueCache(key, value)


@implements(EncoderDecoder[Tensor])
@lowers
def encoder_decoder(
    source: Int[Tensor, "*#batch m"],
    target: Int[Tensor, "*#batch n"],
    parameters: EncoderDecoderParameters[Tensor],
    *,
    source_mask: Bool[Tensor, "*#batch #m"] | None = None,
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
) -> Float[Tensor, "*batch n vocabulary"]:
    """Token probabilities of an encoder-decoder; half dtypes are float32 between layers.

    Checking the tokens' range waits for the device; under transforms such as ``torch.compile`` it is skipped.
    """
    shape, p, dtype = _encoder_decoder(source, target, parameters, source_mask, mask), parameters, parameters.w.dtype
    refuse_outside("encoder_decoder", "source", source, p.source_embedding.shape[0] - 1)
    refuse_outside("encoder_decoder", "target", target, p.target_embedding.shape[0] - 1)
    seen = None if source_mask is None else source_mask.unsqueeze(-2)
    memory = encoded(_scaled_and_placed(source, p.source_embedding), p.encoder, seen, "post", dtype).to(dtype)
    y = _decoded(_scaled_and_placed(target, p.target_embedding), memory, p.decoder, mask, seen, "post")
    return _distribution(y, p.w, p.b, shape)


def _scaled_and_placed(tokens: Tensor, table: Tensor) -> Tensor:
    """Return √d times the embeddings plus sinusoids, in float32 or float64."""
    x = rows(tokens, widened(table))
    n, d = x.shape[-2:]
    return torch.add(sinusoids(n, d, dtype=x.dtype, device=x.device), x, alpha=math.sqrt(d))


@implements(DecoderOnly[Tensor])
@lowers
def decoder_only(
    tokens: Int[Tensor, "*#batch n"],
    parameters: LanguageModelParameters[Tensor],
    *,
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
) -> Float[Tensor, "*batch n vocabulary"]:
    """Token probabilities of a causal language model. Tokens are checked as in `encoder_decoder`."""
    shape = _decoder_only(tokens, parameters, mask)
    refuse_outside("decoder_only", "tokens", tokens, parameters.embedding.shape[0] - 1)
    return _language_model(tokens, parameters, mask, shape, causal=True)


@implements(EncoderOnly[Tensor])
@lowers
def encoder_only(
    tokens: Int[Tensor, "*#batch n"],
    parameters: LanguageModelParameters[Tensor],
    *,
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
) -> Float[Tensor, "*batch n vocabulary"]:
    """Token probabilities of a bidirectional model. Tokens are checked as in `encoder_decoder`."""
    shape = _encoder_only(tokens, parameters, mask)
    refuse_outside("encoder_only", "tokens", tokens, parameters.embedding.shape[0] - 1)
    return _language_model(tokens, parameters, mask, shape, causal=False)


def _language_model(
    tokens: Tensor, parameters: LanguageModelParameters[Tensor], mask: Tensor | None, shape: Shape, *, causal: bool
) -> Tensor:
    """Return token probabilities from embeddings with learned positions, layers and an output layer."""
    p = parameters
    y = rows(tokens, widened(p.embedding)) + widened(p.positions[: tokens.shape[-1]])
    return _distribution(encoded(y, p.layers, mask, "post", p.w.dtype, causal=causal), p.w, p.b, shape)


def _distribution(y: Tensor, w: Tensor, b: Tensor, shape: Shape) -> Tensor:
    """Probabilities of all tokens for the whole batch, in the dtype of the weights."""
    return distribution(y, w, b).expand(shape).contiguous()


def encoded(
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
        y = _layer(y, layer, mask, norm, dtype, causal=causal)
    return y


def _decoded(
    y: Tensor,
    memory: Tensor,
    layers: tuple[DecoderLayerParameters[Tensor], ...],
    mask: Tensor | None,
    memory_mask: Tensor | None,
    norm: str,
) -> Tensor:
    """Apply decoder layers to y in float32 or float64, with attention in the memory's dtype."""
    for layer in layers:
        y = _decode(y, memory, layer, mask, memory_mask, norm)
    return y


def _layer(
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
    y = _attended(y, p, mask, norm, dtype, causal=causal)
    return _added(y, lambda x: _two_layers(x, p.feed_forward), p.feed_forward_norm, norm)


def _attended(
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
        return widened(attend_in_heads(x, x, parameters.attention, mask, causal=causal))

    return _added(y, attend, parameters.attention_norm, norm)


def _decode(
    y: Tensor,
    memory: Tensor,
    parameters: DecoderLayerParameters[Tensor],
    mask: Tensor | None,
    memory_mask: Tensor | None,
    norm: str,
) -> Tensor:
    """Apply one decoder layer to y in float32 or float64, with attention in the memory's dtype."""
    y = _attended(y, parameters, mask, norm, memory.dtype, causal=True)
    return _looked_up(y, memory, parameters, memory_mask, norm)


def _looked_up(
    y: Tensor, memory: Tensor, parameters: DecoderLayerParameters[Tensor], memory_mask: Tensor | None, norm: str
) -> Tensor:
    """Apply the rest of a decoder layer: attention to the memory, then the feed-forward network."""
    p = parameters

    def look_up(x: Tensor) -> Tensor:
        return widened(attend_in_heads(x.to(memory.dtype), memory, p.cross_attention, memory_mask))

    y = _added(y, look_up, p.cross_attention_norm, norm)
    return _added(y, lambda x: _two_layers(x, p.feed_forward), p.feed_forward_norm, norm)


def _added(
    y: Tensor, sublayer: Callable[[Tensor], Tensor], parameters: LayerNormParameters[Tensor], norm: str
) -> Tensor:
    """Add a sublayer's output to y; normalize its input ("pre") or the sum ("post")."""
    if norm == "pre":
        return y + sublayer(normalized(y, parameters))
    return normalized(y + sublayer(y), parameters)
