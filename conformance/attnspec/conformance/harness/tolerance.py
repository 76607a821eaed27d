"""``tolerance``: the right result of an operation, and the allowed error of every number."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np

from attnspec.conformance.harness import reading
from attnspec.conformance.harness.arrays import PROTOCOLS, converter_to_arrays_like
from attnspec.conformance.harness.backward import EVERY_GRADIENT, MAX_PAIRS, expected_gradients, pairs_with_gradients
from attnspec.conformance.harness.ensemble import Ensemble
from attnspec.conformance.harness.expected import Expected, expected, on_all_cores
from attnspec.conformance.harness.hidden_defects import hidden_defects
from attnspec.conformance.harness.parts import (
    Part,
    at_rows,
    count_of_heads,
    extent,
    has_independent_rows,
    independent_rows,
    pairs,
    parts_of_rows,
    whole,
)
from attnspec.conformance.harness.record import Record, overflow
from attnspec.conformance.harness.verdict import extent_text
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import numpy_dtype
from attnspec.conformance.judging.subject import Subject
from attnspec.spec.contract.tree import Leaf, flatten

PATTERNED_GROWTH = 1.25
"""Factor by which partial sums enlarge a budget, from which its sums have a pattern.

Sums of terms with random signs reach it in fewer than 1 of 1,000 numbers.
"""

PATTERNED_SHARE = 0.02
"""Share of numbers with a pattern from which a call has one."""

SAMPLED_ROWS = 2
"""Rows of every batch element whose sums are searched for a pattern."""

SAMPLED_PAIRS = 2**14
"""Query–key pairs in these rows from which only ``SAMPLED_ELEMENTS`` batch elements are searched."""

SAMPLED_ELEMENTS = 4
"""Number of searched batch elements of a large call."""

Pair = tuple[Any, Any]
"""An array of expected numbers, and one of allowed errors."""


@dataclass(frozen=True)
class Tolerance:
    """Expected numbers and their allowed errors, which it unpacks to: ``expected, allowed = tolerance(…)``.

    Printed, it says what is judged, and which known defects these inputs hide.

    Attributes:
        expected: the right result, an array or the operation's tree of arrays; NaN where the result must be NaN, and
            where the declared choices leave a number open.
        allowed: the largest error of a correct implementation, in the same structure; infinite for open numbers.
        rows: indices of the rows in ``expected``, if some were chosen; else None.
        gradients: pairs of expected numbers and allowed errors by argument path, if a cotangent was passed.
        judged: how many numbers there are, as text.
        span: the smallest and the largest finite allowed error.
        untold: share of the numbers whose allowed errors are too wide to tell right from wrong.
        left_open: share of the numbers that the declared choices leave open.
        outside: reason why an error proves nothing, such as an intermediate that may overflow; else empty.
        hidden: function that computes ``cannot_see``.
    """

    expected: Any
    allowed: Any
    operation: str
    dtype: str
    judged: str
    span: tuple[float, float]
    rows: Numbers | None = None
    gradients: Mapping[str, Pair] = field(default_factory=dict, repr=False)
    untold: float = 0.0
    left_open: float = 0.0
    outside: str = ""
    hidden: Callable[[], tuple[str, ...]] = field(default=tuple, repr=False, compare=False)

    def __iter__(self) -> Iterator[Any]:
        yield self.expected
        yield self.allowed

    @cached_property
    def cannot_see(self) -> tuple[str, ...]:
        """Known defects whose results would be within the allowed errors; computed on access."""
        return self.hidden()

    def __str__(self) -> str:
        lowest, highest = self.span
        lines = [f"{self.operation} in {self.dtype}: allowed errors from {lowest:.3g} to {highest:.3g}"]
        lines += [f"cannot be judged: {self.outside}"] if self.outside else []
        lines += [f"judged: {extent_text(self.judged, self.untold, self.left_open)}"]
        lines += [f"these inputs would hide: {', '.join(self.cannot_see)}"] if self.cannot_see else []
        return "\n".join(lines)

    __repr__ = __str__


def tolerance(
    operation: str,
    *arguments: Any,
    precision: str | Mapping[str, Any] | None = None,
    semantics: Mapping[str, Any] | None = None,
    cotangent: Any = None,
    rows: int | Sequence[int] | None = None,
    seed: int = 0,
    **options: Any,
) -> Tolerance:
    """Return the right result for these arguments, and the allowed error of every number.

    ``expected, allowed = tolerance(…)`` unpacks to arrays, or to trees of arrays, in the framework and on the device of
    the first array: in float64, or in float32 where JAX or the device has no float64. A result is right where
    ``abs(result - expected) <= allowed``. ``arguments``, ``precision`` and ``semantics`` are those of ``judge``, which
    compares with the same ``expected``. Its budget of a wrong number follows partial sums.

    ``rows`` are indices of rows, or a number of rows to sample by ``seed``. Only these are computed, with all keys, and
    ``Tolerance.rows`` holds their indices. With a ``cotangent``, ``Tolerance.gradients`` maps argument paths to pairs.

    Errors: those of ``judge``; ``ValueError`` for rows that depend on each other, and for too many gradients.
    """
    described = reading.operation_named(operation, "tolerance")
    if rows is not None and "rows" in described.call.names:
        # `interpolate` has an argument of this name.
        rows, options = None, {**options, "rows": rows}
    inputs = reading.arguments_of(described, arguments, options)
    dtype, inputs = reading.in_one_dtype(described, inputs)
    subject = reading.subject_of(described, dtype, precision, semantics, inputs)
    rng = reading.generator(seed, "tolerance")
    float_dtype, convert = converter_to_arrays_like(_first_array([*arguments, *options.values()]))
    chosen = None if rows is None else _chosen_rows(subject, inputs, rows, rng)
    call = whole(inputs, {leaf.path: _places(inputs, leaf, chosen) for leaf in subject.operation.outputs})
    record = Record(subject)
    computed = _compute(record, call, chosen, rng)
    arrays = {
        path: _pair(x.shape, [p.results[path] for p, _ in computed], [x[path] for _, x in computed], float_dtype)
        for path, x in call.results.items()
    }
    record.judged.append(extent(call, [part for part, _ in computed]))
    gradients: dict[str, Pair] = {}
    if cotangent is not None:
        cotangents = reading.cotangent_of(described, cotangent, inputs, dtype)
        gradients = _gradients(record, whole(inputs, cotangents), float_dtype)
    verdict = record.verdict()
    errors = np.concatenate([x[np.isfinite(x)] for _, x in arrays.values()])
    expected_tree, allowed_tree = (
        subject.like_result({path: convert(pair[i]) for path, pair in arrays.items()}, inputs, convert=False)
        for i in range(2)
    )
    return Tolerance(
        expected=expected_tree,
        allowed=allowed_tree,
        operation=operation,
        dtype=dtype,
        judged=verdict.judged,
        span=(float(errors.min(initial=np.inf)), float(errors.max(initial=0.0))),
        rows=chosen,
        gradients={path: (convert(value), convert(allowed)) for path, (value, allowed) in gradients.items()},
        untold=verdict.untold,
        left_open=verdict.left_open,
        outside=verdict.outside,
        hidden=partial(hidden_defects, Ensemble(subject, inputs, [part for part, _ in computed]), together=False),
    )


def _first_array(values: Sequence[Any]) -> Any:
    arrays = (x for value in values for x in flatten(value).values())
    return next((x for x in arrays if any(hasattr(x, protocol) for protocol in PROTOCOLS)), None)


def _chosen_rows(subject: Subject, arguments: Arguments, rows: Any, rng: np.random.Generator) -> Numbers:
    """Return the indices of the rows; ``ValueError`` for rows that depend on each other or do not exist."""
    title, count = f"{subject.operation.name}: rows", arguments.queries or 0
    if not has_independent_rows(subject, arguments):
        raise ValueError(f"{title}: expected None, because rows of this operation depend on each other; got {rows!r}")
    if isinstance(rows, int | np.integer) and not isinstance(rows, bool) and rows > 0:
        sampled = independent_rows(subject, arguments, int(rows), rng)
        return np.arange(count) if sampled is None else sampled
    chosen = np.asarray(rows)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or not ((chosen >= 0) & (chosen < count)).all():
        raise ValueError(f"{title}: expected a number of rows, or indices in 0..{count - 1}; got {rows!r}")
    return chosen


def _places(arguments: Arguments, leaf: Leaf, rows: Numbers | None) -> Numbers:
    """Return the indices of a result's numbers, in its shape; ``rows`` restricts them."""
    shape = list(arguments.binding.shape(leaf))
    if rows is not None:
        for axis in leaf.axes(arguments.operation.query_size or ""):
            shape[axis] = len(rows)
    return np.arange(prod(shape)).reshape(shape)


