"""Recurrent networks: cells for one step, and their runs over whole sequences.

Where: Weights are (in, out), as S4 prints them: a row vector is multiplied from the left.
Edges: An empty batch gives an empty result. Steps from `lengths` on are padding: x may hold anything there, NaN
included, and the states are 0. The final state is the one after `lengths` steps. If `lengths` or `t` is 0, it is the
initial state.
"""

from dataclasses import dataclass
from typing import Annotated, Generic, Protocol, TypedDict

from jaxtyping import Float, Int

from attnspec.spec.contract.annotations import Array, sizes
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.semantics import depends_on
from attnspec.spec.contract.sources import S0, S2, S3, S4

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BidirectionalGRU",
    "BidirectionalLSTM",
    "BidirectionalRNN",
    "GRUCell",
    "GRUParameters",
    "LSTMCell",
    "LSTMParameters",
    "RNNCell",
    "RNNOutput",
    "RNNParameters",
    "RNNSelfAttention",
    "RecurrentOperations",
    "RecurrentTable",
    "StackedGRU",
    "StackedLSTM",
    "StackedRNN",
]


@dataclass(frozen=True)
class RNNParameters(Generic[Array]):
    """Weights and biases of a recurrent network, for inputs and states."""

    w_xh: Float[Array, "d h"]
    w_hh: Float[Array, "h h"]
    b_h: Float[Array, " h"]


@operation(
    "rnn_cell",
    chapter="recurrent",
    formula=r"H_t = \tanh(X_t W_{xh} + H_{t-1} W_{hh} + b_h)",
    sources=[S0.equation(12), S4.passage("RNN")],
    axes={"d": Axis.WIDTH},
)
class RNNCell(Protocol[Array]):
    """One step of a recurrent network, from input and previous state to next state.

    Where: S4 leaves the activation φ open; here it is tanh. The state has no unit, since tanh gives pure numbers.
    Domain: The pre-activation does not overflow.
    """

    def __call__(
        self, x: Float[Array, "*#batch d"], state: Float[Array, "*#batch h"], parameters: RNNParameters[Array]
    ) -> Float[Array, "*batch h"]: ...


@operation(
    "rnn_output",
    chapter="recurrent",
    formula=r"O_t = H_t W_{hq} + b_q",
    sources=[S4.passage("RNN")],
    axes={"q": Axis.WIDTH},
)
class RNNOutput(Protocol[Array]):
    """Output of a recurrent network at one step: an affine map of its state.

    Where: The result is in units of b_q, which are those of w_hq × state.
    Domain: No sum overflows.
    """

    def __call__(
        self, state: Float[Array, "*batch h"], w_hq: Float[Array, "h q"], b_q: Float[Array, " q"]
    ) -> Float[Array, "*batch q"]: ...


@depends_on("gru_update")
@depends_on("gru_reset")
@dataclass(frozen=True)
class GRUParameters(Generic[Array]):
    """Weights of a GRU for inputs (d, h) and states (h, h), and biases (h).

    The letters are those of S4: r reset gate, z update gate, h candidate of the state.
    """

    w_xr: Float[Array, "d h"]
    w_hr: Float[Array, "h h"]
    b_r: Float[Array, " h"]
    w_xz: Float[Array, "d h"]
    w_hz: Float[Array, "h h"]
    b_z: Float[Array, " h"]
    w_xh: Float[Array, "d h"]
    w_hh: Float[Array, "h h"]
    b_h: Float[Array, " h"]


@operation(
    "gru_cell",
    chapter="recurrent",
    formula=r"H_t = Z_t \odot H_{t-1} + (1 - Z_t) \odot \tilde H_t,\quad"
    r" \tilde H_t = \tanh(X_t W_{xh} + (R_t \odot H_{t-1}) W_{hh} + b_h),\quad"
    r" R_t = \sigma(X_t W_{xr} + H_{t-1} W_{hr} + b_r),\ Z_t = \sigma(X_t W_{xz} + H_{t-1} W_{hz} + b_z)",
    sources=[S4.passage("GRU Gated Recurrent Unit")],
    axes={"d": Axis.WIDTH},
)
class GRUCell(Protocol[Array]):
    """One step of a GRU: the update gate mixes the previous state with a candidate.

    Where: σ is the logistic function. The reset gate R scales H_{t−1} in the candidate, the update gate Z in the next
    state. Libraries that multiply by R after W_hh compute the candidate as tanh(X_t W_xh + R_t ⊙ (H_{t−1} W_hh) + b_h)
    (semantics `gru_reset`); a second bias inside that product, as in PyTorch, must be 0. In some, Z multiplies the
    candidate (semantics `gru_update`). The state has no unit.
    Domain: The sums in the gates and the candidate do not overflow.
    Edges: Z = 1 copies the previous state, however large it is; Z = 0 replaces it by the candidate.
    """

    def __call__(
        self, x: Float[Array, "*#batch d"], state: Float[Array, "*#batch h"], parameters: GRUParameters[Array]
    ) -> Float[Array, "*batch h"]: ...


