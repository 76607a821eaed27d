"""Matrix rows of ``torch.nn.RNN``, ``GRU`` and ``LSTM``: one layer, bidirectional, stacked, cells.

The methods of `Recurrent` are judged. They check their arguments, and call the functions that `Row.plain` prints.
"""

from attnspec.backends.bases.torch_recurrent import _without_tf32, join_gates, run_fused, run_packed
from attnspec.backends.torch_native.attention import batch_of
from attnspec.backends.torch_native.recurrent import CALLS, Recurrent, as_parts, as_state
from attnspec.backends.torch_native.rows import Row
from attnspec.spec import Semantics

IMPORTS = """
from contextlib import AbstractContextManager, nullcontext

State = tuple
_GATE_FIELDS = {
    gates: tuple(f"{name}{gate}" for name in ("w_x", "w_h", "b_") for gate in gates) for gates in ("h", "rzh", "ifco")
}
"""


class Network(Row):
    """A recurrent network that rounds intermediate results to the dtype of its inputs."""

    precision = {"bfloat16": "eager-bfloat16", "float16": "eager-float16"}  # noqa: RUF012 - a declaration
    parts = (batch_of, join_gates, _without_tf32, run_fused, run_packed, as_parts, as_state)
    imports = IMPORTS

    def __init__(self, kind: str) -> None:
        self.name = f"nn.{kind.upper()}"
        self.calls = {name: call for name, call in CALLS.items() if kind in name}
        for name in self.calls:
            setattr(self, name, getattr(_NATIVE, name))


_NATIVE = Recurrent()


class GRU(Network):
    """A GRU whose reset gate multiplies the recurrent product."""

    semantics = Semantics(gru_reset="after")


rnn = Network("rnn")
gru = GRU("gru")
lstm = Network("lstm")
