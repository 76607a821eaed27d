"""Complexity: cost and path length of layers, and the layers that attention is compared with.

Where: The formula gives `multiply_adds`, `parameters`, `sequential_operations`, `maximum_path_length`, in this order.
`multiply_adds` counts the terms of all matrix products, each one multiplication and one addition, but not scale,
softmax, bias and activation. `parameters` counts the numbers in weights and biases. `sequential_operations` is the
length of the longest chain of matrix products in which each needs the one before it. `maximum_path_length` is the
largest distance of two tokens: the fewest edges by which both reach one state; with a single token it is 0. Results are
in units of `x` × `w`.
Errors: A count of `multiply_adds` or `parameters` above 2⁶³ − 1 raises.
"""

from dataclasses import dataclass
from typing import Generic, Protocol, TypedDict

from jaxtyping import Bool, Float, Int

from attnspec.spec.contract.annotations import Array
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.sources import S0, S1, S2, S3, S4, VASWANI

__all__ = [
    "Complexity",
    "ComplexityOperations",
    "ComplexityTable",
    "Convolution",
    "ConvolutionComplexity",
    "CrossAttentionComplexity",
    "DecoderAttentionComplexity",
    "EncoderDecoderAttentionComplexity",
    "GraphLayer",
    "MultiHeadAttentionComplexity",
    "ProjectedSelfAttentionComplexity",
    "RNNComplexity",
    "SelfAttentionComplexity",
    "Seq2SeqAttentionComplexity",
    "Seq2SeqComplexity",
]

_COUNTED = dict.fromkeys(("n", "m", "t"), Axis.LENGTH)
"""Lengths that complexities take as numbers: no array has them, and they are at least 1."""

_COMPARISON = S4.passage("Inductive Bias")


@operation(
    "convolution",
    chapter="complexity",
    formula=r"y_i = \sum_{r=0}^{k-1} W_r\, x_{i + r - \lfloor (k-1)/2 \rfloor},\quad"
    r" x_j = 0 \text{ outside of the sequence}",
    sources=[
        S0.passage("Computational Complexity: CNN's"),
        S1.passage("Self-Attention: comparison with convolution and fully-connected layer"),
        _COMPARISON,
    ],
    linear="x w",
)
class Convolution(Protocol[Array]):
    """Convolution of a sequence: each result is a linear map of k neighbouring tokens.

    Where: The number of taps is k. The range is centred; an even number of taps reaches one token further ahead than
    back. As in libraries the taps are not reversed (a cross-correlation): the first multiplies the earliest token of
    the range. Each matrix is (out, in).
    Domain: Numbers are finite, and no sum overflows.
    Edges: The sequence is padded with zeros at both ends. Without tokens the result is empty.
    """

    def __call__(
        self, x: Float[Array, "*batch t d_x"], w: Float[Array, "taps p_o d_x"]
    ) -> Float[Array, "*batch t p_o"]: ...


