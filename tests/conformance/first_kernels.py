"""Kernels as people write them, without declarations: right ones, and changes that make them wrong."""

NUMPY = """
import numpy as np

name = "mine"


def scaled_dot_product_attention(query, key, value, *, mask=None, causal=False):
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1]).astype(query.dtype)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)) @ value
"""

AUTOGRAD = """
import math

import torch

from attnspec.backends.bases.torch import TorchBackend


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, allowed):
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~allowed, -math.inf).softmax(-1)
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    def backward(ctx, grad):
        q, k, v, weights = ctx.saved_tensors
        of_weights = grad @ v.mT
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
        dq = of_scores @ k / math.sqrt(q.shape[-1])
        dk = of_scores.mT @ q / math.sqrt(q.shape[-1])
        dv = weights.mT @ grad
        return dq.sum_to_size(q.shape), dk.sum_to_size(k.shape), dv.sum_to_size(v.shape), None


class Backend(TorchBackend):
    name = "mine"

    def scaled_dot_product_attention(self, query, key, value, *, mask=None, causal=False):
        allowed = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
        allowed = allowed.tril() if causal else allowed
        return Attention.apply(query, key, value, allowed if mask is None else allowed & mask)
"""

MODULE = """
import torch
from torch import nn

from attnspec.backends.bases.torch import TorchBackend


class Heads(nn.Module):
    def forward(self, q, k, v, w_q, w_k, w_v, w_o, allowed):
        q, k, v = (self.split(x @ w.flatten(0, 1).mT, len(w)) for x, w in ((q, w_q), (k, w_k), (v, w_v)))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~allowed.unsqueeze(-3), torch.finfo(scores.dtype).min)
        return (scores.softmax(-1) @ v).transpose(-2, -3).flatten(-2) @ w_o.mT

    def split(self, x, heads):
        return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


class Backend(TorchBackend):
    name = "mine"

    def multi_head_attention(self, query, key, value, w_q, w_k, w_v, w_o, *, mask=None, causal=False):
        allowed = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
        allowed = allowed.tril() if causal else allowed
        return Heads()(query, key, value, w_q, w_k, w_v, w_o, allowed if mask is None else allowed & mask)
"""

GRU = """
import torch

from attnspec.backends.bases.torch import TorchBackend


class Backend(TorchBackend):
    name = "mine"

    def gru_cell(self, x, state, parameters):
        p = parameters
        reset = torch.sigmoid(x @ p.w_xr + state @ p.w_hr + p.b_r)
        update = torch.sigmoid(x @ p.w_xz + state @ p.w_hz + p.b_z)
        candidate = torch.tanh(x @ p.w_xh + reset * (state @ p.w_hh) + p.b_h)
        return update * state + (1 - update) * candidate
"""

JAX = """
from functools import partial

import jax
import jax.numpy as jnp

from attnspec.backends.bases.jax import JaxBackend


class Backend(JaxBackend):
    name = "mine"

    @partial(jax.jit, static_argnames=("self", "causal"))
    def scaled_dot_product_attention(self, query, key, value, *, mask=None, causal=False):
        scores = query @ jnp.swapaxes(key, -1, -2) / jnp.sqrt(query.shape[-1]).astype(query.dtype)
        allowed = jnp.tri(*scores.shape[-2:], dtype=bool) if causal else jnp.ones(scores.shape[-2:], bool)
        allowed = allowed if mask is None else allowed & mask
        return jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf), axis=-1) @ value
"""

C_SOURCE = """
#include <math.h>
#include <stdlib.h>

void attend(const float *q, const float *k, const float *v, const unsigned char *allowed, float *out,
            long n, long m, long d, long p) {
    float *weight = malloc(sizeof(float) * (m + 1));
    for (long i = 0; i < n; i++) {
        float top = -INFINITY, sum = 0;
        for (long j = 0; j < m; j++) {
            weight[j] = 0;
            for (long c = 0; c < d; c++) weight[j] += q[i * d + c] * k[j * d + c];
            weight[j] = allowed[i * m + j] ? weight[j] / sqrtf(d) : -INFINITY;
            top = fmaxf(top, weight[j]);
        }
        for (long j = 0; j < m; j++) sum += weight[j] = expf(weight[j] - top);
        for (long c = 0; c < p; c++) {
            float total = 0;
            for (long j = 0; j < m; j++) total += weight[j] * v[j * p + c];
            out[i * p + c] = total / sum;
        }
    }
    free(weight);
}
"""

