"""Calls whose results reveal the error of each implementation in ``escaping.py``."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnspec.spec import LayerNormParameters

from . import escaping

RevealingCall = Callable[[Any], Tensor]
"""A call of a backend whose result differs from that of a correct implementation."""


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def attention_call(*arguments: Tensor, **options: Any) -> RevealingCall:
    return lambda backend: backend.scaled_dot_product_attention(*arguments, **options).detach()


def gradient_of_gain(backend: Any) -> Tensor:
    gain = torch.ones(4, requires_grad=True)
    result = backend.layer_norm(normal(300, 4), LayerNormParameters(gain, torch.zeros(4)))
    return torch.autograd.grad(result, gain, normal(300, 4))[0]


def weights_of_many_keys(backend: Any) -> Tensor:
    """The weights of 65,537 keys, the last of which has the highest score."""
    scores = torch.zeros(1, (1 << 16) + 1)
    scores[..., -1] = 20.0
    weights: Tensor = backend.softmax(scores)
    return weights


class Escape(NamedTuple):
    """A call that reveals the error, and the wrong operation."""

    reveal: RevealingCall
    operation: str = escaping.ATTENTION


ESCAPES: Mapping[type, Escape] = {
    escaping.PositionalFeaturesBeyondThe512th: Escape(attention_call(normal(3, 576), normal(5, 576), normal(5, 512))),
    escaping.ParametersGetGradientsOf256Rows: Escape(gradient_of_gain, "layer_norm"),
    escaping.KeysCountedIn16Bits: Escape(weights_of_many_keys, "softmax"),
}