@depends_on("lstm_forget_bias")
@dataclass(frozen=True)
class LSTMParameters(Generic[Array]):
    """Weights of an LSTM for inputs (d, h) and states (h, h), and biases (h).

    The letters are those of S4: i input gate, f forget gate, o output gate, c candidate of the cell state.
    """

    w_xi: Float[Array, "d h"]
    w_hi: Float[Array, "h h"]
    b_i: Float[Array, " h"]
    w_xf: Float[Array, "d h"]
    w_hf: Float[Array, "h h"]
    b_f: Float[Array, " h"]
    w_xo: Float[Array, "d h"]
    w_ho: Float[Array, "h h"]
    b_o: Float[Array, " h"]
    w_xc: Float[Array, "d h"]
    w_hc: Float[Array, "h h"]
    b_c: Float[Array, " h"]


@operation(
    "lstm_cell",
    chapter="recurrent",
    formula=r"C_t = F_t \odot C_{t-1} + I_t \odot \tilde C_t,\quad H_t = O_t \odot \tanh C_t,\quad"
    r" I_t = \sigma(X_t W_{xi} + H_{t-1} W_{hi} + b_i),\ \dots,\quad"
    r" \tilde C_t = \tanh(X_t W_{xc} + H_{t-1} W_{hc} + b_c)",
    sources=[S4.passage("LSTM")],
    axes={"d": Axis.WIDTH},
    results="h c",
)
class LSTMCell(Protocol[Array]):
    """One step of an LSTM, from an input to the next hidden and cell state.

    Where: The state is (h_{t−1}, c_{t−1}), hidden and cell. Neither has a unit; |c_t| ≤ |c_{t−1}| + 1. Some libraries
    add 1 to the forget gate's sum (semantics `lstm_forget_bias`).
    Domain: The pre-activations of the gates do not overflow.
    Edges: A gate saturates at 0 or 1, however large its sum is.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch d"],
        state: tuple[Float[Array, "*#batch h"], Float[Array, "*#batch h"]],
        parameters: LSTMParameters[Array],
    ) -> tuple[Float[Array, "*batch h"], Float[Array, "*batch h"]]: ...


@operation(
    "rnn",
    chapter="recurrent",
    formula=r"H_t = \operatorname{cell}(X_t, H_{t-1}),\quad t = 1, \dots, \ell",
    sources=[S0.equation(12), S4.passage("RNN")],
    axes={"d": Axis.WIDTH},
    causal="t",
    results="states final",
    features="lengths",
    lengths={"lengths": "t"},
)
class RNN(Protocol[Array]):
    """A recurrent network over a sequence: the state after every step, and the final state.

    Where: The cell is `rnn_cell`, H₀ is `state`, ℓ the length of a sequence. States have no unit.
    Domain: No pre-activation overflows at any step.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch t d"],
        state: Float[Array, "*#batch h"],
        parameters: RNNParameters[Array],
        *,
        lengths: Int[Array, "*#batch"] | None = None,
    ) -> tuple[Float[Array, "*batch t h"], Float[Array, "*batch h"]]: ...


