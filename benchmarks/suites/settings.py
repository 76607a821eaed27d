"""What the command line chooses for a suite, and inputs made from it."""

from dataclasses import dataclass

import torch
from torch import Tensor

ROWS = 32
"""Rows of the first result that are compared with double precision."""


@dataclass(frozen=True)
class Settings:
    """Device, sizes instead of a suite's own, and whether a smoke run will do."""

    device: str = "cpu"
    sizes: tuple[int, ...] = ()
    quick: bool = False

    def chosen(self, usual: tuple[int, ...], quick: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes to run."""
        return self.sizes or (quick if self.quick else usual)


class Inputs:
    """Normal numbers from one seed on one device."""

    def __init__(self, device: str, seed: int = 0) -> None:
        self.device, self.generator = device, torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        """Standard normal numbers times a scale."""
        return (torch.randn(*shape, generator=self.generator) * scale).to(self.device, dtype)

    def rows(self, n: int) -> Tensor:
        """Some row numbers, in order."""
        return torch.randperm(n, generator=self.generator)[:ROWS].sort().values.to(self.device)
