"""Broadcasting of batch dimensions."""

from collections.abc import Sequence

import torch


def broadcast(*shapes: Sequence[int]) -> torch.Size:
    """The shape to which all of them broadcast; RuntimeError if there is none."""
    return torch.Size(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
