"""ONNX's GRU and LSTM, in one or two directions.

Batches are flattened into one, time comes first, the weights of the gates are joined, and what has no sequence or no
step at all has no call. A length of 0 beside others is left to the operator.
"""

from math import prod
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from attnspec.backends.bases.numpy import NDArray
from attnspec.backends.onnx.models import Evaluated
from attnspec.spec import OPERATIONS, GRUParameters, LSTMParameters, ShapeError, bind

GATES: dict[type, tuple[str, str]] = {GRUParameters: ("GRU", "zrh"), LSTMParameters: ("LSTM", "iofc")}
"""The operator of parameters, and the letters of the gates in its order."""

State = tuple[NDArray, ...]
"""The state of one direction: (h,), of an LSTM (h, c)."""


def _joined(parameters: Any, gates: str) -> tuple[NDArray, NDArray, NDArray]:
    """W (g·h, d), R (g·h, h) and B (2·g·h), whose second half, of another bias, is 0."""
    w_x, w_h, b = (np.concatenate([getattr(parameters, name + g) for g in gates], -1) for name in ("w_x", "w_h", "b_"))
    return w_x.T, w_h.T, np.concatenate([b, np.zeros_like(b)])


class Recurrent(Evaluated):
    """Recurrent networks. A GRU is reset before the recurrent product, as linear_before_reset = 0 says."""

    def _sequence(
        self, name: str, x: NDArray, state: Any, initial: list[State], parameters: Any, lengths: NDArray | None
    ) -> tuple[NDArray, list[State]]:
        """The states of every step, and the final state of each direction."""
        given = {"x": x, "state": state, "parameters": parameters, "lengths": lengths}
        *rest, steps, width = bind(OPERATIONS[name], given).result
        batch, count, h = tuple(rest), prod(rest), initial[0][0].shape[-1]
        if lengths is not None and lengths.size and not 0 <= lengths.min() <= lengths.max() <= steps:
            wrong = lengths[(lengths < 0) | (lengths > steps)]
            raise ShapeError(name, "lengths", f"lengths in 0..{steps}", int(wrong[0]))
        parts = [np.stack([np.broadcast_to(s, (*batch, h)).reshape(count, h) for s in p]) for p in zip(*initial)]
        if steps and count:
            each = parameters if isinstance(parameters, tuple) else (parameters,)
            operator, gates = GATES[type(each[0])]
            w, r, b = (np.stack(weights) for weights in zip(*(_joined(p, gates) for p in each)))
            inputs: dict[str, NDArray | None] = {
                "X": np.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(count, steps, -1).swapaxes(0, 1),
                "W": w,
                "R": r,
                "B": b,
                "sequence_lens": None if lengths is None else np.broadcast_to(lengths, batch).ravel().astype(np.int32),
                **dict(zip(("initial_h", "initial_c"), parts)),
            }
            direction = "forward" if len(each) == 1 else "bidirectional"
            outputs = ("Y", "Y_h", "Y_c")[: 1 + len(parts)]
            found, *parts = self.run(operator, inputs, outputs, hidden_size=h, direction=direction)
            states = found.transpose(2, 0, 1, 3).reshape(*batch, steps, width)
        else:
            states = np.zeros((*batch, steps, width), x.dtype)
        return states, list(zip(*(part.reshape(len(part), *batch, h) for part in parts)))

    def gru(
        self,
        x: Float[NDArray, "*#batch t d"],
        state: Float[NDArray, "*#batch h"],
        parameters: GRUParameters[NDArray],
        *,
        lengths: Int[NDArray, "*#batch"] | None = None,
    ) -> tuple[Float[NDArray, "*batch t h"], Float[NDArray, "*batch h"]]:
        """GRU."""
        states, [(final,)] = self._sequence("gru", x, state, [(state,)], parameters, lengths)
        return states, final

    def bidirectional_gru(
        self,
        x: Float[NDArray, "*#batch t d"],
        state: tuple[Float[NDArray, "*#batch h"], Float[NDArray, "*#batch h"]],
        parameters: tuple[GRUParameters[NDArray], GRUParameters[NDArray]],
        *,
        lengths: Int[NDArray, "*#batch"] | None = None,
    ) -> tuple[Float[NDArray, "*batch t 2*h"], tuple[Float[NDArray, "*batch h"], Float[NDArray, "*batch h"]]]:
        """GRU with direction = bidirectional."""
        initial: list[State] = [(h,) for h in state]
        states, [(forward,), (backward,)] = self._sequence("bidirectional_gru", x, state, initial, parameters, lengths)
        return states, (forward, backward)

    def lstm(
        self,
        x: Float[NDArray, "*#batch t d"],
        state: tuple[Float[NDArray, "*#batch h"], Float[NDArray, "*#batch h"]],
        parameters: LSTMParameters[NDArray],
        *,
        lengths: Int[NDArray, "*#batch"] | None = None,
    ) -> tuple[Float[NDArray, "*batch t h"], tuple[Float[NDArray, "*batch h"], Float[NDArray, "*batch h"]]]:
        """LSTM, without peepholes."""
        states, [(h, c)] = self._sequence("lstm", x, state, [state], parameters, lengths)
        return states, (h, c)
