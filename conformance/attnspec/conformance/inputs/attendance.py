"""Which keys each query may attend to, by the mask and the causal flag together."""

from collections.abc import Iterator

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, keep, take
from attnspec.spec.contract.limits import Limits

SQUARE = 16
"""Queries and keys of a square mask: an example may have many keys because it has one query."""


def mask_shape(arguments: Arguments) -> tuple[int, ...]:
    """The full shape of the mask: (*batch, n, m), or (*batch, m) for operations without a query axis."""
    leaf = arguments.operation.mask
    assert leaf is not None
    return arguments.binding.shape(leaf)


def attendable(arguments: Arguments, *, bottom_right: bool = False) -> Numbers:
    """The keys that every query may attend to, as a boolean array of the full shape."""
    shape = mask_shape(arguments)
    allowed: Numbers = np.ones(shape, bool) if arguments.mask is None else np.broadcast_to(arguments.mask, shape)
    if arguments.causal:
        n, m = shape[-2:]
        allowed = allowed & np.tri(n, m, m - n if bottom_right else 0).astype(bool)
    return np.array(allowed)


def collapsed_masks(
    arguments: Arguments, limits: Limits, rng: np.random.Generator
) -> Iterator[tuple[Arguments, tuple[int, ...]]]:
    """Shapes of masks with axes of size 1, each with arguments for which the wrong broadcast would not raise either."""
    operation = arguments.operation
    assert operation.mask is not None
    core = len(operation.mask.core)
    shape = mask_shape(arguments)
    batch = len(shape) - core
    broadcasts = limits.broadcasting
    some = [size if rng.random() < 0.5 or (i < batch and not broadcasts) else 1 for i, size in enumerate(shape)]
    yield arguments, tuple(some[int(rng.integers(batch + 1)) if broadcasts else 0 :])
    asking, asked, n, m = operation.asking, operation.asked, arguments.queries, arguments.keys_count
    alone = core < 2 or operation.attends_to_itself
    if alone or asking is None or asked is None or limits.multiple_of > 1 or not n or not m:
        return
    count = min(m, SQUARE)
    square = arguments.along(asked, keep(count)).along(asking, take(np.arange(count) % n))
    yield square, (*shape[:batch], 1, count)
    yield square, (*shape[:batch], count, 1)
    if not batch and broadcasts and limits.max_batch_dims:
        few = arguments.along(asking, keep(4))
        yield few, (few.queries or 0, 1, m)
    if batch and shape[batch - 1]:
        as_many = arguments.along(asking, take(np.arange(shape[batch - 1]) % n))
        yield as_many, (*shape[:batch], 1, m)
