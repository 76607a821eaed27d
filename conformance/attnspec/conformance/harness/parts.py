"""Division of a call into parts that are affordable for the oracle: batch elements, heads, sampled rows.

Shapes are (batch axes…, core axes…); ``leaf.core`` describes the core axes of an array. Rows are those of the queries.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, along, take
from attnspec.conformance.inputs.attendance import mask_options, penalised_distances, with_explicit_mask
from attnspec.conformance.judging.sampled_rows import rows_to_judge
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.reference.budget import oracle_dtype
from attnspec.spec.contract.axes import Axis, ScoreEffect
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import without_indices

PAIRS_PER_ORACLE = 2**18
"""Query–key pairs per call of the oracle."""

JUDGED_PAIRS = 2**22
"""Query–key pairs judged in total; more if every batch element would get fewer than ``MIN_ROWS`` rows."""

MIN_COSTED_ROWS = 16
"""Number of rows below which the cost no longer falls, since reading the keys dominates."""

MIN_ROWS, MAX_ROWS = 4, 256
"""Smallest and largest number of rows judged per batch element, if all are too many."""


@dataclass(frozen=True)
class Part:
    """A part of a call: its arguments and results, and their place in the whole call.

    ``places`` holds, per batch axis of the whole call, the indices of this part. An axis that the part lacks has one
    index. Empty ``places`` mean that indices are those of the whole call. ``rows`` and ``heads`` are the judged ones,
    None for all. ``all_rows`` holds the arguments before they were restricted to ``rows``, if they were.
    """

    arguments: Arguments
    results: Results
    places: tuple[Numbers, ...]
    rows: Numbers | None = None
    heads: Numbers | None = None
    all_rows: Arguments | None = None

    def place(self, index: tuple[int, ...], row: int | None) -> tuple[int, ...]:
        """Return a number's index in the whole result; ``row`` is the row axis after the batch."""
        batch_axes = len(self.arguments.batch) if self.places else 0
        # Splitting removes leading batch axes; ``places`` keeps their one index.
        removed_axes = len(self.places) - batch_axes
        core = list(index[batch_axes:])
        if self.heads is not None:
            # Only results that begin with an axis of heads are split by heads: see `leading_head_sizes`.
            core[0] = int(self.heads[core[0]])
        if self.rows is not None and row is not None:
            core[row] = int(self.rows[core[row]])
        batch = [int(x[0]) for x in self.places[:removed_axes]]
        batch += [int(x[i]) for x, i in zip(self.places[removed_axes:], index, strict=False)]
        return (*batch, *core)


def pairs(arguments: Arguments, rows: int | None = None) -> int:
    """Return the query–key pairs of all batch elements, for ``rows`` queries each if set."""
    queries = max(arguments.queries or 1, 1) if rows is None else rows
    return prod(arguments.batch) * queries * max(arguments.keys_count or 1, 1)


def whole(arguments: Arguments, results: Results) -> Part:
    """Return the part that is the whole call."""
    return Part(arguments, results, tuple(np.arange(count) for count in arguments.batch))


