"""Convolution and graph layer, to compare attention with. Protocols: ``attnspec.spec.complexity``."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.pooling import pool
from attnspec.backends.pytorch.runtime.accumulation import widened
from attnspec.backends.pytorch.runtime.autocast import lowers
from attnspec.spec import Convolution, GraphLayer, implements

__all__ = ["convolution", "graph_layer"]

_convolution = Check("convolution")
_graph_layer = Check("graph_layer")


@implements(Convolution[Tensor])
@lowers
def convolution(x: Float[Tensor, "*batch t d_x"], w: Float[Tensor, "taps p_o d_x"]) -> Float[Tensor, "*batch t p_o"]:
    """PyTorch's convolution on the CPU, one matrix product elsewhere; half dtypes in float32."""
    shape = _convolution(x, w)
    compute = _convolved if x.device.type == "cpu" and 0 not in shape else _multiplied
    return compute(widened(x), widened(w)).to(x.dtype)


def _convolved(x: Tensor, w: Tensor) -> Tensor:
    taps, t = w.shape[0], x.shape[-2]
    rows = x.reshape(-1, t, x.shape[-1]).mT
    # PyTorch's gradient of some small convolutions raises for non-contiguous weights.
    weights = w.permute(1, 2, 0).contiguous()
    # For an even number of taps, the first result is one too many.
    found = functional.conv1d(rows, weights, padding=taps // 2)[..., -t:]
    return found.mT.reshape(*x.shape[:-1], w.shape[1])


def _multiplied(x: Tensor, w: Tensor) -> Tensor:
    """Convolve by one matrix product: cuDNN rounds float32 to TF32 unless a global flag forbids it."""
    (taps, p_o, d_x), t = w.shape, x.shape[-2]
    padded = functional.pad(x, (0, 0, (taps - 1) // 2, taps // 2))
    ranges = torch.cat([padded[..., r : r + t, :] for r in range(taps)], -1)
    return ranges @ w.transpose(1, 2).reshape(taps * d_x, p_o)


@implements(GraphLayer[Tensor])
@lowers
def graph_layer(
    x: Float[Tensor, "*#batch n d_x"],
    w: Float[Tensor, "p_o d_x"],
    *,
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
) -> Float[Tensor, "*batch n p_o"]:
    """Project all nodes, then multiply by the adjacency matrix; half dtypes in float32."""
    shape = _graph_layer(x, w, mask)
    sent = functional.linear(widened(x), widened(w))
    if mask is None:
        received = sent.sum(-2, keepdim=True)
    else:
        edges = mask.expand(*mask.shape[:-1], x.shape[-2])
        received = pool(edges.to(sent.dtype), edges, sent)
    return received.to(x.dtype).expand(shape).contiguous()
