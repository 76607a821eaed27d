"""Laws of recurrent cells and sequences."""

from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import S2, S3, S4
from attnspec.spec.recurrent import (
    GRU,
    LSTM,
    RNN,
    BidirectionalGRU,
    BidirectionalLSTM,
    BidirectionalRNN,
    GRUCell,
    LSTMCell,
    RNNCell,
    RNNOutput,
    RNNSelfAttention,
    StackedGRU,
    StackedLSTM,
    StackedRNN,
)

ONE_RUN = (RNN, GRU, LSTM)
BOTH_WAYS = (BidirectionalRNN, BidirectionalGRU, BidirectionalLSTM)
STACKED = (StackedRNN, StackedGRU, StackedLSTM)

COPIED_STATE = law(
    "recurrent.copied-state",
    "With the update gate at 1, the state stays as it is.",
    formula=r"Z_t = 1 \Rightarrow H_t = H_{t-1}",
    governs=of(GRUCell),
    sources=[S4.passage("GRU Gated Recurrent Unit")],
)
FORGOTTEN_STATE = law(
    "recurrent.forgotten-state",
    "With both gates at 0, the next state depends on the input alone.",
    formula=r"R_t = 0,\ Z_t = 0 \Rightarrow H_t = \tanh(X_t W_{xh} + b_h)",
    governs=of(GRUCell),
    sources=[S4.passage("GRU Gated Recurrent Unit")],
)
GRU_IS_AN_RNN = law(
    "recurrent.gru-is-an-rnn",
    "With the update gate at 0 and the reset gate at 1, a GRU is a plain recurrent network.",
    formula=r"Z_t = 0,\ R_t = 1 \Rightarrow H_t = \tanh(X_t W_{xh} + H_{t-1} W_{hh} + b_h)",
    governs=of(GRUCell),
    sources=[S4.passage("GRU Gated Recurrent Unit"), S4.passage("RNN")],
)
MIXED_STATE = law(
    "recurrent.mixed-state",
    "No unit of a GRU's state exceeds the larger of 1 and what it was.",
    formula=r"|H_t| \le \max(1, |H_{t-1}|)",
    governs=of(GRUCell),
    sources=[S4.passage("GRU Gated Recurrent Unit")],
)
KEPT_CELL = law(
    "recurrent.kept-cell",
    "With the forget gate open and the input gate closed, the cell stays as it is.",
    formula=r"F_t = 1,\ I_t = 0 \Rightarrow C_t = C_{t-1}",
    governs=of(LSTMCell),
    sources=[S4.passage("LSTM")],
)
CELL_BOUND = law(
    "recurrent.cell-bound",
    "A cell grows by 1 at most, and no hidden state exceeds 1.",
    formula=r"|C_t| \le |C_{t-1}| + 1,\quad |H_t| \le 1",
    governs=of(LSTMCell),
    sources=[S4.passage("LSTM")],
)
STATE_BOUND = law(
    "recurrent.state-bound",
    "No state of a recurrent network exceeds 1.",
    formula=r"|H_t| \le 1",
    governs=of(RNNCell),
    sources=[S4.passage("RNN")],
)
ODD_CELL = law(
    "recurrent.odd-cell",
    "tanh is odd: negating input, state and bias negates the next state.",
    formula=r"f(-x, -h; W, -b) = -f(x, h; W, b)",
    governs=of(RNNCell),
    sources=[S4.passage("RNN")],
)
OUTPUT_BIAS = law(
    "recurrent.output-bias",
    "A state of 0 says the bias.",
    formula=r"H_t = 0 \Rightarrow O_t = b_q",
    governs=of(RNNOutput),
    sources=[S4.passage("RNN")],
)
FIRST_STEP = law(
    "recurrent.first-step",
    "The first state of a sequence is what the cell makes of the first input and the initial state.",
    formula=r"H_1 = \operatorname{cell}(X_1, H_0)",
    governs=of(*ONE_RUN),
    sources=[S4.passage("RNN"), S4.passage("GRU Gated Recurrent Unit"), S4.passage("LSTM")],
)
CONTINUATION = law(
    "recurrent.continuation",
    "What follows a step depends on the state after it alone: a sequence can be computed in two parts.",
    formula=r"f(X, H_0)_{> s} = f(X_{> s}, H_s)",
    governs=of(*ONE_RUN, *STACKED),
    sources=[
        S4.passage("RNN"),
        S4.passage("GRU Gated Recurrent Unit"),
        S4.passage("LSTM"),
        S4.passage("Inductive Bias"),
    ],
)
PADDING = law(
    "recurrent.padding",
    "Nothing beyond the length of a sequence reaches a result, NaN and infinities included, and states there are 0.",
    formula=r"t > \ell \Rightarrow H_t = 0,\ f \text{ does not depend on } X_t",
    governs=of(*ONE_RUN, *BOTH_WAYS, *STACKED, RNNSelfAttention),
)
PADDING_GRADIENT = law(
    "recurrent.padding-gradient",
    "NaN and infinities beyond the length reach no gradient, and the gradients there are 0.",
    formula=r"t > \ell \Rightarrow \partial f / \partial X_t = 0",
    governs=of(*ONE_RUN, *BOTH_WAYS, *STACKED, RNNSelfAttention),
    gradients=True,
)
NO_STEPS = law(
    "recurrent.no-steps",
    "Without a step, and with a length of 0, the final state is the initial one.",
    formula=r"\ell = 0 \Rightarrow H_\ell = H_0",
    governs=of(*ONE_RUN, *BOTH_WAYS, *STACKED, RNNSelfAttention),
)
SEQUENCE_BOUND = law(
    "recurrent.sequence-bound",
    "No state exceeds the larger of 1 and the initial state, and no cell the initial one by more than the number of "
    "steps.",
    formula=r"|H_t| \le \max(1, |H_0|),\quad |C_t| \le |C_0| + t",
    governs=of(*ONE_RUN),
    sources=[S4.passage("RNN"), S4.passage("GRU Gated Recurrent Unit"), S4.passage("LSTM")],
)
REVERSAL = law(
    "recurrent.reversal",
    "Reversing every sequence within its length and exchanging the two networks reverses the states and exchanges "
    "their halves.",
    formula=r"f(RX; \theta', \theta) = R f(X; \theta, \theta') \begin{pmatrix} 0 & I \\ I & 0 \end{pmatrix}",
    governs=of(*BOTH_WAYS),
    sources=[S3.passage("Encoder: Bidirectional RNN")],
)
HALVES = law(
    "recurrent.halves",
    "The forward half of a state does not depend on later inputs, nor the backward half on earlier ones.",
    formula=r"\partial \overrightarrow H_t / \partial X_s = 0,\ s > t;\quad"
    r" \partial \overleftarrow H_t / \partial X_s = 0,\ s < t",
    governs=of(*BOTH_WAYS),
    sources=[S3.passage("Encoder: Bidirectional RNN")],
)
LAYER_BY_LAYER = law(
    "recurrent.layer-by-layer",
    "The upper layers of a stack, on the states of the lower ones, give what the whole stack gives.",
    formula=r"f_{1 \dots N}(X) = f_{k+1 \dots N}(f_{1 \dots k}(X))",
    governs=of(*STACKED),
    sources=[S3.passage("Multi-Layer RNNs")],
)
FIRST_CONTEXT = law(
    "recurrent.first-context",
    "The first state attends to nothing, the second to the first, and no context exceeds the states before it.",
    formula=r"a_1 = 0,\quad a_2 = h_1,\quad |a_t| \le \max_{j < t} |h_j|",
    governs=of(RNNSelfAttention),
    sources=[S2.passage("Attention in RNNs")],
)
