"""The causal mask, for operations and kernels alike."""

import torch
from torch import Tensor


def causal_triangle(n: int, m: int, device: torch.device | str | None, *, include_self: bool = True) -> Tensor:
    """Booleans (n, m): query i may attend to key j where j ≤ i, or j < i; None is PyTorch's default device."""
    return torch.ones(n, m, dtype=torch.bool, device=device).tril(0 if include_self else -1)
