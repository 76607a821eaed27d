"""Recurrent networks: cells, sequences, both directions, stacks, and attention to earlier states.

A cell maps an input and the previous state to the next state. :func:`run_sequence` repeats it over the time steps.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from attnspec.reference.attention import dot_product_attention
from attnspec.reference.defining.choices import choice
from attnspec.reference.defining.definition import defines
from attnspec.reference.masking import causal_mask, padding_mask
from attnspec.reference.normalization import sigmoid
from attnspec.spec.recurrent import (
    GRU,
    LSTM,
    RNN,
    BidirectionalGRU,
    BidirectionalLSTM,
    BidirectionalRNN,
    GRUCell,
    GRUParameters,
    LSTMCell,
    LSTMParameters,
    RNNCell,
    RNNOutput,
    RNNParameters,
    RNNSelfAttention,
    StackedGRU,
    StackedLSTM,
    StackedRNN,
)

__all__ = [
    "bidirectional_gru",
    "bidirectional_lstm",
    "bidirectional_rnn",
    "gru",
    "gru_cell",
    "lstm",
    "lstm_cell",
    "rnn",
    "rnn_cell",
    "rnn_output",
    "rnn_self_attention",
    "stacked_gru",
    "stacked_lstm",
    "stacked_rnn",
]

State: TypeAlias = tuple[np.ndarray, ...]
"""The state of a network as a tuple: (h,) for RNN and GRU, (h, c) for an LSTM."""

Step: TypeAlias = Callable[[np.ndarray, Any, Any], State]
"""A cell, as a function from input, state and parameters to the next state."""


@defines(RNNCell[np.ndarray])
def rnn_cell(
    x: Float[np.ndarray, "*#batch d"],
    state: Float[np.ndarray, "*#batch h"],
    parameters: RNNParameters[np.ndarray],
) -> Float[np.ndarray, "*batch h"]:
    """H_t = tanh(X_t W_xh + H_{t−1} W_hh + b_h): the new state mixes the input with the old state."""
    p = parameters
    new_state: np.ndarray = np.tanh(x @ p.w_xh + state @ p.w_hh + p.b_h)
    return new_state


@defines(RNNOutput[np.ndarray])
def rnn_output(
    state: Float[np.ndarray, "*batch h"],
    w_hq: Float[np.ndarray, "h q"],
    b_q: Float[np.ndarray, " q"],
) -> Float[np.ndarray, "*batch q"]:
    """O_t = H_t W_hq + b_q: the output is an affine map of the state."""
    output: np.ndarray = state @ w_hq + b_q
    return output


@defines(GRUCell[np.ndarray])
def gru_cell(
    x: Float[np.ndarray, "*#batch d"],
    state: Float[np.ndarray, "*#batch h"],
    parameters: GRUParameters[np.ndarray],
) -> Float[np.ndarray, "*batch h"]:
    """H_t = Z_t ⊙ H_{t−1} + (1 − Z_t) ⊙ H̃_t: the update gate Z_t keeps the old state, or takes the candidate H̃_t.

    H̃_t = tanh(X_t W_xh + (R_t ⊙ H_{t−1}) W_hh + b_h), reset gate R_t = σ(X_t W_xr + H_{t−1} W_hr + b_r), Z_t likewise.
    If `gru_reset` is "after", R_t ⊙ (H_{t−1} W_hh) replaces (R_t ⊙ H_{t−1}) W_hh. If `gru_update` is "candidate", Z_t
    and 1 − Z_t are exchanged.
    """
    p = parameters
    reset = sigmoid(x @ p.w_xr + state @ p.w_hr + p.b_r)
    update = sigmoid(x @ p.w_xz + state @ p.w_hz + p.b_z)
    recurrent_input = (reset * state) @ p.w_hh if choice("gru_reset") == "before" else reset * (state @ p.w_hh)
    candidate = np.tanh(x @ p.w_xh + recurrent_input + p.b_h)
    kept, replaced = (update, 1 - update) if choice("gru_update") == "state" else (1 - update, update)
    new_state: np.ndarray = kept * state + replaced * candidate
    return new_state


@defines(LSTMCell[np.ndarray])
def lstm_cell(
    x: Float[np.ndarray, "*#batch d"],
    state: tuple[Float[np.ndarray, "*#batch h"], Float[np.ndarray, "*#batch h"]],
    parameters: LSTMParameters[np.ndarray],
) -> tuple[Float[np.ndarray, "*batch h"], Float[np.ndarray, "*batch h"]]:
    """State after gates decide what to forget, write and show: C_t = F_t ⊙ C_{t−1} + I_t ⊙ C̃_t, H_t = O_t ⊙ tanh C_t.

    I_t = σ(X_t W_xi + H_{t−1} W_hi + b_i), F_t and O_t likewise, C̃_t = tanh(X_t W_xc + H_{t−1} W_hc + b_c).
    If `lstm_forget_bias` is "plus-one", 1 is added to b_f.
    """
    p, (h, c) = parameters, state
    input_gate = sigmoid(x @ p.w_xi + h @ p.w_hi + p.b_i)
    b_f = p.b_f if choice("lstm_forget_bias") == "as-given" else p.b_f + 1
    forget_gate = sigmoid(x @ p.w_xf + h @ p.w_hf + b_f)
    output_gate = sigmoid(x @ p.w_xo + h @ p.w_ho + p.b_o)
    candidate = np.tanh(x @ p.w_xc + h @ p.w_hc + p.b_c)
    cell = forget_gate * c + input_gate * candidate
    return output_gate * np.tanh(cell), cell


@defines(RNN[np.ndarray])
def rnn(
    x: Float[np.ndarray, "*#batch t d"],
    state: Float[np.ndarray, "*#batch h"],
    parameters: RNNParameters[np.ndarray],
    *,
    lengths: Int[np.ndarray, "*#batch"] | None = None,
) -> tuple[Float[np.ndarray, "*batch t h"], Float[np.ndarray, "*batch h"]]:
    """H_t = RNN(X_t, H_{t−1}) for every step t, starting from H₀."""
    states, (final,) = run_sequence(rnn_step, x, (state,), parameters, lengths)
    return states, final


@defines(GRU[np.ndarray])
def gru(
    x: Float[np.ndarray, "*#batch t d"],
    state: Float[np.ndarray, "*#batch h"],
    parameters: GRUParameters[np.ndarray],
    *,
    lengths: Int[np.ndarray, "*#batch"] | None = None,
) -> tuple[Float[np.ndarray, "*batch t h"], Float[np.ndarray, "*batch h"]]:
    """H_t = GRU(X_t, H_{t−1}) for every step t, starting from H₀."""
    states, (final,) = run_sequence(gru_step, x, (state,), parameters, lengths)
    return states, final


@defines(LSTM[np.ndarray])
def lstm(
    x: Float[np.ndarray, "*#batch t d"],
    state: tuple[Float[np.ndarray, "*#batch h"], Float[np.ndarray, "*#batch h"]],
    parameters: LSTMParameters[np.ndarray],
    *,
    lengths: Int[np.ndarray, "*#batch"] | None = None,
) -> tuple[Float[np.ndarray, "*batch t h"], tuple[Float[np.ndarray, "*batch h"], Float[np.ndarray, "*batch h"]]]:
    """(H_t, C_t) = LSTM(X_t, (H_{t−1}, C_{t−1})) for every step t; C_t is returned for the last step only."""
    states, (h, c) = run_sequence(lstm_cell, x, state, parameters, lengths)
    return states, (h, c)


@defines(BidirectionalRNN[np.ndarray])
def bidirectional_rnn(
    x: Float[np.ndarray, "*#batch t d"],
    state: tuple[Float[np.ndarray, "*#batch h"], Float[np.ndarray, "*#batch h"]],
    parameters: tuple[RNNParameters[np.ndarray], RNNParameters[np.ndarray]],
    *,
    lengths: Int[np.ndarray, "*#batch"] | None = None,
) -> tuple[Float[np.ndarray, "*batch t 2*h"], tuple[Float[np.ndarray, "*batch h"], Float[np.ndarray, "*batch h"]]]:
    """A_t = [→H_t; ←H_t]: the backward network reads from the last unpadded step to the first."""
    states, ((forward,), (backward,)) = run_both_directions(rnn_step, x, [(h,) for h in state], parameters, lengths)
    return states, (forward, backward)


@defines(BidirectionalGRU[np.ndarray])
def bidirectional_gru(
    x: Float[np.ndarray, "*#batch t d"],
    state: tuple[Float[np.ndarray, "*#batch h"], Float[np.ndarray, "*#batch h"]],
    parameters: tuple[GRUParameters[np.ndarray], GRUParameters[np.ndarray]],
    *,
    lengths: Int[np.ndarray, "*#batch"] | None = None,
) -> tuple[Float[np.ndarray, "*batch t 2*h"], tuple[Float[np.ndarray, "*batch h"], Float[np.ndarray, "*batch h"]]]:
    """A_t = [→H_t; ←H_t] of two GRUs, each direction with its own parameters."""
    states, ((forward,), (backward,)) = run_both_directions(gru_step, x, [(h,) for h in state], parameters, lengths)
    return states, (forward, backward)


@defines(BidirectionalLSTM[np.ndarray])
def bidirectional_lstm(
    x: Float[np.ndarray, "*#batch t d"],
    state: tuple[
        tuple[Float[np.ndarray, "*#batch h"], Float[np.ndarray, "*#batch h"]],
        tuple[Float[np.ndarray, "*#batch h"], Float[np.ndarray, "*#batch h"]],
    ],
    parameters: tuple[LSTMParameters[np.ndarray], LSTMParameters[np.ndarray]],
    *,
    lengths: Int[np.ndarray, "*#batch"] | None = None,
) -> tuple[
    Float[np.ndarray, "*batch t 2*h"],
    tuple[
        tuple[Float[np.ndarray, "*batch h"], Float[np.ndarray, "*batch h"]],
        tuple[Float[np.ndarray, "*batch h"], Float[np.ndarray, "*batch h"]],
    ],
]:
    """A_t = [→H_t; ←H_t] of two LSTMs, each direction with its own parameters."""
    states, ((h, c), (back_h, back_c)) = run_both_directions(lstm_cell, x, state, parameters, lengths)
    return states, ((h, c), (back_h, back_c))


@defines(StackedRNN[np.ndarray])
def stacked_rnn(
    x: Float[np.ndarray, "*#batch t d"],
    state: Float[np.ndarray, "*#batch depth h"],
    layers: tuple[RNNParameters[np.ndarray], ...],
    *,
    lengths: Int[np.ndarray, "*#batch"] | None = None,
) -> tuple[Float[np.ndarray, "*batch t h"], Float[np.ndarray, "*batch depth h"]]:
    """H^(l) = RNN^(l)(H^(l−1)) with H^(0) = X."""
    states, (final,) = run_stack(rnn_step, x, (state,), layers, lengths)
    return states, final


@defines(StackedGRU[np.ndarray])
def stacked_gru(
    x: Float[np.ndarray, "*#batch t d"],
    state: Float[np.ndarray, "*#batch depth h"],
    layers: tuple[GRUParameters[np.ndarray], ...],
    *,
    lengths: Int[np.ndarray, "*#batch"] | None = None,
) -> tuple[Float[np.ndarray, "*batch t h"], Float[np.ndarray, "*batch depth h"]]:
    """H^(l) = GRU^(l)(H^(l−1)) with H^(0) = X."""
    states, (final,) = run_stack(gru_step, x, (state,), layers, lengths)
    return states, final


@defines(StackedLSTM[np.ndarray])
def stacked_lstm(
    x: Float[np.ndarray, "*#batch t d"],
    state: tuple[Float[np.ndarray, "*#batch depth h"], Float[np.ndarray, "*#batch depth h"]],
    layers: tuple[LSTMParameters[np.ndarray], ...],
    *,
    lengths: Int[np.ndarray, "*#batch"] | None = None,
) -> tuple[
    Float[np.ndarray, "*batch t h"], tuple[Float[np.ndarray, "*batch depth h"], Float[np.ndarray, "*batch depth h"]]
]:
    """H^(l) = LSTM^(l)(H^(l−1)) with H^(0) = X, where H^(l) are the hidden states."""
    states, (h, c) = run_stack(lstm_cell, x, state, layers, lengths)
    return states, (h, c)


@defines(RNNSelfAttention[np.ndarray])
def rnn_self_attention(
    x: Float[np.ndarray, "*#batch t d"],
    state: Float[np.ndarray, "*#batch h"],
    parameters: RNNParameters[np.ndarray],
    *,
    lengths: Int[np.ndarray, "*#batch"] | None = None,
) -> tuple[Float[np.ndarray, "*batch t h"], Float[np.ndarray, "*batch t h"], Float[np.ndarray, "*batch h"]]:
    """a_t = Σ_{j<t} softmax_j(h_tᵀ h_j) h_j: each state attends to the states before it."""
    states, (final,) = run_sequence(rnn_step, x, (state,), parameters, lengths)
    steps = x.shape[-2]
    earlier = causal_mask(steps, steps, include_self=False)
    if lengths is not None:
        earlier = earlier & padding_mask(lengths, steps)[..., :, None]
    return dot_product_attention(states, states, states, mask=earlier), states, final


def rnn_step(x: np.ndarray, state: State, parameters: RNNParameters[np.ndarray]) -> State:
    """Apply `rnn_cell` to a state in a tuple, as :func:`run_sequence` keeps it."""
    return (rnn_cell(x, state[0], parameters),)


def gru_step(x: np.ndarray, state: State, parameters: GRUParameters[np.ndarray]) -> State:
    """Apply `gru_cell` to a state in a tuple, as :func:`run_sequence` keeps it."""
    return (gru_cell(x, state[0], parameters),)


def run_sequence(
    step: Step,
    x: np.ndarray,
    initial: State,
    parameters: Any,
    lengths: np.ndarray | None,
    *,
    backward: bool = False,
) -> tuple[np.ndarray, State]:
    """Run a cell over a sequence: return the hidden states (*batch, t, h) and the final state.

    Steps beyond the length are padding: they leave the state unchanged, and their hidden states are 0. With
    ``backward`` the run starts at the last step.
    """
    steps = x.shape[-2]
    shapes = [x.shape[:-2], *(part.shape[:-1] for part in initial)]
    if lengths is not None:
        # The cell also runs on padding. Its results are discarded, but NaN in them would still reach the gradients.
        x = np.where((np.arange(steps) < lengths[..., None])[..., None], x, 0)
        shapes.append(lengths.shape)
    batch = np.broadcast_shapes(*shapes)
    state = tuple(np.broadcast_to(part, (*batch, part.shape[-1])) for part in initial)
    no_states = state[0][..., None, :][..., :0, :]
    states = []
    for t in reversed(range(steps)) if backward else range(steps):
        new_state = step(x[..., t, :], state, parameters)
        if lengths is None:
            state, hidden = new_state, new_state[0]
        else:
            within_length = (t < lengths)[..., None]
            state = tuple(np.where(within_length, new, old) for new, old in zip(new_state, state, strict=True))
            hidden = np.where(within_length, state[0], 0)
        states.append(hidden[..., None, :])
    return np.concatenate([no_states, *(states[::-1] if backward else states)], axis=-2), state


def run_both_directions(
    step: Step, x: np.ndarray, initial: Sequence[State], parameters: Sequence[Any], lengths: Any
) -> tuple[np.ndarray, list[State]]:
    """Run one network forwards and one backwards; return their concatenated states and final states."""
    batch = np.broadcast_shapes(x.shape[:-2], *(part.shape[:-1] for start in initial for part in start))
    initial = [tuple(np.broadcast_to(part, (*batch, part.shape[-1])) for part in start) for start in initial]
    runs = [
        run_sequence(step, x, start, p, lengths, backward=backward)
        for start, p, backward in zip(initial, parameters, (False, True), strict=True)
    ]
    return np.concatenate([states for states, _ in runs], axis=-1), [final for _, final in runs]


def run_stack(
    step: Step, x: np.ndarray, initial: State, layers: Sequence[Any], lengths: Any
) -> tuple[np.ndarray, State]:
    """Run stacked layers; return the last layer's states and all final states (*batch, depth, h)."""
    finals = []
    for i, p in enumerate(layers):
        initial_state = tuple(part[..., i, :] for part in initial)
        x, final = run_sequence(step, x, initial_state, p, lengths)
        finals.append([part[..., None, :] for part in final])
    return x, tuple(np.concatenate(parts, axis=-2) for parts in zip(*finals, strict=True))
