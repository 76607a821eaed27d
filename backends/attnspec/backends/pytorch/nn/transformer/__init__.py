"""Transformer modules: sublayers, layers, stacks of layers, and models. No layer has dropout."""

from attnspec.backends.pytorch.nn.transformer.layers import TransformerDecoderLayer, TransformerEncoderLayer
from attnspec.backends.pytorch.nn.transformer.llama import LlamaLayer
from attnspec.backends.pytorch.nn.transformer.models import DecoderOnly, EncoderOnly, Transformer
from attnspec.backends.pytorch.nn.transformer.stacks import TransformerDecoder, TransformerEncoder
from attnspec.backends.pytorch.nn.transformer.sublayers import FeedForward, LayerNorm

__all__ = [
    "DecoderOnly",
    "EncoderOnly",
    "FeedForward",
    "LayerNorm",
    "LlamaLayer",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]
