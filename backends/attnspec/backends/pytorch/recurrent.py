"""Recurrent cells and sequences. Protocols: ``attnspec.spec.recurrent``."""

from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.bases.torch_recurrent import State
from attnspec.backends.pytorch.attention import dot_product_attention
from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.backends.pytorch.runtime.autocast import follows_autocast
from attnspec.backends.pytorch.runtime.masks import causal_triangle
from attnspec.backends.pytorch.runtime.products import add_product, wide_linear
from attnspec.backends.pytorch.runtime.ranges import refuse_out_of_range
from attnspec.backends.pytorch.runtime.recurrence import Network, recurrence
from attnspec.spec import (
    GRU,
    LSTM,
    RNN,
    BidirectionalGRU,
    BidirectionalLSTM,
    BidirectionalRNN,
    GRUCell,
    GRUParameters,
    LSTMCell,
    LSTMParameters,
    RNNCell,
    RNNOutput,
    RNNParameters,
    RNNSelfAttention,
    StackedGRU,
    StackedLSTM,
    StackedRNN,
    implements,
)

__all__ = [
    "bidirectional_gru",
    "bidirectional_lstm",
    "bidirectional_rnn",
    "gru",
    "gru_cell",
    "lstm",
    "lstm_cell",
    "rnn",
    "rnn_cell",
    "rnn_output",
    "rnn_self_attention",
    "stacked_gru",
    "stacked_lstm",
    "stacked_rnn",
]

_rnn_cell = Check("rnn_cell")
_gru_cell = Check("gru_cell")
_output = Check("rnn_output")
_lstm_cell = Check("lstm_cell")
_rnn = Check("rnn")
_gru = Check("gru")
_lstm = Check("lstm")
_bidirectional_rnn = Check("bidirectional_rnn")
_bidirectional_gru = Check("bidirectional_gru")
_bidirectional_lstm = Check("bidirectional_lstm")
_stacked_rnn = Check("stacked_rnn")
_stacked_gru = Check("stacked_gru")
_stacked_lstm = Check("stacked_lstm")
_self_attention = Check("rnn_self_attention")


@implements(RNNCell[Tensor])
@follows_autocast
def rnn_cell(
    x: Float[Tensor, "*#batch d"], state: Float[Tensor, "*#batch h"], parameters: RNNParameters[Tensor]
) -> Float[Tensor, "*batch h"]:
    """tanh of an affine map of input and state."""
    _rnn_cell(x, state, parameters)
    p = parameters
    return _affine(x, state, p.w_xh, p.w_hh, p.b_h).tanh().to(x.dtype)


def _affine(x: Tensor, state: Tensor, w_x: Tensor, w_h: Tensor, b: Tensor) -> Tensor:
    """Return x W_x + state W_h + b, in float32 for half dtypes; batches broadcast."""
    return add_product(wide_linear(x, w_x.mT, b), state, w_h)


MOST_JOINED_ELEMENTS = 2**12
"""Most elements of w_x and w_h, on average, for which joining the gates is faster."""

Weights: TypeAlias = tuple[Tensor, ...]


def _gate_sums(x: Tensor, state: Tensor, w_x: Weights, w_h: Weights, b: Weights) -> Weights:
    """Return x W_x + state W_h + b for every gate."""
    if w_x[0].numel() + w_h[0].numel() > 2 * MOST_JOINED_ELEMENTS:
        return tuple([_affine(x, state, *of_gate) for of_gate in zip(w_x, w_h, b, strict=True)])
    return _affine(x, state, torch.cat(w_x, -1), torch.cat(w_h, -1), torch.cat(b)).chunk(len(b), -1)


@implements(RNNOutput[Tensor])
@follows_autocast
def rnn_output(
    state: Float[Tensor, "*batch h"], w_hq: Float[Tensor, "h q"], b_q: Float[Tensor, " q"]
) -> Float[Tensor, "*batch q"]:
    """An affine map of the state."""
    _output(state, w_hq, b_q)
    return wide_linear(state, w_hq.mT, b_q).to(state.dtype)


