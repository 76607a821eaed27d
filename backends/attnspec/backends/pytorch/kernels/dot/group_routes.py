"""What calls of attention in groups of heads cost on the paths for CPUs, from the costs of scaled dot products."""

from typing import TypeAlias

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.routes import least, microseconds
from attnspec.backends.pytorch.runtime.recording import recorded

OF_LOGARITHMS, OF_GRADIENTS, OF_ONE = 0.4, 0.27, 3.5
"""What other paths take longer than for dot products alone: without gradients, with them, and with those of one query,
for which there is no plan; as part of the least time that PyTorch's kernel takes."""

OF_HEADS = 3e-3
"""Microseconds in which ``llvm`` adds up the gradients of a group, for each number of keys and values of each head."""

Sizes: TypeAlias = tuple[int, int, int, int, int, torch.dtype, bool, int]


def costs_least(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether PyTorch's fused kernel is the cheapest."""
    sizes, others, more = _costs(query, key, value)
    return (microseconds("pytorch", *sizes) or 0.0) < min(others, default=0.0) + more


def few_costs_least(query: Tensor, key: Tensor, value: Tensor, *, fusible: bool) -> bool:
    """True if the kernels for few queries cost least; PyTorch's fused kernel counts if it serves."""
    sizes, others, more = _costs(query, key, value)
    few, fused = microseconds("few", *sizes), microseconds("pytorch", *sizes) or 0.0
    others = [time + more for time in others] + [fused] * fusible
    return few is not None and few < min(others, default=0.0)


def of_heads(query: Tensor, key: Tensor, value: Tensor) -> float:
    """What ``llvm`` takes longer for the gradients of keys and values that heads share."""
    tracked = query.shape[1] > key.shape[1] and recorded(query, key, value) if query.dim() == 4 == key.dim() else False
    return OF_HEADS * query.shape[:-2].numel() * (key[0, 0].numel() + value[0, 0].numel()) if tracked else 0.0


def _costs(query: Tensor, key: Tensor, value: Tensor) -> tuple[Sizes, list[float], float]:
    """The sizes of a call as `microseconds` takes them, what other paths take, and what they take longer in groups."""
    (heads, n, d), (m, d_v) = query.shape[-3:], value.shape[-2:]
    tracked = recorded(query, key, value)
    sizes = query.shape[:-3].numel() * heads, n, m, d, d_v, query.dtype, tracked, torch.get_num_threads()
    others = ("llvm", "step") if n == 1 and not tracked else ("llvm",)
    more_by_llvm = of_heads(query, key, value)
    known = [
        time + more_by_llvm * (path == "llvm") for path in others if (time := microseconds(path, *sizes)) is not None
    ]
    more = (OF_LOGARITHMS if not tracked else OF_ONE if n == 1 else OF_GRADIENTS) * least(query.dtype, tracked)
    return sizes, known, more
