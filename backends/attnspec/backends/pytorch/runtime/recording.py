"""Whether autograd records a call."""

import torch
from torch import Tensor


def recorded(*tensors: Tensor) -> bool:
    """Whether gradients are enabled, and one of these tensors needs one."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
