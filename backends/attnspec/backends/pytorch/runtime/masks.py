"""The causal mask, for operations and kernels alike."""

import torch
from torch import Tensor


def causal_triangle(n: int, m: int, device: torch.device | str | None, *, include_self: bool = True) -> Tensor:
    """Return a mask (n, m), True where j ≤ i (or j < i)."""
    return torch.ones(n, m, dtype=torch.bool, device=device).tril(0 if include_self else -1)
