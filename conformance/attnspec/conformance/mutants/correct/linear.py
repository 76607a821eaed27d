"""Correct formulas of linear attention and of the short convolution."""

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

    def short_convolution(
        self, x: Numbers, weight: Numbers, state: Numbers, *, bias: Numbers = None
    ) -> tuple[Numbers, Numbers]:
        """Outputs of all steps, and the last inputs."""
        rows = self.after_state(x, state)
        output = self.convolved(rows, weight, x.shape[-2])
        return self.with_bias(output, bias), self.last_inputs(rows, x.shape[-2])

    def after_state(self, x: Numbers, state: Numbers) -> Numbers:
        """The inputs that the state holds, then x."""
        batch = np.broadcast_shapes(x.shape[:-2], state.shape[:-2])
        return np.concatenate([np.broadcast_to(part, (*batch, *part.shape[-2:])) for part in (state, x)], axis=-2)

    def convolved(self, rows: Numbers, weight: Numbers, steps: int) -> Numbers:
        """Sum over the taps: the last one multiplies the current input."""
        total = rows[..., :steps, :] * weight[..., 0]
        for j in range(1, weight.shape[-1]):
            total = total + rows[..., j : j + steps, :] * weight[..., j]
        return total

    def with_bias(self, output: Numbers, bias: Numbers) -> Numbers:
        """The output plus the bias, if there is one."""
        return output if bias is None else output + bias

    def last_inputs(self, rows: Numbers, steps: int) -> Numbers:
        """The final state: rows of the state and of x, without the first ``steps``."""
        return rows[..., steps:, :]
