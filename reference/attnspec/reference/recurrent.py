"""Recurrent networks: cells, runs over sequences, both directions, stacks, self-attention."""

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
"""A cell: maps input, state and parameters to the next state."""


@defines(RNNCell[np.ndarray])
def rnn_cell(
    x: Float[np.ndarray, "*#batch d"],
    state: Float[np.ndarray, "*#batch h"],
    parameters: RNNParameters[np.ndarray],
) -> Float[np.ndarray, "*batch h"]:
    """H_t = tanh(X_t W_xh + H_{t−1} W_hh + b_h)."""
    p = parameters
    following: np.ndarray = np.tanh(x @ p.w_xh + state @ p.w_hh + p.b_h)
    return following


@defines(RNNOutput[np.ndarray])
def rnn_output(
    state: Float[np.ndarray, "*batch h"],
    w_hq: Float[np.ndarray, "h q"],
    b_q: Float[np.ndarray, " q"],
) -> Float[np.ndarray, "*batch q"]:
    """O_t = H_t W_hq + b_q."""
    output: np.ndarray = state @ w_hq + b_q
    return output


@defines(GRUCell[np.ndarray])
def gru_cell(
    x: Float[np.ndarray, "*#batch d"],
    state: Float[np.ndarray, "*#batch h"],
    parameters: GRUParameters[np.ndarray],
) -> Float[np.ndarray, "*batch h"]:
    """H_t = Z_t ⊙ H_{t−1} + (1 − Z_t) ⊙ H̃_t.

    R_t = σ(X_t W_xr + H_{t−1} W_hr + b_r), Z_t likewise, H̃_t = tanh(X_t W_xh + (R_t ⊙ H_{t−1}) W_hh + b_h). If
    `gru_reset` is "after", R_t ⊙ (H_{t−1} W_hh) replaces the product.
    """
    p = parameters
    reset = sigmoid(x @ p.w_xr + state @ p.w_hr + p.b_r)
    update = sigmoid(x @ p.w_xz + state @ p.w_hz + p.b_z)
    seen = (reset * state) @ p.w_hh if choice("gru_reset") == "before" else reset * (state @ p.w_hh)
    candidate = np.tanh(x @ p.w_xh + seen + p.b_h)
    following: np.ndarray = update * state + (1 - update) * candidate
    return following


@defines(LSTMCell[np.ndarray])
def lstm_cell(
    x: Float[np.ndarray, "*#batch d"],
    state: tuple[Float[np.ndarray, "*#batch h"], Float[np.ndarray, "*#batch h"]],
    parameters: LSTMParameters[np.ndarray],
) -> tuple[Float[np.ndarray, "*batch h"], Float[np.ndarray, "*batch h"]]:
    """C_t = F_t ⊙ C_{t−1} + I_t ⊙ C̃_t and H_t = O_t ⊙ tanh C_t.

    I_t = σ(X_t W_xi + H_{t−1} W_hi + b_i), F_t and O_t likewise, C̃_t = tanh(X_t W_xc + H_{t−1} W_hc + b_c).
    """
    p, (h, c) = parameters, state
    input_gate = sigmoid(x @ p.w_xi + h @ p.w_hi + p.b_i)
    forget_gate = sigmoid(x @ p.w_xf + h @ p.w_hf + p.b_f)
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
    """H_t = cell(X_t, H_{t−1}) for every step t, starting from H₀."""
    states, (final,) = sequence(rnn_step, x, (state,), parameters, lengths)
    return states, final


@defines(GRU[np.ndarray])
def gru(
    x: Float[np.ndarray, "*#batch t d"],
    state: Float[np.ndarray, "*#batch h"],
    parameters: GRUParameters[np.ndarray],
    *,
    lengths: Int[np.ndarray, "*#batch"] | None = None,
) -> tuple[Float[np.ndarray, "*batch t h"], Float[np.ndarray, "*batch h"]]:
    """H_t = GRU(X_t, H_{t−1}) for every step t."""
    states, (final,) = sequence(gru_step, x, (state,), parameters, lengths)
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
    states, (h, c) = sequence(lstm_cell, x, state, parameters, lengths)
    return states, (h, c)


@defines(BidirectionalRNN[np.ndarray])
def bidirectional_rnn(
    x: Float[np.ndarray, "*#batch t d"],
    state: tuple[Float[np.ndarray, "*#batch h"], Float[np.ndarray, "*#batch h"]],
    parameters: tuple[RNNParameters[np.ndarray], RNNParameters[np.ndarray]],
    *,
    lengths: Int[np.ndarray, "*#batch"] | None = None,
) -> tuple[Float[np.ndarray, "*batch t 2*h"], tuple[Float[np.ndarray, "*batch h"], Float[np.ndarray, "*batch h"]]]:
    """A_t = [→H_t; ←H_t]; the backward network runs from the last unpadded step to the first."""
    there, ((forward,), (backward,)) = both_ways(rnn_step, x, [(h,) for h in state], parameters, lengths)
    return there, (forward, backward)


