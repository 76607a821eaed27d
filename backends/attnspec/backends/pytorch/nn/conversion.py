"""Checks, before weights are converted, that a ``torch.nn`` module computes our formula."""

from typing import Literal, NoReturn, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

Module = TypeVar("Module", bound=nn.Module)
Activation: TypeAlias = Literal["relu", "gelu", "gelu_tanh"]
"""Activation of a feed-forward network: ReLU, GELU by erf, or GELU by tanh."""


def refuse(module: str, name: str, expected: str, got: object) -> NoReturn:
    """Raise ``ValueError`` for a setting that our formula does not have."""
    raise ValueError(f"{module}: {name}: expected {expected}; got {got}")


def check_kind(caller: str, module: nn.Module, kind: type[Module]) -> Module:
    """Return the module; refuse another class: weights of the same names may have another formula."""
    if not isinstance(module, kind):
        refuse(caller, "module", f"a torch.nn.{kind.__name__}", type(module).__name__)
    return module


def check(module: str, name: str, value: object, expected: object, reason: str) -> None:
    """Refuse a setting other than the expected one."""
    if value != expected:
        refuse(module, name, f"{expected!r}, since {reason}", repr(value))


def check_no_dropout(module: str, source: nn.Module, dropout: float) -> None:
    """Refuse dropout, unless the module is in ``eval()`` mode, where it has no effect."""
    if dropout > 0 and source.training:
        refuse(module, "dropout", "0, or a module in eval(), since the formula has none", dropout)


def activation_of(module: str, activation: object) -> Activation:
    """Return the name of an activation, ReLU or GELU; refuse others."""
    if activation in (functional.relu, torch.relu) or isinstance(activation, nn.ReLU):
        return "relu"
    if activation is functional.gelu:
        return "gelu"
    if isinstance(activation, nn.GELU):
        return "gelu" if activation.approximate == "none" else "gelu_tanh"
    name = getattr(activation, "__name__", repr(activation))
    refuse(module, "activation", "ReLU or GELU", name)


def check_same(module: str, name: str, expected: object, got: object, reason: str) -> None:
    """Refuse a size or setting that differs from the one it must equal."""
    if got != expected:
        refuse(module, name, f"{expected}, since {reason}", got)


def bias_of(layer: nn.Linear | nn.LayerNorm, like: Tensor) -> Tensor:
    """Return the bias of a layer; if it has none, zeros shaped like ``like``."""
    bias: Tensor | None = layer.bias
    return torch.zeros_like(like) if bias is None else bias
