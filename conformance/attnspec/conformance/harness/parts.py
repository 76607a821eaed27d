"""Parts of a call that the budgeted oracle affords: batch elements, and some of their rows."""

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
from attnspec.spec.contract.tree import without_indices

AT_ONCE = 2**20
"""Query–key pairs per call of the oracle."""

PAIRS = 2**22
"""Pairs judged in total, as far as that leaves some rows for every batch element."""

FEW = 16
"""Smallest row count that affects cost; with fewer rows, the keys dominate time and memory."""

LEAST, MOST = 4, 256
"""Smallest and largest number of rows judged per element, if all are too many."""


@dataclass(frozen=True)
class Part:
    """A part of a call, with the parts of its results.

    ``places`` holds the part's indices along every axis of the whole batch: a single one for leading axes that the part
    lacks. Empty ``places`` mean that places are those of the whole. ``rows`` and ``heads`` are those judged, None for
    all. ``uncut`` has the arguments of all rows, if only some are judged.
    """

    arguments: Arguments
    results: Results
    places: tuple[Numbers, ...]
    rows: Numbers | None = None
    heads: Numbers | None = None
    uncut: Arguments | None = None

    def place(self, index: tuple[int, ...], row: int | None) -> tuple[int, ...]:
        """Return a number's place in the whole result; ``row`` is the axis of rows after the batch."""
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
    """Return the query–key pairs of all batch elements, with ``rows`` queries each if set."""
    queries = max(arguments.queries or 1, 1) if rows is None else rows
    return prod(arguments.batch) * queries * max(arguments.keys_count or 1, 1)


def whole(arguments: Arguments, results: Results) -> Part:
    """Return the part that is the whole call."""
    return Part(arguments, results, tuple(np.arange(count) for count in arguments.batch))


def parts(subject: Subject, given: Part, rng: np.random.Generator) -> Iterator[Part]:
    """Yield every batch element with all rows, or with some if there are too many and they are independent."""
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
    """Yield batch elements, as many together as are affordable with so many rows of each."""
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
    """Split a part into parts of at most ``most`` heads, and at least one."""
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
    """Return the part of these heads, or of these heads in every group."""

    def change(x: Numbers, axis: int) -> Numbers:
        return x[(slice(None),) * axis + (chosen,)]

    sizes, binding = own_heads(operation), part.arguments.binding
    found = {leaf.path: along(part.results[leaf.path], leaf, size, binding, change) for leaf in operation.outputs}
    heads = np.arange(count_of_heads(part.arguments)) if part.heads is None else part.heads
    grid = heads.reshape([part.arguments.size(name) for name in sizes])
    heads = change(grid, sizes.index(size)).ravel()
    return replace(part, arguments=part.arguments.along(size, change), results=found, heads=heads)


def _cost(arguments: Arguments, rows: int | None) -> int:
    """Return the pairs in all heads of all elements, with so many rows of each."""
    own = arguments.queries or 1 if rows is None else rows
    lent = 1 if arguments.keys_count else max(map(arguments.size, arguments.operation.lengths.values()), default=1)
    return pairs(arguments, max(own, FEW)) * count_of_heads(arguments) * max(lent, 1)


def _cut(part: Part, of_first: int | slice) -> Part:
    """Return the part at these indices of its first batch axis; a single index removes that axis."""
    given, batch = part.arguments, part.arguments.batch
    changed = {leaf.path: _at(x, of_first) if x.ndim - len(leaf.core) == len(batch) else x for leaf, x in given.batched}
    gone = len(part.places) - len(batch)
    chosen = np.atleast_1d(part.places[gone][of_first])
    places = (*part.places[:gone], chosen, *part.places[gone + 1 :])
    return Part(given.replaced(changed), {path: x[of_first] for path, x in part.results.items()}, places)


