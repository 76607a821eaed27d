"""Correct formulas of recurrent cells and sequences."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.attention import Attention
from attnspec.reference.defining.choices import choice
from attnspec.spec.recurrent import GRUParameters, LSTMParameters, RNNParameters

State = tuple[Numbers, ...]
Step = Callable[..., State]


class Recurrent(Attention):
    """Recurrent cells and the sequences of their states."""

    def rnn_cell(self, x: Numbers, state: Numbers, parameters: RNNParameters[Numbers]) -> Numbers:
        """tanh of the pre-activation."""
        p = parameters
        return self.state_activation(self.affine(x, state, p.w_xh, p.w_hh, p.b_h))

    def state_activation(self, x: Numbers) -> Numbers:
        """Activation of recurrent states: tanh."""
        return np.tanh(x)

    def rnn_output(self, state: Numbers, w_hq: Numbers, b_q: Numbers) -> Numbers:
        """An affine map of the state, a row vector (…, h)."""
        return self.product(state[..., None, :], w_hq)[..., 0, :] + b_q

    def gru_cell(self, x: Numbers, state: Numbers, parameters: GRUParameters[Numbers]) -> Numbers:
        """The next state, by both gates and the candidate."""
        reset, update = self.gru_gates(x, state, parameters)
        return self.gru_update(update, state, self.gru_candidate(x, state, reset, parameters))

    def gru_gates(self, x: Numbers, h: Numbers, p: GRUParameters[Numbers]) -> tuple[Numbers, Numbers]:
        """Reset and update gate."""
        reset = self.gate(self.affine(x, h, p.w_xr, p.w_hr, p.b_r))
        return reset, self.gate(self.affine(x, h, p.w_xz, p.w_hz, p.b_z))

    def gru_candidate(self, x: Numbers, h: Numbers, reset: Numbers, p: GRUParameters[Numbers]) -> Numbers:
        """Candidate of the next state, with the reset gate where ``gru_reset`` puts it."""
        if choice("gru_reset") == "before":
            return self.state_activation(self.affine(x, reset * h, p.w_xh, p.w_hh, p.b_h))
        return self.state_activation(self.reset_after_product(x, h, reset, p))

    def reset_after_product(self, x: Numbers, h: Numbers, reset: Numbers, p: GRUParameters[Numbers]) -> Numbers:
        """Pre-activation of a candidate whose reset gate multiplies the recurrent product."""
        of_input, of_state = (self.product(v[..., None, :], w)[..., 0, :] for v, w in ((x, p.w_xh), (h, p.w_hh)))
        return of_input + reset * of_state + p.b_h

    def gru_update(self, update: Numbers, h: Numbers, candidate: Numbers) -> Numbers:
        """Mean of state and candidate; the update gate weighs one of them, as ``gru_update`` says."""
        if choice("gru_update") == "candidate":
            return (1 - update) * h + update * candidate
        return update * h + (1 - update) * candidate

    def lstm_cell(
        self, x: Numbers, state: tuple[Numbers, Numbers], parameters: LSTMParameters[Numbers]
    ) -> tuple[Numbers, Numbers]:
        """The next hidden state and the next cell."""
        h, c = state
        input_gate, forget_gate, output_gate, candidate = self.lstm_gates(x, h, parameters)
        cell = self.next_cell(input_gate, forget_gate, candidate, c)
        return output_gate * np.tanh(cell), cell

    def lstm_gates(self, x: Numbers, h: Numbers, p: LSTMParameters[Numbers]) -> tuple[Numbers, ...]:
        """Input gate, forget gate, output gate and candidate."""
        return (
            self.gate(self.affine(x, h, p.w_xi, p.w_hi, p.b_i)),
            self.gate(self.affine(x, h, p.w_xf, p.w_hf, self.forget_bias(p))),
            self.gate(self.affine(x, h, p.w_xo, p.w_ho, p.b_o)),
            np.tanh(self.affine(x, h, p.w_xc, p.w_hc, p.b_c)),
        )

    def forget_bias(self, p: LSTMParameters[Numbers]) -> Numbers:
        """Bias of the forget gate, with 1 more if ``lstm_forget_bias`` says so."""
        return p.b_f if choice("lstm_forget_bias") == "as-given" else p.b_f + 1

    def affine(self, x: Numbers, h: Numbers, w_x: Numbers, w_h: Numbers, b: Numbers) -> Numbers:
        """The pre-activation of a gate, of row vectors x (…, d) and h (…, h)."""
        return self.product(x[..., None, :], w_x)[..., 0, :] + self.product(h[..., None, :], w_h)[..., 0, :] + b

    def gate(self, x: Numbers) -> Numbers:
        """The logistic function by tanh, which cannot overflow."""
        half = x.dtype.type(0.5)
        return half * (1 + np.tanh(half * x))

    def next_cell(self, input_gate: Numbers, forget_gate: Numbers, candidate: Numbers, c: Numbers) -> Numbers:
        """The cell by the forget gate plus the candidate by the input gate."""
        return forget_gate * c + input_gate * candidate

    # Sequences ---------------------------------------------------------------------------------------------------

    def rnn_step(self, x: Numbers, state: State, parameters: Any) -> State:
        """A step of ``rnn_cell`` on states as tuples."""
        return (self.rnn_cell(x, state[0], parameters),)

    def gru_step(self, x: Numbers, state: State, parameters: Any) -> State:
        """A step of ``gru_cell`` on states as tuples."""
        return (self.gru_cell(x, state[0], parameters),)

    def rnn(self, x: Numbers, state: Numbers, parameters: Any, *, lengths: Numbers = None) -> tuple[Numbers, Numbers]:
        """States of all steps and the final state."""
        states, (final,) = self.sequence(partial(self.rnn_step, parameters=parameters), x, (state,), lengths)
        return states, final

    def gru(self, x: Numbers, state: Numbers, parameters: Any, *, lengths: Numbers = None) -> tuple[Numbers, Numbers]:
        """States of all steps and the final state."""
        states, (final,) = self.sequence(partial(self.gru_step, parameters=parameters), x, (state,), lengths)
        return states, final

    def lstm(self, x: Numbers, state: State, parameters: Any, *, lengths: Numbers = None) -> tuple[Numbers, State]:
        """Hidden states of all steps, and the final hidden state and cell."""
        return self.sequence(partial(self.lstm_cell, parameters=parameters), x, state, lengths)

    def sequence(
        self, step: Step, x: Numbers, initial: State, lengths: Numbers,
        backward: bool = False,
    ) -> tuple[Numbers, State]:  # fmt: skip
        """Hidden states of all steps and the final state; ``backward`` reads from the last step."""
        steps = x.shape[-2]
        state = self.broadcast_state(x, initial, lengths)
        hidden = []
        if lengths is not None:
            self.check_lengths(lengths, steps)
            x = self.clear_padding(x, lengths)
        for t in self.step_order(steps, backward):
            inside = None if lengths is None else self.within_length(t, lengths)[..., None]
            state = self.hold_at_padding(step(x[..., t, :], state), state, inside, backward)
            hidden.append(self.zero_at_padding(state[0], inside)[..., None, :])
        no_steps = state[0][..., None, :][..., :0, :]
        return np.concatenate([no_steps, *self.in_time_order(hidden, backward)], axis=-2), self.final_state(state)

    def broadcast_state(self, x: Numbers, initial: State, lengths: Numbers) -> State:
        """Initial state, broadcast to the common batch."""
        shapes = [x.shape[:-2], *(array.shape[:-1] for array in initial), np.shape(lengths)]
        batch = np.broadcast_shapes(*shapes)
        return tuple(np.broadcast_to(array, (*batch, array.shape[-1])) for array in initial)

    def clear_padding(self, x: Numbers, lengths: Numbers) -> Numbers:
        """Inputs with 0 at padding."""
        return np.where(self.padding_mask(lengths, x.shape[-2])[..., None], x, x.dtype.type(0))

    def step_order(self, steps: int, backward: bool) -> Sequence[int]:
        """Steps in the order of computation."""
        return range(steps)[::-1] if backward else range(steps)

    def in_time_order(self, hidden: list[Numbers], backward: bool) -> list[Numbers]:
        """The hidden states in order of time."""
        return hidden[::-1] if backward else hidden

    def within_length(self, t: int, lengths: Numbers) -> Numbers:
        """True where step t lies within the length."""
        return t < lengths

    def hold_at_padding(self, new: State, old: State, inside: Numbers, backward: bool) -> State:
        """The new state; at padding the old one."""
        return new if inside is None else tuple(np.where(inside, n, o) for n, o in zip(new, old, strict=True))

    def zero_at_padding(self, hidden: Numbers, inside: Numbers) -> Numbers:
        """A hidden state, 0 at padding."""
        return hidden if inside is None else np.where(inside, hidden, hidden.dtype.type(0))

    def final_state(self, state: State) -> State:
        """The final state: the state after the last computed step."""
        return state

    # Bidirectional and stacked -----------------------------------------------------------------------------------

    def bidirectional_rnn(self, x: Numbers, state: State, parameters: Any, *, lengths: Numbers = None) -> Any:
        """States of both directions, and both final states."""
        states, ((there,), (back,)) = self.run_both_ways(self.rnn_step, x, [(h,) for h in state], parameters, lengths)
        return states, (there, back)

    def bidirectional_gru(self, x: Numbers, state: State, parameters: Any, *, lengths: Numbers = None) -> Any:
        """States of both directions, and both final states."""
        states, ((there,), (back,)) = self.run_both_ways(self.gru_step, x, [(h,) for h in state], parameters, lengths)
        return states, (there, back)

    def bidirectional_lstm(self, x: Numbers, state: Any, parameters: Any, *, lengths: Numbers = None) -> Any:
        """States of both directions, and both final states."""
        return self.run_both_ways(self.lstm_cell, x, state, parameters, lengths)

    def run_both_ways(
        self, step: Step, x: Numbers, initial: Sequence[State], parameters: Sequence[Any], lengths: Numbers
    ) -> tuple[Numbers, tuple[State, ...]]:
        """Run ``step`` forwards and backwards over x."""
        parts = [part for first in initial for part in first]
        started = iter(self.broadcast_state(x, tuple(parts), lengths))
        there, back = (
            self.sequence(partial(step, parameters=p), x, tuple(next(started) for _ in first), lengths, backward)
            for first, p, backward in zip(initial, parameters, (False, True), strict=True)
        )
        return self.join_directions(there[0], back[0]), (there[1], back[1])

    def join_directions(self, forward: Numbers, backward: Numbers) -> Numbers:
        """Concatenate the states of both directions."""
        return np.concatenate([forward, backward], axis=-1)

    def stacked_rnn(self, x: Numbers, state: Numbers, layers: Any, *, lengths: Numbers = None) -> Any:
        """States of the last layer, and the final states of all layers."""
        states, (final,) = self.run_layers(self.rnn_step, x, (state,), layers, lengths)
        return states, final

    def stacked_gru(self, x: Numbers, state: Numbers, layers: Any, *, lengths: Numbers = None) -> Any:
        """States of the last layer, and the final states of all layers."""
        states, (final,) = self.run_layers(self.gru_step, x, (state,), layers, lengths)
        return states, final

    def stacked_lstm(self, x: Numbers, state: State, layers: Any, *, lengths: Numbers = None) -> Any:
        """States of the last layer, and the final states of all layers."""
        return self.run_layers(self.lstm_cell, x, state, layers, lengths)

    def run_layers(
        self, step: Step, x: Numbers, initial: State, layers: Sequence[Any], lengths: Numbers
    ) -> tuple[Numbers, State]:
        """Run the layers, each on the states of the one before."""
        finals = []
        for i, p in enumerate(layers):
            first = tuple(part[..., self.initial_row(i), :] for part in initial)
            states, final = self.sequence(partial(step, parameters=p), x, first, lengths)
            x = self.next_inputs(x, states, i)
            finals.append([part[..., None, :] for part in final])
        return x, tuple(np.concatenate(parts, axis=-2) for parts in zip(*finals, strict=True))

    def initial_row(self, layer: int) -> int:
        """Row of the initial states that belongs to a layer."""
        return layer

    def next_inputs(self, x: Numbers, states: Numbers, layer: int) -> Numbers:
        """The inputs of the next layer."""
        return states

    # Self-attention ----------------------------------------------------------------------------------------------

    def rnn_self_attention(
        self, x: Numbers, state: Numbers, parameters: Any, *, lengths: Numbers = None
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Attention of each state to earlier states, with the states and the final state."""
        states, final = self.rnn(x, state, parameters, lengths=lengths)
        earlier = self.earlier_steps(x.shape[-2])
        if lengths is not None:
            earlier = earlier & self.padding_mask(lengths, x.shape[-2])[..., None]
        return self.dot_product_attention(states, states, states, mask=earlier), states, final

    def earlier_steps(self, steps: int) -> Numbers:
        """Mask that is True at the states before each state."""
        return self.causal_mask(steps, steps, include_self=False)
