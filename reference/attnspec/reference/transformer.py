"""Transformers: encoder and decoder layers, stacks, whole models, and the sublayers that they share."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from attnspec.reference.attention import project, scaled_dot_product_attention
from attnspec.reference.defining.arithmetic import in_arithmetic_of
from attnspec.reference.defining.choices import choice
from attnspec.reference.defining.definition import defines
from attnspec.reference.masking import joint_mask
from attnspec.reference.multihead import merge_heads, multi_head_attention
from attnspec.reference.normalization import erf, sigmoid
from attnspec.reference.positional import learned_positions, sinusoidal_positional_encoding
from attnspec.reference.seq2seq import for_every_query, output_distribution
from attnspec.spec.multihead import MultiHeadParameters
from attnspec.spec.transformer import (
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
)

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

EPSILON = 1e-5
"""The ε that layers add to the variance."""


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
    """Y = f_N(… f₂(f₁(X)) …), with the encoder layer f_i of layer i."""
    for layer in layers:
        x = encoder_layer(x, layer, mask=mask, norm=norm)
    return broadcast_batch(x, mask)


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
    """Y = LN(X'' + FF(X'')); X'' = LN(X' + MHA(X', Z, Z)) and X' = LN(X + MHA(X)) with causal MHA(X)."""
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
    """Y = f_N(… f₂(f₁(X, Z), Z) …, Z): all decoder layers attend to the same memory Z."""
    for layer in layers:
        x = decoder_layer(x, memory, layer, mask=mask, memory_mask=memory_mask, norm=norm)
    return broadcast_batch(x, memory, mask, memory_mask)


@defines(CachedDecoderStep[np.ndarray])
def cached_decoder_step(
    x: Float[np.ndarray, "*#batch d"],
    cache: KeyValueCache[np.ndarray],
    memory: Float[np.ndarray, "*#batch m d_m"],
    parameters: DecoderLayerParameters[np.ndarray],
    *,
    mask: Bool[np.ndarray, "*#batch #cached"] | None = None,
    memory_mask: Bool[np.ndarray, "*#batch #m"] | None = None,
    norm: Literal["post", "pre"] = "post",
) -> tuple[Float[np.ndarray, "*batch d"], KeyValueCache[np.ndarray]]:
    """y = Decoder(x₀, …, x_t; Z)_t, with keys and values of x₀, …, x_{t−1} from the cache."""
    p, w = parameters, parameters.attention
    caches = cache.key[..., 0, :, :], cache.value[..., 0, :, :]
    row = broadcast_batch(x[..., None, :], *caches, memory, for_every_query(mask), for_every_query(memory_mask))
    new_row = row if norm == "post" else layer_norm(row, p.attention_norm)
    cached = KeyValueCache(appended(cache.key, new_row, w.w_k), appended(cache.value, new_row, w.w_v))
    allowed = None if mask is None else with_new_position(mask, cache.key.shape[-2])

    def attend(y: np.ndarray) -> np.ndarray:
        query = np.stack([project(y, w_q) for w_q in w.w_q], axis=-3)
        return project(merge_heads(scaled_dot_product_attention(query, cached.key, cached.value, mask=allowed)), w.w_o)

    row = residual(row, attend, p.attention_norm, norm)
    row = residual(
        row,
        lambda y: attend_in_heads(y, memory, p.cross_attention, for_every_query(memory_mask)),
        p.cross_attention_norm,
        norm,
    )
    return residual(row, lambda y: feed_forward(y, p.feed_forward), p.feed_forward_norm, norm)[..., 0, :], cached


