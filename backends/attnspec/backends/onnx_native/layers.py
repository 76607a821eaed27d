"""ONNX's recurrent networks, RMS normalization and rotary embedding."""

from functools import partial
from math import prod
from typing import Any

import numpy as np

from attnspec.backends.bases.numpy import NDArray, refuse_out_of_range
from attnspec.backends.onnx_native.running import Operators, flat
from attnspec.spec import OPERATIONS, bind

WEIGHTS = ("w_x", "w_h", "b_")
"""Beginnings of the names of a record's weights, in ONNX's order."""


class Layers(Operators):
    """Recurrent networks, RMS norms and rotary embeddings."""

    def __init__(self) -> None:
        self.gru, self.lstm = (partial(self._recurrent, *x) for x in (("gru", "zrh"), ("lstm", "iofc")))

    def _recurrent(
        self, name: str, gates: str, x: NDArray, state: Any, parameters: Any, *, lengths: NDArray | None = None
    ) -> tuple[NDArray, Any]:
        """Run a network; a GRU resets before the recurrent product (linear_before_reset = 0)."""
        bound = bind(OPERATIONS[name], {"x": x, "state": state, "parameters": parameters, "lengths": lengths})
        batch, (steps, h) = bound.batch, bound.result[-2:]
        initial = [np.broadcast_to(s, (*batch, h)) for s in (state if isinstance(state, tuple) else (state,))]
        if lengths is not None:
            refuse_out_of_range(name, "lengths", lengths, steps)
            lengths = flat(lengths, batch).astype(np.int32)
        states, final = np.zeros(bound.result, x.dtype), [s.copy() for s in initial]
        if states.size:
            w_x, w_h, b = (np.concatenate([getattr(parameters, p + g) for g in gates], -1).T for p in WEIGHTS)
            inputs = [flat(x, batch, *x.shape[-2:]).swapaxes(0, 1), w_x[None], w_h[None], np.pad(b, (0, len(b)))[None]]
            starts = [flat(s, batch, h)[None] for s in initial]
            hidden, *final = self.run(name.upper(), [*inputs, lengths, *starts], 1 + len(starts), hidden_size=h)
            states = hidden[:, 0].swapaxes(0, 1).reshape(bound.result)
        final = [s.reshape(*batch, h) for s in final]
        return states, tuple(final) if isinstance(state, tuple) else final[0]

    def rms_norm(self, x: NDArray, weight: NDArray, *, epsilon: float = 1e-6) -> NDArray:
        """RMSNormalization of the last axis."""
        bind(OPERATIONS["rms_norm"], {"x": x, "weight": weight})
        return np.asarray(self.run("RMSNormalization", [x, weight], 1, epsilon=epsilon)[0])

    def rotary_embedding(self, x: NDArray, positions: NDArray | None = None, *, theta: float = 10000.0) -> NDArray:
        """RotaryEmbedding; ONNX takes cosines and sines, which are computed in float64."""
        bind(OPERATIONS["rotary_embedding"], {"x": x, "positions": positions})
        n, d = x.shape[-2:]
        along = np.arange(n) if positions is None else positions
        return self.axial_rotary_embedding(x, along[..., None], theta ** (-np.arange(0, d, 2) / d)[None])

    def axial_rotary_embedding(self, x: NDArray, positions: NDArray, frequencies: NDArray) -> NDArray:
        """RotaryEmbedding of the first features; ONNX takes cosines and sines, which are computed in float64."""
        arguments = {"x": x, "positions": positions, "frequencies": frequencies}
        bound = bind(OPERATIONS["axial_rotary_embedding"], arguments)
        shape, batch, pairs = bound.result, bound.batch, frequencies.shape[-1]
        if not prod(shape):
            return np.empty(shape, x.dtype)
        angles = flat(positions @ frequencies.astype(np.float64), batch, shape[-2], pairs)
        tables = [f(angles).astype(x.dtype) for f in (np.cos, np.sin)]
        inputs: list[NDArray | None] = [flat(x, batch, *shape[-2:])[:, None], *tables]
        results = self.run("RotaryEmbedding", inputs, 1, interleaved=1, rotary_embedding_dim=2 * pairs)
        return np.asarray(results[0].reshape(shape))
