"""Types of what mutants take and return, and arguments by role: queries, keys, …"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from attnspec.conformance.mutants.correct import Numbers
from attnspec.spec.contract.axes import Role
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Leaf, flatten, map_tree, pair_leaves

Arguments: TypeAlias = Mapping[str, Any]
"""Arguments of a call by name."""

Gradients: TypeAlias = dict[str, Numbers]
"""Gradients by path."""

Recorded: TypeAlias = tuple[Any, Callable[[Any], Gradients]]
"""Result of a call, and its backward pass: from a cotangent to gradients."""


def arrays(operation: Operation, arguments: Arguments) -> list[tuple[Leaf, Numbers]]:
    """Arrays among the arguments, each with its description."""
    pairs = pair_leaves(operation.call, arguments)
    return [(leaf, x) for leaf, x in pairs if isinstance(leaf, Leaf) and isinstance(x, np.ndarray)]


def at(arguments: Arguments, path: str) -> Any:
    """The array or option at a path; None if it is not passed."""
    return flatten(dict(arguments)).get(path)


def changed(arguments: Arguments, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with the values at the paths of ``changes`` replaced; absent arguments stay absent."""
    replaced: dict[str, Any] = map_tree(dict(arguments), lambda path, x: changes.get(path, x))
    return replaced


def query(operation: Operation) -> str:
    """Path of the queries."""
    return operation.queries[0].path


def key(operation: Operation) -> str:
    """Path of the keys; without keys, of the pooled array."""
    return operation.attended[0].path


def value(operation: Operation) -> str:
    """Path of the values: the array whose rows are pooled."""
    return operation.attended[-1].path


def caches(operation: Operation) -> list[Leaf]:
    """Arrays of keys and of values that are stored in pages."""
    return [x for x in operation.floats if any(size in x.sizes for size in operation.indices.values())]


def key_lengths(operation: Operation) -> str:
    """Path of the key lengths; empty if the operation has none."""
    return next(iter(operation.lengths), "")


def key_weight(operation: Operation) -> str:
    """Path of the weight that projects the keys."""
    width = operation.attended[0].core[-1].factors[0]
    return next(leaf.path for leaf in operation.along(width, Role.WEIGHT))


def mask_of(operation: Operation, arguments: Arguments) -> Numbers:
    """Mask of the keys; None without a mask argument or a passed mask."""
    return None if operation.mask is None else at(arguments, operation.mask.path)


def sizes(operation: Operation, arguments: Arguments) -> tuple[int, int, int, int]:
    """Numbers of queries, keys, features, and columns of values."""
    q, k, v = (at(arguments, path) for path in (query(operation), key(operation), value(operation)))
    return q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]


def without_last(operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Keys, values and mask without the last key, by path."""
    shortened = {leaf.path: at(arguments, leaf.path)[..., :-1, :] for leaf in operation.attended}
    mask = mask_of(operation, arguments)
    if operation.mask is not None and mask is not None and mask.shape[-1] > 1:
        shortened[operation.mask.path] = mask[..., :-1]
    return shortened
