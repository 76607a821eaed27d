"""Recurrent cells. Protocols: ``attnspec.spec.recurrent``."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.runtime.accumulation import widened
from attnspec.backends.pytorch.runtime.autocast import lowers
from attnspec.spec import (
    GRUCell,
    GRUParameters,
    LSTMCell,
    LSTMParameters,
    RNNCell,
    RNNOutput,
    RNNParameters,
    implements,
)

__all__ = ["gru_cell", "lstm_cell", "rnn_cell", "rnn_output"]

_rnn = Check("rnn_cell")
_gru = Check("gru_cell")
_output = Check("rnn_output")
_lstm = Check("lstm_cell")


@implements(RNNCell[Tensor])
@lowers
def rnn_cell(
    x: Float[Tensor, "*#batch d"], state: Float[Tensor, "*#batch h"], parameters: RNNParameters[Tensor]
) -> Float[Tensor, "*batch h"]:
    """tanh of an affine map of input and state."""
    _rnn(x, state, parameters)
    p = parameters
    summed = widened(x) @ widened(p.w_xh) + widened(state) @ widened(p.w_hh) + widened(p.b_h)
    return summed.tanh().to(x.dtype)


@implements(RNNOutput[Tensor])
@lowers
def rnn_output(
    state: Float[Tensor, "*batch h"], w_hq: Float[Tensor, "h q"], b_q: Float[Tensor, " q"]
) -> Float[Tensor, "*batch q"]:
    """An affine map of the state."""
    _output(state, w_hq, b_q)
    return linear(widened(state), widened(w_hq).mT, widened(b_q)).to(state.dtype)


@implements(GRUCell[Tensor])
@lowers
def gru_cell(
    x: Float[Tensor, "*#batch d"], state: Float[Tensor, "*#batch h"], parameters: GRUParameters[Tensor]
) -> Float[Tensor, "*batch h"]:
    """Both gates in one product for the state, and with the candidate in one for the input.

    torch.gru_cell multiplies by the reset gate after the product.
    """
    _gru(x, state, parameters)
    p, h = parameters, widened(state)
    of_input = widened(x) @ widened(torch.cat([p.w_xr, p.w_xz, p.w_xh], -1)) + widened(torch.cat([p.b_r, p.b_z, p.b_h]))
    width = h.shape[-1]
    of_state = h @ widened(torch.cat([p.w_hr, p.w_hz], -1))
    reset, update = (of_input[..., : 2 * width] + of_state).sigmoid().chunk(2, -1)
    candidate = (of_input[..., 2 * width :] + (reset * h) @ widened(p.w_hh)).tanh()
    return (update * h + (1 - update) * candidate).to(x.dtype)


@implements(LSTMCell[Tensor])
@lowers
def lstm_cell(
    x: Float[Tensor, "*#batch d"],
    state: tuple[Float[Tensor, "*#batch h"], Float[Tensor, "*#batch h"]],
    parameters: LSTMParameters[Tensor],
) -> tuple[Float[Tensor, "*batch h"], Float[Tensor, "*batch h"]]:
    """All four gates in one product for the input and one for the state."""
    _lstm(x, state, parameters)
    p, (h, c) = parameters, state
    of_input = torch.cat([p.w_xi, p.w_xf, p.w_xo, p.w_xc], -1)
    of_state = torch.cat([p.w_hi, p.w_hf, p.w_ho, p.w_hc], -1)
    bias = torch.cat([p.b_i, p.b_f, p.b_o, p.b_c])
    gates = widened(x) @ widened(of_input) + widened(h) @ widened(of_state) + widened(bias)
    sigmoids, candidate = gates[..., : 3 * h.shape[-1]].sigmoid(), gates[..., 3 * h.shape[-1] :].tanh()
    input_gate, forget_gate, output_gate = sigmoids.chunk(3, -1)
    cell = forget_gate * widened(c) + input_gate * candidate
    return (output_gate * cell.tanh()).to(x.dtype), cell.to(x.dtype)
