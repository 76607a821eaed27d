"""Recurrent networks: cells, which compute the next state from an input and the previous state.

Where: Weights are (in, out), as S4 prints them: a row vector is multiplied from the left.
Edges: An empty batch gives an empty result.
"""

from dataclasses import dataclass
from typing import Generic, Protocol, TypedDict

from jaxtyping import Float

from attnspec.spec.contract.annotations import Array
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.semantics import depends_on
from attnspec.spec.contract.sources import S0, S4

__all__ = [
    "GRUCell",
    "GRUParameters",
    "LSTMCell",
    "LSTMParameters",
    "RNNCell",
    "RNNOutput",
    "RNNParameters",
    "RecurrentOperations",
    "RecurrentTable",
]


@dataclass(frozen=True)
class RNNParameters(Generic[Array]):
    """Weights of a recurrent network for inputs (d, h) and states (h, h), and biases (h)."""

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
    """One step of a recurrent network: the next state, from an input and the previous state.

    Where: The activation φ of S4 is tanh. The state has no unit.
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
    """What a recurrent network says at one step: an affine map of its state.

    Where: The result is in units of b_q, which are those of w_hq × state.
    Domain: No sum overflows.
    """

    def __call__(
        self, state: Float[Array, "*batch h"], w_hq: Float[Array, "h q"], b_q: Float[Array, " q"]
    ) -> Float[Array, "*batch q"]: ...


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
    """One step of a GRU: the next state, a mean of the previous state and a candidate, weighted by the update gate.

    Where: σ is the logistic function. R decides how much of H_{t−1} the candidate sees, Z how much of it is kept; where
    libraries multiply by R after W_hh, the candidate is tanh(X_t W_xh + R_t ⊙ (H_{t−1} W_hh) + b_h) (semantics
    `gru_reset`). The state has no unit.
    Domain: The sums in the gates and the candidate do not overflow.
    Edges: Z = 1 copies the state, however large it is; with Z = 0 it is the candidate alone.
    """

    def __call__(
        self, x: Float[Array, "*#batch d"], state: Float[Array, "*#batch h"], parameters: GRUParameters[Array]
    ) -> Float[Array, "*batch h"]: ...


@dataclass(frozen=True)
class LSTMParameters(Generic[Array]):
    """Weights of an LSTM for inputs (d, h) and states (h, h), and biases (h).

    The letters are those of S4: i input gate, f forget gate, o output gate, c candidate of the cell.
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
    """One step of an LSTM: the next hidden state and cell, from an input and the previous ones.

    Where: The state is (h_{t−1}, c_{t−1}). Neither h nor c has a unit; |c_t| ≤ |c_{t−1}| + 1.
    Domain: The pre-activations of the gates do not overflow.
    Edges: A gate saturates at 0 or 1, however large its sum is.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch d"],
        state: tuple[Float[Array, "*#batch h"], Float[Array, "*#batch h"]],
        parameters: LSTMParameters[Array],
    ) -> tuple[Float[Array, "*batch h"], Float[Array, "*batch h"]]: ...


class RecurrentOperations(Generic[Array]):
    """The operations of recurrent networks as methods of a backend class."""

    rnn_cell: RNNCell[Array]
    rnn_output: RNNOutput[Array]
    gru_cell: GRUCell[Array]
    lstm_cell: LSTMCell[Array]


class RecurrentTable(TypedDict, Generic[Array], total=False):
    """The operations of recurrent networks by name."""

    rnn_cell: RNNCell[Array]
    rnn_output: RNNOutput[Array]
    gru_cell: GRUCell[Array]
    lstm_cell: LSTMCell[Array]
