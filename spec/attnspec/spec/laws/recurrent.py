"""Laws of recurrent cells."""

from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import S4
from attnspec.spec.recurrent import LSTMCell, RNNCell, RNNOutput

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
