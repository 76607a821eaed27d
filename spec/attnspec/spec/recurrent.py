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
from attnspec.spec.contract.sources import S4

__all__ = ["LSTMCell", "LSTMParameters", "RecurrentOperations", "RecurrentTable"]


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

    lstm_cell: LSTMCell[Array]


class RecurrentTable(TypedDict, Generic[Array], total=False):
    """The operations of recurrent networks by name."""

    lstm_cell: LSTMCell[Array]
