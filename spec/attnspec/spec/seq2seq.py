"""Sequence to sequence: embeddings, decoder contexts and outputs, decoding steps and searches.

Edges: As in `attention`.
"""

from dataclasses import dataclass
from typing import Annotated, Generic, Protocol, TypedDict

from jaxtyping import Bool, Float, Int

from attnspec.spec.contract.annotations import Array, sizes
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.sources import BAHDANAU, LUONG, S0, S1, S2, S3, S4, WU
from attnspec.spec.recurrent import RNNParameters

__all__ = [
    "AttentionDecoderParameters",
    "AttentionalState",
    "BahdanauContext",
    "BeamDecode",
    "ConcatOutput",
    "DecoderStep",
    "Embed",
    "EncoderContext",
    "GreedyDecode",
    "LuongContextDot",
    "LuongContextGeneral",
    "LuongContextLocation",
    "OutputDistribution",
    "Seq2SeqOperations",
    "Seq2SeqTable",
    "TeacherForcedDecode",
]


@operation(
    "bahdanau_context",
    chapter="seq2seq",
    formula=r"c = \sum_t \operatorname{softmax}_t(w_v^\top \tanh(W_q s + W_k h_t))\, h_t",
    sources=[S0.equation(16), S3.passage("The math behind “attending to the input”"), BAHDANAU.passage("3.1")],
    pooled="annotations",
    scores_scale_with={"w_v": 1.0},
)
class BahdanauContext(Protocol[Array]):
    """Bahdanau's context: the decoder's state attends additively to the encoder's annotations.

    Where: The state s is the query, the annotations h_t are keys and values. Weights are (out, in). As in S0 and S3,
    the caller passes s_{t'−1}, the state before the step. The context is in units of annotations.
    """

    def __call__(
        self,
        state: Float[Array, "*#batch d_s"],
        annotations: Float[Array, "*#batch m d_h"],
        w_q: Float[Array, "h d_s"],
        w_k: Float[Array, "h d_h"],
        w_v: Float[Array, " h"],
        *,
        mask: Bool[Array, "*#batch #m"] | None = None,
    ) -> Float[Array, "*batch d_h"]: ...


@operation(
    "luong_context_dot",
    chapter="seq2seq",
    formula=r"c = \sum_t \operatorname{softmax}_t(s^\top h_t)\, h_t",
    sources=[S2.passage("Luong Attention"), LUONG.passage("3.1")],
    pooled="annotations",
    scores_scale_with={"state": 1.0},
)
class LuongContextDot(Protocol[Array]):
    """Luong's context with the dot product as score.

    Where: The query s is the decoder's state at this step, keys and values are the annotations h_t of the same width.
    The context is in units of annotations.
    Domain: Σ|s||h| does not overflow.
    """

    def __call__(
        self,
        state: Float[Array, "*#batch d_h"],
        annotations: Float[Array, "*#batch m d_h"],
        *,
        mask: Bool[Array, "*#batch #m"] | None = None,
    ) -> Float[Array, "*batch d_h"]: ...


@operation(
    "luong_context_general",
    chapter="seq2seq",
    formula=r"c = \sum_t \operatorname{softmax}_t(s^\top W h_t)\, h_t",
    sources=[S2.passage("Luong Attention, footnote 1"), LUONG.passage("general")],
    pooled="annotations",
    scores_scale_with={"state": 1.0},
)
class LuongContextGeneral(Protocol[Array]):
    """Luong's context with a bilinear form of state and annotation as score.

    Where: s is the state of the decoder at this step; it queries the annotations h_t, which are keys and values. The
    context is in units of annotations.
    Domain: Σ|s||W||h| does not overflow.
    """

    def __call__(
        self,
        state: Float[Array, "*#batch d_s"],
        annotations: Float[Array, "*#batch m d_h"],
        w: Float[Array, "d_s d_h"],
        *,
        mask: Bool[Array, "*#batch #m"] | None = None,
    ) -> Float[Array, "*batch d_h"]: ...


@operation(
    "luong_context_location",
    chapter="seq2seq",
    formula=r"c = \sum_t \operatorname{softmax}_t(W s)_t\, h_t",
    sources=[S2.passage("Luong Attention, footnote 1"), LUONG.passage("location")],
    pooled="annotations",
    linear="annotations",
    scores_scale_with={"state": 1.0},
)
class LuongContextLocation(Protocol[Array]):
    """Luong's context with scores from the state alone, one row of weights per position.

    Where: s is the decoder's state at this step. W has a row for each annotation h_t. The context is in units of
    annotations.
    Domain: Σ|W||s| does not overflow.
    """

    def __call__(
        self,
        state: Float[Array, "*#batch d_s"],
        annotations: Float[Array, "*#batch m d_h"],
        w: Float[Array, "m d_s"],
        *,
        mask: Bool[Array, "*#batch #m"] | None = None,
    ) -> Float[Array, "*batch d_h"]: ...


