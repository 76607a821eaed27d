"""Linear attention in chunks. Protocol: ``attnspec.spec.linear_attention``.

Within a chunk, with G the sum of the decays from its first step on, E_ij = e^(G_i − G_j) for j ≤ i, and S the state
before it: (I + βA)U = β(V − (K e^G)S) with A = strictly lower (KKᵀ ∘ E), O = (Q e^G)S + (QKᵀ ∘ E)U, and the next state
is e^(G_C)S + (K e^(G_C − G))ᵀU. Differences of sums would cancel, so G_i − G_j is summed from j on: no exponent is
positive unless a decay is.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.backends.pytorch.runtime.autocast import ignores_autocast
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.spec import LinearAttention, implements

__all__ = ["linear_attention"]

_check = Check("linear_attention")

CHUNK, CHUNK_OF_VECTORS = 64, 16
"""Steps of a chunk; fewer where every feature decays on its own, since E then has a matrix per feature."""

MOST_SINGLE_STEPS = 4
"""Most steps that are computed one by one, with less overhead than a chunk."""


@implements(LinearAttention[Tensor])
@ignores_autocast
def linear_attention(
    query: Float[Tensor, "*#batch heads t d"],
    key: Float[Tensor, "*#batch heads_k t d"],
    value: Float[Tensor, "*#batch heads_k t d_v"],
    state: Float[Tensor, "*#batch heads_k d d_v"],
    *,
    decay: Float[Tensor, "*#batch heads_k t #d"] | None = None,
    beta: Float[Tensor, "*#batch heads_k t"] | None = None,
    scale: float | None = None,
) -> tuple[Float[Tensor, "*batch heads t d_v"], Float[Tensor, "*batch heads_k d d_v"]]:
    """Outputs and final state, by chunks of 64 steps, or 16 with a decay per feature; half dtypes in float32."""
    _check(query, key, value, state, decay, beta, scale)
    dtype, (steps, d) = query.dtype, query.shape[-2:]
    q, k, v, s = map(upcast, (query, key, value, state))
    g, b = None if decay is None else upcast(decay), None if beta is None else upcast(beta).unsqueeze(-1)
    batch = broadcast(*[x.shape[:-3] for x in (q, k, v, s, g, b) if x is not None])
    q = (q * (d**-0.5 if scale is None else scale)).unflatten(-3, (k.shape[-3], -1))
    s = s.expand(*batch, *s.shape[-3:])
    if steps <= MOST_SINGLE_STEPS:
        outputs, s = _step_by_step(q, k, v, s, g, b)
    else:
        outputs, s = _by_chunks(q, k, v, s, g, b)
    output = torch.cat(outputs, -2) if steps else q.new_zeros(*batch, *q.shape[-4:-1], v.shape[-1])
    return output.flatten(-4, -3).to(dtype), s.to(dtype) if steps else s.to(dtype, copy=True)


def _step_by_step(
    q: Tensor, k: Tensor, v: Tensor, s: Tensor, g: Tensor | None, b: Tensor | None
) -> tuple[list[Tensor], Tensor]:
    """Outputs of every step, and the final state, by the recurrence."""
    outputs = []
    for i in range(k.shape[-2]):
        row, written = k[..., i : i + 1, :], v[..., i : i + 1, :]
        if g is not None:
            s = g[..., i : i + 1, :].mT.exp() * s
        if b is not None:
            written = b[..., i : i + 1, :] * (written - row @ s)
        s = s + row.mT * written
        outputs.append(q[..., i : i + 1, :] @ s.unsqueeze(-3))
    return outputs, s


class _Decays(NamedTuple):
    """Factors of a chunk: from its start to each step, from each step to its end, in all, and between steps."""

    from_start: Tensor
    to_end: Tensor
    whole: Tensor
    between: Tensor


def _decays(g: Tensor) -> _Decays:
    """Factors from decays (…, chunks, C, d or 1); ``between`` is (…, chunks, C, C, d or 1) and 0 above the diagonal."""
    steps = g.shape[-2]
    later = torch.ones(steps, steps, dtype=torch.bool, device=g.device).tril(-1).unsqueeze(-1)
    spread = g.unsqueeze(-2).expand(*g.shape[:-1], steps, g.shape[-1])
    sums = spread.masked_fill(~later, 0).cumsum(-3)
    visible = torch.ones(steps, steps, dtype=torch.bool, device=g.device).tril().unsqueeze(-1)
    between = sums.masked_fill(~visible, -torch.inf).exp()
    from_start = g.cumsum(-2).exp()
    return _Decays(from_start, between[..., -1, :, :], from_start[..., -1:, :].mT, between)


def _products(x: Tensor, k: Tensor, between: Tensor | None) -> Tensor:
    """Products of rows x (…, C, d) with keys (…, C, d), decayed from key to row; later keys give 0."""
    if between is None:
        return (x @ k.mT).tril()
    if between.shape[-1] == 1:
        return (x @ k.mT * between.squeeze(-1)).tril()
    return ((between * k.unsqueeze(-3)) @ x.unsqueeze(-1)).squeeze(-1)


def _by_chunks(
    q: Tensor, k: Tensor, v: Tensor, s: Tensor, g: Tensor | None, b: Tensor | None
) -> tuple[list[Tensor], Tensor]:
    """Outputs of the chunks, and the final state."""
    steps = v.shape[-2]
    size = min(CHUNK if g is None or g.shape[-1] == 1 else CHUNK_OF_VECTORS, steps)
    missing = -steps % size
    # Padded steps have zero keys, values, β and decays: they leave the state as it is.
    q, k, v, g, b = (
        None if x is None else F.pad(x, (0, 0, 0, missing)).unflatten(-2, (-1, size)) for x in (q, k, v, g, b)
    )
    assert q is not None
    assert k is not None
    assert v is not None
    decays = None if g is None else _decays(g)
    between = None if decays is None else decays.between
    from_start, to_end = (k, k) if decays is None else (k * decays.from_start, k * decays.to_end)
    queries = q if decays is None else q * decays.from_start.unsqueeze(-4)
    scores = _products(q, k.unsqueeze(-4), None if between is None else between.unsqueeze(-5))
    corrections = None
    if b is not None:
        triangle = b * _products(k, k, between).tril(-1)
        v, corrections = _solve(triangle, b * v), _solve(triangle, b * from_start)
    outputs = []
    for i in range(k.shape[-3]):
        written = v[..., i, :, :]
        if corrections is not None:
            written = written - corrections[..., i, :, :] @ s
        outputs.append(queries[..., i, :, :] @ s.unsqueeze(-3) + scores[..., i, :, :] @ written.unsqueeze(-3))
        if decays is not None:
            s = decays.whole[..., i, :, :] * s
        s = s + to_end[..., i, :, :].mT @ written
    outputs[-1] = outputs[-1][..., : size - missing, :]
    return outputs, s


def _solve(triangle: Tensor, right: Tensor) -> Tensor:
    """Solve (I + L)X = R for a strictly lower triangular L."""
    batch = broadcast(triangle.shape[:-2], right.shape[:-2])
    triangle, right = (x.expand(*batch, *x.shape[-2:]) for x in (triangle, right))
    return torch.linalg.solve_triangular(triangle, right, upper=False, unitriangular=True)
