"""Correct formulas of linear attention."""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.kernels import Kernels


class LinearAttention(Kernels):
    """A recurrence over matrices of state, step by step."""

    def linear_attention(
        self,
        query: Numbers,
        key: Numbers,
        value: Numbers,
        state: Numbers,
        *,
        decay: Numbers = None,
        beta: Numbers = None,
        scale: Any = None,
    ) -> tuple[Numbers, Numbers]:
        """Outputs of all steps, and the final state."""
        group = query.shape[-3] // key.shape[-3]
        rates = None if beta is None else beta[..., None]
        state = self.first_state(query, key, value, state, decay, rates)
        outputs = []
        for i in range(key.shape[-2]):
            k, v, g, b = (None if x is None else x[..., i : i + 1, :] for x in (key, value, decay, rates))
            before, state = self.advanced(state, k, v, g, b)
            outputs.append(self.read(query[..., i : i + 1, :], self.repeat_heads(state, group), before))
        empty = np.zeros((*state.shape[:-3], query.shape[-3], 0, value.shape[-1]), query.dtype)
        output = np.concatenate(outputs, axis=-2) if outputs else empty
        return self.scaled_by(output, query.shape[-1], scale), state

    def first_state(
        self, query: Numbers, key: Numbers, value: Numbers, state: Numbers, decay: Numbers, rates: Numbers
    ) -> Numbers:
        """The initial state, broadcast to the common batch."""
        arrays = [x for x in (query, key, value, state, decay, rates) if x is not None]
        batch = np.broadcast_shapes(*(x.shape[:-3] for x in arrays))
        return np.broadcast_to(state, (*batch, *state.shape[-3:]))

    def advanced(
        self, state: Numbers, k: Numbers, v: Numbers, decay: Numbers, rate: Numbers
    ) -> tuple[Numbers, Numbers]:
        """The decayed state, and the state after the step."""
        before = self.decayed(state, decay)
        return before, self.written(before, k, self.update(before, k, v, rate))

    def decayed(self, state: Numbers, decay: Numbers) -> Numbers:
        """The state (…, d, d_v) times e^g, g (…, 1, d or 1)."""
        return state if decay is None else np.exp(np.swapaxes(decay, -1, -2)) * state

    def update(self, state: Numbers, k: Numbers, v: Numbers, rate: Numbers) -> Numbers:
        """The row that is written: v, or with the delta rule β (v − Sᵀk)."""
        return v if rate is None else rate * (v - self.product(k, state))

    def written(self, state: Numbers, k: Numbers, row: Numbers) -> Numbers:
        """The state with the row written at the key."""
        return state + np.swapaxes(k, -1, -2) * row

    def read(self, q: Numbers, state: Numbers, before: Numbers) -> Numbers:
        """The state after the step, read by the queries; ``before`` is the decayed state before it."""
        return self.product(q, state)
