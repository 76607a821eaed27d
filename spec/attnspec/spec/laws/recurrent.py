"""Laws of recurrent cells."""

from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import S4
from attnspec.spec.recurrent import GRUCell, LSTMCell, RNNCell, RNNOutput

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
