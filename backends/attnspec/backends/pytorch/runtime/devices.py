"""Abilities of devices."""

from functools import lru_cache

import torch

from attnspec.backends.pytorch.runtime.private import constant_while_compiling

AMPERE = 8, 0
"""First compute capability with PyTorch's flash kernels, our Triton kernels, and tensor cores for bfloat16."""

WITHOUT_FLOAT64 = frozenset({"mps"})
"""Types of devices that compute in float32 at most."""


@constant_while_compiling
def capability(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of a GPU."""
    return _capability(device)


@lru_cache(maxsize=8)  # not on `capability`: torch.compile warns where it traces such a cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def float64_device(device: torch.device) -> torch.device:
    """Return the device, or the CPU where the device has no float64."""
    return torch.device("cpu") if device.type in WITHOUT_FLOAT64 else device