C = """
import ctypes
import math
from pathlib import Path

import numpy as np

name = "mine"
attend = ctypes.CDLL(str(Path(__file__).with_name("libmine.so"))).attend


def scaled_dot_product_attention(query, key, value, *, mask=None, causal=False):
    if query.dtype != np.float32:
        raise TypeError("only float32 is supported")
    n, m, d, p = query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1]
    allowed = np.tri(n, m, dtype=bool) if causal else np.ones((n, m), bool)
    allowed = allowed if mask is None else allowed & mask
    arrays = (query, key, value, allowed)
    batch = np.broadcast_shapes(*(x.shape[:-2] for x in arrays))
    full = [np.ascontiguousarray(np.broadcast_to(x, (*batch, *x.shape[-2:]))) for x in arrays]
    result = np.empty((*batch, n, p), np.float32)
    pointers = [x.reshape(math.prod(batch), *x.shape[-2:]) for x in (*full, result)]
    for i in range(math.prod(batch)):
        attend(*(x[i].ctypes.data_as(ctypes.c_void_p) for x in pointers), *map(ctypes.c_long, (n, m, d, p)))
    return result
"""

RIGHT = {"NumPy": NUMPY, "autograd.Function": AUTOGRAD, "nn.Module": MODULE, "GRU": GRU, "C by ctypes": C, "JAX": JAX}
"""Right kernels, each of which conforms once it declares what it does."""


def changed(code: str, *changes: tuple[str, str]) -> str:
    """Return the code of a kernel after replacements, each of which must change it."""
    for old, new in changes:
        assert old in code, old
        code = code.replace(old, new)
    return code


FILLED = changed(NUMPY, ("scores, -np.inf)", "scores, scores.dtype.type(-1e9))"))

WRONG: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "causal mask leaves out the diagonal": (
        changed(FILLED, ("np.tri(*scores.shape[-2:], dtype", "np.tri(*scores.shape[-2:], k=-1, dtype")),
        "scaled_dot_product_attention", ("operation.oracle", "semantics.fully_masked"),
    ),
    "masked scores filled with −10⁹": (
        FILLED, "scaled_dot_product_attention",
        ("masking.no-finite-fill", "semantics.fully_masked", "semantics.no_keys", "semantics.masked_nonfinite"),
    ),
    "mask added as 0 and 1": (
        changed(
            NUMPY,
            ("    if mask is not None:\n        scores = np.where(mask, scores, -np.inf)\n", ""),
            (
                "scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)",
                "mask = np.tri(*scores.shape[-2:], dtype=bool) & (True if mask is None else mask)",
            ),
            ("    weights = np", "    scores += np.zeros(()) if mask is None else mask\n    weights = np"),
        ),
        "scaled_dot_product_attention", ("operation.oracle", "semantics.no_keys"),
    ),
    "gradient of the keys not scaled": (
        changed(AUTOGRAD, ("of_scores.mT @ q / math.sqrt(q.shape[-1])", "of_scores.mT @ q")),
        "scaled_dot_product_attention", ("operation.oracle", "operation.gradient", "semantics.fully_masked"),
    ),
    "projections split feature by feature": (
        changed(MODULE, ("(heads, -1)).transpose(-2, -3)", "(-1, heads)).movedim(-1, -3)")),
        "multi_head_attention", ("operation.oracle", "semantics.fully_masked"),
    ),
    "update gate inverted": (
        changed(GRU, ("update * state + (1 - update) * candidate", "(1 - update) * state + update * candidate")),
        "gru_cell", ("operation.oracle",),
    ),
}  # fmt: skip
"""Wrong kernels by the name of their defect: code, operation, and the laws by which they are judged."""
