"""Transformers: layers of attention and feed-forward networks around residual connections.

Edges: An empty batch gives an empty result. So does `n` = 0.
"""

from dataclasses import dataclass
from typing import Annotated, Generic, Literal, Protocol, TypedDict

from jaxtyping import Bool, Float

from attnspec.spec.contract.annotations import Array, sizes
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.sources import BA, S2, S3, S4, VASWANI
from attnspec.spec.multihead import MultiHeadParameters

__all__ = [
    "EncoderLayer",
    "EncoderLayerParameters",
    "EncoderStack",
    "FeedForward",
    "FeedForwardParameters",
    "LayerNorm",
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


@operation(
    "layer_norm",
    chapter="transformer",
    formula=r"y = g \odot \frac{x - \bar x}{\sqrt{v + \varepsilon}} + b,\quad"
    r" \bar x = \tfrac1d \sum_i x_i,\ v = \tfrac1d \sum_i (x_i - \bar x)^2",
    sources=[S4.passage("Architecture: Others"), VASWANI.passage("3.1"), BA.passage("3")],
    axes={"d": Axis.WIDTH},
)
class LayerNorm(Protocol[Array]):
    """Layer normalization: features centred and divided by their standard deviation, times a gain, plus a bias.

    Where: The mean x̄ and the variance v are those of the d features, v with d in the denominator; ε = 10⁻⁵. Before gain
    and bias the variance is v/(v + ε). The result is in units of both.
    Domain: The sum of squares does not overflow.
    Edges: Where all features are equal, the result is the bias.
    """

    def __call__(
        self, x: Float[Array, "*batch d"], parameters: LayerNormParameters[Array]
    ) -> Float[Array, "*batch d"]: ...


@operation(
    "feed_forward",
    chapter="transformer",
    formula=r"y = W_2 \max(0, W_1 x + b_1) + b_2",
    sources=[S2.passage("Feedforward Layer"), S4.passage("Architecture: Encoder"), VASWANI.passage("3.3")],
    axes={"d": Axis.WIDTH},
)
class FeedForward(Protocol[Array]):
    """The feed-forward network of a transformer: one hidden layer of ReLUs, on every position by itself.

    Where: Weights are (out, in). The result is in units of b₂, which are those of W₂ × b₁.
    Domain: No sum overflows.
    """

    def __call__(
        self, x: Float[Array, "*batch d"], parameters: FeedForwardParameters[Array]
    ) -> Float[Array, "*batch d"]: ...


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
    each sublayer is. FF is `feed_forward` and LN `layer_norm`. Weights are (out, in). The result has no unit for "post"
    and is in units of x for "pre".
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


@operation(
    "encoder_stack",
    chapter="transformer",
    formula=r"Y = f_N(\dots f_2(f_1(X)) \dots),\quad f_i \text{ the encoder layer with the parameters of layer } i",
    sources=[
        S3.passage("Transformer Machine Translation"),
        S4.passage("Architecture: Encoder"),
        VASWANI.passage("3.1"),
    ],
    axes={"n": Axis.SELF, "d": Axis.WIDTH},
    features="norm=pre",
)
class EncoderStack(Protocol[Array]):
    """The encoder of a transformer: layers one after another, with the same mask and norm in each.

    Where: Layers may differ in their numbers of heads and hidden units. With norm "pre" there is no normalization after
    the last layer. Units are those of `encoder_layer`.
    Domain: In no layer does an intermediate overflow.
    Edges: Without layers the result is x. Each layer attends as `encoder_layer` does.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch n d"],
        layers: tuple[EncoderLayerParameters[Array], ...],
        *,
        mask: Bool[Array, "*#batch #n #n"] | None = None,
        norm: Literal["post", "pre"] = "post",
    ) -> Float[Array, "*batch n d"]: ...


class TransformerOperations(Generic[Array]):
    """The operations of transformers as methods of a backend class."""

    layer_norm: LayerNorm[Array]
    feed_forward: FeedForward[Array]
    encoder_layer: EncoderLayer[Array]
    encoder_stack: EncoderStack[Array]


class TransformerTable(TypedDict, Generic[Array], total=False):
    """The operations of transformers by name."""

    layer_norm: LayerNorm[Array]
    feed_forward: FeedForward[Array]
    encoder_layer: EncoderLayer[Array]
    encoder_stack: EncoderStack[Array]