@operation(
    "attentional_state",
    chapter="seq2seq",
    formula=r"\tilde s = \tanh(W [s; c])",
    sources=[S2.passage("Luong Attention"), LUONG.passage("3")],
)
class AttentionalState(Protocol[Array]):
    """Luong's attentional state: a tanh layer on the decoder's state and its context.

    Where: The output is computed from it. W is (out, in), its first columns for the state s, the others for the context
    c. This is the order of S2; in Luong 2015 the context comes first. The result has no unit.
    Domain: W [s; c] does not overflow.
    Edges: An element whose sum is large is ±1.
    """

    def __call__(
        self, state: Float[Array, "*#batch d_s"], context: Float[Array, "*#batch d_h"], w: Float[Array, "p_o d_s+d_h"]
    ) -> Float[Array, "*batch p_o"]: ...


@operation(
    "concat_output",
    chapter="seq2seq",
    formula=r"[a; s]",
    sources=[S1.passage("Attention: in equations")],
)
class ConcatOutput(Protocol[Array]):
    """The context, which is the attention output a, concatenated with the decoder's state.

    Where: The context comes first, as in S1 and in Luong 2015; S2 has the state first.
    Edges: NaN and ∞ stay where they are.
    """

    def __call__(
        self, context: Float[Array, "*#batch d_h"], state: Float[Array, "*#batch d_s"]
    ) -> Float[Array, "*batch d_h+d_s"]: ...


@operation(
    "embed",
    chapter="seq2seq",
    formula=r"x_t = E_{w_t}",
    sources=[S2.passage("Input & Positional Embedding")],
    axes={"d": Axis.WIDTH},
    indices={"tokens": "vocabulary"},
)
class Embed(Protocol[Array]):
    """Embeddings of tokens: the table row of each token.

    Where: Token w_t is the number of its row of the table E, from 0. The result is in units of the table.
    Edges: A token outside of the vocabulary raises. Rows that no token names have no effect: NaN and ∞ are allowed.
    """

    def __call__(
        self, tokens: Int[Array, "*batch n"], table: Float[Array, "vocabulary d"]
    ) -> Float[Array, "*batch n d"]: ...


@operation(
    "output_distribution",
    chapter="seq2seq",
    formula=r"P(y_{t+1} = w \mid y_1, \dots, y_t, c) = \operatorname{softmax}_w(W s_t + b)",
    sources=[S0.equation(14)],
)
class OutputDistribution(Protocol[Array]):
    """Probability of each token to come next, from the state of a decoder.

    Where: W is (out, in) with a row for each token, b the bias with an element for each. Probabilities have no unit.
    Domain: W s + b does not overflow.
    Edges: Probabilities of unlikely tokens may underflow to 0.
    """

    def __call__(
        self,
        state: Float[Array, "*batch d_s"],
        w: Float[Array, "vocabulary d_s"],
        b: Float[Array, " vocabulary"],
    ) -> Float[Array, "*batch vocabulary"]: ...


@operation(
    "encoder_context",
    chapter="seq2seq",
    formula=r"c = q(h_1, \dots, h_T) = h_T",
    sources=[S0.equation(13), S4.passage("Encoder-Decoder")],
    features="lengths",
    lengths={"lengths": "t"},
)
class EncoderContext(Protocol[Array]):
    """Context of an encoder without attention: its last state.

    Where: The function q is S0's example; S4 calls it g. T is the length, or `t` without `lengths`. The context is in
    units of the states.
    Edges: States beyond the length have no effect, NaN and ∞ included. If T = 0, the context is 0: the encoder's
    initial state is not an argument.
    """

    def __call__(
        self, states: Float[Array, "*#batch t h"], *, lengths: Int[Array, "*#batch"] | None = None
    ) -> Float[Array, "*batch h"]: ...


@dataclass(frozen=True)
class AttentionDecoderParameters(Generic[Array]):
    """Weights of a recurrent decoder with Bahdanau's attention.

    The rows of the embedding are the vectors y. w_q, w_k and w_v score annotations as in `bahdanau_context`. The input
    of the cell is [y; c]. w_o, which is (out, in), and b_o score tokens as in `output_distribution`.
    """

    embedding: Float[Array, "vocabulary d_y"]
    w_q: Float[Array, "h d_s"]
    w_k: Float[Array, "h d_h"]
    w_v: Float[Array, " h"]
    cell: Annotated[RNNParameters[Array], sizes(d="d_y+d_h", h="d_s")]
    w_o: Float[Array, "vocabulary d_s"]
    b_o: Float[Array, " vocabulary"]


