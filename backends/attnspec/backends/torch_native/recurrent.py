"""Adapters of the operators behind ``torch.nn.RNN``, ``GRU`` and ``LSTM`` and their cells.

They join the weights of all gates, pack sequences by their lengths, and omit sequences without steps, which the
operators reject.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnspec.backends.bases.ranges import refuse_out_of_range
from attnspec.backends.bases.shapes import Check
from attnspec.backends.bases.torch import TorchBackend
from attnspec.backends.bases.torch_recurrent import join_gates, run_fused, run_packed
from attnspec.backends.torch_native.attention import batch_of
from attnspec.spec import GRUParameters, LSTMParameters, RNNParameters


def as_parts(state: Any) -> tuple[Tensor, ...]:
    """Return the state as a tuple: (h,), or (h, c) of an LSTM."""
    return state if isinstance(state, tuple) else (state,)


def as_state(parts: Any) -> Any:
    """Return parts as a state: h, or (h, c) of an LSTM."""
    return tuple(parts) if len(parts) > 1 else parts[0]


def step(operator: Any, gates: str, x: Tensor, state: Any, parameters: Any) -> Any:
    """Run one step of a cell, whose operator takes one batch dimension."""
    parts = as_parts(state)
    batch = batch_of(*(a[..., None] for a in (x, *parts)))
    flat, *states = (a.expand(*batch, a.shape[-1]).reshape(prod(batch), a.shape[-1]) for a in (x, *parts))
    w_x, w_h, b = join_gates(parameters, gates)
    result = operator(flat, as_state(states), w_x, w_h, b, torch.zeros_like(b))
    return as_state([a.reshape(*batch, a.shape[-1]) for a in as_parts(result)])


def unroll(
    operator: Any, gates: str, form: str, x: Tensor, state: Any,
    parameters: Any = None, lengths: Tensor | None = None, layers: Any = None,
) -> Any:  # fmt: skip
    """Run all steps of "one" layer, of "two" directions or of a "stacked" network."""
    if form == "stacked":
        initial = list(zip(*(part.unbind(-2) for part in as_parts(state)), strict=True))
    else:
        initial = [as_parts(s) for s in (state if form == "two" else (state,))]
    cells = (parameters,) if form == "one" else parameters if layers is None else layers
    lengths_of_rows = None if lengths is None else lengths[..., None, None]
    batch = batch_of(x, *(part[..., None] for s in initial for part in s), lengths_of_rows)
    count, steps, directions = prod(batch), x.shape[-2], 2 if form == "two" else 1
    flat = x.expand(*batch, *x.shape[-2:]).reshape(count, *x.shape[-2:])
    states = [tuple(p.expand(*batch, p.shape[-1]).reshape(count, p.shape[-1]) for p in s) for s in initial]
    weights = [join_gates(p, gates) for p in cells]
    if not steps or not count:
        hidden = x.new_zeros(count, steps, directions * states[0][0].shape[-1])
        final = [tuple(p.clone() for p in s) for s in states]
    elif lengths is None:
        hidden, final = run_fused(operator, (flat,), states, weights, directions)
    else:
        hidden, final = run_packed(operator, flat, states, weights, lengths.expand(batch).reshape(count), directions)
    last = [[p.reshape(*batch, p.shape[-1]) for p in s] for s in final]
    states_of_batch = hidden.reshape(*batch, steps, hidden.shape[-1])
    if form == "stacked":
        return states_of_batch, as_state([torch.stack(part, -2) for part in zip(*last, strict=True)])
    return states_of_batch, as_state([as_state(s) for s in last])


CALLS: dict[str, Callable[..., Any]] = {}
for _kind, _gates, _operator_of_cell, _operator in (
    ("rnn", "h", torch.rnn_tanh_cell, torch.rnn_tanh),
    ("gru", "rzh", torch.gru_cell, torch.gru),
    ("lstm", "ifco", torch.lstm_cell, torch.lstm),
):
    CALLS[f"{_kind}_cell"] = partial(step, _operator_of_cell, _gates)
    for _prefix, _form in (("", "one"), ("bidirectional_", "two"), ("stacked_", "stacked")):
        CALLS[f"{_prefix}{_kind}"] = partial(unroll, _operator, _gates, _form)
CHECKS = {name: Check(name) for name in CALLS}


def _cell(name: str, x: Tensor, state: Any, parameters: Any) -> Any:
    CHECKS[name](x, state, parameters)
    return CALLS[name](x, state, parameters)


def _sequence(name: str, x: Tensor, state: Any, parameters: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
    CHECKS[name](x, state, parameters, lengths)
    refuse_out_of_range(name, "lengths", lengths, x.shape[-2])
    states, final = CALLS[name](x, state, parameters, lengths)
    return states, final


class Recurrent(TorchBackend):
    """PyTorch's recurrent networks; a GRU resets after the recurrent product."""

    def rnn_cell(
        self, x: Float[Tensor, "*#batch d"], state: Float[Tensor, "*#batch h"], parameters: RNNParameters[Tensor]
    ) -> Float[Tensor, "*batch h"]:
        """torch.rnn_tanh_cell."""
        h: Tensor = _cell("rnn_cell", x, state, parameters)
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
        states, final = _sequence("rnn", x, state, parameters, lengths)
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
        states, final = _sequence("bidirectional_rnn", x, state, parameters, lengths)
        return states, final

    def stacked_rnn(
        self,
        x: Float[Tensor, "*#batch t d"],
        state: Float[Tensor, "*#batch depth h"],
        layers: tuple[RNNParameters[Tensor], ...],
        *,
        lengths: Int[Tensor, "*#batch"] | None = None,
    ) -> tuple[Float[Tensor, "*batch t h"], Float[Tensor, "*batch depth h"]]:
        """torch.nn.RNN with num_layers."""
        states, final = _sequence("stacked_rnn", x, state, layers, lengths)
        return states, final

    def gru_cell(
        self, x: Float[Tensor, "*#batch d"], state: Float[Tensor, "*#batch h"], parameters: GRUParameters[Tensor]
    ) -> Float[Tensor, "*batch h"]:
        """torch.gru_cell."""
        h: Tensor = _cell("gru_cell", x, state, parameters)
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
        states, final = _sequence("gru", x, state, parameters, lengths)
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
        states, final = _sequence("bidirectional_gru", x, state, parameters, lengths)
        return states, final

    def stacked_gru(
        self,
        x: Float[Tensor, "*#batch t d"],
        state: Float[Tensor, "*#batch depth h"],
        layers: tuple[GRUParameters[Tensor], ...],
        *,
        lengths: Int[Tensor, "*#batch"] | None = None,
    ) -> tuple[Float[Tensor, "*batch t h"], Float[Tensor, "*batch depth h"]]:
        """torch.nn.GRU with num_layers."""
        states, final = _sequence("stacked_gru", x, state, layers, lengths)
        return states, final

    def lstm_cell(
        self,
        x: Float[Tensor, "*#batch d"],
        state: tuple[Float[Tensor, "*#batch h"], Float[Tensor, "*#batch h"]],
        parameters: LSTMParameters[Tensor],
    ) -> tuple[Float[Tensor, "*batch h"], Float[Tensor, "*batch h"]]:
        """torch.lstm_cell."""
        h, c = _cell("lstm_cell", x, state, parameters)
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
        states, final = _sequence("lstm", x, state, parameters, lengths)
        return states, final

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
        states, final = _sequence("bidirectional_lstm", x, state, parameters, lengths)
        return states, final

    def stacked_lstm(
        self,
        x: Float[Tensor, "*#batch t d"],
        state: tuple[Float[Tensor, "*#batch depth h"], Float[Tensor, "*#batch depth h"]],
        layers: tuple[LSTMParameters[Tensor], ...],
        *,
        lengths: Int[Tensor, "*#batch"] | None = None,
    ) -> tuple[Float[Tensor, "*batch t h"], tuple[Float[Tensor, "*batch depth h"], Float[Tensor, "*batch depth h"]]]:
        """torch.nn.LSTM with num_layers."""
        states, final = _sequence("stacked_lstm", x, state, layers, lengths)
        return states, final
