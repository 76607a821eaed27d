"""The extent of a run: the largest sizes with which operations were called, by what the sizes count."""

from collections.abc import Mapping
from functools import lru_cache
from math import prod

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.documentation import MEANINGS
from attnspec.spec.contract.operation import Operation

Extent = dict[str, int]
"""The largest number of each kind, by what it counts, in words."""

BATCH = "elements of a batch"
PAIRS = "pairs of a query and a key"
"""Those of one element, since many queries are rarely tried beside many keys."""

KINDS = {kind: words for kind, words in MEANINGS.items() if kind not in (Axis.SELF, Axis.SPARE)}
"""What is counted, one kind at a time; rows that a call does not use are not."""

ORDER = (*dict.fromkeys(KINDS.values()), PAIRS, BATCH)
"""The kinds as a sentence names them."""


@lru_cache(maxsize=4096)
def _counted(operation: Operation, size: str) -> tuple[str, ...]:
    """What a size counts: queries and keys where it counts both."""
    return tuple(words for kind, words in KINDS.items() if kind in operation.axis(size))


def widen(extent: Extent, arguments: Arguments) -> None:
    """Take note of a call."""
    numbers = [(words, x) for name, x in arguments.sizes.items() for words in _counted(arguments.operation, name)]
    if arguments.queries and arguments.keys_count:
        numbers.append((PAIRS, arguments.queries * arguments.keys_count))
    if arguments.batched:
        numbers.append((BATCH, prod(arguments.batch)))
    for words, number in numbers:
        extent[words] = max(extent.get(words, 0), int(number))


def widest(extents: Mapping[str, Extent]) -> Extent:
    """The largest numbers of all operations, in the order in which they are named."""
    return {
        words: most
        for words in ORDER
        if (most := max((extent.get(words, 0) for extent in extents.values()), default=0))
    }
