"""The PyTorch backend through its modules, which ``test_judged.py`` judges.

Each call makes a module and replaces its parameters, by the names of the state dict, by the weights of the call, so
that gradients come back to the caller.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from attnspec.backends import pytorch
from attnspec.backends.bases.torch import from_numpy as from_numpy
from attnspec.backends.bases.torch import gradients
from attnspec.backends.bases.torch import to_numpy as to_numpy
from attnspec.backends.pytorch import nn
from attnspec.spec import MultiHeadParameters
from attnspec.spec.contract.tree import flatten, map_tree

name = "pytorch by modules"
limits, precision, notes = pytorch.limits, pytorch.precision, pytorch.notes


def through(module: torch.nn.Module, weights: Mapping[str, Any], *inputs: Any, **options: Any) -> Any:
    """A module's result with other weights, named by their paths in a tree."""
    named_weights = {path.replace("[", ".").replace("]", ""): x for path, x in flatten(dict(weights)).items()}
    return functional_call(module, named_weights, inputs, options, strict=True)


def through_record(make: Callable[[Any], torch.nn.Module], record: Any, *inputs: Any, **options: Any) -> Any:
    """The result of the module that is made of a record, with the record's weights."""
    # paths in a tuple of layers begin with an index: [0].attention.w_q is the module's layers.0.attention.w_q
    root = "layers" if isinstance(record, tuple) else ""
    weights = {f"{root}{path}" if root else path.lstrip("."): x for path, x in flatten(record).items()}
    return through(make(record), weights, *inputs, **options)


def dot_product_attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
    return nn.DotProductAttention(scaled=False)(query, key, value, **options)


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
    return nn.DotProductAttention()(query, key, value, **options)


def general_attention(query: Tensor, key: Tensor, value: Tensor, w: Tensor, **options: Any) -> Any:
    module = nn.GeneralAttention(w.shape[0], kdim=w.shape[1])
    return through(module, {"w": w}, query, key, value, **options)


def additive_attention(
    query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, **options: Any
) -> Any:
    module = nn.AdditiveAttention(w_q.shape[1], len(w_q), kdim=w_k.shape[1])
    return through(module, {"w_q": w_q, "w_k": w_k, "w_v": w_v}, query, key, value, **options)


def multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, **options: Any
) -> Any:
    record = MultiHeadParameters(w_q, w_k, w_v, w_o)
    return through_record(nn.MultiHeadAttention.from_record, record, query, key, value, **options)


def biased_multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor,
    w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, b_q: Tensor, b_k: Tensor, b_v: Tensor, b_o: Tensor,
    **options: Any,
) -> Any:  # fmt: skip
    weights = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o, "b_q": b_q, "b_k": b_k, "b_v": b_v, "b_o": b_o}
    module = nn.BiasedMultiHeadAttention(1, 1)  # of any sizes: all its parameters are replaced
    return through(module, weights, query, key, value, **options)


def multi_head_additive_attention(
    query: Tensor, key: Tensor, value: Tensor,
    w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, a_q: Tensor, a_k: Tensor, a_v: Tensor, **options: Any,
) -> Any:  # fmt: skip
    weights = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o, "a_q": a_q, "a_k": a_k, "a_v": a_v}
    module = nn.MultiHeadAdditiveAttention(1, 1, 1)  # of any sizes: all its parameters are replaced
    return through(module, weights, query, key, value, **options)


def bahdanau_context(state: Tensor, annotations: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, **options: Any) -> Any:
    module = nn.BahdanauAttention(w_q.shape[1], w_k.shape[1], len(w_q))
    return through(module, {"w_q": w_q, "w_k": w_k, "w_v": w_v}, state, annotations, **options)


def luong_context_dot(state: Tensor, annotations: Tensor, **options: Any) -> Any:
    return nn.LuongAttention(state.shape[-1], score="dot")(state, annotations, **options)


def luong_context_general(state: Tensor, annotations: Tensor, w: Tensor, **options: Any) -> Any:
    return through(nn.LuongAttention(*w.shape), {"w": w}, state, annotations, **options)


def luong_context_location(state: Tensor, annotations: Tensor, w: Tensor, **options: Any) -> Any:
    module = nn.LuongAttention(w.shape[1], score="location", num_positions=max(1, len(w)))
    return through(module, {"w": w}, state, annotations, **options)


def rnn_cell(x: Tensor, state: Tensor, parameters: Any) -> Any:
    return through_record(nn.RNNCell.from_record, parameters, x, state)


def gru_cell(x: Tensor, state: Tensor, parameters: Any) -> Any:
    return through_record(nn.GRUCell.from_record, parameters, x, state)


def lstm_cell(x: Tensor, state: tuple[Tensor, Tensor], parameters: Any) -> Any:
    return through_record(nn.LSTMCell.from_record, parameters, x, state)


def of_one_layer(kind: Any, x: Tensor, state: Any, parameters: Any, **options: Any) -> Any:
    """A network of one layer, whose states have an axis for it."""
    state = map_tree(state, lambda _, part: part.unsqueeze(-2))
    states, final = through_record(kind.from_record, (parameters,), x, state, **options)
    return states, map_tree(final, lambda _, part: part.squeeze(-2))


def rnn(x: Tensor, state: Any, parameters: Any, **options: Any) -> Any:
    return of_one_layer(nn.RNN, x, state, parameters, **options)


def gru(x: Tensor, state: Any, parameters: Any, **options: Any) -> Any:
    return of_one_layer(nn.GRU, x, state, parameters, **options)


def lstm(x: Tensor, state: Any, parameters: Any, **options: Any) -> Any:
    return of_one_layer(nn.LSTM, x, state, parameters, **options)