@operation(
    "graph_layer",
    chapter="complexity",
    formula=r"y_i = \sum_{j \in A_i} W x_j",
    sources=[_COMPARISON],
    axes={"n": Axis.SELF},
    linear="x w",
)
class GraphLayer(Protocol[Array]):
    """Layer of a graph network: each node receives the sum of its neighbours' messages.

    Where: A_i are the nodes j with an edge to i: `mask`[i, j] is True where an edge leads from j to i. Rows are
    receivers, as in the transpose of an adjacency matrix whose rows are senders. A node receives its own message only
    where `mask`[i, i] is True. Without a mask the graph is complete. The matrix of the weights is (out, in).
    Domain: No sum overflows.
    Edges: A node without neighbours gets 0 (semantics `fully_masked`, `no_keys`). NaN and ∞ reach only the nodes to
    which an edge leads.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch n d_x"],
        w: Float[Array, "p_o d_x"],
        *,
        mask: Bool[Array, "*#batch #n #n"] | None = None,
    ) -> Float[Array, "*batch n p_o"]: ...


@dataclass(frozen=True)
class Complexity(Generic[Array]):
    """Cost of a layer, and its maximum path length: None if some tokens never meet."""

    multiply_adds: Int[Array, ""]
    parameters: Int[Array, ""]
    sequential_operations: Int[Array, ""]
    maximum_path_length: Int[Array, ""] | None


@operation(
    "convolution_complexity",
    chapter="complexity",
    formula=r"t k d_x p_o;\ k d_x p_o;\ 1;\ \lceil (t - 1)/(k - 1) \rceil",
    sources=[S0.passage("Computational Complexity: CNN's"), VASWANI.passage("4")],
    reference_only=True,
    axes=_COUNTED,
)
class ConvolutionComplexity(Protocol[Array]):
    """Complexity of `convolution`.

    Where: There are k taps. Products with the zeros beyond both ends are counted. The path length is the number of
    layers, each with k taps, after which the ranges of both tokens overlap.
    Edges: With one tap, two tokens never meet, and the path length is None.
    """

    def __call__(self, t: int, d_x: int, p_o: int, taps: int) -> Complexity[Array]: ...


@operation(
    "rnn_complexity",
    chapter="complexity",
    formula=r"t(dh + h^2);\ dh + h^2 + h;\ t;\ t",
    sources=[S0.passage("Computational Complexity: RNN's"), S3.passage("RNN Disadvantage")],
    reference_only=True,
    axes=_COUNTED | {"d": Axis.WIDTH},
)
class RNNComplexity(Protocol[Array]):
    """Complexity of `rnn`: t steps of `rnn_cell`.

    Where: The path of the first token leads through t states to the state of the last token.
    """

    def __call__(self, t: int, d: int, h: int) -> Complexity[Array]: ...


@operation(
    "self_attention_complexity",
    chapter="complexity",
    formula=r"2n^2 d;\ 0;\ 2;\ 1;\quad \text{autoregressive: } n(n + 1)d;\ \dots",
    sources=[
        S0.passage("Computational Complexity: self-attention"),
        S2.passage("Machine Translation, solution 3"),
        S2.passage("Why Transformers"),
    ],
    reference_only=True,
    axes=_COUNTED,
)
class SelfAttentionComplexity(Protocol[Array]):
    """Complexity of `self_attention`, which has no projections.

    Where: Autoregressive attention is that of a decoder, to no later token. Only its n(n + 1)/2 attending pairs are
    counted, as if each token were computed from its prefix. On whole matrices, all n² pairs are computed.
    """

    def __call__(self, n: int, d: int, *, autoregressive: bool = False) -> Complexity[Array]: ...


@operation(
    "projected_self_attention_complexity",
    chapter="complexity",
    formula=r"n d_x(2d_k + d_v) + n^2(d_k + d_v);\ d_x(2d_k + d_v);\ 3;\ 1;\quad"
    r" \text{autoregressive: } \tfrac12 n(n + 1) \text{ for } n^2",
    sources=[S2.passage("Machine Translation, solution 3")],
    reference_only=True,
    axes=_COUNTED,
)
class ProjectedSelfAttentionComplexity(Protocol[Array]):
    """Complexity of `projected_self_attention`.

    Where: Autoregressive attention is counted as in `self_attention_complexity`.
    """

    def __call__(self, n: int, d_x: int, d_k: int, d_v: int, *, autoregressive: bool = False) -> Complexity[Array]: ...


@operation(
    "cross_attention_complexity",
    chapter="complexity",
    formula=r"n d_x d_k + m d_m(d_k + d_v) + nm(d_k + d_v);\ d_x d_k + d_m(d_k + d_v);\ 3;\ 1",
    sources=[S2.passage("Machine Translation, solution 3")],
    reference_only=True,
    axes=_COUNTED,
)
class CrossAttentionComplexity(Protocol[Array]):
    """Complexity of `cross_attention`.

    Where: The path connects any token with any row of the memory.
    """

    def __call__(self, n: int, m: int, d_x: int, d_m: int, d_k: int, d_v: int) -> Complexity[Array]: ...


@operation(
    "multi_head_attention_complexity",
    chapter="complexity",
    formula=r"h\,[n p_q d_q + m p_q d_k + m p_v d_v + nm(p_q + p_v) + n p_o p_v];\ "
    r"h\,[p_q d_q + p_q d_k + p_v d_v + p_o p_v];\ 4;\ 1",
    sources=[S2.passage("Machine Translation, solution 3"), VASWANI.passage("4")],
    reference_only=True,
    axes=_COUNTED,
)
class MultiHeadAttentionComplexity(Protocol[Array]):
    """Complexity of `multi_head_attention`.

    Where: The number of heads is h. If each head has d/h features, h changes no count. The path connects a query with a
    key.
    """

    def __call__(
        self, n: int, m: int, heads: int, d_q: int, d_k: int, d_v: int, p_q: int, p_v: int, p_o: int
    ) -> Complexity[Array]: ...


@operation(
    "seq2seq_complexity",
    chapter="complexity",
    formula=r"(m + n)(dh + h^2);\ 2(dh + h^2 + h);\ m + n;\ m + n",
    sources=[S3.passage("Backprop"), S3.passage("RNN Disadvantage")],
    reference_only=True,
    axes=_COUNTED | {"d": Axis.WIDTH},
)
class Seq2SeqComplexity(Protocol[Array]):
    """Complexity of a recurrent encoder and a decoder that starts from its last state.

    Where: The encoder reads m tokens, the decoder writes n. The path connects a source token with a target token.
    """

    def __call__(self, m: int, n: int, d: int, h: int) -> Complexity[Array]: ...


@operation(
    "seq2seq_attention_complexity",
    chapter="complexity",
    formula=r"m(dh + h^2) + n(dh + 2h^2) + n[hs + m(hs + s + h)];\ "
    r"2(dh + h^2 + h) + h^2 + s(2h + 1);\ m + 4n;\ \min(m + n, 3)",
    sources=[S3.passage("Backprop")],
    reference_only=True,
    axes=_COUNTED | {"d": Axis.WIDTH, "s": Axis.HIDDEN},
)
class Seq2SeqAttentionComplexity(Protocol[Array]):
    """Complexity of a recurrent encoder and a decoder with a `bahdanau_context` at every step.

    Where: The additive score has s hidden units. The keys are projected at every step, as (16) with (4) is written;
    projecting them once takes mhs instead of nmhs multiply-adds. The path leads from a source token through its
    annotation and the context to a state of the decoder; for one token each, the path without the context is shorter.
    As in S3, only pairs of a source and a target token count: two target tokens are up to n edges apart.
    """

    def __call__(self, m: int, n: int, d: int, h: int, s: int) -> Complexity[Array]: ...


@operation(
    "decoder_attention_complexity",
    chapter="complexity",
    formula=r"6nd^2 + 2md^2 + n(n + 1)d + 2mnd;\ 8d^2;\ 8;\ 1;\quad \text{generating: } 8n \text{ for } 8",
    sources=[S2.passage("Machine Translation, solution 3"), S2.passage("Machine Translation, solution 4")],
    reference_only=True,
    axes=_COUNTED | {"d": Axis.WIDTH},
)
class DecoderAttentionComplexity(Protocol[Array]):
    """Complexity of the attention in one decoder layer: causal self-attention and cross-attention.

    Where: The n target tokens attend to earlier ones and themselves, then to m rows of the encoder. All d features of a
    token are divided among the heads. As far as attention goes, this is the cost that decoding into another language
    adds to the encoder. When `generating`, a token is known only after the one before it has passed through the layer:
    sequential operations count once per token, in training once per sequence. The path connects two target tokens.
    """

    def __call__(self, m: int, n: int, d: int, *, generating: bool = False) -> Complexity[Array]: ...


@operation(
    "encoder_decoder_attention_complexity",
    chapter="complexity",
    formula=r"(6m + 6n)d^2 + [2m^2 + 2mn + n(n + 1)]d;\ 12d^2;\ 8;\ 2;\quad \text{generating: } 8n \text{ for } 8",
    sources=[S2.passage("Machine Translation, solution 3"), S2.passage("Machine Translation, solution 4")],
    reference_only=True,
    axes=_COUNTED | {"d": Axis.WIDTH},
)
class EncoderDecoderAttentionComplexity(Protocol[Array]):
    """Complexity of the attention in an encoder layer and a decoder layer together.

    Where: The encoder attends to itself, the decoder as in `decoder_attention_complexity`. The path leads from a source
    token through its row of the encoder to the decoder.
    """

    def __call__(self, m: int, n: int, d: int, *, generating: bool = False) -> Complexity[Array]: ...


class ComplexityOperations(Generic[Array]):
    """The layers that attention is compared with, as methods of a backend class."""

    convolution: Convolution[Array]
    graph_layer: GraphLayer[Array]


class ComplexityTable(TypedDict, Generic[Array], total=False):
    """The layers that attention is compared with, by name, as a typed dictionary."""

    convolution: Convolution[Array]
    graph_layer: GraphLayer[Array]
