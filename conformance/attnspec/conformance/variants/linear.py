"""Variants of linear attention and of the short convolution: in chunks, or with the state stored otherwise."""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.variants.registry import variant
from attnspec.spec.linear import LinearAttention, ShortConvolution


def _decays(decay: Numbers) -> tuple[Numbers, Numbers]:
    """e^G of every step, and e^(G_i − G_j) of pairs of steps."""
    sums = np.cumsum(decay, axis=-2)
    difference = sums[..., :, None, :] - sums[..., None, :, :]
    steps = np.arange(decay.shape[-2])
    visible = (steps[:, None] >= steps)[..., None]
    return np.exp(sums), np.where(visible, np.exp(np.where(visible, difference, 0)), 0)


class _Chunks(Formulas):
    """Linear attention in chunks by the WY form."""

    size = 16

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
        """One triangular system per chunk."""
        group = query.shape[-3] // key.shape[-3]
        rates = None if beta is None else beta[..., None]
        state = self.first_state(query, key, value, state, decay, rates)
        outputs = [np.zeros((*state.shape[:-3], query.shape[-3], 0, value.shape[-1]), query.dtype)]
        for start in range(0, key.shape[-2], self.size):
            part = slice(start, start + self.size)
            q, k, v = (x[..., part, :] for x in (query, key, value))
            g, b = (None if x is None else x[..., part, :] for x in (decay, rates))
            output, state = self.chunk(q, k, v, state, np.zeros_like(k[..., :1]) if g is None else g, b, group)
            outputs.append(output)
        return self.scaled_by(np.concatenate(outputs, axis=-2), query.shape[-1], scale), state

    def chunk(
        self, q: Numbers, k: Numbers, v: Numbers, state: Numbers, decay: Numbers, b: Numbers, group: int
    ) -> tuple[Numbers, Numbers]:
        """Outputs of a chunk, and the state after it."""
        # A decay of −150 forgets in float32; larger sums would lose the others, and infinite ones are no numbers.
        from_start, between = _decays(np.maximum(decay, decay.dtype.type(-150)))
        written = v
        if b is not None:
            products = np.sum(between * k[..., :, None, :] * k[..., None, :, :], axis=-1)
            triangle = b * np.tril(products, -1) + np.eye(k.shape[-2], dtype=k.dtype)
            right = b * (v - (k * from_start) @ state)
            batch = np.broadcast_shapes(triangle.shape[:-2], right.shape[:-2])
            triangle, right = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (triangle, right))
            written = np.linalg.solve(triangle, right)
        keys, starts = (self.repeat_heads(x, group) for x in (k, from_start))
        *outer, steps, _, features = between.shape
        flat = self.repeat_heads(between.reshape(*outer, steps * steps, features), group)
        pairs = flat.reshape(*flat.shape[:-2], *between.shape[-3:])
        scores = np.sum(pairs * q[..., :, None, :] * keys[..., None, :, :], axis=-1)
        output = (q * starts) @ self.repeat_heads(state, group) + scores @ self.repeat_heads(written, group)
        to_end = k * between[..., -1, :, :]
        return output, np.swapaxes(from_start[..., -1:, :], -1, -2) * state + np.swapaxes(to_end, -1, -2) @ written


@variant("linear attention in chunks of 16 steps", operations=(LinearAttention,), differentiable=False)
class ChunksOf16(_Chunks):
    """Chunks of 16 steps, whose decays are differences of sums."""


@variant("linear attention in chunks of 64 steps", operations=(LinearAttention,), differentiable=False)
class ChunksOf64(_Chunks):
    """Chunks of 64 steps, whose decays are differences of sums."""

    size = 64


@variant("state of linear attention stored transposed", operations=(LinearAttention,))
class TransposedState(Formulas):
    """Products with the state (d_v, d), as kernels with the key last compute them."""

    def update(self, state: Numbers, k: Numbers, v: Numbers, rate: Numbers) -> Numbers:
        """β (v − kS), by the transposed state."""
        if rate is None:
            return v
        stored = np.swapaxes(state, -1, -2)
        return rate * v - rate * np.swapaxes(self.product(stored, np.swapaxes(k, -1, -2)), -1, -2)


@variant("decays by powers of 2", operations=(LinearAttention,), differentiable=False)
class PowersOf2(Formulas):
    """e^g is 2^(g/log 2), as kernels with exp2 compute it."""

    def decayed(self, state: Numbers, decay: Numbers) -> Numbers:
        """The state times a power of 2."""
        if decay is None:
            return state
        return np.exp2(np.swapaxes(decay, -1, -2) * decay.dtype.type(1 / np.log(2))) * state


@variant("taps from the current input back", operations=(ShortConvolution,))
class LatestFirst(Formulas):
    """The bias first, then the taps from the last to the first."""

    def short_convolution(
        self, x: Numbers, weight: Numbers, state: Numbers, *, bias: Numbers = None
    ) -> tuple[Numbers, Numbers]:
        """Outputs and the last inputs."""
        rows, steps = self.after_state(x, state), x.shape[-2]
        total = rows[..., :steps, :] * 0 if bias is None else rows[..., :steps, :] * 0 + bias
        for j in reversed(range(weight.shape[-1])):
            total = total + rows[..., j : j + steps, :] * weight[..., j]
        return total, self.last_inputs(rows, steps)


@variant("convolution as products of rows with a band matrix", operations=(ShortConvolution,))
class Band(Formulas):
    """One matrix product per feature, as a compiler may compute it."""

    def convolved(self, rows: Numbers, weight: Numbers, steps: int) -> Numbers:
        """Products of windows with the weights."""
        taps = weight.shape[-1]
        windows = np.concatenate([rows[..., j : j + steps, :, None] for j in range(taps)], axis=-1)
        return self.product(windows[..., None, :], weight[..., None])[..., 0, 0]