@operation(
    "decoder_step",
    chapter="seq2seq",
    formula=r"s_{t'} = g(y_{t'}, c_{t'}, s_{t'-1}) = \tanh([y_{t'}; c_{t'}] W_{xh} + s_{t'-1} W_{hh} + b_h),\quad"
    r" c_{t'} = \sum_t \alpha(s_{t'-1}, h_t)\, h_t,\quad"
    r" P(y_{t'+1} = w \mid y_1, \dots, y_{t'}) = \operatorname{softmax}_w(W_o s_{t'} + b_o)",
    sources=[
        S0.equation(15),
        S0.equation(16),
        S3.passage("Decoder: RNN with attention"),
        S4.passage("Encoder-Decoder"),
        BAHDANAU.passage("3.1"),
    ],
    scores_scale_with={"parameters.w_v": 1.0},
    indices={"token": "vocabulary"},
    results="distribution following",
)
class DecoderStep(Protocol[Array]):
    """One step of Bahdanau's decoder: from token and state to distribution and next state.

    Where: The token is y_{t'}, counted as in `embed`. The state is s_{t'−1}, which is also the query. The following
    state is s_{t'}, the distribution that of y_{t'+1}. Indices are those of S0, which computes s_{t'} from y_{t'}; S4
    and Bahdanau number a state like the token that it predicts, H_t from Y_{t−1}. The function g is `rnn_cell` with the
    input [y; c], embedding before context. Bahdanau 2015 calls this function f and gives it gates; g is there the
    output function, which also sees y_{i−1} and c_i. Here, as in S0, the output depends on s_{t'} alone. Neither result
    has a unit.
    Domain: No sum overflows.
    Edges: Annotations at which `mask` is False are left out of the context, NaN and ∞ included. If no annotation is
    attendable, or `m` = 0, the context is 0 (semantics `fully_masked`).
    """

    def __call__(
        self,
        token: Int[Array, "*#batch"],
        state: Float[Array, "*#batch d_s"],
        annotations: Float[Array, "*#batch m d_h"],
        parameters: AttentionDecoderParameters[Array],
        *,
        mask: Bool[Array, "*#batch #m"] | None = None,
    ) -> tuple[Float[Array, "*batch vocabulary"], Float[Array, "*batch d_s"]]: ...


@operation(
    "teacher_forced_decode",
    chapter="seq2seq",
    formula=r"\log P(y_{t'+1} = w \mid y_1, \dots, y_{t'}) = \log \operatorname{softmax}_w(W_o s_{t'} + b_o),\quad"
    r" s_{t'} = g(y_{t'}, c_{t'}, s_{t'-1}),\quad t' = 1, \dots, T'",
    sources=[S0.passage("Training: Teacher Forcing")],
    scores_scale_with={"parameters.w_v": 1.0},
    causal="t",
    indices={"tokens": "vocabulary"},
    results="log_probabilities final",
)
class TeacherForcedDecode(Protocol[Array]):
    """Bahdanau's decoder on a known sentence: log probabilities of each possible next token.

    Where: The tokens are the inputs of `decoder_step`; the first is usually the start token. Position i predicts the
    token at position i + 1, so targets are the inputs shifted by one. `state` is the state before the first token, the
    final state that after the last. Logarithms are natural ones.
    Domain: No sum overflows.
    Edges: Without tokens the final state is `state`. Annotations at which `mask` is False have no effect on any step.
    """

    def __call__(
        self,
        tokens: Int[Array, "*#batch t"],
        state: Float[Array, "*#batch d_s"],
        annotations: Float[Array, "*#batch m d_h"],
        parameters: AttentionDecoderParameters[Array],
        *,
        mask: Bool[Array, "*#batch #m"] | None = None,
    ) -> tuple[Float[Array, "*batch t vocabulary"], Float[Array, "*batch d_s"]]: ...


