"""Laws of recurrent cells and sequences."""

from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import S0, S2, S3, S4
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
from attnspec.spec.seq2seq import TeacherForcedDecode

ONE_DIRECTION = (RNN, GRU, LSTM)
BOTH_DIRECTIONS = (BidirectionalRNN, BidirectionalGRU, BidirectionalLSTM)
STACKED = (StackedRNN, StackedGRU, StackedLSTM)

resumable = of(*ONE_DIRECTION, *STACKED, TeacherForcedDecode)
"""Operations whose later steps depend on earlier ones only through the state."""

over_sequences = of(*ONE_DIRECTION, *BOTH_DIRECTIONS, *STACKED, RNNSelfAttention)
"""Operations over sequences with lengths."""

OPEN_AND_CLOSED_GATES = law(
    "recurrent.open-and-closed-gates",
    "A GRU with its update gate at 1 keeps its state. With its update gate at 0 it is a plain recurrent network if "
    "the reset gate is 1, and depends on the input alone if the reset gate is 0. An LSTM with its forget gate at 1 "
    "and its input gate at 0 keeps its cell.",
    formula=r"Z_t = 1 \Rightarrow H_t = H_{t-1},"
    r"\quad Z_t = 0 \Rightarrow H_t = \tanh(X_t W_{xh} + R_t H_{t-1} W_{hh} + b_h)\ (R_t \in \{0, 1\}),"
    r"\quad F_t = 1,\ I_t = 0 \Rightarrow C_t = C_{t-1}",
    governs=of(GRUCell, LSTMCell),
    sources=[S4.passage("RNN"), S4.passage("GRU Gated Recurrent Unit"), S4.passage("LSTM")],
)
BOUNDED_STATE = law(
    "recurrent.bounded-state",
    "The magnitude of a state never exceeds 1 or that of the state before, whichever is larger. The cell of an LSTM "
    "grows by at most 1 in a step.",
    formula=r"|H_t| \le \max(1, |H_{t-1}|),\quad |C_t| \le |C_{t-1}| + 1",
    governs=of(RNNCell, GRUCell, LSTMCell, *ONE_DIRECTION),
    sources=[S4.passage("RNN"), S4.passage("GRU Gated Recurrent Unit"), S4.passage("LSTM")],
)
ZERO_STATE_OUTPUTS_BIAS = law(
    "recurrent.zero-state-outputs-bias",
    "A state of 0 gives the output bias.",
    formula=r"H_t = 0 \Rightarrow O_t = b_q",
    governs=of(RNNOutput),
    sources=[S4.passage("RNN")],
)
FIRST_STEP_IS_CELL = law(
    "recurrent.first-step-is-cell",
    "The first state of a sequence is the cell's result for the first input and the initial state.",
    formula=r"H_1 = \operatorname{cell}(X_1, H_0)",
    governs=of(*ONE_DIRECTION),
    sources=[S4.passage("RNN"), S4.passage("GRU Gated Recurrent Unit"), S4.passage("LSTM")],
)
RESUMES_FROM_STATE = law(
    "recurrent.resumes-from-state",
    "Later steps depend on earlier ones only through the state, so a sequence can be computed, or decoded, in two "
    "parts. Without steps, or with a length of 0, the final state is the initial one.",
    formula=r"f(X, H_0)_{> s} = f(X_{> s}, H_s),\quad \ell = 0 \Rightarrow H_\ell = H_0",
    governs=lambda operation: resumable(operation) or over_sequences(operation),
    sources=[
        S0.equation(15),
        S4.passage("RNN"),
        S4.passage("GRU Gated Recurrent Unit"),
        S4.passage("LSTM"),
        S4.passage("Inductive Bias"),
    ],
)
PADDING_IGNORED = law(
    "recurrent.padding-ignored",
    "Steps beyond the length of a sequence affect no result, even if they hold NaN or ∞, and their states are 0.",
    formula=r"t > \ell \Rightarrow H_t = 0,\ f \text{ does not depend on } X_t",
    governs=over_sequences,
)
REVERSAL_SWAPS_HALVES = law(
    "recurrent.reversal-swaps-halves",
    "Reversing every sequence within its length and exchanging the two networks reverses the states and exchanges "
    "their forward and backward halves.",
    formula=r"f(RX; \theta', \theta) = R f(X; \theta, \theta') \begin{pmatrix} 0 & I \\ I & 0 \end{pmatrix}",
    governs=of(*BOTH_DIRECTIONS),
    sources=[S3.passage("Encoder: Bidirectional RNN")],
)
HALVES_SEE_ONE_DIRECTION = law(
    "recurrent.halves-see-one-direction",
    "The forward half of a state does not depend on later inputs, nor the backward half on earlier ones.",
    formula=r"\partial \overrightarrow H_t / \partial X_s = 0,\ s > t;\quad"
    r" \partial \overleftarrow H_t / \partial X_s = 0,\ s < t",
    governs=of(*BOTH_DIRECTIONS),
    sources=[S3.passage("Encoder: Bidirectional RNN")],
)
CONTEXT_OF_EARLIER_STATES = law(
    "recurrent.context-of-earlier-states",
    "The first state attends to nothing, the second to the first, and no context exceeds the states before it.",
    formula=r"a_1 = 0,\quad a_2 = h_1,\quad |a_t| \le \max_{j < t} |h_j|",
    governs=of(RNNSelfAttention),
    sources=[S2.passage("Attention in RNNs")],
)
