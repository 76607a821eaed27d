"""The settings of a suite, and its random inputs."""

from dataclasses import dataclass

import torch
from torch import Tensor

ROWS = 32
"""How many rows of the output are compared with double precision."""


@dataclass(frozen=True)
class Settings:
    """The device, sizes in place of a suite's own, and whether this is a smoke run."""

    device: str = "cpu"
    sizes: tuple[int, ...] = ()
    quick: bool = False

    def chosen(self, usual: tuple[int, ...], quick: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes to measure."""
        return self.sizes or (quick if self.quick else usual)


class Inputs:
    """Normal random tensors from one seed, on one device."""

    def __init__(self, device: str, seed: int = 0) -> None:
        self.device, self.generator = device, torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        """Standard normal numbers times a scale."""
        return (torch.randn(*shape, generator=self.generator) * scale).to(self.device, dtype)

    def rows(self, n: int) -> Tensor:
        """The indices of up to ``ROWS`` random rows, sorted."""
        return torch.randperm(n, generator=self.generator)[:ROWS].sort().values.to(self.device)
