"""The formulas of recurrent networks."""

import numpy as np
from jaxtyping import Float

from attnspec.reference.defining.choices import choice
from attnspec.reference.defining.definition import defines
from attnspec.spec.recurrent import (
    GRUCell,
    GRUParameters,
    LSTMCell,
    LSTMParameters,
    RNNCell,
    RNNOutput,
    RNNParameters,
)

__all__ = ["gru_cell", "lstm_cell", "rnn_cell", "rnn_output"]


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

    R_t = σ(X_t W_xr + H_{t−1} W_hr + b_r), Z_t likewise, H̃_t = tanh(X_t W_xh + (R_t ⊙ H_{t−1}) W_hh + b_h), or with
    R_t ⊙ (H_{t−1} W_hh) where `gru_reset` is "after".
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


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1/(1 + exp(−x)), as (1 + tanh(x/2))/2, which cannot overflow; x of any shape."""
    half = x.dtype.type(0.5)
    result: np.ndarray = half * (1 + np.tanh(half * x))
    return result
