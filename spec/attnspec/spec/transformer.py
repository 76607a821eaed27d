"""Transformers: layers of attention and feed-forward networks around residual connections.

Where: Weights are (out, in). The activation of the feed-forward network is ReLU. Layer normalization adds ε = 10⁻⁵ to
the variance.
Edges: With n = 0 or an empty batch the result is empty.
"""

from dataclasses import dataclass
from typing import Annotated, Generic, Literal, Protocol, TypedDict

from jaxtyping import Bool, Float

from attnspec.spec.contract.annotations import Array, sizes
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.sources import S2, S3, S4, VASWANI
from attnspec.spec.multihead import MultiHeadParameters

__all__ = [
    "EncoderLayer",
    "EncoderLayerParameters",
    "FeedForwardParameters",
    "LayerNormParameters",
    "TransformerOperations",
    "TransformerTable",
]


@dataclass(frozen=True)
class LayerNormParameters(Generic[Array]):
    """Gain and bias (d) of a layer normalization."""

    gain: Float[Array, " d"]
    bias: Float[Array, " d"]


@dataclass(frozen=True)
class FeedForwardParameters(Generic[Array]):
    """Weights and biases of a network with one hidden layer, from d to f units and back."""

    w_1: Float[Array, "f d"]
    b_1: Float[Array, " f"]
    w_2: Float[Array, "d f"]
    b_2: Float[Array, " d"]


@dataclass(frozen=True)
class EncoderLayerParameters(Generic[Array]):
    """Self-attention and a feed-forward network, each with the normalization beside its residual connection."""

    attention: Annotated[MultiHeadParameters[Array], sizes(d_q="d", d_k="d", d_v="d", p_o="d")]
    attention_norm: LayerNormParameters[Array]
    feed_forward: FeedForwardParameters[Array]
    feed_forward_norm: LayerNormParameters[Array]


@operation(
    "encoder_layer",
    chapter="transformer",
    formula=r"Y = \operatorname{LN}(X' + \operatorname{FF}(X')),\quad"
    r" X' = \operatorname{LN}(X + \operatorname{MHA}(X, X, X));\quad \text{pre-norm: }"
    r" Y = X' + \operatorname{FF}(\operatorname{LN}(X')),\ X' = X + \operatorname{MHA}(\operatorname{LN}(X), \dots)",
    sources=[
        S2.passage("Feedforward Layer"),
        S3.passage("Transformer Machine Translation"),
        S4.passage("Architecture: Encoder"),
        VASWANI.passage("3.1"),
    ],
    axes={"n": Axis.SELF, "d": Axis.WIDTH},
    sharpened={"parameters.attention.w_q": 1.0},
    features="norm=pre",
)
class EncoderLayer(Protocol[Array]):
    """One layer of a transformer's encoder: multi-head self-attention, then a feed-forward network for each position.

    Where: With norm "post", as in the paper, the sum of the residual connection is normalized; with "pre", the input of
    each sublayer is. FF(x) = W₂ ReLU(W₁x + b₁) + b₂. LN(x) = gain ⊙ (x − mean)/√(variance + ε) + bias, with mean and
    variance over the d features. The result has no unit for "post" and is in units of x for "pre".
    Domain: No intermediate overflows.
    Edges: Positions at which `mask` is False are left out of the attention of others, NaN and ∞ included. Where none is
    attendable, attention adds 0 (semantics `fully_masked`).
    """

    def __call__(
        self,
        x: Float[Array, "*#batch n d"],
        parameters: EncoderLayerParameters[Array],
        *,
        mask: Bool[Array, "*#batch #n #n"] | None = None,
        norm: Literal["post", "pre"] = "post",
    ) -> Float[Array, "*batch n d"]: ...


class TransformerOperations(Generic[Array]):
    """The operations of transformers as methods of a backend class."""

    encoder_layer: EncoderLayer[Array]


class TransformerTable(TypedDict, Generic[Array], total=False):
    """The operations of transformers by name."""

    encoder_layer: EncoderLayer[Array]