def _compute(
    record: Record, call: Part, rows: Numbers | None, rng: np.random.Generator
) -> list[tuple[Part, dict[str, Expected]]]:
    """Return the parts of a call with their expected results, compared with themselves: the record counts numbers."""
    subject = record.subject
    all_parts = list(parts_of_rows(subject, call, rows))
    for part in all_parts:
        # For operations without float arguments, the dtype of the result is read from here.
        part.arguments.memo["results"] = {
            x: np.zeros(i.shape, numpy_dtype(subject.dtype)) for x, i in part.results.items()
        }
    with on_all_cores() as map_parts:
        subject.ordered = _has_patterns(subject, call.arguments, rng, map_parts)
        computed = list(zip(all_parts, map_parts(partial(expected, subject), all_parts), strict=True))
    for part, right in computed:
        for path, x in right.items():
            record.compare(x.value, x, part, path)
        record.outside = record.outside or overflow(subject, part.arguments)
    return computed


def _has_patterns(
    subject: Subject, arguments: Arguments, rng: np.random.Generator, map_parts: Callable[..., Iterator[Any]]
) -> bool:
    """Return True if budgets from partial sums exceed the usual ones.

    The usual ones assume terms with random signs. Both are compared in a sample of rows, since partial sums take many
    times as long.
    """
    if not subject.operation.float_result or not all(arguments.batch):
        return False
    searched = [arguments]
    if pairs(arguments, SAMPLED_ROWS) * count_of_heads(arguments) > SAMPLED_PAIRS and arguments.batch:
        indices = rng.integers(arguments.batch, size=(SAMPLED_ELEMENTS, len(arguments.batch)))
        searched = [arguments.element(tuple(map(int, index))) for index in indices]
    samples = []
    for element in searched:
        rows = independent_rows(subject, element, SAMPLED_ROWS, rng)
        if rows is None:
            # There are few rows, or each depends on others.
            return True
        samples.append(at_rows(subject, element, rows))
    return any(map_parts(partial(_has_pattern, subject, subject.by_partial_sums()), samples))


