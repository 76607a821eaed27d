"""Test for calls that autograd records."""

import torch
from torch import Tensor


def recorded(*tensors: Tensor) -> bool:
    """Return whether gradients are enabled, and one of these tensors requires one."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
