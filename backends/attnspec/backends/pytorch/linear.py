"""Linear attention in chunks, and the short convolution. Protocols: ``attnspec.spec.linear``.

Within a chunk, with G the sum of the decays from its first step on, E_ij = e^(G_i − G_j) for j ≤ i, and S the state
before it: (I + βA)U = β(V − (K e^G)S) with A = strictly lower (KKᵀ ∘ E), O = (Q e^G)S + (QKᵀ ∘ E)U, and the next state
is e^(G_C)S + (K e^(G_C − G))ᵀU. Where every feature decays on its own, E would have a matrix per feature; there, with M
the sum to the middle of the chunk, keys and queries are multiplied by e^(M − G_j) and e^(G_i − M), in float64.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.kernels.causal_convolution import convolved
from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.backends.pytorch.runtime.autocast import ignores_autocast
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.spec import LinearAttention, ShortConvolution, implements

__all__ = ["linear_attention", "short_convolution"]

_check, _convolution = Check("linear_attention"), Check("short_convolution")

CHUNK, CHUNK_OF_VECTORS = 64, 14
"""Steps of a chunk; fewer where every feature decays on its own, so that e^(M − G) stays in the range of float64."""

LEAST, LEAST_OF_VECTORS = -750.0, -88.0
"""Decays in place of lower ones: their exponentials are 0, or below float32's normal numbers where g is float32."""

