"""Changes of rows along an axis: replaced, or hidden by masks and lengths."""

from collections.abc import Callable

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.spec.contract.axes import Role
from attnspec.spec.contract.tree import Kind


def with_other_rows(arguments: Arguments, size: str, chosen: Numbers, draw: Callable[[Numbers], Numbers]) -> Arguments:
    """Replace the ``chosen`` rows (booleans) of every array with rows along an axis."""

    def other(x: Numbers, axis: int) -> Numbers:
        rows = chosen.reshape(-1, *(1,) * (x.ndim - 1 - axis))
        return np.where(rows, np.flip(x, axis) if x.dtype.kind in "biu" else draw(x), x)

    return arguments.along(size, other, Role.ROWS | Role.INDICES)


def hiding(arguments: Arguments, size: str, length: int) -> tuple[Arguments, Arguments]:
    """Arguments that hide positions from ``length`` on, and arguments to cut off there."""
    leaf = arguments.operation.hides(size)
    assert leaf is not None
    if leaf.kind is Kind.INT:
        given = arguments[leaf.path]
        lengths = np.full(arguments.batch, length) if given is None else np.asarray(np.minimum(given, length))
        padded = arguments.replaced({leaf.path: lengths})
        return padded, padded
    shape = arguments.binding.shape(leaf)
    given = arguments[leaf.path]
    base = np.array(np.broadcast_to(True if given is None else given, shape))
    padded = arguments.replaced({leaf.path: base & (np.arange(shape[-1]) < length)})
    return padded, arguments.replaced({leaf.path: base})
