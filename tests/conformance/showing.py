"""Calls that show what is wrong with each implementation that escapes: a correct one gives another tensor."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnspec.spec import LayerNormParameters

from . import escaping

Showing = Callable[[Any], Tensor]
"""What a backend gives in some calls."""


def normal(*shape: int) -> Tensor:
    """Numbers that are the same for all."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def called(*given: Tensor, **options: Any) -> Showing:
    """The result of one call of attention."""
    return lambda backend: backend.scaled_dot_product_attention(*given, **options).detach()


def gain_of_rows(backend: Any) -> Tensor:
    """The gradient of the gain of 300 rows."""
    gain = torch.ones(4, requires_grad=True)
    result = backend.layer_norm(normal(300, 4), LayerNormParameters(gain, torch.zeros(4)))
    return torch.autograd.grad(result, gain, normal(300, 4))[0]


def last_of_many_keys(backend: Any) -> Tensor:
    """The weights of 65,537 keys, the last of which has the highest score."""
    scores = torch.zeros(1, (1 << 16) + 1)
    scores[..., -1] = 20.0
    found: Tensor = backend.softmax(scores)
    return found


class Escape(NamedTuple):
    """Calls that show what is wrong, and the operation that is."""

    shown: Showing
    operation: str = escaping.ATTENTION


ESCAPES: Mapping[type, Escape] = {
    escaping.PositionalFeaturesBeyondThe512th: Escape(called(normal(3, 576), normal(5, 576), normal(5, 512))),
    escaping.ParametersGetGradientsOf256Rows: Escape(gain_of_rows, "layer_norm"),
    escaping.KeysCountedIn16Bits: Escape(last_of_many_keys, "softmax"),
}
"""All of them."""