SEGMENT = 4 * CHUNK
"""Steps whose chunks are prepared together on a CPU, to stay in its caches."""

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
    """Outputs and final state, chunk by chunk; half dtypes in float32."""
    _check(query, key, value, state, decay, beta, scale)
    dtype, (steps, d) = query.dtype, query.shape[-2:]
    q, k, v, s = map(upcast, (query, key, value, state))
    g, b = None if decay is None else upcast(decay), None if beta is None else upcast(beta).unsqueeze(-1)
    batch = broadcast(*[x.shape[:-3] for x in (q, k, v, s, g, b) if x is not None])
    groups = (k.shape[-3], q.shape[-3] // k.shape[-3])
    q, scale = q.reshape(*q.shape[:-3], *groups, steps, d), d**-0.5 if scale is None else scale
    s = s.expand(*batch, *s.shape[-3:])
    if steps <= MOST_SINGLE_STEPS:
        outputs, s = _step_by_step(scale * q, k, v, s, g, b)
    else:
        size = min(CHUNK if g is None or g.shape[-1] == 1 else CHUNK_OF_VECTORS, steps)
        outputs, segment = [], SEGMENT // size * size if q.is_cpu else steps
        for start in range(0, steps, segment):
            part = slice(start, start + segment)
            queries, keys, values = (x[..., part, :] for x in (q, k, v))
            decays, rates = (None if x is None else x[..., part, :] for x in (g, b))
            of_segment, s = _by_chunks(scale * queries, keys, values, s, decays, rates, size)
            outputs += of_segment
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
    """Factors of a chunk: from its start, to its end, in all, and between steps.

    ``between`` is (…, chunks, C, C, d or 1), 0 above the diagonal. In its place, ``ahead`` and ``back`` are factors
    from the middle of the chunk to each step and back, in float64, whose products are those between steps.
    """

    from_start: Tensor
    to_end: Tensor
    whole: Tensor
    between: Tensor | None = None
    ahead: Tensor | None = None
    back: Tensor | None = None


def _decays(g: Tensor) -> _Decays:
    """Factors from decays (…, chunks, C, d or 1).

    Sums are in float64, so that their differences do not cancel.
    """
    if g.requires_grad and torch.is_grad_enabled():
        return _differentiable_decays(g)
    factorised = g.shape[-1] > 1 and g.dtype is torch.float32
    sums = g.double().clamp(LEAST_OF_VECTORS if factorised else LEAST).cumsum(-2)
    start, end = sums.exp().to(g.dtype), (sums[..., -1:, :] - sums).exp().to(g.dtype)
    whole = start[..., -1:, :].mT
    if factorised:
        ahead = (sums - sums[..., sums.shape[-2] // 2, None, :]).exp()
        return _Decays(start, end, whole, ahead=ahead, back=ahead.reciprocal())
    hidden = torch.ones(g.shape[-2], g.shape[-2], dtype=torch.bool, device=g.device).triu(1).unsqueeze(-1)
    differences = (sums.unsqueeze(-2) - sums.unsqueeze(-3)).to(g.dtype)
    return _Decays(start, end, whole, differences.masked_fill(hidden, -torch.inf).exp())


def _differentiable_decays(g: Tensor) -> _Decays:
    """Factors whose gradients do not cancel: decays are summed for each pair of steps."""
    square = torch.ones(g.shape[-2], g.shape[-2], dtype=torch.bool, device=g.device)
    earlier, visible = square.tril(-1), square.tril()
    sums = g.unsqueeze(-2).expand(*g.shape[:-1], *g.shape[-2:]).masked_fill(~earlier.unsqueeze(-1), 0).cumsum(-3)
    between = sums.masked_fill(~visible.unsqueeze(-1), -torch.inf).exp()
    start = g.cumsum(-2).exp()
    return _Decays(start, between[..., -1, :, :], start[..., -1:, :].mT, between)


def _products(x: Tensor, k: Tensor, decays: _Decays | None, heads: int) -> Tensor:
    """Decayed products of rows x (…, C, d) with keys (…, C, d).

    Keys after a row give 0. ``heads`` is 1 if x has an axis of query heads before the chunks, else 0.
    """
    k = k.unsqueeze(-4) if heads else k
    if decays is None:
        return (x @ k.mT).tril()
    if decays.between is None:
        ahead, back = (y.unsqueeze(-4) if heads else y for y in (decays.ahead, decays.back) if y is not None)
        return ((x * ahead) @ (k * back).mT).tril().to(x.dtype)
    between = decays.between.unsqueeze(-5) if heads else decays.between
    if between.shape[-1] == 1:
        return x @ k.mT * between.squeeze(-1)
    return (between * k.unsqueeze(-3) * x.unsqueeze(-2)).sum(-1)


def _by_chunks(
    q: Tensor, k: Tensor, v: Tensor, s: Tensor, g: Tensor | None, b: Tensor | None, size: int
) -> tuple[list[Tensor], Tensor]:
    """Outputs of chunks of ``size`` steps, and the final state."""
    missing = -v.shape[-2] % size
    q, k, v = (_in_chunks(x, size, missing) for x in (q, k, v))
    g, b = (None if x is None else _in_chunks(x, size, missing) for x in (g, b))
    decays = None if g is None else _decays(g)
    from_start, to_end = (k, k) if decays is None else (k * decays.from_start, k * decays.to_end)
    queries = q if decays is None else q * decays.from_start.unsqueeze(-4)
    scores = _products(q, k, decays, heads=1)
    corrections = None
    if b is not None:
        triangle = b * _products(k, k, decays, heads=0).tril(-1)
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


def _in_chunks(x: Tensor, size: int, missing: int) -> Tensor:
    """Split steps (…, t, d) into chunks (…, chunks, C, d).

    Padded steps are 0 and leave the state as it is.
    """
    padded = F.pad(x, (0, 0, 0, missing))
    return padded.reshape(*x.shape[:-2], padded.shape[-2] // size, size, x.shape[-1])


def _solve(triangle: Tensor, right: Tensor) -> Tensor:
    """Solve (I + L)X = R for a strictly lower triangular L."""
    batch = broadcast(triangle.shape[:-2], right.shape[:-2])
    triangle, right = (x.expand(*batch, *x.shape[-2:]) for x in (triangle, right))
    solved: Tensor = torch.linalg.solve_triangular(triangle, right, upper=False, unitriangular=True)
    return solved


@implements(ShortConvolution[Tensor])
@ignores_autocast
def short_convolution(
    x: Float[Tensor, "*#batch t d"],
    weight: Float[Tensor, "d taps"],
    state: Float[Tensor, "*#batch past d"],
    *,
    bias: Float[Tensor, " d"] | None = None,
) -> tuple[Float[Tensor, "*batch t d"], Float[Tensor, "*batch past d"]]:
    """Outputs and final state, by one product per tap; half dtypes in float32."""
    _convolution(x, weight, state, bias)
    batch, steps = broadcast(x.shape[:-2], state.shape[:-2]), x.shape[-2]
    rows = torch.cat([part.expand(*batch, *part.shape[-2:]) for part in (state, x)], -2)
    output = convolved(upcast(rows), upcast(weight).mT.contiguous())
    if bias is not None:
        output = output + upcast(bias)
    return output.to(x.dtype), rows[..., steps:, :].clone()
