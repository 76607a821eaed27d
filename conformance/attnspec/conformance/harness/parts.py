"""Parts of a call that the budgeted oracle can afford: elements of the batch, and rows of them where these are many."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, along, take
from attnspec.conformance.inputs.attendance import behind, bounds, spelled_out
from attnspec.conformance.judging.rows import rows_to_judge
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.reference.budget import oracle_dtype
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.axes import Part as Option
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import schematic

AT_ONCE = 2**20
"""Pairs of a query and a key for which the oracle is asked at once."""

PAIRS = 2**22
"""Pairs that are judged in all, as far as that leaves some rows to every element of the batch."""

FEW = 16
"""Rows that cost no more than none: with fewer, it is the keys that take time and memory."""

LEAST, MOST = 4, 256
"""Rows of an element that are judged where all are too many."""


@dataclass(frozen=True)
class Part:
    """A part of a call, with the parts of its results.

    ``places`` holds, for every axis of the whole batch, the indices of the part; of the first axes, which the part has
    not, a single one each. Without any, places are those of the whole. ``rows`` and ``heads`` are those judged, None
    for all. ``uncut`` has the arguments of all rows, where some are judged.
    """

    arguments: Arguments
    results: Results
    places: tuple[Numbers, ...]
    rows: Numbers | None = None
    heads: Numbers | None = None
    uncut: Arguments | None = None

    def place(self, index: tuple[int, ...], row: int | None) -> tuple[int, ...]:
        """The place in a whole result of a number in that of the part; ``row`` is the axis of rows behind the batch."""
        own = len(self.arguments.batch) if self.places else 0
        gone = len(self.places) - own
        core = list(index[own:])
        if self.heads is not None:
            core[0] = int(self.heads[core[0]])
        if self.rows is not None and row is not None:
            core[row] = int(self.rows[core[row]])
        batch = [int(x[0]) for x in self.places[:gone]]
        batch += [int(x[i]) for x, i in zip(self.places[gone:], index, strict=False)]
        return (*batch, *core)


def pairs(arguments: Arguments, rows: int | None = None) -> int:
    """Pairs of a query, or of a row of so many, and a key in all elements of the batch."""
    queries = max(arguments.queries or 1, 1) if rows is None else rows
    return prod(arguments.batch) * queries * max(arguments.keys_count or 1, 1)


def whole(arguments: Arguments, results: Results) -> Part:
    """All of a call."""
    return Part(arguments, results, tuple(np.arange(count) for count in arguments.batch))


def parts(subject: Subject, given: Part, rng: np.random.Generator) -> Iterator[Part]:
    """Every element of the batch, with all of its rows or, where these are too many and independent, with some."""
    arguments = given.arguments
    heads = count_of_heads(arguments)
    most = int(np.clip(PAIRS // max(pairs(arguments, 1) * heads, 1), LEAST, MOST))
    some = pairs(arguments) * heads > PAIRS and independent_rows(subject, arguments, most, rng) is not None
    for element in elements(given, most if some else None):
        together = AT_ONCE * heads / max(_cost(element.arguments, most if some else None), 1)
        for part in of_heads(subject.operation, element, together):
            rows = independent_rows(subject, part.arguments, most, rng) if some else None
            yield part if rows is None else with_rows(subject, part, rows)


def elements(part: Part, rows: int | None = None) -> Iterator[Part]:
    """Elements of the batch, as many together as are affordable with so many rows of each."""
    batch = part.arguments.batch
    cost = _cost(part.arguments, rows)
    if not batch or cost <= AT_ONCE:
        yield part
        return
    together = AT_ONCE * batch[0] // cost
    if not together:
        for i in range(batch[0]):
            yield from elements(_cut(part, i), rows)
        return
    for start in range(0, batch[0], together):
        yield _cut(part, slice(start, start + together))


def of_heads(operation: Operation, part: Part, most: float) -> Iterator[Part]:
    """A part in parts of at most so many heads, and of one at least."""
    heads = count_of_heads(part.arguments)
    size = next((size for size in own_heads(operation) if part.arguments.size(size) > 1), None)
    if heads <= most or size is None:
        yield part
        return
    count = part.arguments.size(size)
    together = max(int(most * count // heads), 1)
    for start in range(0, count, together):
        yield from of_heads(operation, _with_heads(operation, part, size, slice(start, start + together)), most)


def _with_heads(operation: Operation, part: Part, size: str, chosen: slice) -> Part:
    """The part of these heads, or of these of every group."""

    def change(x: Numbers, axis: int) -> Numbers:
        return x[(slice(None),) * axis + (chosen,)]

    sizes, binding = own_heads(operation), part.arguments.binding
    found = {leaf.path: along(part.results[leaf.path], leaf, size, binding, change) for leaf in operation.outputs}
    heads = np.arange(count_of_heads(part.arguments)) if part.heads is None else part.heads
    grid = heads.reshape([part.arguments.size(name) for name in sizes])
    heads = change(grid, sizes.index(size)).ravel()
    return replace(part, arguments=part.arguments.along(size, change), results=found, heads=heads)


def _cost(arguments: Arguments, rows: int | None) -> int:
    """Pairs in all heads of all elements, with so many rows of each."""
    own = arguments.queries or 1 if rows is None else rows
    lent = 1 if arguments.keys_count else max(map(arguments.size, arguments.operation.lengths.values()), default=1)
    return pairs(arguments, max(own, FEW)) * count_of_heads(arguments) * max(lent, 1)


def _cut(part: Part, of_first: int | slice) -> Part:
    """The part at these indices of its first axis of the batch; with one index, without that axis."""
    given, batch = part.arguments, part.arguments.batch
    changed = {leaf.path: _at(x, of_first) if x.ndim - len(leaf.core) == len(batch) else x for leaf, x in given.batched}
    gone = len(part.places) - len(batch)
    chosen = np.atleast_1d(part.places[gone][of_first])
    places = (*part.places[:gone], chosen, *part.places[gone + 1 :])
    return Part(given.replaced(changed), {path: x[of_first] for path, x in part.results.items()}, places)


def _at(x: Numbers, index: int | slice) -> Numbers:
    """An array at these indices of its first axis; one of size 1 broadcasts."""
    if x.shape[0] == 1:
        return x if isinstance(index, slice) else np.asarray(x[0])
    return np.asarray(x[index])


def with_rows(subject: Subject, part: Part, rows: Numbers) -> Part:
    """A part with these rows alone, which keep their positions."""
    given, operation = part.arguments, subject.operation
    asking = operation.asking or ""
    found = {
        leaf.path: along(part.results[leaf.path], leaf, asking, given.binding, take(rows)) for leaf in operation.outputs
    }
    return replace(part, arguments=at_rows(subject, given, rows), results=found, rows=rows, uncut=given)


def separable(arguments: Arguments) -> bool:
    """Whether the gradient of every float array is made of those of the elements of the batch alone."""
    return all(leaf.batched and x.shape[: x.ndim - len(leaf.core)] == arguments.batch for leaf, x in arguments.floats)


def of_elements(
    part: Part, gradients: Mapping[str, Numbers], rows: int | None = None
) -> Iterator[tuple[Part, Results]]:
    """Elements of the batch with their gradients, as many together as are affordable with so many rows of each."""
    joined = Part(part.arguments, part.results | {f"d {path}": g for path, g in gradients.items()}, part.places)
    for one in elements(joined, rows):
        yield one, {path: one.results[f"d {path}"] for path in gradients}


def count_of_heads(arguments: Arguments) -> int:
    """The heads of a call, 1 without any; of an operation with several attentions those of the largest."""
    kinds = [(arguments.operation.axis(schematic(size)), count) for size, count in arguments.sizes.items()]
    most = max((count for kind, count in kinds if Axis.HEAD in kind), default=1)
    return most * prod(count for kind, count in kinds if Axis.GROUP in kind)


def own_heads(operation: Operation) -> tuple[str, ...]:
    """The sizes of heads that have results of their own, in front of all others; none where heads are joined."""
    counted = {*operation.sizes_of(Axis.HEAD), *operation.sizes_of(Axis.GROUP)}
    first = {leaf.core[0].factors if leaf.core else () for leaf in operation.outputs}
    return next(iter(first)) if len(first) == 1 and {*next(iter(first))} <= counted else ()


# Rows by themselves ---------------------------------------------------------------------------------------------------


def independent_rows(subject: Subject, given: Arguments, most: int, rng: np.random.Generator) -> Numbers | None:
    """The rows to judge; None for all, because there are few or because each depends on other queries."""
    slopes = subject.operation.part(Option.SLOPES)
    return rows_to_judge(subject, given.replaced({slopes: None}) if slopes else given, most, rng)


def at_rows(subject: Subject, given: Arguments, rows: Numbers) -> Arguments:
    """The arguments of these rows alone, with positions in the mask, and the slopes of the whole call in the bias."""
    operation, bottom_right = subject.operation, subject.semantics.bottom_right
    chosen = spelled_out(given, rows, bottom_right=bottom_right)
    slopes, bias = (operation.part(part) for part in (Option.SLOPES, Option.BIAS))
    if not slopes or given[slopes] is None:
        return chosen
    wide = oracle_dtype(subject.precision.dtype)
    distance = behind(given, operation.asked or "", rows, bottom_right=bottom_right)
    falling = -given.array(slopes).astype(wide)[:, None, None] * np.abs(distance)
    more = falling if chosen[bias] is None else chosen.array(bias).astype(wide) + falling
    # Slopes of 0 stay, for the rounding that the subtraction of the others may make.
    return chosen.replaced({bias: more, slopes: np.zeros_like(given.array(slopes))})


def spelled(subject: Subject, given: Arguments) -> Arguments:
    """All rows with their positions spelled out, so that keys can be taken away or added."""
    operation = given.operation
    positional = [*bounds(operation), *filter(None, [operation.part(Option.SLOPES)])]
    if operation.attends_to_itself or all(given[path] is operation.defaults[path] for path in positional):
        return given
    return at_rows(subject, given, np.arange(given.queries or 0))