@implements(GRUCell[Tensor])
@follows_autocast
def gru_cell(
    x: Float[Tensor, "*#batch d"], state: Float[Tensor, "*#batch h"], parameters: GRUParameters[Tensor]
) -> Float[Tensor, "*batch h"]:
    """One GRU step; if weights are small, both gates share their products.

    torch.gru_cell is not used: it multiplies by the reset gate after the recurrent product.
    """
    _gru_cell(x, state, parameters)
    p, h = parameters, upcast(state)
    of_gates = _gate_sums(x, h, (p.w_xr, p.w_xz), (p.w_hr, p.w_hz), (p.b_r, p.b_z))
    reset, update = (gate.sigmoid() for gate in of_gates)
    candidate = _affine(x, reset * h, p.w_xh, p.w_hh, p.b_h).tanh()
    return torch.lerp(candidate, h, update).to(x.dtype)


@implements(LSTMCell[Tensor])
@follows_autocast
def lstm_cell(
    x: Float[Tensor, "*#batch d"],
    state: tuple[Float[Tensor, "*#batch h"], Float[Tensor, "*#batch h"]],
    parameters: LSTMParameters[Tensor],
) -> tuple[Float[Tensor, "*batch h"], Float[Tensor, "*batch h"]]:
    """One LSTM step; if weights are small, all gates share their products."""
    _lstm_cell(x, state, parameters)
    p, (h, c) = parameters, state
    w_x, w_h, b = (p.w_xi, p.w_xf, p.w_xo, p.w_xc), (p.w_hi, p.w_hf, p.w_ho, p.w_hc), (p.b_i, p.b_f, p.b_o, p.b_c)
    input_gate, forget_gate, output_gate, candidate = _gate_sums(x, h, w_x, w_h, b)
    cell = forget_gate.sigmoid() * upcast(c) + input_gate.sigmoid() * candidate.tanh()
    return (output_gate.sigmoid() * cell.tanh()).to(x.dtype), cell.to(x.dtype)


def _rnn_step(terms: tuple[Tensor, ...], weights: tuple[Tensor, ...], state: State) -> State:
    return (add_product(terms[0], state[0], weights[0]).tanh(),)


def _gru_step(terms: tuple[Tensor, ...], weights: tuple[Tensor, ...], state: State) -> State:
    (h,), (of_gates, of_candidate), (w_gates, w_candidate) = state, terms, weights
    reset, update = add_product(of_gates, h, w_gates).sigmoid().chunk(2, -1)
    candidate = add_product(of_candidate, reset * h, w_candidate).tanh()
    return (torch.lerp(candidate, h, update),)


def _lstm_step(terms: tuple[Tensor, ...], weights: tuple[Tensor, ...], state: State) -> State:
    h, c = state
    input_gate, forget_gate, candidate, output_gate = add_product(terms[0], h, weights[0]).chunk(4, -1)
    cell = forget_gate.sigmoid() * c + input_gate.sigmoid() * candidate.tanh()
    return output_gate.sigmoid() * cell.tanh(), cell


_RNN = Network("h", (1,), _rnn_step, torch.rnn_tanh)
_GRU = Network("rzh", (2, 1), _gru_step)  # torch.gru multiplies by the reset gate after the recurrent product
_LSTM = Network("ifco", (4,), _lstm_step, torch.lstm)


@implements(RNN[Tensor])
@follows_autocast
def rnn(
    x: Float[Tensor, "*#batch t d"],
    state: Float[Tensor, "*#batch h"],
    parameters: RNNParameters[Tensor],
    *,
    lengths: Int[Tensor, "*#batch"] | None = None,
) -> tuple[Float[Tensor, "*batch t h"], Float[Tensor, "*batch h"]]:
    """RNN by torch.rnn_tanh, on packed sequences if lengths are passed."""
    *batch, steps, _ = _rnn(x, state, parameters, lengths)
    refuse_out_of_range("rnn", "lengths", lengths, steps)
    states, ((final,),) = recurrence(_RNN, x, [(state,)], [parameters], lengths, batch)
    return states, final


