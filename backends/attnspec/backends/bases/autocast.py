"""Test whether autocast is on."""

import torch
from torch import Tensor


def autocast_enabled(x: Tensor) -> bool:
    """Return whether autocast is on for the device of x."""
    kind = x.device.type
    return (kind == "cpu" or torch.amp.is_autocast_available(kind)) and torch.is_autocast_enabled(kind)