@operation(
    "greedy_decode",
    chapter="seq2seq",
    formula=r"y_{t'+1} = \operatorname{argmax}_w P(w \mid y_1, \dots, y_{t'}),\quad"
    r" y_{t'+1} = \langle\text{eos}\rangle \text{ after } \langle\text{eos}\rangle",
    sources=[S0.passage("Encoder-Decoder RNN II"), S0.passage("Prediction: Token by Token")],
    scores_scale_with={"parameters.w_v": 1.0},
    indices={"token": "parameters.vocabulary", "eos": "parameters.vocabulary"},
    chosen="tokens",
    results="tokens score",
)
class GreedyDecode(Protocol[Array]):
    """Greedy decoding: append the most probable next token until the sentence ends.

    Where: `token` precedes the tokens to be decoded and is usually the start token; `state` is the decoder's state
    before it. A sentence ends with the token `eos`, or after `steps` tokens. The score is the sum of log P of its
    tokens, `eos` included, not divided by their number. It has no unit.
    Domain: No sum overflows.
    Edges: After `eos` all tokens are `eos` and add nothing to the score. An `eos` as the argument `token` ends nothing:
    it begins a sentence like any other token. Among equally probable tokens, the first of the vocabulary wins. With
    `steps` = 0 the score is 0. Annotations at which `mask` is False are never attended to.
    """

    def __call__(
        self,
        token: Int[Array, "*#batch"],
        state: Float[Array, "*#batch d_s"],
        annotations: Float[Array, "*#batch m d_h"],
        parameters: AttentionDecoderParameters[Array],
        steps: int,
        eos: int,
        *,
        mask: Bool[Array, "*#batch #m"] | None = None,
    ) -> tuple[Int[Array, "*batch {steps}"], Float[Array, "*batch"]]: ...


@operation(
    "beam_decode",
    chapter="seq2seq",
    formula=r"B_{t'+1} = \operatorname{best}_k \big(\{(y, w) : y \in B_{t'} \text{ not ended},\ w \in V\}"
    r" \cup \{(y, \langle\text{eos}\rangle) : y \in B_{t'} \text{ ended}\}\big),\quad"
    r" \operatorname{score}(y) = \left(\frac{6}{5 + |y|}\right)^{\alpha}"
    r" \sum_{t'} \log P(y_{t'+1} \mid y_1, \dots, y_{t'})",
    sources=[S0.passage("Prediction: Token by Token"), WU.passage("7 Decoder")],
    scores_scale_with={"parameters.w_v": 1.0},
    features="length_penalty",
    indices={"token": "parameters.vocabulary", "eos": "parameters.vocabulary"},
    chosen="tokens",
    results="tokens score",
    trial_values={"length_penalty": (1.0, 0.6)},
)
class BeamDecode(Protocol[Array]):
    """Beam search: keep the k most probable extensions at each step, return the best.

    Where: k is `beams` and V the vocabulary; token, state and `eos` are those of `greedy_decode`. α is `length_penalty`
    and |y| the number of tokens up to `eos`, which counts; with α = 0 the score is that of `greedy_decode`. Candidates
    are compared by this score at each step. An ended hypothesis stays a candidate and keeps its score. After the last
    step it competes with hypotheses that have not ended. A wider beam may end with a worse sentence.
    Domain: No sum of logarithms overflows. The length penalty is finite.
    Edges: Equal candidates are ranked by the rank of the hypothesis that they extend, then by the order of the
    vocabulary. If there are fewer hypotheses than `beams`, all are kept. With `beams` = 1 the tokens are greedy.
    """

    def __call__(
        self,
        token: Int[Array, "*#batch"],
        state: Float[Array, "*#batch d_s"],
        annotations: Float[Array, "*#batch m d_h"],
        parameters: AttentionDecoderParameters[Array],
        steps: int,
        eos: int,
        beams: int,
        *,
        mask: Bool[Array, "*#batch #m"] | None = None,
        length_penalty: float = 0.0,
    ) -> tuple[Int[Array, "*batch {steps}"], Float[Array, "*batch"]]: ...


class Seq2SeqOperations(Generic[Array]):
    """The operations of sequence to sequence as methods of a backend class."""

    bahdanau_context: BahdanauContext[Array]
    luong_context_dot: LuongContextDot[Array]
    luong_context_general: LuongContextGeneral[Array]
    luong_context_location: LuongContextLocation[Array]
    attentional_state: AttentionalState[Array]
    concat_output: ConcatOutput[Array]
    embed: Embed[Array]
    output_distribution: OutputDistribution[Array]
    encoder_context: EncoderContext[Array]
    decoder_step: DecoderStep[Array]
    teacher_forced_decode: TeacherForcedDecode[Array]
    greedy_decode: GreedyDecode[Array]
    beam_decode: BeamDecode[Array]


class Seq2SeqTable(TypedDict, Generic[Array], total=False):
    """The operations of sequence to sequence by name, as a typed dictionary."""

    bahdanau_context: BahdanauContext[Array]
    luong_context_dot: LuongContextDot[Array]
    luong_context_general: LuongContextGeneral[Array]
    luong_context_location: LuongContextLocation[Array]
    attentional_state: AttentionalState[Array]
    concat_output: ConcatOutput[Array]
    embed: Embed[Array]
    output_distribution: OutputDistribution[Array]
    encoder_context: EncoderContext[Array]
    decoder_step: DecoderStep[Array]
    teacher_forced_decode: TeacherForcedDecode[Array]
    greedy_decode: GreedyDecode[Array]
    beam_decode: BeamDecode[Array]
