"""Complexity: the cost of attention, and of the layers with which it is compared.

Each cost is four counts, in this order: multiply-adds, parameters, sequential operations, and the maximum path length
between two positions (None if some positions never meet).
"""

import numpy as np
from jaxtyping import Bool, Float

from attnspec.reference.attention import project
from attnspec.reference.defining.definition import defines
from attnspec.reference.pooling import pooled
from attnspec.spec.complexity import (
    Complexity,
    Convolution,
    ConvolutionComplexity,
    CrossAttentionComplexity,
    DecoderAttentionComplexity,
    EncoderDecoderAttentionComplexity,
    GraphLayer,
    MultiHeadAttentionComplexity,
    ProjectedSelfAttentionComplexity,
    RNNComplexity,
    SelfAttentionComplexity,
    Seq2SeqAttentionComplexity,
    Seq2SeqComplexity,
)
from attnspec.spec.contract.shapes import ShapeError

__all__ = [
    "convolution",
    "convolution_complexity",
    "cross_attention_complexity",
    "decoder_attention_complexity",
    "encoder_decoder_attention_complexity",
    "graph_layer",
    "multi_head_attention_complexity",
    "projected_self_attention_complexity",
    "rnn_complexity",
    "self_attention_complexity",
    "seq2seq_attention_complexity",
    "seq2seq_complexity",
]


@defines(Convolution[np.ndarray])
def convolution(
    x: Float[np.ndarray, "*batch t d_x"], w: Float[np.ndarray, "taps p_o d_x"]
) -> Float[np.ndarray, "*batch t p_o"]:
    """yᵢ = Σ_r W_r x_{i+r−⌊(k−1)/2⌋}, as one product of k concatenated tokens and matrices."""
    (taps, p_o, d_x), t = w.shape, x.shape[-2]
    before = (taps - 1) // 2
    zeros = np.zeros((*x.shape[:-2], taps - 1, d_x), x.dtype)
    padded = np.concatenate([zeros[..., :before, :], x, zeros[..., before:, :]], axis=-2)
    windows = np.concatenate([padded[..., r : r + t, :] for r in range(taps)], axis=-1)
    return project(windows, np.reshape(np.moveaxis(w, 0, 1), (p_o, taps * d_x)))


