"""Matrix rows of ``torch.nn.RNN``, ``GRU`` and ``LSTM``: one layer, bidirectional, stacked, cells.

The calls of `Recurrent` are judged. The functions here compute the same for `Row.plain`, the program without attnspec.
"""

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from attnspec.backends.bases.torch_recurrent import _without_tf32, join_gates, run_fused, run_packed
from attnspec.backends.torch_native.recurrent import Recurrent
from attnspec.backends.torch_native.rows import Row, batch_of
from attnspec.spec import Semantics

IMPORTS = """
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

State = tuple
_GATE_FIELDS = {
    gates: tuple(f"{name}{gate}" for name in ("w_x", "w_h", "b_") for gate in gates) for gates in ("h", "rzh", "ifco")
}
"""


def as_parts(state: Any) -> tuple[Tensor, ...]:
    """Return the state as a tuple: (h,), or (h, c) of an LSTM."""
    return state if isinstance(state, tuple) else (state,)


def as_state(parts: Any) -> Any:
    """Return parts as a state: h, or (h, c) of an LSTM."""
    return tuple(parts) if len(parts) > 1 else parts[0]


def step(operator: Any, gates: str, x: Tensor, state: Any, parameters: Any) -> Any:
    """Run one step of a cell, which takes one batch dimension."""
    parts = as_parts(state)
    batch = batch_of(*(a[..., None] for a in (x, *parts)))
    flat, *states = (a.expand(*batch, a.shape[-1]).reshape(-1 if x.numel() else 0, a.shape[-1]) for a in (x, *parts))
    w_x, w_h, b = join_gates(parameters, gates)
    result = operator(flat, as_state(states), w_x, w_h, b, torch.zeros_like(b))
    return as_state([a.reshape(*batch, a.shape[-1]) for a in as_parts(result)])


def unroll(
    operator: Any, gates: str, form: Literal["one", "two", "stacked"],
    x: Tensor, state: Any, parameters: Any = None, lengths: Tensor | None = None, layers: Any = None,
) -> Any:  # fmt: skip
    """Run all steps of one layer, of two directions or of a stack."""
    if form == "stacked":
        initial = list(zip(*(part.unbind(-2) for part in as_parts(state)), strict=True))
    else:
        initial = [as_parts(s) for s in (state if form == "two" else (state,))]
    parameters_of_cells = layers if form == "stacked" else parameters if form == "two" else (parameters,)
    lengths_of_rows = None if lengths is None else lengths[..., None, None]
    batch = batch_of(x, *(part[..., None] for s in initial for part in s), lengths_of_rows)
    count, steps, directions = torch.Size(batch).numel(), x.shape[-2], 2 if form == "two" else 1
    flat = x.expand(*batch, *x.shape[-2:]).reshape(count, *x.shape[-2:])
    states = [tuple(p.expand(*batch, p.shape[-1]).reshape(count, p.shape[-1]) for p in s) for s in initial]
    weights = [join_gates(p, gates) for p in parameters_of_cells]
    if not steps or not count:
        hidden, final = x.new_zeros(count, steps, directions * states[0][0].shape[-1]), states
    elif lengths is None:
        hidden, final = run_fused(operator, (flat,), states, weights, directions)
    else:
        hidden, final = run_packed(operator, flat, states, weights, lengths.expand(batch).reshape(count), directions)
    last = [[p.reshape(*batch, p.shape[-1]) for p in s] for s in final]
    states_of_batch = hidden.reshape(*batch, steps, hidden.shape[-1])
    if form == "stacked":
        return states_of_batch, as_state([torch.stack(part, -2) for part in zip(*last, strict=True)])
    return states_of_batch, as_state([as_state(s) for s in last])


class Network(Row):
    """A recurrent network that rounds intermediate results to the dtype of its inputs."""

    precision = {"bfloat16": "eager-bfloat16", "float16": "eager-float16"}  # noqa: RUF012 - a declaration
    parts = (batch_of, join_gates, _without_tf32, run_fused, run_packed, as_parts, as_state)
    imports = IMPORTS

    def __init__(self, kind: str, gates: str, cell: Any, operator: Any) -> None:
        self.name = f"nn.{kind.upper()}"
        forms: dict[str, Literal["one", "two", "stacked"]] = {
            kind: "one",
            f"bidirectional_{kind}": "two",
            f"stacked_{kind}": "stacked",
        }
        self.calls = {
            f"{kind}_cell": partial(step, cell, gates),
            **{name: partial(unroll, operator, gates, form) for name, form in forms.items()},
        }
        for name in self.calls:
            setattr(self, name, getattr(_NATIVE, name))


_NATIVE = Recurrent()


class GRU(Network):
    """A GRU whose reset gate multiplies the recurrent product."""

    semantics = Semantics(gru_reset="after")


rnn = Network("rnn", "h", torch.rnn_tanh_cell, torch.rnn_tanh)
gru = GRU("gru", "rzh", torch.gru_cell, torch.gru)
lstm = Network("lstm", "ifco", torch.lstm_cell, torch.lstm)