@operation(
    "gru",
    chapter="recurrent",
    formula=r"H_t = \operatorname{GRU}(X_t, H_{t-1}),\quad t = 1, \dots, \ell",
    sources=[S3.passage("Encoder: Bidirectional RNN"), S4.passage("GRU Gated Recurrent Unit")],
    axes={"d": Axis.WIDTH},
    causal="t",
    results="states final",
    features="lengths",
    lengths={"lengths": "t"},
)
class GRU(Protocol[Array]):
    """A GRU over a sequence: `gru_cell` applied at every step.

    Where: H₀ is `state`, ℓ the length. Both gates act as in the cell (semantics `gru_reset`, `gru_update`).
    Domain: No step overflows.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch t d"],
        state: Float[Array, "*#batch h"],
        parameters: GRUParameters[Array],
        *,
        lengths: Int[Array, "*#batch"] | None = None,
    ) -> tuple[Float[Array, "*batch t h"], Float[Array, "*batch h"]]: ...


@operation(
    "lstm",
    chapter="recurrent",
    formula=r"(H_t, C_t) = \operatorname{LSTM}(X_t, (H_{t-1}, C_{t-1})),\quad t = 1, \dots, \ell",
    sources=[S3.passage("Encoder: Bidirectional RNN"), S4.passage("LSTM")],
    axes={"d": Axis.WIDTH},
    causal="t",
    results="states h c",
    features="lengths",
    lengths={"lengths": "t"},
)
class LSTM(Protocol[Array]):
    """An LSTM over a sequence: `lstm_cell` applied at every step.

    Where: The states of the result are the hidden states h_t. The initial `state` is (h₀, c₀), the final state
    (h_ℓ, c_ℓ), ℓ the length of a sequence. |c_t| ≤ |c₀| + t.
    Domain: No gate overflows at any step.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch t d"],
        state: tuple[Float[Array, "*#batch h"], Float[Array, "*#batch h"]],
        parameters: LSTMParameters[Array],
        *,
        lengths: Int[Array, "*#batch"] | None = None,
    ) -> tuple[Float[Array, "*batch t h"], tuple[Float[Array, "*batch h"], Float[Array, "*batch h"]]]: ...


@operation(
    "bidirectional_rnn",
    chapter="recurrent",
    formula=r"A_t = [\overrightarrow H_t; \overleftarrow H_t],\quad"
    r" \overrightarrow H_t = \operatorname{cell}(X_t, \overrightarrow H_{t-1}),\quad"
    r" \overleftarrow H_t = \operatorname{cell}'(X_t, \overleftarrow H_{t+1})",
    sources=[S3.passage("Encoder: Bidirectional RNN")],
    axes={"d": Axis.WIDTH},
    results="states forward backward",
    features="lengths",
    lengths={"lengths": "t"},
)
class BidirectionalRNN(Protocol[Array]):
    """Two recurrent networks over a sequence, forwards and backwards, with concatenated states.

    Where: `state` and `parameters` are pairs (forward network, backward network). The backward network starts at the
    last step before the padding; its final state is that of the first step. A_t is the annotation of word t.
    Domain: No pre-activation overflows in either network.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch t d"],
        state: tuple[Float[Array, "*#batch h"], Float[Array, "*#batch h"]],
        parameters: tuple[RNNParameters[Array], RNNParameters[Array]],
        *,
        lengths: Int[Array, "*#batch"] | None = None,
    ) -> tuple[Float[Array, "*batch t 2*h"], tuple[Float[Array, "*batch h"], Float[Array, "*batch h"]]]: ...


@operation(
    "bidirectional_gru",
    chapter="recurrent",
    formula=r"A_t = [\overrightarrow H_t; \overleftarrow H_t],\quad"
    r" \overrightarrow H_t = \operatorname{GRU}(X_t, \overrightarrow H_{t-1}),\quad"
    r" \overleftarrow H_t = \operatorname{GRU}'(X_t, \overleftarrow H_{t+1})",
    sources=[S3.passage("Encoder: Bidirectional RNN")],
    axes={"d": Axis.WIDTH},
    results="states forward backward",
    features="lengths",
    lengths={"lengths": "t"},
)
class BidirectionalGRU(Protocol[Array]):
    """Two GRUs over a sequence, forwards and backwards, with concatenated states.

    Where: `state` and `parameters` are pairs (forward, backward). `gru_reset` and `gru_update` hold for both.
    Domain: Neither GRU overflows.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch t d"],
        state: tuple[Float[Array, "*#batch h"], Float[Array, "*#batch h"]],
        parameters: tuple[GRUParameters[Array], GRUParameters[Array]],
        *,
        lengths: Int[Array, "*#batch"] | None = None,
    ) -> tuple[Float[Array, "*batch t 2*h"], tuple[Float[Array, "*batch h"], Float[Array, "*batch h"]]]: ...