def _at(x: Numbers, index: int | slice) -> Numbers:
    """Return an array at these indices of its first axis; an axis of size 1 broadcasts."""
    if x.shape[0] == 1:
        return x if isinstance(index, slice) else np.asarray(x[0])
    return np.asarray(x[index])


def with_rows(subject: Subject, part: Part, rows: Numbers) -> Part:
    """Return a part restricted to these rows, which keep their positions."""
    given, operation = part.arguments, subject.operation
    asking = operation.asking or ""
    found = {
        leaf.path: along(part.results[leaf.path], leaf, asking, given.binding, take(rows)) for leaf in operation.outputs
    }
    return replace(part, arguments=at_rows(subject, given, rows), results=found, rows=rows, uncut=given)


def separable(arguments: Arguments) -> bool:
    """Return whether each batch element's gradients depend only on that element."""
    return all(leaf.batched and x.shape[: x.ndim - len(leaf.core)] == arguments.batch for leaf, x in arguments.floats)


def of_elements(
    part: Part, gradients: Mapping[str, Numbers], rows: int | None = None
) -> Iterator[tuple[Part, Results]]:
    """Yield batch elements with their gradients, as many together as are affordable with so many rows."""
    joined = Part(part.arguments, part.results | {f"d {path}": g for path, g in gradients.items()}, part.places)
    for one in elements(joined, rows):
        yield one, {path: one.results[f"d {path}"] for path in gradients}


def count_of_heads(arguments: Arguments) -> int:
    """Return the number of heads, 1 without any; the largest if an operation has several attentions."""
    kinds = [(arguments.operation.axis(without_indices(size)), count) for size, count in arguments.sizes.items()]
    most = max((count for kind, count in kinds if Axis.HEAD in kind), default=1)
    return most * prod(count for kind, count in kinds if Axis.GROUP in kind)


def own_heads(operation: Operation) -> tuple[str, ...]:
    """Return the sizes of heads that lead every result; empty if heads are joined."""
    counted = {*operation.sizes_of(Axis.HEAD), *operation.sizes_of(Axis.GROUP)}
    first = {leaf.core[0].factors if leaf.core else () for leaf in operation.outputs}
    return next(iter(first)) if len(first) == 1 and {*next(iter(first))} <= counted else ()


# Rows by themselves ---------------------------------------------------------------------------------------------------


def independent_rows(subject: Subject, given: Arguments, most: int, rng: np.random.Generator) -> Numbers | None:
    """Return the rows to judge; None for all, if they are few or depend on other queries."""
    slopes = subject.operation.part(Option.SLOPES)
    return rows_to_judge(subject, given.replaced({slopes: None}) if slopes else given, most, rng)


def at_rows(subject: Subject, given: Arguments, rows: Numbers) -> Arguments:
    """Return the arguments of these rows, with positions in the mask and slopes in the bias."""
    operation, bottom_right = subject.operation, subject.semantics.bottom_right
    chosen = spelled_out(given, rows, bottom_right=bottom_right)
    slopes, bias = (operation.part(part) for part in (Option.SLOPES, Option.BIAS))
    if not slopes or given[slopes] is None:
        return chosen
    wide = oracle_dtype(subject.precision.dtype)
    distance = behind(given, operation.asked or "", rows, bottom_right=bottom_right)
    falling = -given.array(slopes).astype(wide)[:, None, None] * np.abs(distance)
    more = falling if chosen[bias] is None else chosen.array(bias).astype(wide) + falling
    # Slopes of 0 remain, for the rounding that subtracting the others may cause.
    return chosen.replaced({bias: more, slopes: np.zeros_like(given.array(slopes))})


def spelled(subject: Subject, given: Arguments) -> Arguments:
    """Spell out the positions of all rows, so that keys can be removed or added."""
    operation = given.operation
    positional = [*bounds(operation), *filter(None, [operation.part(Option.SLOPES)])]
    if operation.attends_to_itself or all(given[path] is operation.defaults[path] for path in positional):
        return given
    return at_rows(subject, given, np.arange(given.queries or 0))
