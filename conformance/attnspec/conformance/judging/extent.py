"""The extent of a run: the largest sizes and integers of its calls."""

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.corners import tables
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.documentation import MEANINGS
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import without_indices

Extent = dict[str, int]
"""The largest size or integer of all calls, by label such as "windows"."""

BATCH = "elements of a batch"
PAIRS = "pairs of a query and a key"
"""Counted per batch element, since few examples have both many queries and many keys."""

AXIS_LABELS = {kind: label for kind, label in MEANINGS.items() if kind not in (Axis.SELF, Axis.SPARE, Axis.PAGE)}
"""Labels of the kinds of axes. ``Axis.SELF`` has those of queries and of keys, the spare rows of a cache have none."""

PAGES, PAGE_ROWS = "pages of a cache", "rows of a page"

ORDER = (*dict.fromkeys(AXIS_LABELS.values()), PAGES, PAGE_ROWS, PAIRS, BATCH)
"""Labels in the order of reports."""

TOKENS, ENTRIES, WINDOWS = "token indices", "entries of a table", "windows"
"""Labels of integer arguments that index something; others have their argument's name."""


@lru_cache(maxsize=4096)
def _size_labels(operation: Operation, size: str) -> tuple[str, ...]:
    """Labels of a size: two if it counts both queries and keys."""
    labels = [label for kind, label in AXIS_LABELS.items() if kind in operation.axis(size)]
    if operation.axis(size) is Axis.PAGE:
        # Keys are stored as (pages, page, …): ``pages`` bounds the indices of the block table, ``page`` counts rows.
        in_rows = any(size in leaf.sizes for leaf in operation.floats) and size not in tables(operation)
        labels.append(PAGE_ROWS if in_rows else PAGES)
    return tuple(labels)


@lru_cache(maxsize=1024)
def _integer_labels(operation: Operation) -> dict[str, str]:
    """Labels of the integer arguments whose values are recorded, by path."""
    label_by_path = {path: path.replace("_", " ") for path in operation.generated_below}
    for path, bound in operation.indices.items():
        label_by_path[path] = ENTRIES if operation.axis(without_indices(bound)) is Axis.PAGE else TOKENS
    return label_by_path | ({operation.window: WINDOWS} if operation.window else {})


def _greatest(value: Any) -> int:
    """The greatest integer; 0 if there are none."""
    if isinstance(value, tuple):
        return max((end for end in value if end is not None), default=0)
    return 0 if value is None else int(np.max(value, initial=0))


def widen(extent: Extent, arguments: Arguments) -> None:
    """Widen the extent to the sizes and integers of a call."""
    numbers = [(label, x) for name, x in arguments.sizes.items() for label in _size_labels(arguments.operation, name)]
    if arguments.queries and arguments.keys_count:
        numbers.append((PAIRS, arguments.queries * arguments.keys_count))
    if arguments.batched:
        numbers.append((BATCH, prod(arguments.batch)))
    numbers += [(label, _greatest(arguments[path])) for path, label in _integer_labels(arguments.operation).items()]
    for label, number in numbers:
        if number > extent.get(label, 0):
            extent[label] = int(number)


def widest(extents: Mapping[str, Extent]) -> Extent:
    """The largest numbers over all operations, in the order of reports: sizes, then integer arguments."""
    values = dict.fromkeys(label for extent in extents.values() for label in sorted(extent) if label not in ORDER)
    return {
        label: largest
        for label in (*ORDER, *values)
        if (largest := max((extent.get(label, 0) for extent in extents.values()), default=0))
    }
