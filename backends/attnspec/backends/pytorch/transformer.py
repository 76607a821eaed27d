"""Transformers. Protocols: ``attnspec.spec.transformer``."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import linear

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.multihead import attend_in_heads
from attnspec.backends.pytorch.runtime.accumulation import widened
from attnspec.backends.pytorch.runtime.autocast import keeps, lowers
from attnspec.spec import (
    DecoderLayer,
    DecoderLayerParameters,
    DecoderStack,
    EncoderLayer,
    EncoderLayerParameters,
    EncoderStack,
    FeedForward,
    FeedForwardParameters,
    LayerNorm,
    LayerNormParameters,
    implements,
)

__all__ = ["decoder_layer", "decoder_stack", "encoder_layer", "encoder_stack", "feed_forward", "layer_norm"]

_layer_norm = Check("layer_norm")
_encoder_stack = Check("encoder_stack")
_feed_forward = Check("feed_forward")
_encoder_layer = Check("encoder_layer")
_decoder_layer = Check("decoder_layer")
_decoder_stack = Check("decoder_stack")

EPSILON = 1e-5
"""What layer normalization adds to the variance."""


def normalized(x: Tensor, parameters: LayerNormParameters[Tensor]) -> Tensor:
    """Layer normalization over the last dimension, in the dtype of x."""
    gain, bias = parameters.gain.to(x.dtype), parameters.bias.to(x.dtype)
    return functional.layer_norm(x, x.shape[-1:], gain, bias, EPSILON)


def _two_layers(x: Tensor, parameters: FeedForwardParameters[Tensor]) -> Tensor:
    """The feed-forward network on the last dimension, in float32 for half dtypes."""
    p = parameters
    return linear(linear(x, widened(p.w_1), widened(p.b_1)).relu(), widened(p.w_2), widened(p.b_2))


@implements(LayerNorm[Tensor])
@keeps
def layer_norm(x: Float[Tensor, "*batch d"], parameters: LayerNormParameters[Tensor]) -> Float[Tensor, "*batch d"]:
    """PyTorch's layer normalization; that of half dtypes in float32."""
    _layer_norm(x, parameters)
    return normalized(widened(x), parameters).to(x.dtype)


@implements(FeedForward[Tensor])
@lowers
def feed_forward(x: Float[Tensor, "*batch d"], parameters: FeedForwardParameters[Tensor]) -> Float[Tensor, "*batch d"]:
    """Two linear layers with ReLU between them; those of half dtypes in float32."""
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
    """Attention in the dtype of x; sums and normalizations of half dtypes in float32."""
    _check_norm("encoder_layer", norm)
    _encoder_layer(x, parameters, mask)
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
    """Layer after layer; what goes from one to the next is float32 for half dtypes."""
    _check_norm("encoder_stack", norm)
    shape = _encoder_stack(x, layers, mask)
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
    """Both attentions in the dtype of x; sums and normalizations of half dtypes in float32."""
    _check_norm("decoder_layer", norm)
    _decoder_layer(x, memory, parameters, mask, memory_mask)
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
    """Layer after layer; half dtypes are kept in float32 between them."""
    _check_norm("decoder_stack", norm)
    shape = _decoder_stack(x, memory, layers, mask, memory_mask)
    y = widened(x)
    for layer in layers:
        y = _decode(y, memory, layer, mask, memory_mask, norm)
    return y.expand(shape).to(x.dtype, copy=len(layers) == 0).contiguous()


def _check_norm(operation: str, norm: str) -> None:
    if norm not in ("post", "pre"):
        raise TypeError(f"{operation}: norm: expected 'post' or 'pre'; got {norm!r}")


def encoded(
    y: Tensor,
    layers: tuple[EncoderLayerParameters[Tensor], ...],
    mask: Tensor | None,
    norm: str,
    dtype: torch.dtype,
) -> Tensor:
    """Layer after layer on y in float32 or wider, with attention in a dtype."""
    for layer in layers:
        y = _layer(y, layer, mask, norm, dtype)
    return y


def _layer(
    y: Tensor, parameters: EncoderLayerParameters[Tensor], mask: Tensor | None, norm: str, dtype: torch.dtype
) -> Tensor:
    """One layer on y in float32 or wider, with attention in a dtype."""
    p = parameters

    def attend(x: Tensor) -> Tensor:
        x = x.to(dtype)
        return widened(attend_in_heads(x, x, p.attention, mask))

    y = _added(y, attend, p.attention_norm, norm)
    return _added(y, lambda x: _two_layers(x, p.feed_forward), p.feed_forward_norm, norm)


def _decode(
    y: Tensor,
    memory: Tensor,
    parameters: DecoderLayerParameters[Tensor],
    mask: Tensor | None,
    memory_mask: Tensor | None,
    norm: str,
) -> Tensor:
    """One layer on y in float32 or wider, with attention in the dtype of the memory."""
    p, dtype = parameters, memory.dtype

    def attend(x: Tensor) -> Tensor:
        x = x.to(dtype)
        return widened(attend_in_heads(x, x, p.attention, mask, causal=True))

    def look_up(x: Tensor) -> Tensor:
        return widened(attend_in_heads(x.to(dtype), memory, p.cross_attention, memory_mask))

    y = _added(y, attend, p.attention_norm, norm)
    y = _added(y, look_up, p.cross_attention_norm, norm)
    return _added(y, lambda x: _two_layers(x, p.feed_forward), p.feed_forward_norm, norm)


def _added(
    y: Tensor, sublayer: Callable[[Tensor], Tensor], parameters: LayerNormParameters[Tensor], norm: str
) -> Tensor:
    """A sublayer added to y, and the sum normalized, or what the sublayer takes."""
    if norm == "pre":
        return y + sublayer(normalized(y, parameters))
    return normalized(y + sublayer(y), parameters)
