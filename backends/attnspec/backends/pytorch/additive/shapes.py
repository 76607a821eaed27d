"""Broadcasting of batch dimensions."""

from collections.abc import Sequence

import torch


def broadcast(*shapes: Sequence[int]) -> torch.Size:
    """The shape to which all of them broadcast; RuntimeError if there is none."""
    first, *others = shapes
    if all(other == first for other in others):
        return torch.Size(first)
    return torch.Size(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
