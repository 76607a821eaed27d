"""Adapters of the operators behind ``torch.nn.RNN``, ``GRU`` and ``LSTM`` and their cells.

They join the weights of all gates, pack sequences by their lengths, and omit sequences without steps, which the
operators reject.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnspec.backends.bases.ranges import refuse_out_of_range
from attnspec.backends.bases.shapes import Check
from attnspec.backends.bases.torch import TorchBackend
from attnspec.backends.bases.torch_recurrent import State, join_gates, run_fused, run_packed
from attnspec.spec import GRUParameters, LSTMParameters, RNNParameters

CHECKS = {
    name: Check(name)
    for kind in ("rnn", "gru", "lstm")
    for name in (f"{kind}_cell", kind, f"bidirectional_{kind}", f"stacked_{kind}")
}
GATES: dict[type, str] = {RNNParameters: "h", GRUParameters: "rzh", LSTMParameters: "ifco"}
"""The letters of the gates in PyTorch's order."""


def _cell(operator: Callable[..., Any], name: str, x: Tensor, state: State, parameters: Any) -> State:
    """Run one step of a cell, whose operator takes one batch dimension."""
    whole_state = state if len(state) > 1 else state[0]
    *batch, _ = CHECKS[name](x, whole_state, parameters)
    flat, *parts = (a.expand((*batch, -1)).reshape(prod(batch), a.shape[-1]) for a in (x, *state))
    w_x, w_h, b = join_gates(parameters, GATES[type(parameters)])
    result = operator(flat, tuple(parts) if len(parts) > 1 else parts[0], w_x, w_h, b, torch.zeros_like(b))
    return tuple(a.reshape(*batch, a.shape[-1]) for a in (result if isinstance(result, tuple) else (result,)))


def _sequence(
    operator: Callable[..., Any],
    name: str,
    x: Tensor,
    state: Any,
    initial: Sequence[State],
    parameters: Any,
    lengths: Tensor | None,
    directions: int = 1,
) -> tuple[Tensor, list[State]]:
    """Return the last layer's states, and the final state of each layer and direction."""
    *batch, steps, _ = CHECKS[name](x, state, parameters, lengths)
    refuse_out_of_range(name, "lengths", lengths, steps)
    count = prod(batch)
    flat = x.expand((*batch, -1, -1)).reshape(count, steps, x.shape[-1])
    states = [tuple(p.expand((*batch, -1)).reshape(count, p.shape[-1]) for p in s) for s in initial]
    parameters_of_cells = parameters if isinstance(parameters, tuple) else (parameters,)
    if not steps or not count:
        hidden = x.new_zeros(count, steps, directions * states[0][0].shape[-1])
        final = [tuple(p.clone() for p in s) for s in states]
    else:
        weights = [join_gates(p, GATES[type(p)]) for p in parameters_of_cells]
        if lengths is None:
            hidden, final = run_fused(operator, (flat,), states, weights, directions)
        else:
            hidden, final = run_packed(
                operator, flat, states, weights, lengths.expand(tuple(batch)).reshape(count), directions
            )
    states_of_batch = hidden.reshape(*batch, steps, hidden.shape[-1])
    return states_of_batch, [tuple(p.reshape(*batch, p.shape[-1]) for p in s) for s in final]