@operation(
    "bidirectional_lstm",
    chapter="recurrent",
    formula=r"A_t = [\overrightarrow H_t; \overleftarrow H_t],\quad"
    r" (\overrightarrow H_t, \overrightarrow C_t) ="
    r" \operatorname{LSTM}(X_t, (\overrightarrow H_{t-1}, \overrightarrow C_{t-1})),\quad"
    r" (\overleftarrow H_t, \overleftarrow C_t) ="
    r" \operatorname{LSTM}'(X_t, (\overleftarrow H_{t+1}, \overleftarrow C_{t+1}))",
    sources=[S3.passage("Encoder: Bidirectional RNN")],
    axes={"d": Axis.WIDTH},
    results="states forward_h forward_c backward_h backward_c",
    features="lengths",
    lengths={"lengths": "t"},
)
class BidirectionalLSTM(Protocol[Array]):
    """Two LSTMs over a sequence, forwards and backwards, with concatenated hidden states.

    Where: `state` and `parameters` are pairs (forward, backward). Each initial and each final state is a pair (h, c).
    Domain: No gate overflows in either LSTM.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch t d"],
        state: tuple[
            tuple[Float[Array, "*#batch h"], Float[Array, "*#batch h"]],
            tuple[Float[Array, "*#batch h"], Float[Array, "*#batch h"]],
        ],
        parameters: tuple[LSTMParameters[Array], LSTMParameters[Array]],
        *,
        lengths: Int[Array, "*#batch"] | None = None,
    ) -> tuple[
        Float[Array, "*batch t 2*h"],
        tuple[
            tuple[Float[Array, "*batch h"], Float[Array, "*batch h"]],
            tuple[Float[Array, "*batch h"], Float[Array, "*batch h"]],
        ],
    ]: ...


@operation(
    "stacked_rnn",
    chapter="recurrent",
    formula=r"H^{(0)} = X,\quad H^{(l)}_t = \operatorname{cell}^{(l)}(H^{(l-1)}_t, H^{(l)}_{t-1})",
    sources=[S3.passage("Multi-Layer RNNs")],
    axes={"d": Axis.WIDTH},
    causal="t",
    nonempty="depth",
    results="states final",
    features="lengths",
    lengths={"lengths": "t"},
)
class StackedRNN(Protocol[Array]):
    """Stacked recurrent networks: the states of each layer are the inputs of the next.

    Where: The result holds the states of the last layer. The first layer takes inputs of width d, the others of width
    h. Row l of `state` and of the final state belongs to layer l, in order.
    Domain: No pre-activation overflows in any layer.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch t d"],
        state: Float[Array, "*#batch depth h"],
        layers: Annotated[tuple[RNNParameters[Array], ...], sizes(count="depth", d=("d", "h"))],
        *,
        lengths: Int[Array, "*#batch"] | None = None,
    ) -> tuple[Float[Array, "*batch t h"], Float[Array, "*batch depth h"]]: ...