@defines(GraphLayer[np.ndarray])
def graph_layer(
    x: Float[np.ndarray, "*#batch n d_x"],
    w: Float[np.ndarray, "p_o d_x"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #n"] | None = None,
) -> Float[np.ndarray, "*batch n p_o"]:
    """Y = A(XWᵀ), where A is 1 for neighbours and 0 otherwise."""
    messages, n = project(x, w), x.shape[-2]
    shape = (n, n) if mask is None else (*mask.shape[:-2], n, n)
    edges = np.broadcast_to(True if mask is None else mask, shape)
    return pooled(edges.astype(messages.dtype), messages, None if mask is None else edges)


@defines(ConvolutionComplexity[np.ndarray])
def convolution_complexity(t: int, d_x: int, p_o: int, taps: int) -> Complexity[np.ndarray]:
    """Per token one product: the concatenated tokens of its window times the weights of all taps."""
    weights = taps * d_x * p_o
    # Layers until the first token reaches the last: each layer spans taps − 1 further tokens.
    length = -(-(t - 1) // (taps - 1)) if taps > 1 else 0 if t == 1 else None
    return _complexity("convolution_complexity", t * weights, weights, 1, length)


@defines(RNNComplexity[np.ndarray])
def rnn_complexity(t: int, d: int, h: int) -> Complexity[np.ndarray]:
    """Per step two products: an input times W_xh and a state times W_hh."""
    weights = d * h + h * h
    return _complexity("rnn_complexity", t * weights, weights + h, t, t if t > 1 else 0)


@defines(SelfAttentionComplexity[np.ndarray])
def self_attention_complexity(n: int, d: int, *, autoregressive: bool = False) -> Complexity[np.ndarray]:
    """Per pair of tokens: a score, and one term of the weighted sum."""
    return _complexity("self_attention_complexity", _pairs(n, autoregressive) * 2 * d, 0, 2, min(n - 1, 1))


@defines(ProjectedSelfAttentionComplexity[np.ndarray])
def projected_self_attention_complexity(
    n: int, d_x: int, d_k: int, d_v: int, *, autoregressive: bool = False
) -> Complexity[np.ndarray]:
    """Three projections of every token, then attention."""
    weights = d_x * (2 * d_k + d_v)
    multiply_adds = n * weights + _pairs(n, autoregressive) * (d_k + d_v)
    return _complexity("projected_self_attention_complexity", multiply_adds, weights, 3, min(n - 1, 1))


@defines(CrossAttentionComplexity[np.ndarray])
def cross_attention_complexity(n: int, m: int, d_x: int, d_m: int, d_k: int, d_v: int) -> Complexity[np.ndarray]:
    """One projection of every token, two of every row of the memory, then attention."""
    query_weights, kv_weights = d_x * d_k, d_m * (d_k + d_v)
    multiply_adds = n * query_weights + m * kv_weights + n * m * (d_k + d_v)
    return _complexity("cross_attention_complexity", multiply_adds, query_weights + kv_weights, 3, 1)


@defines(MultiHeadAttentionComplexity[np.ndarray])
def multi_head_attention_complexity(
    n: int, m: int, heads: int, d_q: int, d_k: int, d_v: int, p_q: int, p_v: int, p_o: int
) -> Complexity[np.ndarray]:
    """Three projections and attention in every head, then one projection of all heads together."""
    query_weights, kv_weights = p_q * d_q + p_o * p_v, p_q * d_k + p_v * d_v
    multiply_adds = heads * (n * query_weights + m * kv_weights + n * m * (p_q + p_v))
    return _complexity("multi_head_attention_complexity", multiply_adds, heads * (query_weights + kv_weights), 4, 1)


@defines(Seq2SeqComplexity[np.ndarray])
def seq2seq_complexity(m: int, n: int, d: int, h: int) -> Complexity[np.ndarray]:
    """m steps of one recurrent network, then n of another."""
    weights = d * h + h * h
    return _complexity("seq2seq_complexity", (m + n) * weights, 2 * (weights + h), m + n, m + n)


@defines(Seq2SeqAttentionComplexity[np.ndarray])
def seq2seq_attention_complexity(m: int, n: int, d: int, h: int, s: int) -> Complexity[np.ndarray]:
    """As without attention; each of n steps adds m additive scores, a weighted sum, and h cell inputs."""
    encoder = d * h + h * h
    decoder = (d + h) * h + h * h
    context = s * h + m * (s * h + s + h)
    parameters = encoder + h + decoder + h + 2 * s * h + s
    return _complexity(
        "seq2seq_attention_complexity", m * encoder + n * (decoder + context), parameters, m + 4 * n, min(m + n, 3)
    )


@defines(DecoderAttentionComplexity[np.ndarray])
def decoder_attention_complexity(m: int, n: int, d: int, *, generating: bool = False) -> Complexity[np.ndarray]:
    """Causal self-attention of n tokens, then attention of each to m rows. Both have four projections of d × d."""
    multiply_adds = 6 * n * d**2 + 2 * m * d**2 + 2 * d * (_pairs(n, True) + n * m)
    steps = 8 * n if generating else 8
    return _complexity("decoder_attention_complexity", multiply_adds, 8 * d**2, steps, min(n - 1, 1))


@defines(EncoderDecoderAttentionComplexity[np.ndarray])
def encoder_decoder_attention_complexity(m: int, n: int, d: int, *, generating: bool = False) -> Complexity[np.ndarray]:
    """Self-attention of the source, then the decoder's two attentions; only the second needs the source."""
    multiply_adds = 6 * (m + n) * d**2 + 2 * d * (m * m + _pairs(n, True) + n * m)
    steps = 8 * n if generating else 8
    return _complexity("encoder_decoder_attention_complexity", multiply_adds, 12 * d**2, steps, 2)


def _pairs(n: int, autoregressive: bool) -> int:
    """Number of query–key pairs that attend, among n tokens."""
    return n * (n + 1) // 2 if autoregressive else n * n


def _complexity(
    name: str, multiply_adds: int, parameters: int, sequential: int, length: int | None
) -> Complexity[np.ndarray]:
    for count in (multiply_adds, parameters):
        if count > np.iinfo(np.int64).max:
            raise ShapeError(name, "sizes", "counts below 2⁶³", count)
    return Complexity(
        multiply_adds=np.asarray(multiply_adds, np.int64),
        parameters=np.asarray(parameters, np.int64),
        sequential_operations=np.asarray(sequential, np.int64),
        maximum_path_length=None if length is None else np.asarray(length, np.int64),
    )
