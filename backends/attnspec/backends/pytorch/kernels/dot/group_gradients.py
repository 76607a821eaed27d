"""Gradients of attention in groups of heads by the formula, which can be differentiated again."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels import formula
from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.kernels.visible import Visible
from attnspec.backends.pytorch.runtime.accumulation import widened

Formula: TypeAlias = Callable[
    [tuple[Tensor, Tensor, Tensor], tuple[Tensor | None, Tensor | None], tuple[bool, ...]], tuple[Tensor | None, ...]
]
"""Gradients of those of three operands that are wanted, from those of output and logarithms."""


class GroupedCall(NamedTuple):
    """What of a call is no tensor."""

    scale: float
    left: int | None
    right: int | None
    softcap: float | None


def by_formula(call: GroupedCall, operands: tuple[Tensor, Tensor, Tensor], tensors: Sequence[Tensor | None],
                gradients: tuple[Tensor, Tensor], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The gradients of ``plain``, which can be differentiated again."""
    mask, lengths, offsets, slopes, bias = tensors
    query, key, _ = operands
    (n, _), m = query.shape[-2:], key.shape[-2]
    mask = None if mask is None else mask.squeeze(1)
    slopes = None if slopes is None else slopes * call.scale
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        allowed = Visible(mask, call.left, call.right, lengths, offsets).allowed(n, m, query.device)
        scoring = Scoring(call.scale, call.softcap, bias, slopes)
        if not again:
            operands = tuple(x.detach().requires_grad_(w) for x, w in zip(operands, wanted, strict=True))  # type: ignore[assignment]
        results = formula.attention(*operands, allowed, scoring)
        asked = [x for x, w in zip(operands, wanted, strict=True) if w]
        # logarithms do not depend on values
        reached = [(x, gradient) for x, gradient in zip(results, gradients, strict=True) if x.requires_grad]
        own = [x for x, _ in reached], [gradient for _, gradient in reached]
        found = iter(torch.autograd.grad(own[0], asked, own[1], create_graph=again, allow_unused=True))
    return tuple(next(found) if w else None for w in wanted)


def gradients_by_formula(scale: float, causal: bool) -> Formula:
    """Those of ``plain`` for a call without options but causality and scale, of results of which some have none."""
    own = GroupedCall(scale, None, 0 if causal else None, None)

    def gradients(
        operands: tuple[Tensor, Tensor, Tensor],
        gradients: tuple[Tensor | None, Tensor | None],
        wanted: tuple[bool, ...],
    ) -> tuple[Tensor | None, ...]:
        (*rows, _), d_v, like = operands[0].shape, operands[2].shape[-1], widened(operands[0])
        given = [
            like.new_zeros(shape) if x is None else x.to(like.dtype)
            for x, shape in zip(gradients, ((*rows, d_v), rows), strict=True)
        ]
        return by_formula(own, operands, [None] * 5, (given[0], given[1]), wanted)

    return gradients
