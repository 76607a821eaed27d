"""Test whether autograd records a call."""

import torch
from torch import Tensor


def needs_gradients(*tensors: Tensor) -> bool:
    """Return whether gradients are enabled and one of these tensors requires them."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
