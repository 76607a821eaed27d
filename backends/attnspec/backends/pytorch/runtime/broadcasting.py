"""Broadcasting of batch dimensions."""

from collections.abc import Sequence

import torch

from attnspec.spec.contract import shapes as spec


def broadcast(*shapes: Sequence[int]) -> torch.Size:
    """Return the shape to which all shapes broadcast; RuntimeError if there is none."""
    if torch.compiler.is_compiling():
        return torch.Size(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
    # torch.broadcast_shapes imports sympy, which takes half a second, and then takes longer than a small kernel.
    common: tuple[int, ...] | None = tuple(shapes[0])
    for other in shapes[1:]:
        common = common if other == common or common is None else spec.broadcast(common, tuple(other))
    if common is None:
        raise RuntimeError(f"expected batch shapes that broadcast; got {', '.join(str(tuple(s)) for s in shapes)}")
    return torch.Size(common)