@operation(
    "stacked_gru",
    chapter="recurrent",
    formula=r"H^{(0)} = X,\quad H^{(l)}_t = \operatorname{GRU}^{(l)}(H^{(l-1)}_t, H^{(l)}_{t-1})",
    sources=[S3.passage("Multi-Layer RNNs")],
    axes={"d": Axis.WIDTH},
    causal="t",
    nonempty="depth",
    results="states final",
    features="lengths",
    lengths={"lengths": "t"},
)
class StackedGRU(Protocol[Array]):
    """Stacked GRUs: the first reads the inputs, the others the states of the previous GRU.

    Where: A layer is `gru`; `state` and the final state have a row per layer. `gru_reset` and `gru_update` hold for
    all layers.
    Domain: No GRU overflows.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch t d"],
        state: Float[Array, "*#batch depth h"],
        layers: Annotated[tuple[GRUParameters[Array], ...], sizes(count="depth", d=("d", "h"))],
        *,
        lengths: Int[Array, "*#batch"] | None = None,
    ) -> tuple[Float[Array, "*batch t h"], Float[Array, "*batch depth h"]]: ...


@operation(
    "stacked_lstm",
    chapter="recurrent",
    formula=r"H^{(0)} = X,\quad"
    r" (H^{(l)}_t, C^{(l)}_t) = \operatorname{LSTM}^{(l)}(H^{(l-1)}_t, (H^{(l)}_{t-1}, C^{(l)}_{t-1}))",
    sources=[S3.passage("Multi-Layer RNNs")],
    axes={"d": Axis.WIDTH},
    causal="t",
    nonempty="depth",
    results="states h c",
    features="lengths",
    lengths={"lengths": "t"},
)
class StackedLSTM(Protocol[Array]):
    """Stacked LSTMs: each layer passes its hidden states on and keeps its cell states.

    Where: A layer is `lstm`; h and c of the initial and the final state have a row per layer.
    Domain: No gate overflows in any layer.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch t d"],
        state: tuple[Float[Array, "*#batch depth h"], Float[Array, "*#batch depth h"]],
        layers: Annotated[tuple[LSTMParameters[Array], ...], sizes(count="depth", d=("d", "h"))],
        *,
        lengths: Int[Array, "*#batch"] | None = None,
    ) -> tuple[Float[Array, "*batch t h"], tuple[Float[Array, "*batch depth h"], Float[Array, "*batch depth h"]]]: ...


@operation(
    "rnn_self_attention",
    chapter="recurrent",
    formula=r"a_t = \sum_{j=1}^{t-1} \alpha_{tj} h_j,\quad"
    r" \alpha_{tj} = \frac{\exp(h_t^\top h_j)}{\sum_{i<t} \exp(h_t^\top h_i)},\quad"
    r" h_t = \operatorname{cell}(x_t, h_{t-1})",
    sources=[S2.passage("Attention in RNNs")],
    axes={"d": Axis.WIDTH},
    causal="t",
    results="contexts states final",
    features="lengths",
    lengths={"lengths": "t"},
)
class RNNSelfAttention(Protocol[Array]):
    """Self-attention in a recurrent network: every state attends to the states before it.

    Where: S2 leaves the score open; here it is the dot product. The states h_t are those of `rnn`: the contexts a_t do
    not enter them. h₀ is `state`, to which no state attends.
    Domain: Neither a step nor a score overflows.
    Edges: No state precedes the first, so its context is 0. The context of the second state is the first state.
    Contexts of padding are 0.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch t d"],
        state: Float[Array, "*#batch h"],
        parameters: RNNParameters[Array],
        *,
        lengths: Int[Array, "*#batch"] | None = None,
    ) -> tuple[Float[Array, "*batch t h"], Float[Array, "*batch t h"], Float[Array, "*batch h"]]: ...


class RecurrentOperations(Generic[Array]):
    """The operations of recurrent networks as methods of a backend class."""

    rnn_cell: RNNCell[Array]
    rnn_output: RNNOutput[Array]
    gru_cell: GRUCell[Array]
    lstm_cell: LSTMCell[Array]
    rnn: RNN[Array]
    gru: GRU[Array]
    lstm: LSTM[Array]
    bidirectional_rnn: BidirectionalRNN[Array]
    bidirectional_gru: BidirectionalGRU[Array]
    bidirectional_lstm: BidirectionalLSTM[Array]
    stacked_rnn: StackedRNN[Array]
    stacked_gru: StackedGRU[Array]
    stacked_lstm: StackedLSTM[Array]
    rnn_self_attention: RNNSelfAttention[Array]


class RecurrentTable(TypedDict, Generic[Array], total=False):
    """The operations of recurrent networks by name, as a typed dictionary."""

    rnn_cell: RNNCell[Array]
    rnn_output: RNNOutput[Array]
    gru_cell: GRUCell[Array]
    lstm_cell: LSTMCell[Array]
    rnn: RNN[Array]
    gru: GRU[Array]
    lstm: LSTM[Array]
    bidirectional_rnn: BidirectionalRNN[Array]
    bidirectional_gru: BidirectionalGRU[Array]
    bidirectional_lstm: BidirectionalLSTM[Array]
    stacked_rnn: StackedRNN[Array]
    stacked_gru: StackedGRU[Array]
    stacked_lstm: StackedLSTM[Array]
    rnn_self_attention: RNNSelfAttention[Array]