@defines(BidirectionalGRU[np.ndarray])
def bidirectional_gru(
    x: Float[np.ndarray, "*#batch t d"],
    state: tuple[Float[np.ndarray, "*#batch h"], Float[np.ndarray, "*#batch h"]],
    parameters: tuple[GRUParameters[np.ndarray], GRUParameters[np.ndarray]],
    *,
    lengths: Int[np.ndarray, "*#batch"] | None = None,
) -> tuple[Float[np.ndarray, "*batch t 2*h"], tuple[Float[np.ndarray, "*batch h"], Float[np.ndarray, "*batch h"]]]:
    """A_t = [→H_t; ←H_t], each direction with parameters of its own."""
    there, ((forward,), (backward,)) = both_ways(gru_step, x, [(h,) for h in state], parameters, lengths)
    return there, (forward, backward)


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
    """A_t = [→H_t; ←H_t] of two LSTMs."""
    states, ((h, c), (back_h, back_c)) = both_ways(lstm_cell, x, state, parameters, lengths)
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
    states, (final,) = one_on_another(rnn_step, x, (state,), layers, lengths)
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
    states, (final,) = one_on_another(gru_step, x, (state,), layers, lengths)
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
    states, (h, c) = one_on_another(lstm_cell, x, state, layers, lengths)
    return states, (h, c)


@defines(RNNSelfAttention[np.ndarray])
def rnn_self_attention(
    x: Float[np.ndarray, "*#batch t d"],
    state: Float[np.ndarray, "*#batch h"],
    parameters: RNNParameters[np.ndarray],
    *,
    lengths: Int[np.ndarray, "*#batch"] | None = None,
) -> tuple[Float[np.ndarray, "*batch t h"], Float[np.ndarray, "*batch t h"], Float[np.ndarray, "*batch h"]]:
    """a_t = Σ_{j<t} softmax_j(h_tᵀ h_j) h_j."""
    states, (final,) = sequence(rnn_step, x, (state,), parameters, lengths)
    steps = x.shape[-2]
    earlier = causal_mask(steps, steps, include_self=False)
    if lengths is not None:
        earlier = earlier & padding_mask(lengths, steps)[..., :, None]
    return dot_product_attention(states, states, states, mask=earlier), states, final


def rnn_step(x: np.ndarray, state: State, parameters: RNNParameters[np.ndarray]) -> State:
    """Apply `rnn_cell` to a state in a tuple, as :func:`sequence` keeps it."""
    return (rnn_cell(x, state[0], parameters),)


def gru_step(x: np.ndarray, state: State, parameters: GRUParameters[np.ndarray]) -> State:
    """Apply `gru_cell` to a state in a tuple, as :func:`sequence` keeps it."""
    return (gru_cell(x, state[0], parameters),)


def sequence(
    step: Step,
    x: np.ndarray,
    initial: State,
    parameters: Any,
    lengths: np.ndarray | None,
    *,
    backward: bool = False,
) -> tuple[np.ndarray, State]:
    """Run a cell over a sequence: return the hidden states (*batch, t, h) and the final state.

    From the length on, the inputs are padding: the state stays unchanged and the hidden states are 0. With ``backward``
    the run starts at the last step.
    """
    steps = x.shape[-2]
    shapes = [x.shape[:-2], *(part.shape[:-1] for part in initial)]
    if lengths is not None:
        # The cell also runs on padding, whose results are discarded; NaN there would still spread to gradients.
        x = np.where((np.arange(steps) < lengths[..., None])[..., None], x, 0)
        shapes.append(lengths.shape)
    batch = np.broadcast_shapes(*shapes)
    state = tuple(np.broadcast_to(part, (*batch, part.shape[-1])) for part in initial)
    none = state[0][..., None, :][..., :0, :]
    states = []
    for t in reversed(range(steps)) if backward else range(steps):
        following = step(x[..., t, :], state, parameters)
        if lengths is None:
            state, hidden = following, following[0]
        else:
            counts = (t < lengths)[..., None]
            state = tuple(np.where(counts, new, old) for new, old in zip(following, state, strict=True))
            hidden = np.where(counts, state[0], 0)
        states.append(hidden[..., None, :])
    return np.concatenate([none, *(states[::-1] if backward else states)], axis=-2), state


def both_ways(
    step: Step, x: np.ndarray, initial: Sequence[State], parameters: Sequence[Any], lengths: Any
) -> tuple[np.ndarray, list[State]]:
    """Run one network forwards and one backwards: return concatenated states and both final states."""
    batch = np.broadcast_shapes(x.shape[:-2], *(part.shape[:-1] for first in initial for part in first))
    initial = [tuple(np.broadcast_to(part, (*batch, part.shape[-1])) for part in first) for first in initial]
    runs = [
        sequence(step, x, first, p, lengths, backward=backward)
        for first, p, backward in zip(initial, parameters, (False, True), strict=True)
    ]
    return np.concatenate([states for states, _ in runs], axis=-1), [final for _, final in runs]


def one_on_another(
    step: Step, x: np.ndarray, initial: State, layers: Sequence[Any], lengths: Any
) -> tuple[np.ndarray, State]:
    """Run stacked layers: return the states of the last one and the final states (*batch, depth, h) of all."""
    finals = []
    for i, p in enumerate(layers):
        first = tuple(part[..., i, :] for part in initial)
        x, final = sequence(step, x, first, p, lengths)
        finals.append([part[..., None, :] for part in final])
    return x, tuple(np.concatenate(parts, axis=-2) for parts in zip(*finals, strict=True))