def parts(subject: Subject, call: Part, rng: np.random.Generator) -> Iterator[Part]:
    """Yield parts that cover every batch element, with sampled rows if all are too many.

    Rows are sampled only if they are independent.
    """
    arguments = call.arguments
    heads = count_of_heads(arguments)
    row_limit = int(np.clip(JUDGED_PAIRS // max(pairs(arguments, 1) * heads, 1), MIN_ROWS, MAX_ROWS))
    too_large = pairs(arguments) * heads > JUDGED_PAIRS
    sampled = too_large and independent_rows(subject, arguments, row_limit, rng) is not None
    for part in _split(subject, call, row_limit if sampled else None):
        rows = independent_rows(subject, part.arguments, row_limit, rng) if sampled else None
        yield part if rows is None else with_rows(subject, part, rows)


def parts_of_rows(subject: Subject, call: Part, rows: Numbers | None) -> Iterator[Part]:
    """Yield parts that cover these rows of every batch element, all rows if None.

    The results of ``call`` hold these rows alone.
    """
    count = call.arguments.queries or 0 if rows is None else len(rows)
    for part in _split(subject, call, None if rows is None else count):
        cost = _cost(part.arguments, None if rows is None else count)
        if rows is None and (cost <= PAIRS_PER_ORACLE or not has_independent_rows(subject, part.arguments)):
            yield part
            continue
        for block in np.array_split(np.arange(count), -(-cost // PAIRS_PER_ORACLE) or 1):
            results = _results_at(subject, part, block)
            yield replace(_at_rows(subject, part, block if rows is None else rows[block]), results=results)


def _split(subject: Subject, call: Part, rows: int | None) -> Iterator[Part]:
    """Split a call into batch elements and heads that are affordable with ``rows`` rows each."""
    for element in split_elements(call, rows):
        heads = count_of_heads(call.arguments)
        # A slice of interleaved heads is no call with fewer key heads.
        indivisible = subject.semantics.head_groups == "interleaved"
        max_heads = heads if indivisible else PAIRS_PER_ORACLE * heads / max(_cost(element.arguments, rows), 1)
        yield from split_heads(subject.operation, element, max_heads)


def extent(call: Part, judged_parts: list[Part]) -> str:
    """Return how many numbers of a call its parts hold, as text."""
    if not any(x.size for x in call.results.values()):
        return "nothing, because the result is empty"
    rows = judged_parts[-1].rows
    if rows is None:
        return "every number"
    elements, queries = prod(call.arguments.batch), call.arguments.queries
    heads = count_of_heads(call.arguments) if leading_head_sizes(call.arguments.operation) else 1
    groups = [f"of each of {heads:,} heads"] if heads > 1 else []
    groups += [f"of each of {elements:,} elements of the batch"] if elements > 1 else []
    return " ".join([f"{len(rows):,} of {queries:,} rows", *groups]) + ", with all keys"


def split_elements(part: Part, rows: int | None = None) -> Iterator[Part]:
    """Split a part into groups of batch elements that are affordable with ``rows`` rows each."""
    batch = part.arguments.batch
    cost = _cost(part.arguments, rows)
    if not batch or cost <= PAIRS_PER_ORACLE:
        yield part
        return
    count = PAIRS_PER_ORACLE * batch[0] // cost
    if not count:
        for i in range(batch[0]):
            yield from split_elements(_batch_slice(part, i), rows)
        return
    for start in range(0, batch[0], count):
        yield _batch_slice(part, slice(start, start + count))


def split_heads(operation: Operation, part: Part, max_heads: float) -> Iterator[Part]:
    """Split a part into parts of at most ``max_heads`` heads, but at least one."""
    heads = count_of_heads(part.arguments)
    size = next((size for size in leading_head_sizes(operation) if part.arguments.size(size) > 1), None)
    if heads <= max_heads or size is None:
        yield part
        return
    count = part.arguments.size(size)
    step = max(int(max_heads * count // heads), 1)
    for start in range(0, count, step):
        yield from split_heads(operation, _with_heads(operation, part, size, slice(start, start + step)), max_heads)


def _with_heads(operation: Operation, part: Part, size: str, chosen: slice) -> Part:
    """Return the part with these indices along ``size``: key heads, or query heads per key head."""

    def change(x: Numbers, axis: int) -> Numbers:
        return x[(slice(None),) * axis + (chosen,)]

    sizes, binding = leading_head_sizes(operation), part.arguments.binding
    results = {leaf.path: along(part.results[leaf.path], leaf, size, binding, change) for leaf in operation.outputs}
    heads = np.arange(count_of_heads(part.arguments)) if part.heads is None else part.heads
    grid = heads.reshape([part.arguments.size(name) for name in sizes])
    heads = change(grid, sizes.index(size)).ravel()
    return replace(part, arguments=part.arguments.along(size, change), results=results, heads=heads)


def _cost(arguments: Arguments, rows: int | None) -> int:
    """Return the query–key pairs of all heads and batch elements, for ``rows`` rows if set."""
    row_count = arguments.queries or 1 if rows is None else rows
    # Without an axis of keys, as in a paged cache, each row may read as many keys as ``lengths`` allow.
    cached = 1 if arguments.keys_count else max(map(arguments.size, arguments.operation.lengths.values()), default=1)
    return pairs(arguments, max(row_count, MIN_COSTED_ROWS)) * count_of_heads(arguments) * max(cached, 1)


def _batch_slice(part: Part, index: int | slice) -> Part:
    """Return the part at ``index`` of its first batch axis, which a single index removes."""
    arguments, batch = part.arguments, part.arguments.batch
    arrays = {leaf.path: _at(x, index) if x.ndim - len(leaf.core) == len(batch) else x for leaf, x in arguments.batched}
    removed = len(part.places) - len(batch)
    remaining = np.atleast_1d(part.places[removed][index])
    places = (*part.places[:removed], remaining, *part.places[removed + 1 :])
    return Part(arguments.replaced(arrays), {path: x[index] for path, x in part.results.items()}, places)


def _at(x: Numbers, index: int | slice) -> Numbers:
    """Return an array at ``index`` of its first axis; an axis of size 1 is shared by all indices."""
    if x.shape[0] == 1:
        return x if isinstance(index, slice) else np.asarray(x[0])
    return np.asarray(x[index])


def with_rows(subject: Subject, part: Part, rows: Numbers) -> Part:
    """Return a part restricted to these rows, which keep their positions."""
    return replace(_at_rows(subject, part, rows), results=_results_at(subject, part, rows))


def _at_rows(subject: Subject, part: Part, rows: Numbers) -> Part:
    return replace(part, arguments=at_rows(subject, part.arguments, rows), rows=rows, all_rows=part.arguments)


def _results_at(subject: Subject, part: Part, rows: Numbers) -> Results:
    operation, binding = subject.operation, part.arguments.binding
    size, change = operation.query_size or "", take(rows)
    return {leaf.path: along(part.results[leaf.path], leaf, size, binding, change) for leaf in operation.outputs}


def separable(arguments: Arguments) -> bool:
    """Return True if each batch element's gradients depend only on that element."""
    return all(leaf.batched and x.shape[: x.ndim - len(leaf.core)] == arguments.batch for leaf, x in arguments.floats)


def elements_with_gradients(
    part: Part, gradients: Mapping[str, Numbers], rows: int | None = None
) -> Iterator[tuple[Part, Results]]:
    """Yield the parts of :func:`split_elements`, each with its gradients."""
    # Gradients join the results under other names, so that they are split alike.
    joined = Part(part.arguments, part.results | {f"d {path}": g for path, g in gradients.items()}, part.places)
    for element in split_elements(joined, rows):
        yield element, {path: element.results[f"d {path}"] for path in gradients}


def count_of_heads(arguments: Arguments) -> int:
    """Return the number of heads, 1 without any; the largest number if an operation has several attentions."""
    axes = [(arguments.operation.axis(without_indices(size)), count) for size, count in arguments.sizes.items()]
    heads = max((count for kind, count in axes if Axis.HEAD in kind), default=1)
    return heads * prod(count for kind, count in axes if Axis.GROUP in kind)


def leading_head_sizes(operation: Operation) -> tuple[str, ...]:
    """Return the sizes whose product is the leading head axis of every result; else empty.

    `grouped_query_attention` has (heads_k, group); `multi_head_attention` has none, since it concatenates heads.
    """
    head_sizes = {*operation.sizes_of(Axis.HEAD), *operation.sizes_of(Axis.GROUP)}
    leading = {leaf.core[0].factors if leaf.core else () for leaf in operation.outputs}
    return next(iter(leading)) if len(leading) == 1 and {*next(iter(leading))} <= head_sizes else ()


# Some rows of a part --------------------------------------------------------------------------------------------------


def independent_rows(subject: Subject, arguments: Arguments, count: int, rng: np.random.Generator) -> Numbers | None:
    """Return the rows to judge; None for all, if rows are few or depend on other queries.

    Slopes (ALiBi) depend on positions, but rows may be sampled, since :func:`at_rows` writes them into the bias.
    """
    slopes = subject.operation.part(ScoreEffect.SLOPES)
    return rows_to_judge(subject, arguments.replaced({slopes: None}) if slopes else arguments, count, rng)


def has_independent_rows(subject: Subject, arguments: Arguments) -> bool:
    """Return True if each row of the result depends on its own query alone."""
    return independent_rows(subject, arguments, 0, np.random.default_rng(0)) is not None


def at_rows(subject: Subject, arguments: Arguments, rows: Numbers) -> Arguments:
    """Return the arguments of these rows, with positions written into mask and bias.

    The mask replaces options such as a causal flag, the bias replaces slopes, which both depend on positions.
    """
    operation, semantics = subject.operation, subject.semantics
    chosen = with_explicit_mask(arguments, rows, semantics=semantics)
    slopes, bias = (operation.part(part) for part in (ScoreEffect.SLOPES, ScoreEffect.BIAS))
    if not slopes or arguments[slopes] is None:
        return chosen
    wide_dtype = oracle_dtype(subject.precision.dtype)
    of_heads = arguments.array(slopes).astype(wide_dtype)[:, None, None]
    slope_bias = -of_heads * penalised_distances(arguments, rows, semantics=semantics)
    total_bias = slope_bias if chosen[bias] is None else chosen.array(bias).astype(wide_dtype) + slope_bias
    # Slopes of 0 remain, so that the budget still covers the rounding of their subtraction.
    return chosen.replaced({bias: total_bias, slopes: np.zeros_like(arguments.array(slopes))})


def with_explicit_positions(subject: Subject, arguments: Arguments) -> Arguments:
    """Write all positions into mask and bias, so that keys can be removed or added; not in self-attention."""
    operation = arguments.operation
    positional = [*mask_options(operation), *filter(None, [operation.part(ScoreEffect.SLOPES)])]
    if operation.attends_to_itself or all(arguments[path] is operation.defaults[path] for path in positional):
        return arguments
    return at_rows(subject, arguments, np.arange(arguments.queries or 0))
