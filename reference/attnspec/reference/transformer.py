"""The formulas of transformers."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

from attnspec.reference.attention import project
from attnspec.reference.defining.definition import defines
from attnspec.reference.multihead import multi_head_attention
from attnspec.spec.multihead import MultiHeadParameters
from attnspec.spec.transformer import (
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
)

__all__ = ["decoder_layer", "decoder_stack", "encoder_layer", "encoder_stack", "feed_forward", "layer_norm"]

EPSILON = 1e-5
"""What layer normalization adds to the variance."""


@defines(EncoderLayer[np.ndarray])
def encoder_layer(
    x: Float[np.ndarray, "*#batch n d"],
    parameters: EncoderLayerParameters[np.ndarray],
    *,
    mask: Bool[np.ndarray, "*#batch #n #n"] | None = None,
    norm: Literal["post", "pre"] = "post",
) -> Float[np.ndarray, "*batch n d"]:
    """Y = LN(X' + FF(X')) with X' = LN(X + MHA(X)); pre-norm Y = X' + FF(LN(X')) with X' = X + MHA(LN(X))."""
    p = parameters
    x = residual(x, lambda y: attend_in_heads(y, y, p.attention, mask), p.attention_norm, norm)
    return residual(x, lambda y: feed_forward(y, p.feed_forward), p.feed_forward_norm, norm)


@defines(EncoderStack[np.ndarray])
def encoder_stack(
    x: Float[np.ndarray, "*#batch n d"],
    layers: tuple[EncoderLayerParameters[np.ndarray], ...],
    *,
    mask: Bool[np.ndarray, "*#batch #n #n"] | None = None,
    norm: Literal["post", "pre"] = "post",
) -> Float[np.ndarray, "*batch n d"]:
    """Y = f_N(… f₂(f₁(X)) …)."""
    for layer in layers:
        x = encoder_layer(x, layer, mask=mask, norm=norm)
    return in_batch_of(x, mask)


@defines(DecoderLayer[np.ndarray])
def decoder_layer(
    x: Float[np.ndarray, "*#batch n d"],
    memory: Float[np.ndarray, "*#batch m d_m"],
    parameters: DecoderLayerParameters[np.ndarray],
    *,
    mask: Bool[np.ndarray, "*#batch #n #n"] | None = None,
    memory_mask: Bool[np.ndarray, "*#batch #n #m"] | None = None,
    norm: Literal["post", "pre"] = "post",
) -> Float[np.ndarray, "*batch n d"]:
    """Y = LN(X'' + FF(X'')) with X'' = LN(X' + MHA(X', Z, Z)) and X' = LN(X + MHA(X)), the last one causal."""
    p = parameters
    x = residual(x, lambda y: attend_in_heads(y, y, p.attention, mask, causal=True), p.attention_norm, norm)
    x = residual(x, lambda y: attend_in_heads(y, memory, p.cross_attention, memory_mask), p.cross_attention_norm, norm)
    return residual(x, lambda y: feed_forward(y, p.feed_forward), p.feed_forward_norm, norm)


@defines(DecoderStack[np.ndarray])
def decoder_stack(
    x: Float[np.ndarray, "*#batch n d"],
    memory: Float[np.ndarray, "*#batch m d_m"],
    layers: tuple[DecoderLayerParameters[np.ndarray], ...],
    *,
    mask: Bool[np.ndarray, "*#batch #n #n"] | None = None,
    memory_mask: Bool[np.ndarray, "*#batch #n #m"] | None = None,
    norm: Literal["post", "pre"] = "post",
) -> Float[np.ndarray, "*batch n d"]:
    """Y = f_N(… f₂(f₁(X, Z), Z) …, Z)."""
    for layer in layers:
        x = decoder_layer(x, memory, layer, mask=mask, memory_mask=memory_mask, norm=norm)
    return in_batch_of(x, memory, mask, memory_mask)


def attend_in_heads(
    x: np.ndarray,
    memory: np.ndarray,
    parameters: MultiHeadParameters[np.ndarray],
    mask: np.ndarray | None,
    *,
    causal: bool = False,
) -> np.ndarray:
    """Multi-head attention of x (*batch, n, d) to the rows of a memory (*batch, m, d_m), which may be x."""
    w = parameters
    return multi_head_attention(x, memory, memory, w.w_q, w.w_k, w.w_v, w.w_o, mask=mask, causal=causal)


def in_batch_of(x: np.ndarray, *others: np.ndarray | None) -> np.ndarray:
    """x (*batch, n, d) repeated for the batches of other arrays with two more dimensions each."""
    batch = np.broadcast_shapes(x.shape[:-2], *(other.shape[:-2] for other in others if other is not None))
    return np.broadcast_to(x, (*batch, *x.shape[-2:]))


def residual(
    x: np.ndarray,
    sublayer: Callable[[np.ndarray], np.ndarray],
    parameters: LayerNormParameters[np.ndarray],
    norm: Literal["post", "pre"],
) -> np.ndarray:
    """A sublayer with its residual connection on x (*batch, n, d), normalized after the sum or before the sublayer."""
    if norm == "post":
        return layer_norm(x + sublayer(x), parameters)
    added: np.ndarray = x + sublayer(layer_norm(x, parameters))
    return added


@defines(LayerNorm[np.ndarray])
def layer_norm(
    x: Float[np.ndarray, "*batch d"], parameters: LayerNormParameters[np.ndarray]
) -> Float[np.ndarray, "*batch d"]:
    """y = g ⊙ (x − x̄)/√(v + ε) + b, with x̄ and v the mean and the variance of the features."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(np.square(centred), axis=-1, keepdims=True)
    normalized: np.ndarray = centred / np.sqrt(variance + variance.dtype.type(EPSILON))
    scaled: np.ndarray = parameters.gain * normalized + parameters.bias
    return scaled


@defines(FeedForward[np.ndarray])
def feed_forward(
    x: Float[np.ndarray, "*batch d"], parameters: FeedForwardParameters[np.ndarray]
) -> Float[np.ndarray, "*batch d"]:
    """y = W₂ max(0, W₁x + b₁) + b₂."""
    hidden = np.maximum(project(x, parameters.w_1) + parameters.b_1, 0)
    result: np.ndarray = project(hidden, parameters.w_2) + parameters.b_2
    return result
