"""Correct formulas of recurrent cells."""

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Arithmetic, Numbers
from attnspec.spec.recurrent import GRUParameters, LSTMParameters, RNNParameters


class Recurrent(Arithmetic):
    """Cells."""

    def rnn_cell(self, x: Numbers, state: Numbers, parameters: RNNParameters[Numbers]) -> Numbers:
        """The pre-activation, squashed."""
        p = parameters
        return self.squashed(self.affine(x, state, p.w_xh, p.w_hh, p.b_h))

    def squashed(self, x: Numbers) -> Numbers:
        """The activation of a recurrent network."""
        return np.tanh(x)

    def rnn_output(self, state: Numbers, w_hq: Numbers, b_q: Numbers) -> Numbers:
        """An affine map of the state, a row vector (…, h)."""
        return self.product(state[..., None, :], w_hq)[..., 0, :] + b_q

    def gru_cell(self, x: Numbers, state: Numbers, parameters: GRUParameters[Numbers]) -> Numbers:
        """The gates, the candidate, and their mean."""
        reset, update = self.gru_gates(x, state, parameters)
        return self.updated(update, state, self.gru_candidate(x, state, reset, parameters))

    def gru_gates(self, x: Numbers, h: Numbers, p: GRUParameters[Numbers]) -> tuple[Numbers, Numbers]:
        """Reset and update gate."""
        reset = self.gate(self.affine(x, h, p.w_xr, p.w_hr, p.b_r))
        return reset, self.gate(self.affine(x, h, p.w_xz, p.w_hz, p.b_z))

    def gru_candidate(self, x: Numbers, h: Numbers, reset: Numbers, p: GRUParameters[Numbers]) -> Numbers:
        """The candidate of the next state: what a recurrent network makes of a state that is partly forgotten."""
        return self.squashed(self.affine(x, reset * h, p.w_xh, p.w_hh, p.b_h))

    def updated(self, update: Numbers, h: Numbers, candidate: Numbers) -> Numbers:
        """What is kept of the state, and what is new."""
        return update * h + (1 - update) * candidate

    def lstm_cell(
        self, x: Numbers, state: tuple[Numbers, Numbers], parameters: LSTMParameters[Numbers]
    ) -> tuple[Numbers, Numbers]:
        """The gates, the next cell, and the hidden state."""
        h, c = state
        input_gate, forget_gate, output_gate, candidate = self.lstm_gates(x, h, parameters)
        cell = self.next_cell(input_gate, forget_gate, candidate, c)
        return output_gate * np.tanh(cell), cell

    def lstm_gates(self, x: Numbers, h: Numbers, p: LSTMParameters[Numbers]) -> tuple[Numbers, ...]:
        """Input, forget and output gate, and the candidate."""
        return (
            self.gate(self.affine(x, h, p.w_xi, p.w_hi, p.b_i)),
            self.gate(self.affine(x, h, p.w_xf, p.w_hf, p.b_f)),
            self.gate(self.affine(x, h, p.w_xo, p.w_ho, p.b_o)),
            np.tanh(self.affine(x, h, p.w_xc, p.w_hc, p.b_c)),
        )

    def affine(self, x: Numbers, h: Numbers, w_x: Numbers, w_h: Numbers, b: Numbers) -> Numbers:
        """The pre-activation of a gate, of row vectors x (…, d) and h (…, h)."""
        return self.product(x[..., None, :], w_x)[..., 0, :] + self.product(h[..., None, :], w_h)[..., 0, :] + b

    def gate(self, x: Numbers) -> Numbers:
        """The logistic function, which cannot overflow."""
        half = x.dtype.type(0.5)
        return half * (1 + np.tanh(half * x))

    def next_cell(self, input_gate: Numbers, forget_gate: Numbers, candidate: Numbers, c: Numbers) -> Numbers:
        """What is kept of the cell, and what is added."""
        return forget_gate * c + input_gate * candidate