@implements(GRU[Tensor])
@follows_autocast
def gru(
    x: Float[Tensor, "*#batch t d"],
    state: Float[Tensor, "*#batch h"],
    parameters: GRUParameters[Tensor],
    *,
    lengths: Int[Tensor, "*#batch"] | None = None,
) -> tuple[Float[Tensor, "*batch t h"], Float[Tensor, "*batch h"]]:
    """A GRU step by step; the inputs of all steps are projected in one product."""
    *batch, steps, _ = _gru(x, state, parameters, lengths)
    refuse_out_of_range("gru", "lengths", lengths, steps)
    states, ((final,),) = recurrence(_GRU, x, [(state,)], [parameters], lengths, batch)
    return states, final


@implements(LSTM[Tensor])
@follows_autocast
def lstm(
    x: Float[Tensor, "*#batch t d"],
    state: tuple[Float[Tensor, "*#batch h"], Float[Tensor, "*#batch h"]],
    parameters: LSTMParameters[Tensor],
    *,
    lengths: Int[Tensor, "*#batch"] | None = None,
) -> tuple[Float[Tensor, "*batch t h"], tuple[Float[Tensor, "*batch h"], Float[Tensor, "*batch h"]]]:
    """LSTM by torch.lstm, on packed sequences if lengths are passed."""
    *batch, steps, _ = _lstm(x, state, parameters, lengths)
    refuse_out_of_range("lstm", "lengths", lengths, steps)
    states, ((h, c),) = recurrence(_LSTM, x, [state], [parameters], lengths, batch)
    return states, (h, c)


@implements(BidirectionalRNN[Tensor])
@follows_autocast
def bidirectional_rnn(
    x: Float[Tensor, "*#batch t d"],
    state: tuple[Float[Tensor, "*#batch h"], Float[Tensor, "*#batch h"]],
    parameters: tuple[RNNParameters[Tensor], RNNParameters[Tensor]],
    *,
    lengths: Int[Tensor, "*#batch"] | None = None,
) -> tuple[Float[Tensor, "*batch t 2*h"], tuple[Float[Tensor, "*batch h"], Float[Tensor, "*batch h"]]]:
    """Both directions in one call of torch.rnn_tanh."""
    *batch, steps, _ = _bidirectional_rnn(x, state, parameters, lengths)
    refuse_out_of_range("bidirectional_rnn", "lengths", lengths, steps)
    initial = [(h,) for h in state]
    states, ((forward,), (backward,)) = recurrence(_RNN, x, initial, parameters, lengths, batch, directions=2)
    return states, (forward, backward)


@implements(BidirectionalGRU[Tensor])
@follows_autocast
def bidirectional_gru(
    x: Float[Tensor, "*#batch t d"],
    state: tuple[Float[Tensor, "*#batch h"], Float[Tensor, "*#batch h"]],
    parameters: tuple[GRUParameters[Tensor], GRUParameters[Tensor]],
    *,
    lengths: Int[Tensor, "*#batch"] | None = None,
) -> tuple[Float[Tensor, "*batch t 2*h"], tuple[Float[Tensor, "*batch h"], Float[Tensor, "*batch h"]]]:
    """A GRU step by step, in each direction."""
    *batch, steps, _ = _bidirectional_gru(x, state, parameters, lengths)
    refuse_out_of_range("bidirectional_gru", "lengths", lengths, steps)
    initial = [(h,) for h in state]
    states, ((forward,), (backward,)) = recurrence(_GRU, x, initial, parameters, lengths, batch, directions=2)
    return states, (forward, backward)


@implements(BidirectionalLSTM[Tensor])
@follows_autocast
def bidirectional_lstm(
    x: Float[Tensor, "*#batch t d"],
    state: tuple[
        tuple[Float[Tensor, "*#batch h"], Float[Tensor, "*#batch h"]],
        tuple[Float[Tensor, "*#batch h"], Float[Tensor, "*#batch h"]],
    ],
    parameters: tuple[LSTMParameters[Tensor], LSTMParameters[Tensor]],
    *,
    lengths: Int[Tensor, "*#batch"] | None = None,
) -> tuple[
    Float[Tensor, "*batch t 2*h"],
    tuple[
        tuple[Float[Tensor, "*batch h"], Float[Tensor, "*batch h"]],
        tuple[Float[Tensor, "*batch h"], Float[Tensor, "*batch h"]],
    ],
]:
    """Both directions in one call of torch.lstm."""
    *batch, steps, _ = _bidirectional_lstm(x, state, parameters, lengths)
    refuse_out_of_range("bidirectional_lstm", "lengths", lengths, steps)
    states, ((h, c), (back_h, back_c)) = recurrence(_LSTM, x, state, parameters, lengths, batch, directions=2)
    return states, ((h, c), (back_h, back_c))