def appended(cached: np.ndarray, row: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Project a row (*batch, 1, d) for every head; append it to cached keys or values (*batch, heads, t, p)."""
    projected = np.stack([project(row, head_weights) for head_weights in w], axis=-3)
    earlier = np.broadcast_to(cached, (*projected.shape[:-2], *cached.shape[-2:]))
    joined: np.ndarray = np.concatenate([earlier, projected], axis=-2)
    return joined


def with_new_position(mask: np.ndarray, cached: int) -> np.ndarray:
    """Extend a mask of cached positions (*batch, t) by the new position, True: (*batch, 1, 1, t + 1)."""
    full_mask = np.broadcast_to(mask, (*mask.shape[:-1], cached))
    return np.concatenate([full_mask, np.ones((*full_mask.shape[:-1], 1), bool)], axis=-1)[..., None, None, :]


@defines(EncoderDecoder[np.ndarray])
def encoder_decoder(
    source: Int[np.ndarray, "*#batch m"],
    target: Int[np.ndarray, "*#batch n"],
    parameters: EncoderDecoderParameters[np.ndarray],
    *,
    source_mask: Bool[np.ndarray, "*#batch #m"] | None = None,
    mask: Bool[np.ndarray, "*#batch #n #n"] | None = None,
) -> Float[np.ndarray, "*batch n vocabulary"]:
    """P = softmax(S Wᵀ + b); S = Decoder(√d E'_y + PE, Z) and Z = Encoder(√d E_x + PE)."""
    p, present = parameters, for_every_query(source_mask)
    memory = encoder_stack(add_sinusoids(p.source_embedding[source]), p.encoder, mask=present)
    states = decoder_stack(add_sinusoids(p.target_embedding[target]), memory, p.decoder, mask=mask, memory_mask=present)
    return output_distribution(states, p.w, p.b)


def add_sinusoids(embeddings: np.ndarray) -> np.ndarray:
    """√d x + PE for embeddings x (*batch, n, d); PE is the sinusoidal encoding of their positions."""
    n, d = embeddings.shape[-2:]
    with in_arithmetic_of(embeddings):
        positions = sinusoidal_positional_encoding(n, d)
    encoded: np.ndarray = embeddings * np.sqrt(embeddings.dtype.type(d)) + positions
    return encoded


@defines(DecoderOnly[np.ndarray])
def decoder_only(
    tokens: Int[np.ndarray, "*#batch n"],
    parameters: LanguageModelParameters[np.ndarray],
    *,
    mask: Bool[np.ndarray, "*#batch #n #n"] | None = None,
) -> Float[np.ndarray, "*batch n vocabulary"]:
    """P = softmax(S Wᵀ + b) with S = Encoder(E_x + T), causally masked."""
    n = tokens.shape[-1]
    return language_model(tokens, parameters, joint_mask(mask, True, n, n))


@defines(EncoderOnly[np.ndarray])
def encoder_only(
    tokens: Int[np.ndarray, "*#batch n"],
    parameters: LanguageModelParameters[np.ndarray],
    *,
    mask: Bool[np.ndarray, "*#batch #n #n"] | None = None,
) -> Float[np.ndarray, "*batch n vocabulary"]:
    """P = softmax(S Wᵀ + b) with S = Encoder(E_x + T)."""
    return language_model(tokens, parameters, mask)


def language_model(
    tokens: np.ndarray, parameters: LanguageModelParameters[np.ndarray], mask: np.ndarray | None
) -> np.ndarray:
    """P = softmax(S Wᵀ + b) with S = Encoder(E + T): embeddings E plus learned positions T."""
    p = parameters
    x = p.embedding[tokens] + learned_positions(p.positions, tokens.shape[-1])
    return output_distribution(encoder_stack(x, p.layers, mask=mask), p.w, p.b)


def attend_in_heads(
    x: np.ndarray,
    memory: np.ndarray,
    parameters: MultiHeadParameters[np.ndarray],
    mask: np.ndarray | None,
    *,
    causal: bool = False,
) -> np.ndarray:
    """MHA(X, Z, Z): attention of x (*batch, n, d) to a memory (*batch, m, d_m), which may be x."""
    w = parameters
    return multi_head_attention(x, memory, memory, w.w_q, w.w_k, w.w_v, w.w_o, mask=mask, causal=causal)


def broadcast_batch(x: np.ndarray, *others: np.ndarray | None) -> np.ndarray:
    """Broadcast x (*batch, n, d) to its common batch with other arrays (*batch, r, c)."""
    batch = np.broadcast_shapes(x.shape[:-2], *(other.shape[:-2] for other in others if other is not None))
    return np.broadcast_to(x, (*batch, *x.shape[-2:]))


def residual(
    x: np.ndarray,
    sublayer: Callable[[np.ndarray], np.ndarray],
    parameters: LayerNormParameters[np.ndarray],
    norm: Literal["post", "pre"],
) -> np.ndarray:
    """LN(x + sublayer(x)) for norm "post", x + sublayer(LN(x)) for "pre"; x is (*batch, n, d)."""
    if norm == "post":
        return layer_norm(x + sublayer(x), parameters)
    added: np.ndarray = x + sublayer(layer_norm(x, parameters))
    return added


@defines(LayerNorm[np.ndarray])
def layer_norm(
    x: Float[np.ndarray, "*batch d"], parameters: LayerNormParameters[np.ndarray], *, epsilon: float = EPSILON
) -> Float[np.ndarray, "*batch d"]:
    """y = g ⊙ (x − x̄)/√(v + ε) + b; x̄ and v are the mean and the variance of the features."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(np.square(centred), axis=-1, keepdims=True)
    normalized: np.ndarray = centred / np.sqrt(variance + variance.dtype.type(epsilon))
    scaled: np.ndarray = parameters.gain * normalized + parameters.bias
    return scaled


@defines(RMSNorm[np.ndarray])
def rms_norm(
    x: Float[np.ndarray, "*batch d"], weight: Float[np.ndarray, " d"], *, epsilon: float = 1e-6
) -> Float[np.ndarray, "*batch d"]:
    """y = w ⊙ x/√(s + ε); s is the mean of the squares. If `rms_weight` is "plus-one", 1 + w replaces w."""
    factor = weight if choice("rms_weight") == "as-given" else weight + 1
    squares = np.mean(np.square(x), axis=-1, keepdims=True)
    scaled: np.ndarray = factor * (x / np.sqrt(squares + squares.dtype.type(epsilon)))
    return scaled


@defines(AddRMSNorm[np.ndarray])
def add_rms_norm(
    x: Float[np.ndarray, "*#batch d"],
    residual: Float[np.ndarray, "*#batch d"],
    weight: Float[np.ndarray, " d"],
    *,
    epsilon: float = 1e-6,
) -> tuple[Float[np.ndarray, "*batch d"], Float[np.ndarray, "*batch d"]]:
    """Y = RMSNorm(Z) and Z = X + R: the sum is normalized before it is rounded."""
    total = x + residual
    return rms_norm(total, weight, epsilon=epsilon), total


@defines(FeedForward[np.ndarray])
def feed_forward(
    x: Float[np.ndarray, "*batch d"], parameters: FeedForwardParameters[np.ndarray]
) -> Float[np.ndarray, "*batch d"]:
    """y = W₂ max(0, W₁x + b₁) + b₂ at every position."""
    hidden = np.maximum(project(x, parameters.w_1) + parameters.b_1, 0)
    result: np.ndarray = project(hidden, parameters.w_2) + parameters.b_2
    return result


@defines(GELU[np.ndarray])
def gelu(x: Float[np.ndarray, "*batch d"]) -> Float[np.ndarray, "*batch d"]:
    """y = ½ x (1 + erf(x/√2)); if `gelu_form` is "tanh", tanh(√(2/π) (x + 0.044715 x³)) replaces erf(x/√2)."""
    real = x.dtype.type
    if choice("gelu_form") == "erf":
        bent = erf(x / np.sqrt(real(2)))
    else:
        factor = np.sqrt(1 / (2 * np.arctan(real(1))))
        bent = np.tanh(factor * (x + real(0.044715) * (x * x * x)))
    result: np.ndarray = real(0.5) * x * (1 + bent)
    return result


@defines(GatedFeedForward[np.ndarray])
def gated_feed_forward(
    x: Float[np.ndarray, "*batch d"], parameters: GatedFeedForwardParameters[np.ndarray]
) -> Float[np.ndarray, "*batch d"]:
    """y = W_d (silu(W_g x) ⊙ W_u x) with silu(z) = z σ(z)."""
    gate = project(x, parameters.w_gate)
    result: np.ndarray = project(gate * sigmoid(gate) * project(x, parameters.w_up), parameters.w_down)
    return result
