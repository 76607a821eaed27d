"""Changes of rows along an axis: other numbers, or hidden by masks and lengths."""

from collections.abc import Callable

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.spec.contract.axes import Role
from attnspec.spec.contract.tree import Kind


def with_other_rows(arguments: Arguments, size: str, chosen: Numbers, draw: Callable[[Numbers], Numbers]) -> Arguments:
    """A copy with the ``chosen`` rows (booleans) along an axis drawn anew."""

    # Integers may have bounds, so they are exchanged instead of drawn.
    def replace(x: Numbers, axis: int) -> Numbers:
        rows = chosen.reshape(-1, *(1,) * (x.ndim - 1 - axis))
        return np.where(rows, np.flip(x, axis) if x.dtype.kind in "biu" else draw(x), x)

    return arguments.along(size, replace, Role.ROWS | Role.INDICES)


def hide_from(arguments: Arguments, size: str, length: int) -> tuple[Arguments, Arguments]:
    """Two copies: one hides positions from ``length`` on, one is to be cut there (lengths: the same copy)."""
    leaf = arguments.operation.hiding_argument(size)
    assert leaf is not None
    if leaf.kind is Kind.INT:
        current = arguments[leaf.path]
        lengths = np.full(arguments.batch, length) if current is None else np.asarray(np.minimum(current, length))
        padded = arguments.replaced({leaf.path: lengths})
        return padded, padded
    shape = arguments.binding.shape(leaf)
    current = arguments[leaf.path]
    visible = np.array(np.broadcast_to(True if current is None else current, shape))
    padded = arguments.replaced({leaf.path: visible & (np.arange(shape[-1]) < length)})
    return padded, arguments.replaced({leaf.path: visible})
