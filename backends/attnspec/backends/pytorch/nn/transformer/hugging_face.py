"""Encoder layers of Hugging Face transformers, read into the parts of ours.

Classes are recognised by name, since attnspec does not import transformers.
"""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, TypeAlias

from torch import nn

from attnspec.backends.pytorch.nn.conversion import Activation, check, check_no_dropout, refuse
from attnspec.backends.pytorch.nn.multihead import MultiHeadAttention
from attnspec.backends.pytorch.nn.transformer.sublayers import FeedForward, LayerNorm

Parts: TypeAlias = dict[str, Any]
"""Submodules of a layer by name, and `norm_first`."""

CALLER = "TransformerEncoderLayer.from_torch"
ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
}  # fmt: skip
"""Our names of the activations that transformers' configurations name."""


def _activation(name: str, value: object) -> Activation:
    if value not in ACTIVATIONS:
        refuse(CALLER, name, f"one of {', '.join(ACTIVATIONS)}", repr(value))
    return ACTIVATIONS[str(value)]


def _check_attention(attention: Any, head_size: int) -> None:
    check(CALLER, "scaling", attention.scaling, head_size**-0.5, "scores are divided by √d of a head")


def _bert(layer: Any) -> Parts:
    check(CALLER, "is_decoder", layer.is_decoder, False, "the layer encodes")
    attention = layer.attention.self
    _check_attention(attention, attention.attention_head_size)
    projections = attention.query, attention.key, attention.value, layer.attention.output.dense
    activation = _activation("hidden_act", attention.config.hidden_act)
    return {
        "attention": MultiHeadAttention.from_linear(attention.num_attention_heads, *projections),
        "attention_norm": LayerNorm.from_torch(layer.attention.output.LayerNorm),
        "feed_forward": FeedForward.from_torch(layer.intermediate.dense, layer.output.dense, activation=activation),
        "feed_forward_norm": LayerNorm.from_torch(layer.output.LayerNorm),
        "norm_first": False,
    }


def _vit(layer: Any) -> Parts:
    attention, network = layer.attention, layer.mlp
    check_no_dropout(CALLER, layer, attention.attention_dropout)
    _check_attention(attention, attention.head_dim)
    projections = attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj
    activation = _activation("hidden_act", attention.config.hidden_act)
    return {
        "attention": MultiHeadAttention.from_linear(attention.num_attention_heads, *projections),
        "attention_norm": LayerNorm.from_torch(layer.layernorm_before),
        "feed_forward": FeedForward.from_torch(network.fc1, network.fc2, activation=activation),
        "feed_forward_norm": LayerNorm.from_torch(layer.layernorm_after),
        "norm_first": True,
    }


def _linear(layer: Any, rows: slice = slice(None)) -> nn.Linear:
    """Return some outputs of transformers' Conv1D as a linear layer: its weight is transposed."""
    weight, bias = layer.weight.detach().T[rows], layer.bias.detach()[rows]
    linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    linear.weight, linear.bias = nn.Parameter(weight), nn.Parameter(bias)
    return linear


def _gpt2(layer: Any) -> Parts:
    check(CALLER, "add_cross_attention", hasattr(layer, "crossattention"), False, "the layer has no memory")
    attention, d = layer.attn, layer.attn.embed_dim
    _check_attention(attention, attention.head_dim)
    query, key, value = (_linear(attention.c_attn, slice(i * d, (i + 1) * d)) for i in range(3))
    projections = query, key, value, _linear(attention.c_proj)
    first, second = _linear(layer.mlp.c_fc), _linear(layer.mlp.c_proj)
    activation = _activation("activation_function", attention.config.activation_function)
    return {
        "attention": MultiHeadAttention.from_linear(attention.num_heads, *projections),
        "attention_norm": LayerNorm.from_torch(layer.ln_1),
        "feed_forward": FeedForward.from_torch(first, second, activation=activation),
        "feed_forward_norm": LayerNorm.from_torch(layer.ln_2),
        "norm_first": True,
    }


READERS = MappingProxyType(
    {
        "transformers.models.bert.modeling_bert.BertLayer": _bert,
        "transformers.models.gpt2.modeling_gpt2.GPT2Block": _gpt2,
        "transformers.models.vit.modeling_vit.ViTLayer": _vit,
    }
)
"""Readers of layers by the name of their class; subclasses may compute something else."""


def reader_of(module: nn.Module) -> Callable[[Any], Parts] | None:
    """Return the reader of a layer's class, or None if there is none."""
    return READERS.get(f"{type(module).__module__}.{type(module).__qualname__}")


def read(layer: nn.Module, reader: Callable[[Any], Parts]) -> Parts:
    """Return copies of the layer's parts; refuse dropout in training."""
    for part in layer.modules():
        if isinstance(part, nn.Dropout):
            check_no_dropout(CALLER, part, part.p)
    return reader(layer)
