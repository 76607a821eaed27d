"""What attention computes, plainly: one NumPy function for each formula. The module is itself a backend."""

from attnspec.reference.attention import (
    additive_attention,
    cross_attention,
    dot_product_attention,
    general_attention,
    projected_self_attention,
    scaled_dot_product_attention,
    self_attention,
)
from attnspec.reference.defining.arithmetic import arithmetic
from attnspec.reference.defining.definition import REFERENCE, defines
from attnspec.reference.defining.overriding import overridable
from attnspec.reference.defining.two_point import two_point_design
from attnspec.reference.masking import causal_mask, padding_mask
from attnspec.reference.moments import dot_product_mean, dot_product_variance
from attnspec.reference.multihead import multi_head_attention
from attnspec.reference.normalization import mean_normalization, softmax
from attnspec.reference.pooling import attention_pooling, average_pooling, nadaraya_watson
from attnspec.reference.positional import sinusoidal_positional_encoding
from attnspec.reference.scoring import (
    additive_scores,
    dot_scores,
    gaussian_scores,
    general_scores,
    location_scores,
    scaled_dot_scores,
)
from attnspec.reference.seq2seq import bahdanau_context

name = "reference"
"""What reports call this backend."""

__all__ = [
    "REFERENCE",
    "additive_attention",
    "additive_scores",
    "arithmetic",
    "attention_pooling",
    "average_pooling",
    "bahdanau_context",
    "causal_mask",
    "cross_attention",
    "defines",
    "dot_product_attention",
    "dot_product_mean",
    "dot_product_variance",
    "dot_scores",
    "gaussian_scores",
    "general_attention",
    "general_scores",
    "location_scores",
    "mean_normalization",
    "multi_head_attention",
    "nadaraya_watson",
    "name",
    "overridable",
    "padding_mask",
    "projected_self_attention",
    "scaled_dot_product_attention",
    "scaled_dot_scores",
    "self_attention",
    "sinusoidal_positional_encoding",
    "softmax",
    "two_point_design",
]
