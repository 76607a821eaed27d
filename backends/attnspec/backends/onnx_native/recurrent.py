"""ONNX's GRU and LSTM, forward.

Batches are flattened into one, time comes first, the weights of the gates are joined, and what has no sequence or no
step at all has no call. A length of 0 beside others is left to the operator.
"""

from math import prod
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from attnspec.backends.bases.numpy import NDArray
from attnspec.backends.onnx_native.models import Evaluated
from attnspec.spec import OPERATIONS, GRUParameters, LSTMParameters, ShapeError, bind

GATES: dict[type, tuple[str, str]] = {GRUParameters: ("GRU", "zrh"), LSTMParameters: ("LSTM", "iofc")}
"""The operator of parameters, and the letters of the gates in its order."""


def _joined(parameters: Any, gates: str) -> dict[str, NDArray]:
    """The weights of all gates in one direction: W (1, g·h, d), R (1, g·h, h), B (1, 2·g·h), whose second half is 0."""
    w_x, w_h, b = (np.concatenate([getattr(parameters, name + g) for g in gates], -1) for name in ("w_x", "w_h", "b_"))
    return {"W": w_x.T[None], "R": w_h.T[None], "B": np.concatenate([b, np.zeros_like(b)])[None]}


class Recurrent(Evaluated):
    """Recurrent networks. A GRU is reset before the recurrent product, as linear_before_reset = 0 says."""

    def _sequence(
        self, name: str, x: NDArray, given: Any, parameters: Any, lengths: NDArray | None
    ) -> tuple[NDArray, list[NDArray]]:
        """The states of every step, and the final state: [h], of an LSTM [h, c]."""
        arguments = {"x": x, "state": given, "parameters": parameters, "lengths": lengths}
        *batch, steps, h = bind(OPERATIONS[name], arguments).result
        count = prod(batch)
        if lengths is not None and lengths.size and not 0 <= lengths.min() <= lengths.max() <= steps:
            wrong = lengths[(lengths < 0) | (lengths > steps)]
            raise ShapeError(name, "lengths", f"lengths in 0..{steps}", int(wrong[0]))
        initial = [np.broadcast_to(s, (*batch, h)) for s in (given if isinstance(given, tuple) else (given,))]
        if not steps or not count:
            return np.zeros((*batch, steps, h), x.dtype), [s.copy() for s in initial]
        operator, gates = GATES[type(parameters)]
        inputs: dict[str, NDArray | None] = {
            "X": np.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(count, steps, -1).swapaxes(0, 1),
            **_joined(parameters, gates),
            "sequence_lens": None if lengths is None else np.broadcast_to(lengths, batch).ravel().astype(np.int32),
        }
        for path, s in zip(("initial_h", "initial_c"), initial, strict=False):
            inputs[path] = s.reshape(1, count, h)
        states, *final = self.run(operator, inputs, ("Y", "Y_h", "Y_c")[: 1 + len(initial)], hidden_size=h)
        return states[:, 0].swapaxes(0, 1).reshape(*batch, steps, h), [s.reshape(*batch, h) for s in final]

    def gru(
        self,
        x: Float[NDArray, "*#batch t d"],
        state: Float[NDArray, "*#batch h"],
        parameters: GRUParameters[NDArray],
        *,
        lengths: Int[NDArray, "*#batch"] | None = None,
    ) -> tuple[Float[NDArray, "*batch t h"], Float[NDArray, "*batch h"]]:
        """GRU."""
        states, [final] = self._sequence("gru", x, state, parameters, lengths)
        return states, final

    def lstm(
        self,
        x: Float[NDArray, "*#batch t d"],
        state: tuple[Float[NDArray, "*#batch h"], Float[NDArray, "*#batch h"]],
        parameters: LSTMParameters[NDArray],
        *,
        lengths: Int[NDArray, "*#batch"] | None = None,
    ) -> tuple[Float[NDArray, "*batch t h"], tuple[Float[NDArray, "*batch h"], Float[NDArray, "*batch h"]]]:
        """LSTM, without peepholes."""
        states, [h, c] = self._sequence("lstm", x, state, parameters, lengths)
        return states, (h, c)
