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
"""The largest number by what it counts, such as "windows"."""

BATCH = "elements of a batch"
PAIRS = "pairs of a query and a key"
"""Counted per batch element, since few examples have both many queries and many keys."""

KINDS = {kind: words for kind, words in MEANINGS.items() if kind not in (Axis.SELF, Axis.SPARE, Axis.PAGE)}
"""Descriptions of the counted kinds of axes; spare rows, unused by calls, are excluded."""

PAGES, PAGE_ROWS = "pages of a cache", "rows of a page"

ORDER = (*dict.fromkeys(KINDS.values()), PAGES, PAGE_ROWS, PAIRS, BATCH)
"""The kinds in the order in which reports name them."""

TOKENS, ENTRIES, WINDOWS = "token indices", "entries of a table", "windows"
"""Kinds of counted integer values; those that operations draw go by their argument's name."""


@lru_cache(maxsize=4096)
def _counted(operation: Operation, size: str) -> tuple[str, ...]:
    """Descriptions of what a size counts: queries and keys if it counts both."""
    found = [words for kind, words in KINDS.items() if kind in operation.axis(size)]
    if operation.axis(size) is Axis.PAGE:
        in_rows = any(size in leaf.sizes for leaf in operation.floats) and size not in tables(operation)
        found.append(PAGE_ROWS if in_rows else PAGES)
    return tuple(found)


@lru_cache(maxsize=1024)
def _valued(operation: Operation) -> dict[str, str]:
    """Paths of integer arguments whose values count, with their descriptions."""
    found = {path: path.replace("_", " ") for path in operation.drawn}
    for path, bound in operation.indices.items():
        found[path] = ENTRIES if operation.axis(without_indices(bound)) is Axis.PAGE else TOKENS
    return found | ({operation.window: WINDOWS} if operation.window else {})


def _greatest(value: Any) -> int:
    """The greatest integer; 0 if there are none."""
    if isinstance(value, tuple):
        return max((end for end in value if end is not None), default=0)
    return 0 if value is None else int(np.max(value, initial=0))


def widen(extent: Extent, arguments: Arguments) -> None:
    """Widen the extent to the sizes and integers of a call."""
    numbers = [(words, x) for name, x in arguments.sizes.items() for words in _counted(arguments.operation, name)]
    if arguments.queries and arguments.keys_count:
        numbers.append((PAIRS, arguments.queries * arguments.keys_count))
    if arguments.batched:
        numbers.append((BATCH, prod(arguments.batch)))
    numbers += [(words, _greatest(arguments[path])) for path, words in _valued(arguments.operation).items()]
    for words, number in numbers:
        if number > extent.get(words, 0):
            extent[words] = int(number)


def widest(extents: Mapping[str, Extent]) -> Extent:
    """The largest numbers of all operations in reporting order: sizes first, then values."""
    values = dict.fromkeys(words for extent in extents.values() for words in sorted(extent) if words not in ORDER)
    return {
        words: most
        for words in (*ORDER, *values)
        if (most := max((extent.get(words, 0) for extent in extents.values()), default=0))
    }