def stacked_rnn(x: Tensor, state: Any, layers: Any, **options: Any) -> Any:
    return through_record(nn.RNN.from_record, layers, x, state, **options)


def stacked_gru(x: Tensor, state: Any, layers: Any, **options: Any) -> Any:
    return through_record(nn.GRU.from_record, layers, x, state, **options)


def stacked_lstm(x: Tensor, state: Any, layers: Any, **options: Any) -> Any:
    return through_record(nn.LSTM.from_record, layers, x, state, **options)


def layer_norm(x: Tensor, parameters: Any, *, epsilon: float = 1e-5) -> Any:
    if epsilon != 1e-5:  # modules have the default
        return pytorch.layer_norm(x, parameters, epsilon=epsilon)
    return through_record(nn.LayerNorm.from_record, parameters, x)


def feed_forward(x: Tensor, parameters: Any) -> Any:
    return through_record(nn.FeedForward.from_record, parameters, x)


def encoder_layer(x: Tensor, parameters: Any, *, norm: str = "post", **options: Any) -> Any:
    make = partial(nn.TransformerEncoderLayer.from_record, norm_first=norm == "pre")
    return through_record(make, parameters, x, **options)


def encoder_stack(x: Tensor, layers: Any, *, norm: str = "post", **options: Any) -> Any:
    make = partial(nn.TransformerEncoder.from_record, norm_first=norm == "pre")
    return through_record(make, layers, x, **options)


def teacher_forced_decode(tokens: Tensor, state: Tensor, annotations: Tensor, parameters: Any, **options: Any) -> Any:
    return through_record(nn.BahdanauDecoder.from_record, parameters, tokens, state, annotations, **options)


class Method(torch.nn.Module):
    """A module whose call is another method of a decoder."""

    def __init__(self, decoder: torch.nn.Module, name: str) -> None:
        super().__init__()
        self.decoder, self.name = decoder, name

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return getattr(self.decoder, self.name)(*inputs, **options)


def through_method(decoder: torch.nn.Module, name: str, parameters: Any, *inputs: Any, **options: Any) -> Any:
    """The result of a method of a decoder, with given weights."""
    return through(Method(decoder, name), {"decoder": parameters}, *inputs, **options)


def decoder_step(token: Tensor, state: Tensor, annotations: Tensor, parameters: Any, **options: Any) -> Any:
    decoder = nn.BahdanauDecoder.from_record(parameters)
    return through_method(decoder, "step", parameters, token, state, annotations, **options)


def greedy_decode(
    token: Tensor, state: Tensor, annotations: Tensor, parameters: Any, steps: int, eos: int, **options: Any
) -> Any:
    decoder = nn.BahdanauDecoder.from_record(parameters)
    return through_method(decoder, "greedy_decode", parameters, token, state, annotations, steps, eos, **options)


def beam_decode(
    token: Tensor, state: Tensor, annotations: Tensor, parameters: Any, steps: int, eos: int, beams: int, **options: Any
) -> Any:
    decoder = nn.BahdanauDecoder.from_record(parameters)
    return through_method(decoder, "beam_decode", parameters, token, state, annotations, steps, eos, beams, **options)


def patch_embedding(image: Tensor, parameters: Any) -> Any:
    return through_record(nn.PatchEmbedding.from_record, parameters, image)


def vit_encoder(image: Tensor, embedding: Any, layers: Any, final_norm: Any) -> Any:
    weights = {"embedding": embedding, "layers": layers, "final_norm": final_norm}
    return through(nn.VisionTransformer.from_record(**weights), weights, image)


def attention_gate(x: Tensor, gating: Tensor, parameters: Any) -> Any:
    return through_record(nn.AttentionGate.from_record, parameters, x, gating)


def attention_skip(x: Tensor, gating: Tensor, parameters: Any) -> Any:
    return through_record(nn.AttentionSkip.from_record, parameters, x, gating)


def spatial_attention(state: Tensor, features: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Any:
    module = nn.SpatialAttention(w_q.shape[1], w_k.shape[1], len(w_q))
    return through(module, {"w_q": w_q, "w_k": w_k, "w_v": w_v}, state, features)


def decoder_layer(x: Tensor, memory: Tensor, parameters: Any, *, norm: str = "post", **options: Any) -> Any:
    make = partial(nn.TransformerDecoderLayer.from_record, norm_first=norm == "pre")
    return through_record(make, parameters, x, memory, **options)


def decoder_stack(x: Tensor, memory: Tensor, layers: Any, *, norm: str = "post", **options: Any) -> Any:
    make = partial(nn.TransformerDecoder.from_record, norm_first=norm == "pre")
    return through_record(make, layers, x, memory, **options)


def encoder_decoder(source: Tensor, target: Tensor, parameters: Any, **options: Any) -> Any:
    return through_record(nn.Transformer.from_record, parameters, source, target, **options)


def decoder_only(tokens: Tensor, parameters: Any, **options: Any) -> Any:
    return through_record(nn.DecoderOnly.from_record, parameters, tokens, **options)


def encoder_only(tokens: Tensor, parameters: Any, **options: Any) -> Any:
    return through_record(nn.EncoderOnly.from_record, parameters, tokens, **options)


def cached_decoder_step(
    x: Tensor, cache: Any, memory: Tensor, parameters: Any, *, norm: str = "post", **options: Any
) -> Any:
    layer = nn.TransformerDecoderLayer.from_record(parameters, norm_first=norm == "pre")
    return through_method(layer, "step", parameters, x, cache, memory, **options)


def vjp(operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Tensor]:
    """Gradients through modules, for weights and inputs alike."""
    return gradients(globals()[operation], arguments, cotangent)
