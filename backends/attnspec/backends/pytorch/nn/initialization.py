"""Parameters, and their initial weights by the rules of ``torch.nn``: uniform between −bound and bound."""

from typing import TypeAlias

import torch
from torch import Tensor, nn

Device: TypeAlias = torch.device | str | None


def parameter(*shape: int, device: Device, dtype: torch.dtype | None) -> nn.Parameter:
    """Return an uninitialised parameter, for ``reset_parameters`` to fill."""
    return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))


def xavier_bound(inputs: int, outputs: int) -> float:
    """Return the bound of ``nn.init.xavier_uniform_`` for a matrix (outputs, inputs)."""
    return float((6 / (inputs + outputs)) ** 0.5)


def linear_bound(inputs: int) -> float:
    """Return the bound of ``nn.Linear``'s weight and bias: ``nn.init.kaiming_uniform_`` with a = √5."""
    return float(inputs**-0.5)


def draw(bound: float, *weights: Tensor) -> None:
    """Fill weights in place, uniformly between −bound and bound."""
    for w in weights:
        nn.init.uniform_(w, -bound, bound)
