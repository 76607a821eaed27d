"""What mutants of calls and gradients change, by its role in an operation: queries and keys, not certain names."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Numbers
from attnspec.spec.contract.axes import Role
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Leaf, described, flatten, mapped


def arrays(operation: Operation, arguments: Mapping[str, Any]) -> list[tuple[Leaf, Numbers]]:
    """The arrays that a call is given, with their descriptions."""
    pairs = described(operation.call, arguments)
    return [(leaf, x) for leaf, x in pairs if isinstance(leaf, Leaf) and isinstance(x, np.ndarray)]


def at(arguments: Mapping[str, Any], path: str) -> Any:
    """The array or option at a path; None for what is not given."""
    return flatten(dict(arguments)).get(path)


def changed(arguments: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The same arguments, but for what is given and has these paths."""
    found: dict[str, Any] = mapped(dict(arguments), lambda path, x: changes.get(path, x))
    return found


def query(operation: Operation) -> str:
    """The path of the array whose rows ask."""
    return operation.queries[0].path


def key(operation: Operation) -> str:
    """The path of the array whose rows the queries are compared with; without queries, of what is pooled."""
    return operation.attended[0].path


def value(operation: Operation) -> str:
    """The path of the array whose rows are pooled."""
    return operation.attended[-1].path


def key_lengths(operation: Operation) -> str:
    """The path of the numbers of keys that count; an empty path if there is none."""
    return next(iter(operation.lengths), "")


def key_weight(operation: Operation) -> str:
    """The path of the weight that projects the keys."""
    width = operation.attended[0].core[-1].factors[0]
    return next(leaf.path for leaf in operation.along(width, Role.WEIGHT))


def mask_of(operation: Operation, arguments: Mapping[str, Any]) -> Numbers:
    """The mask of the keys; None for an operation that takes none, or a call that gives none."""
    return None if operation.mask is None else at(arguments, operation.mask.path)


def sizes(operation: Operation, arguments: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Queries, keys, features and columns of values."""
    q, k, v = (at(arguments, path) for path in (query(operation), key(operation), value(operation)))
    return q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]


def without_last(operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Keys, values and mask of a call without its last key, by path."""
    found = {leaf.path: at(arguments, leaf.path)[..., :-1, :] for leaf in operation.attended}
    mask = mask_of(operation, arguments)
    if operation.mask is not None and mask is not None and mask.shape[-1] > 1:
        found[operation.mask.path] = mask[..., :-1]
    return found
