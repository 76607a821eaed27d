"""Linear attention: a recurrence over a matrix of state per head; and the short convolution before it."""

import numpy as np
from jaxtyping import Float

from attnspec.reference.defining.definition import defines
from attnspec.reference.defining.overriding import overridable
from attnspec.reference.kernels import add_groups, merge_groups, scaled, split_groups
from attnspec.spec.linear import LinearAttention, ShortConvolution

__all__ = ["linear_attention", "short_convolution"]


@defines(LinearAttention[np.ndarray])
def linear_attention(
    query: Float[np.ndarray, "*#batch heads t d"],
    key: Float[np.ndarray, "*#batch heads_k t d"],
    value: Float[np.ndarray, "*#batch heads_k t d_v"],
    state: Float[np.ndarray, "*#batch heads_k d d_v"],
    *,
    decay: Float[np.ndarray, "*#batch heads_k t #d"] | None = None,
    beta: Float[np.ndarray, "*#batch heads_k t"] | None = None,
    scale: float | None = None,
) -> tuple[Float[np.ndarray, "*batch heads t d_v"], Float[np.ndarray, "*batch heads_k d d_v"]]:
    """o = λ Sᵀq after every step: S ← diag(e^g) S, u = β(v − Sᵀk), S ← S + kuᵀ.

    Without decay the first is left out; without β, u = v.
    """
    steps, d = query.shape[-2:]
    queries = split_groups(query, key.shape[-3])
    rates = None if beta is None else beta[..., None]
    arrays = [x for x in (query, key, value, state, decay, rates) if x is not None]
    factors = None if decay is None else step_factors(decay)
    batch = np.broadcast_shapes(*(x.shape[:-3] for x in arrays))
    state = np.broadcast_to(state, (*batch, *state.shape[-3:]))
    outputs = [queries[..., :0, :] @ add_groups(state)]
    for i in range(steps):
        now = (..., slice(i, i + 1), slice(None))
        row, written = key[now], value[now]
        if factors is not None:
            state = decayed_state(state, np.swapaxes(factors[now], -1, -2))
        if rates is not None:
            written = rates[now] * (written - row @ state)
        state = written_state(state, np.swapaxes(row, -1, -2) @ written)
        outputs.append(queries[now] @ add_groups(state))
    return merge_groups(scaled(np.concatenate(outputs, axis=-2), d, scale)), state


@overridable
def step_factors(decay: np.ndarray) -> np.ndarray:
    """e^g of every step.

    Budgets allow for implementations that sum the decays of a chunk before the exponential.
    """
    factors: np.ndarray = np.exp(decay)
    return factors


@overridable
def decayed_state(state: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """The state times the factors of a step."""
    decayed: np.ndarray = factors * state
    return decayed


@overridable
def written_state(state: np.ndarray, product: np.ndarray) -> np.ndarray:
    """The state plus a product of key and value.

    Budgets count the magnitudes of both: read by a query, they may be summed separately and cancel.
    """
    written: np.ndarray = state + product
    return written


@defines(ShortConvolution[np.ndarray])
def short_convolution(
    x: Float[np.ndarray, "*#batch t d"],
    weight: Float[np.ndarray, "d taps"],
    state: Float[np.ndarray, "*#batch past d"],
    *,
    bias: Float[np.ndarray, " d"] | None = None,
) -> tuple[Float[np.ndarray, "*batch t d"], Float[np.ndarray, "*batch past d"]]:
    """y_i = b + Σ_j w_j r_{i+j} with the rows r = [S; x]; the final state is the rows from t on."""
    steps, taps = x.shape[-2], weight.shape[-1]
    batch = np.broadcast_shapes(x.shape[:-2], state.shape[:-2])
    rows = np.concatenate([np.broadcast_to(part, (*batch, *part.shape[-2:])) for part in (state, x)], axis=-2)
    windows = np.stack([rows[..., j : j + steps, :] for j in range(taps)], axis=-1)
    output = (windows[..., None, :] @ weight[..., None])[..., 0, 0]
    return output if bias is None else output + bias, rows[..., steps:, :]
