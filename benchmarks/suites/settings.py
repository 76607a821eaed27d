"""Settings of a suite, and its random inputs."""

from dataclasses import dataclass

import torch
from torch import Tensor

ROWS = 32
"""Largest number of output rows that are compared with double precision."""


@dataclass(frozen=True)
class Settings:
    """Device, sizes in place of a suite's own, and ``quick`` for a smoke run."""

    device: str = "cpu"
    sizes: tuple[int, ...] = ()
    quick: bool = False

    def chosen(self, usual: tuple[int, ...], quick: tuple[int, ...]) -> tuple[int, ...]:
        """Return the sizes to measure."""
        return self.sizes or (quick if self.quick else usual)


def suffix(dtype: torch.dtype) -> str:
    """End of the name of a case in this dtype: empty for float32, else such as ``, bfloat16``."""
    return "" if dtype is torch.float32 else f", {str(dtype).removeprefix('torch.')}"


class Inputs:
    """Source of normal random tensors from one seed, on one device."""

    def __init__(self, device: str, seed: int = 0) -> None:
        self.device, self.generator = device, torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw standard normal numbers times a scale."""
        return (torch.randn(*shape, generator=self.generator) * scale).to(self.device, dtype)

    def rows(self, n: int) -> Tensor:
        """Draw up to ``ROWS`` row indices, sorted."""
        return torch.randperm(n, generator=self.generator)[:ROWS].sort().values.to(self.device)
