"""The extent of a run: the largest sizes and integers with which operations were called, by what they count."""

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
from attnspec.spec.contract.tree import schematic

Extent = dict[str, int]
"""The largest number of each kind, by what it counts, in words."""

BATCH = "elements of a batch"
PAIRS = "pairs of a query and a key"
"""Those of one element, since many queries are rarely tried beside many keys."""

KINDS = {kind: words for kind, words in MEANINGS.items() if kind not in (Axis.SELF, Axis.SPARE, Axis.PAGE)}
"""What is counted, one kind at a time; rows that a call does not use are not."""

PAGES, PAGE_ROWS = "pages of a cache", "rows of a page"

ORDER = (*dict.fromkeys(KINDS.values()), PAGES, PAGE_ROWS, PAIRS, BATCH)
"""The kinds as a sentence names them."""

TOKENS, ENTRIES, WINDOWS = "token indices", "entries of a table", "windows"
"""Integers whose values count, beside those that operations draw, which are called as their arguments are."""


@lru_cache(maxsize=4096)
def _counted(operation: Operation, size: str) -> tuple[str, ...]:
    """What a size counts: queries and keys where it counts both."""
    found = [words for kind, words in KINDS.items() if kind in operation.axis(size)]
    if operation.axis(size) is Axis.PAGE:
        in_rows = any(size in leaf.sizes for leaf in operation.floats) and size not in tables(operation)
        found.append(PAGE_ROWS if in_rows else PAGES)
    return tuple(found)


@lru_cache(maxsize=1024)
def _valued(operation: Operation) -> dict[str, str]:
    """The arguments that hold integers whose values count, each with words for them."""
    found = {path: path.replace("_", " ") for path in operation.drawn}
    for path, bound in operation.indices.items():
        found[path] = ENTRIES if operation.axis(schematic(bound)) is Axis.PAGE else TOKENS
    return found | ({operation.window: WINDOWS} if operation.window else {})


def _greatest(value: Any) -> int:
    """The greatest of some integers; 0 for none."""
    if isinstance(value, tuple):
        return max((end for end in value if end is not None), default=0)
    return 0 if value is None else int(np.max(value, initial=0))


def widen(extent: Extent, arguments: Arguments) -> None:
    """Take note of a call."""
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
    """The largest numbers of all operations, in the order in which they are named: sizes first, then values."""
    values = dict.fromkeys(words for extent in extents.values() for words in sorted(extent) if words not in ORDER)
    return {
        words: most
        for words in (*ORDER, *values)
        if (most := max((extent.get(words, 0) for extent in extents.values()), default=0))
    }