def _has_pattern(subject: Subject, ordered: Subject, sample: Arguments) -> bool:
    usual, by_order = subject.oracles(sample), ordered.oracles(sample)
    exceeding = [x.budget > PATTERNED_GROWTH * usual[path].budget for path, x in by_order.items()]
    return any(x.size and x.mean() > PATTERNED_SHARE for x in exceeding)


def _gradients(record: Record, call: Part, dtype: np.dtype[Any]) -> dict[str, Pair]:
    """Return the pairs of all gradients; ``call`` holds the cotangents in place of results."""
    arguments, subject = call.arguments, record.subject
    count = pairs_with_gradients(arguments)
    if count > MAX_PAIRS:
        raise ValueError(
            f"{subject.operation.name}: cotangent: expected at most {MAX_PAIRS:,} query–key pairs; got {count:,}. "
            "judge takes more: it judges samples of these gradients"
        )
    places = {leaf.path: np.arange(x.size).reshape(x.shape) for leaf, x in arguments.floats}
    computed = list(expected_gradients(subject, call, places))
    for part, _, right in computed:
        for path, x in right.items():
            record.compare(x.value, x, part, f"the gradient of {path}")
    record.judged.append(EVERY_GRADIENT)
    return {
        path: _pair(x.shape, [p[path] for _, p, _ in computed], [right[path] for _, _, right in computed], dtype)
        for path, x in places.items()
    }


def _pair(shape: tuple[int, ...], places: Sequence[Numbers], parts: Sequence[Expected], dtype: np.dtype[Any]) -> Pair:
    """Return expected numbers and allowed errors of a whole array, from those of its parts."""
    values, allowed = np.zeros(shape, parts[0].value.dtype if parts else dtype), np.zeros(shape)
    for indices, part in zip(places, parts, strict=True):
        values.flat[indices] = part.value
        allowed.flat[indices] = part.budget if part.nan is None else np.where(part.nan, 0.0, part.budget)
    if values.dtype.kind in "biu":
        return values, allowed
    with np.errstate(all="ignore"):
        rounded = values.astype(dtype)
        # The expected number was rounded, too.
        rounding = np.where(np.isfinite(values), np.abs(values - rounded.astype(values.dtype)), 0).astype(np.float64)
        open_places = np.isnan(values) & (allowed > 0)
        # A positive number, so that a caller may divide by it.
        least = np.maximum(allowed + rounding, float(np.finfo(dtype).tiny)).astype(dtype)
        return rounded, np.where(open_places, np.inf, np.nextafter(least, dtype.type(np.inf))).astype(dtype)