@implements(StackedRNN[Tensor])
@follows_autocast
def stacked_rnn(
    x: Float[Tensor, "*#batch t d"],
    state: Float[Tensor, "*#batch depth h"],
    layers: tuple[RNNParameters[Tensor], ...],
    *,
    lengths: Int[Tensor, "*#batch"] | None = None,
) -> tuple[Float[Tensor, "*batch t h"], Float[Tensor, "*batch depth h"]]:
    """All layers in one call of torch.rnn_tanh."""
    *batch, steps, _ = _stacked_rnn(x, state, layers, lengths)
    refuse_out_of_range("stacked_rnn", "lengths", lengths, steps)
    states, finals = recurrence(_RNN, x, [(h,) for h in state.unbind(-2)], layers, lengths, batch)
    return states, torch.stack([h for (h,) in finals], -2)


@implements(StackedGRU[Tensor])
@follows_autocast
def stacked_gru(
    x: Float[Tensor, "*#batch t d"],
    state: Float[Tensor, "*#batch depth h"],
    layers: tuple[GRUParameters[Tensor], ...],
    *,
    lengths: Int[Tensor, "*#batch"] | None = None,
) -> tuple[Float[Tensor, "*batch t h"], Float[Tensor, "*batch depth h"]]:
    """GRU layers one after another, each step by step."""
    *batch, steps, _ = _stacked_gru(x, state, layers, lengths)
    refuse_out_of_range("stacked_gru", "lengths", lengths, steps)
    states, finals = recurrence(_GRU, x, [(h,) for h in state.unbind(-2)], layers, lengths, batch)
    return states, torch.stack([h for (h,) in finals], -2)


@implements(StackedLSTM[Tensor])
@follows_autocast
def stacked_lstm(
    x: Float[Tensor, "*#batch t d"],
    state: tuple[Float[Tensor, "*#batch depth h"], Float[Tensor, "*#batch depth h"]],
    layers: tuple[LSTMParameters[Tensor], ...],
    *,
    lengths: Int[Tensor, "*#batch"] | None = None,
) -> tuple[Float[Tensor, "*batch t h"], tuple[Float[Tensor, "*batch depth h"], Float[Tensor, "*batch depth h"]]]:
    """All layers in one call of torch.lstm."""
    *batch, steps, _ = _stacked_lstm(x, state, layers, lengths)
    refuse_out_of_range("stacked_lstm", "lengths", lengths, steps)
    initial = list(zip(*(part.unbind(-2) for part in state), strict=True))
    states, finals = recurrence(_LSTM, x, initial, layers, lengths, batch)
    h, c = (torch.stack(part, -2) for part in zip(*finals, strict=True))
    return states, (h, c)


@implements(RNNSelfAttention[Tensor])
@follows_autocast
def rnn_self_attention(
    x: Float[Tensor, "*#batch t d"],
    state: Float[Tensor, "*#batch h"],
    parameters: RNNParameters[Tensor],
    *,
    lengths: Int[Tensor, "*#batch"] | None = None,
) -> tuple[Float[Tensor, "*batch t h"], Float[Tensor, "*batch t h"], Float[Tensor, "*batch h"]]:
    """RNN, then dot-product attention among its states under a strict causal mask."""
    *batch, steps, _ = _self_attention(x, state, parameters, lengths)
    refuse_out_of_range("rnn_self_attention", "lengths", lengths, steps)
    states, ((final,),) = recurrence(_RNN, upcast(x), [(upcast(state),)], [parameters], lengths, batch)
    earlier = causal_triangle(steps, steps, x.device, include_self=False)
    if lengths is not None:
        earlier = earlier & (torch.arange(steps, device=x.device) < lengths[..., None])[..., None]
    contexts = dot_product_attention(states, states, states, mask=earlier)
    return contexts.to(x.dtype), states.to(x.dtype), final.to(x.dtype)
