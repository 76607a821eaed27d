"""Checks, before weights are converted, that a ``torch.nn`` module computes our formula."""

from typing import NoReturn

import torch
from torch import Tensor, nn


def refuse(module: str, name: str, expected: str, got: object) -> NoReturn:
    """Raise ``ValueError`` for a setting that our formula does not have."""
    raise ValueError(f"{module}: {name}: expected {expected}; got {got}")


def check_kind(caller: str, module: nn.Module, kind: type[nn.Module]) -> None:
    """Refuse a module of another class: weights of the same names may have another formula."""
    if not isinstance(module, kind):
        refuse(caller, "module", f"a torch.nn.{kind.__name__}", type(module).__name__)


def check(module: str, name: str, value: object, expected: object, reason: str) -> None:
    """Refuse a setting other than the expected one."""
    if value != expected:
        refuse(module, name, f"{expected!r}, since {reason}", repr(value))


def check_no_dropout(module: str, source: nn.Module, dropout: float) -> None:
    """Refuse dropout, unless the module is in ``eval()`` mode, where it has no effect."""
    if dropout > 0 and source.training:
        refuse(module, "dropout", "0, or a module in eval(), since the formula has none", dropout)


def check_zero(module: str, name: str, bias: Tensor | None) -> None:
    """Refuse a bias that is not zero."""
    if bias is not None and bool(bias.detach().any()):
        largest = float(bias.detach().abs().max())
        advice = "BiasedMultiHeadAttention has biases; layers have none"
        refuse(module, name, "None or zeros, since the formula has no bias", f"up to {largest:.3g}; {advice}")


def check_same(module: str, name: str, expected: object, got: object, reason: str) -> None:
    """Refuse a size or setting that differs from the one it must equal."""
    if got != expected:
        refuse(module, name, f"{expected}, since {reason}", got)


def bias_of(layer: nn.Linear | nn.LayerNorm, like: Tensor) -> Tensor:
    """Return the bias of a layer; if it has none, zeros shaped like ``like``."""
    bias: Tensor | None = layer.bias
    return torch.zeros_like(like) if bias is None else bias
