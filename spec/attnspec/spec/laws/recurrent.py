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

ONE_RUN = (RNN, GRU, LSTM)
BOTH_WAYS = (BidirectionalRNN, BidirectionalGRU, BidirectionalLSTM)
STACKED = (StackedRNN, StackedGRU, StackedLSTM)

in_two_parts = of(*ONE_RUN, *STACKED, TeacherForcedDecode)
"""Operations whose later steps depend on earlier ones only through the state."""

over_sequences = of(*ONE_RUN, *BOTH_WAYS, *STACKED, RNNSelfAttention)
"""Operations over sequences with lengths."""

GATES = law(
    "recurrent.gates",
    "A GRU with its update gate at 1 keeps its state; at 0 it is a plain recurrent network where the reset gate is 1, "
    "and depends on the input alone where that is 0 too. An LSTM with its forget gate open and its input gate closed "
    "keeps its cell.",
    formula=r"Z_t = 1 \Rightarrow H_t = H_{t-1},"
    r"\quad Z_t = 0 \Rightarrow H_t = \tanh(X_t W_{xh} + R_t H_{t-1} W_{hh} + b_h)\ (R_t \in \{0, 1\}),"
    r"\quad F_t = 1,\ I_t = 0 \Rightarrow C_t = C_{t-1}",
    governs=of(GRUCell, LSTMCell),
    sources=[S4.passage("RNN"), S4.passage("GRU Gated Recurrent Unit"), S4.passage("LSTM")],
)
BOUNDS = law(
    "recurrent.bounds",
    "No state exceeds 1, or the larger of 1 and the state before where it is kept; a cell of an LSTM grows by 1 at "
    "most in a step.",
    formula=r"|H_t| \le \max(1, |H_{t-1}|),\quad |C_t| \le |C_{t-1}| + 1",
    governs=of(RNNCell, GRUCell, LSTMCell, *ONE_RUN),
    sources=[S4.passage("RNN"), S4.passage("GRU Gated Recurrent Unit"), S4.passage("LSTM")],
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
    "What follows a step depends on the state after it alone: a sequence can be computed, or decoded, in two parts. "
    "Without a step, and with a length of 0, the final state is the initial one.",
    formula=r"f(X, H_0)_{> s} = f(X_{> s}, H_s),\quad \ell = 0 \Rightarrow H_\ell = H_0",
    governs=lambda operation: in_two_parts(operation) or over_sequences(operation),
    sources=[
        S0.equation(15),
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
    governs=over_sequences,
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
FIRST_CONTEXT = law(
    "recurrent.first-context",
    "The first state attends to nothing, the second to the first, and no context exceeds the states before it.",
    formula=r"a_1 = 0,\quad a_2 = h_1,\quad |a_t| \le \max_{j < t} |h_j|",
    governs=of(RNNSelfAttention),
    sources=[S2.passage("Attention in RNNs")],
)
