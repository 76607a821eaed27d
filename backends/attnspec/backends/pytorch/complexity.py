"""Convolution and graph layer, to compare attention with. Protocols: ``attnspec.spec.complexity``."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.pooling import pool
from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.backends.pytorch.runtime.autocast import follows_autocast
from attnspec.backends.pytorch.runtime.products import operand, wide_linear, wide_product
from attnspec.spec import Convolution, GraphLayer, implements

__all__ = ["convolution", "graph_layer"]

_convolution = Check("convolution")
_graph_layer = Check("graph_layer")


@implements(Convolution[Tensor])
@follows_autocast
def convolution(x: Float[Tensor, "*batch t d_x"], w: Float[Tensor, "taps p_o d_x"]) -> Float[Tensor, "*batch t p_o"]:
    """Convolution: PyTorch's on the CPU, one matrix product elsewhere; half dtypes in float32."""
    shape = _convolution(x, w)  # conv1d refuses a length of 0, and w without outputs
    if x.device.type == "cpu" and 0 not in shape:
        return _by_convolution(upcast(x), upcast(w)).to(x.dtype)
    return _by_matrix_product(upcast(x), operand(w)).to(x.dtype)


def _by_convolution(x: Tensor, w: Tensor) -> Tensor:
    taps, t = w.shape[0], x.shape[-2]
    rows = x.reshape(-1, t, x.shape[-1]).mT
    # PyTorch's gradient of some small convolutions raises for non-contiguous weights.
    weights = w.permute(1, 2, 0).contiguous()
    # With padding taps // 2 on both sides, an even number of taps gives t + 1 results; the first is dropped.
    output = functional.conv1d(rows, weights, padding=taps // 2)[..., -t:]
    return output.mT.reshape(*x.shape[:-1], w.shape[1])


def _by_matrix_product(x: Tensor, w: Tensor) -> Tensor:
    """Convolve by one matrix product, since cuDNN by default rounds float32 to TF32."""
    (taps, p_o, d_x), t = w.shape, x.shape[-2]
    padded = functional.pad(x, (0, 0, (taps - 1) // 2, taps // 2))
    windows = torch.cat([padded[..., r : r + t, :] for r in range(taps)], -1)
    return wide_product(windows, w.transpose(1, 2).reshape(taps * d_x, p_o))


@implements(GraphLayer[Tensor])
@follows_autocast
def graph_layer(
    x: Float[Tensor, "*#batch n d_x"], w: Float[Tensor, "p_o d_x"], *, mask: Bool[Tensor, "*#batch #n #n"] | None = None
) -> Float[Tensor, "*batch n p_o"]:
    """Project all nodes, then multiply by the adjacency matrix; half dtypes in float32."""
    shape = _graph_layer(x, w, mask)
    sent = wide_linear(x, w)
    if mask is None:
        received = sent.sum(-2, keepdim=True)  # all nodes are connected: `expand` gives each the same sum
    else:
        edges = mask.expand(*mask.shape[:-1], x.shape[-2])
        # weights and mask: a weight of 0 alone would let NaN through from a node without an edge
        received = pool(edges.to(x.dtype), edges, sent)
    return received.to(x.dtype).expand(shape).contiguous()