class Recurrent(TorchBackend):
    """PyTorch's recurrent networks; a GRU resets after the recurrent product."""

    def rnn_cell(
        self, x: Float[Tensor, "*#batch d"], state: Float[Tensor, "*#batch h"], parameters: RNNParameters[Tensor]
    ) -> Float[Tensor, "*batch h"]:
        """torch.rnn_tanh_cell."""
        (h,) = _cell(torch.rnn_tanh_cell, "rnn_cell", x, (state,), parameters)
        return h

    def rnn(
        self,
        x: Float[Tensor, "*#batch t d"],
        state: Float[Tensor, "*#batch h"],
        parameters: RNNParameters[Tensor],
        *,
        lengths: Int[Tensor, "*#batch"] | None = None,
    ) -> tuple[Float[Tensor, "*batch t h"], Float[Tensor, "*batch h"]]:
        """torch.nn.RNN."""
        states, [(final,)] = _sequence(torch.rnn_tanh, "rnn", x, state, [(state,)], parameters, lengths)
        return states, final

    def bidirectional_rnn(
        self,
        x: Float[Tensor, "*#batch t d"],
        state: tuple[Float[Tensor, "*#batch h"], Float[Tensor, "*#batch h"]],
        parameters: tuple[RNNParameters[Tensor], RNNParameters[Tensor]],
        *,
        lengths: Int[Tensor, "*#batch"] | None = None,
    ) -> tuple[Float[Tensor, "*batch t 2*h"], tuple[Float[Tensor, "*batch h"], Float[Tensor, "*batch h"]]]:
        """torch.nn.RNN with bidirectional=True."""
        initial = [(h,) for h in state]
        states, [(forward,), (backward,)] = _sequence(
            torch.rnn_tanh, "bidirectional_rnn", x, state, initial, parameters, lengths, 2
        )
        return states, (forward, backward)

    def stacked_rnn(
        self,
        x: Float[Tensor, "*#batch t d"],
        state: Float[Tensor, "*#batch depth h"],
        layers: tuple[RNNParameters[Tensor], ...],
        *,
        lengths: Int[Tensor, "*#batch"] | None = None,
    ) -> tuple[Float[Tensor, "*batch t h"], Float[Tensor, "*batch depth h"]]:
        """torch.nn.RNN with num_layers."""
        initial = [(h,) for h in state.unbind(-2)]
        states, finals = _sequence(torch.rnn_tanh, "stacked_rnn", x, state, initial, layers, lengths)
        (final,) = (torch.stack(part, -2) for part in zip(*finals, strict=True))
        return states, final

    def gru_cell(
        self, x: Float[Tensor, "*#batch d"], state: Float[Tensor, "*#batch h"], parameters: GRUParameters[Tensor]
    ) -> Float[Tensor, "*batch h"]:
        """torch.gru_cell."""
        (h,) = _cell(torch.gru_cell, "gru_cell", x, (state,), parameters)
        return h

    def gru(
        self,
        x: Float[Tensor, "*#batch t d"],
        state: Float[Tensor, "*#batch h"],
        parameters: GRUParameters[Tensor],
        *,
        lengths: Int[Tensor, "*#batch"] | None = None,
    ) -> tuple[Float[Tensor, "*batch t h"], Float[Tensor, "*batch h"]]:
        """torch.nn.GRU."""
        states, [(final,)] = _sequence(torch.gru, "gru", x, state, [(state,)], parameters, lengths)
        return states, final

    def bidirectional_gru(
        self,
        x: Float[Tensor, "*#batch t d"],
        state: tuple[Float[Tensor, "*#batch h"], Float[Tensor, "*#batch h"]],
        parameters: tuple[GRUParameters[Tensor], GRUParameters[Tensor]],
        *,
        lengths: Int[Tensor, "*#batch"] | None = None,
    ) -> tuple[Float[Tensor, "*batch t 2*h"], tuple[Float[Tensor, "*batch h"], Float[Tensor, "*batch h"]]]:
        """torch.nn.GRU with bidirectional=True."""
        initial = [(h,) for h in state]
        states, [(forward,), (backward,)] = _sequence(
            torch.gru, "bidirectional_gru", x, state, initial, parameters, lengths, 2
        )
        return states, (forward, backward)

    def stacked_gru(
        self,
        x: Float[Tensor, "*#batch t d"],
        state: Float[Tensor, "*#batch depth h"],
        layers: tuple[GRUParameters[Tensor], ...],
        *,
        lengths: Int[Tensor, "*#batch"] | None = None,
    ) -> tuple[Float[Tensor, "*batch t h"], Float[Tensor, "*batch depth h"]]:
        """torch.nn.GRU with num_layers."""
        initial = [(h,) for h in state.unbind(-2)]
        states, finals = _sequence(torch.gru, "stacked_gru", x, state, initial, layers, lengths)
        (final,) = (torch.stack(part, -2) for part in zip(*finals, strict=True))
        return states, final

    def lstm_cell(
        self,
        x: Float[Tensor, "*#batch d"],
        state: tuple[Float[Tensor, "*#batch h"], Float[Tensor, "*#batch h"]],
        parameters: LSTMParameters[Tensor],
    ) -> tuple[Float[Tensor, "*batch h"], Float[Tensor, "*batch h"]]:
        """torch.lstm_cell."""
        h, c = _cell(torch.lstm_cell, "lstm_cell", x, state, parameters)
        return h, c

    def lstm(
        self,
        x: Float[Tensor, "*#batch t d"],
        state: tuple[Float[Tensor, "*#batch h"], Float[Tensor, "*#batch h"]],
        parameters: LSTMParameters[Tensor],
        *,
        lengths: Int[Tensor, "*#batch"] | None = None,
    ) -> tuple[Float[Tensor, "*batch t h"], tuple[Float[Tensor, "*batch h"], Float[Tensor, "*batch h"]]]:
        """torch.nn.LSTM."""
        states, [(h, c)] = _sequence(torch.lstm, "lstm", x, state, [state], parameters, lengths)
        return states, (h, c)

    def bidirectional_lstm(
        self,
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
        """torch.nn.LSTM with bidirectional=True."""
        initial = list(state)
        states, [(h, c), (back_h, back_c)] = _sequence(
            torch.lstm, "bidirectional_lstm", x, state, initial, parameters, lengths, 2
        )
        return states, ((h, c), (back_h, back_c))

    def stacked_lstm(
        self,
        x: Float[Tensor, "*#batch t d"],
        state: tuple[Float[Tensor, "*#batch depth h"], Float[Tensor, "*#batch depth h"]],
        layers: tuple[LSTMParameters[Tensor], ...],
        *,
        lengths: Int[Tensor, "*#batch"] | None = None,
    ) -> tuple[Float[Tensor, "*batch t h"], tuple[Float[Tensor, "*batch depth h"], Float[Tensor, "*batch depth h"]]]:
        """torch.nn.LSTM with num_layers."""
        initial = list(zip(*(part.unbind(-2) for part in state), strict=True))
        states, finals = _sequence(torch.lstm, "stacked_lstm", x, state, initial, layers, lengths)
        h, c = (torch.stack(part, -2) for part in zip(*finals, strict=True))
        return states, (h, c)
