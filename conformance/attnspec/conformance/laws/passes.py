"""Checks of the laws of backward passes: their cotangents and their memory."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.corners import stepwise
from attnspec.conformance.inputs.dtypes import NARROW, is_float
from attnspec.conformance.inputs.layouts import (
    CANNOT,
    LAYOUTS,
    Convert,
    Layout,
    every_second,
    heads_behind,
    last_exchanged,
    packed,
    padded_positions,
    padded_rows,
    repeated,
    shifted,
)
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.left_out import demand_layouts
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.judging.violation import Reason
from attnspec.conformance.laws.common import normal_like, sample
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.conformance.laws.lessons import (
    TILE,
    Lesson,
    fits,
    lesson_of,
    lessons_of,
    long_lesson_of,
    numbers_of,
    overwritten,
    restricted_lesson_of,
)
from attnspec.conformance.laws.shared_batches import Index
from attnspec.spec.contract.tree import Leaf, flatten
from attnspec.spec.laws import operation
from attnspec.spec.laws import training as law

LARGE, TINY = 2.0**11, 2.0**-50
"""Factors of cotangents: of loss scaling, and of the mean over many tokens."""

WAYS: tuple[Layout, ...] = (every_second, last_exchanged, padded_rows, packed, padded_positions, heads_behind, shifted)
"""Layouts of a cotangent, beside those with stride 0."""

FEW_WAYS: tuple[Layout, ...] = (last_exchanged, packed, heads_behind)
"""Layouts of arguments in short profiles."""

# Cotangents -----------------------------------------------------------------------------------------------------------


@checks(law.STRIDES, once=True, at_leading=True)
def cotangent_strides(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass a cotangent in every layout, with equal rows of stride 0, and constant."""
    lesson = lesson_of(subject, arguments)
    if lesson is None:
        return False
    for way in (*WAYS, _one_row):
        _laid_out(subject, lesson, way)
    for other in (restricted_lesson_of(subject, arguments), long_lesson_of(subject, arguments)):
        if other is not None:
            _laid_out(subject, other, _one_row)
    _of_many_rows(subject, rng)
    if subject.dtype not in NARROW:
        for summed in _summed(subject, arguments):
            _laid_out(subject, summed, _one_number)
    return True


def _summed(subject: Subject, arguments: Arguments) -> Iterator[Lesson]:
    """Lessons for the sum of results (cotangents of ones), with wide vectors where possible."""
    wide = restricted_lesson_of(subject, arguments)
    chosen = [lesson_of(subject, arguments) if wide is None else wide]
    if wide is not None and (subject.effort.slow or subject.operation.linear):
        chosen.append(long_lesson_of(subject, arguments))
    for lesson in chosen:
        if lesson is not None:
            ones = {path: np.ones_like(x) for path, x in lesson.cotangents.items()}
            yield Lesson(lesson.arguments, ones, subject.gradients(lesson.arguments, ones))


def _of_many_rows(subject: Subject, rng: np.random.Generator) -> None:
    """Compare gradients for more queries than a tile, with the cotangent's heads behind positions."""
    if subject.operation.counts and not subject.effort.slow:
        return
    given = sample(subject, rng, (2,)[: subject.limits.max_batch_dims], queries=TILE + 3, keys=3, heads=2)
    if subject.operation.asking is None or subject.operation.attends_to_itself or (given.queries or 0) <= TILE:
        return
    cotangents = subject.cotangents(given, rng)
    moved = {path: heads_behind(x, subject.convert) if x.ndim else subject.convert(x) for path, x in cotangents.items()}
    cotangent = subject.like_result(moved, given, convert=False)
    inputs = subject.converted(given)
    found = subject.gradients_of(lambda: subject.backend.vjp(subject.operation.name, inputs, cotangent), given)
    what = f"of a cotangent of {given.queries} rows laid out as heads behind,"
    gradients_match(subject, found, subject.gradients(given, cotangents), given, what)


def _laid_out(subject: Subject, lesson: Lesson, way: Layout) -> None:
    demand_layouts(subject.limits)
    cotangents = lesson.cotangents
    try:
        moved = {path: way(x, subject.convert) if x.ndim else subject.convert(x) for path, x in cotangents.items()}
    except CANNOT:
        return
    cotangent = subject.like_result(moved, lesson.arguments, convert=False)
    what = f"of a cotangent laid out as {_named(way)},"
    _compare(subject, lesson, subject.converted(lesson.arguments), cotangent, what)


def _compare(subject: Subject, lesson: Lesson, inputs: Mapping[str, Any], cotangent: Any, what: str) -> None:
    """Demand the gradients that the lesson expects, of a call with backend arrays."""
    given = lesson.arguments
    found = subject.gradients_of(lambda: subject.backend.vjp(subject.operation.name, inputs, cotangent), given)
    gradients_match(subject, found, lesson.expected, given, what)


def _named(way: Layout) -> str:
    return way.__name__.strip("_").replace("_", " ")


def _one_row(x: Numbers, convert: Convert) -> Any:
    """The first row in place of all, with stride 0."""
    return repeated(x, tuple(range(x.ndim - 1)), convert)


def _one_number(x: Numbers, convert: Convert) -> Any:
    """The first number in place of all, with stride 0."""
    return repeated(x, tuple(range(x.ndim)), convert)


@checks(law.COTANGENTS, once=True, at_leading=True)
def cotangent_scale(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Multiply the cotangent by a large number, by a tiny one and by 0."""
    lesson = lesson_of(subject, arguments)
    if lesson is None:
        return False
    large = LARGE
    while large > 1 and not fits(subject, lesson.expected, 16 * large):
        large /= 2
    for scale, what in ((large, "large"), (TINY, "tiny"), (0.0, "0")):
        if scale == TINY and subject.dtype == "float16":
            continue  # float16 cannot hold them, which is why losses are scaled
        cotangents = {path: x * x.dtype.type(scale) for path, x in lesson.cotangents.items()}
        found = subject.vjp(lesson.arguments, cotangents)
        if scale:
            gradients_match(subject, found, lesson.expected, lesson.arguments, f"of a {what} cotangent,", scale)
            continue
        for path, g in found.items():
            message = f"of a cotangent that is 0, the gradient of {path} is not 0"
            subject.holds(not np.any(g != 0), message, lesson.arguments, got=g)
    return True


@checks(law.COTANGENTS, once=True, at_leading=True, governs=law.several_results)
def parts(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass the cotangent of one result after another, and None for all others."""
    lesson = lesson_of(subject, arguments)
    if lesson is None:
        return False
    for path, cotangent in lesson.cotangents.items():
        alone = {path: cotangent}
        expected = subject.gradients(lesson.arguments, alone)
        found = subject.vjp(lesson.arguments, alone)
        gradients_match(subject, found, expected, lesson.arguments, f"of the result {path} alone,")
    return True


@checks(law.BROADCAST_SUM, once=True, at_leading=True)
def broadcast_sum(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare gradients of arguments that broadcast along some or all batch dimensions.

    The first argument lacks the batch, then all others; then each has one dimension of it. Optional arrays broadcast
    along one axis after another, then along all. Short profiles skip single dimensions for models and steps.
    """
    if not subject.limits.broadcasting or not subject.limits.max_batch_dims:
        return False
    operation = subject.operation
    brief = bool(operation.counts) or any(stepwise(size, operation) for size in operation.sizes)
    batch = (2,) if brief and not subject.effort.slow else (2, 3)[-subject.limits.max_batch_dims :]
    given = sample(subject, rng, batch, queries=3, keys=5, whole=True).without_masks()
    lengths = {path: size for path, size in operation.lengths.items() if given[path] is not None}
    given = given.replaced({path: np.full_like(given[path], given.size(size)) for path, size in lengths.items()})
    none, some, others = (0,) * len(batch), (slice(1),), (slice(None), slice(1))
    ways: list[tuple[Index, Index]] = [(none, ()), ((), none)]
    if len(batch) > 1:
        ways += [(some, others), (others, some)]
    first = next(leaf.path for leaf, _ in given.floats if leaf.batched)
    for i, (of_first, of_others) in enumerate(ways):
        changes = {}
        for leaf, x in given.floats:
            way = () if not leaf.batched else of_first if leaf.path == first else of_others
            changes[leaf.path] = np.array(_first_of_axes(x, leaf, i)[way])
        shared = given.replaced(changes)
        cotangents = subject.cotangents(shared, rng)
        expected = subject.gradients(shared, cotangents)
        if not fits(subject, expected):
            return False
        shapes = " and ".join(f"{path} {x.shape}" for path, x in changes.items() if x.shape != given[path].shape)
        gradients_match(subject, subject.vjp(shared, cotangents), expected, shared, f"with {shapes},")
    return True


def _first_of_axes(x: Numbers, leaf: Leaf, which: int) -> Numbers:
    """The array cut to size 1 along broadcastable axis number ``which``, or along all."""
    axes = [i - len(leaf.core) for i, d in enumerate(leaf.core) if d.broadcast]
    for axis in axes[which : which + 1] or axes:
        x = np.take(x, [0], axis=axis)
    return x


@checks(law.STRIDES, once=True, at_leading=True)
def strided_inputs(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare gradients of arguments in some layouts, in long profiles in all."""
    demand_layouts(subject.limits)
    ways = LAYOUTS if subject.effort.slow else FEW_WAYS
    tried = False
    lessons = [lesson for _, lesson in lessons_of(subject, arguments)]
    for lesson in lessons if subject.effort.slow else lessons[-2:]:
        cotangent = subject.like_result(lesson.cotangents, lesson.arguments)
        for way in ways:
            try:
                inputs = lesson.arguments.passed_as(partial(_moved, subject, lesson.arguments, way))
            except CANNOT:
                continue
            _compare(subject, lesson, inputs, cotangent, f"of arguments laid out as {_named(way)},")
            tried = True
    return tried


def _moved(subject: Subject, given: Arguments, way: Layout, path: str) -> Any:
    x = given[path]
    return way(x, subject.convert) if isinstance(x, np.ndarray) and x.ndim else subject.convert(x)


# Memory ---------------------------------------------------------------------------------------------------------------


class _Pass(NamedTuple):
    """A backward pass: inputs, cotangents and gradients of the backend, and gradients in NumPy."""

    given: dict[str, Any]
    cotangents: dict[str, Any]
    gradients: Mapping[str, Any]
    numbers: Results


def _pass(subject: Subject, arguments: Arguments, cotangents: Results) -> _Pass:
    inputs = subject.converted(arguments)
    cotangent = subject.like_result(cotangents, arguments)
    raw: dict[str, Any] = {}

    def call() -> dict[str, Any]:
        raw.update(subject.backend.vjp(subject.operation.name, inputs, cotangent))
        return raw

    found = subject.gradients_of(call, arguments)
    weights = {f"the cotangent {path}".strip(): c for path, c in flatten(cotangent).items() if c is not None}
    return _Pass({path: x for path, x in flatten(inputs).items() if path in arguments.arrays}, weights, raw, found)


def _snapshot(subject: Subject, arrays: Mapping[str, Any]) -> Results:
    return {path: np.array(subject.numbers(x)) for path, x in arrays.items()}


def _unchanged(subject: Subject, arrays: Mapping[str, Any], before: Results, arguments: Arguments, what: str) -> None:
    for path, x in _snapshot(subject, arrays).items():
        same = np.array_equal(x, before[path], equal_nan=is_float(x))
        message = f"{what} {path}"
        subject.holds(same, message, arguments, reason=Reason.MUTATED_INPUT, expected=before[path], got=x)


@checks(law.OWN_MEMORY, once=True, at_leading=True)
def no_mutation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare inputs and cotangents before and after a backward pass."""
    lesson = lesson_of(subject, arguments)
    if lesson is None:
        return False
    given = lesson.arguments
    made = _pass(subject, given, lesson.cotangents)
    before = dict(zip(made.cotangents, lesson.cotangents.values(), strict=True))
    _unchanged(subject, made.given, given.arrays, given, "the backward pass wrote to")
    _unchanged(subject, made.cotangents, before, given, "the backward pass wrote to")
    return True


@checks(law.OWN_MEMORY, once=True, at_leading=True)
def own_memory(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Write to each gradient in turn, and compare all other arrays."""
    lesson = lesson_of(subject, arguments)
    if lesson is None:
        return False
    made = _pass(subject, lesson.arguments, lesson.cotangents)
    written = False
    for path, g in made.gradients.items():
        others = {f"the gradient of {other}": x for other, x in made.gradients.items() if other != path}
        arrays = {**made.given, **made.cotangents, **others}
        before = _snapshot(subject, arrays)
        if overwritten(g):
            written = True
            what = f"writing to the gradient of {path} changes"
            _unchanged(subject, arrays, before, lesson.arguments, what)
    return written


@checks(law.NO_MEMORY, once=True, at_leading=True)
def no_memory(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Make three backward passes, the second of other numbers; earlier arrays must stay."""
    lesson = lesson_of(subject, arguments)
    if lesson is None:
        return False
    given = lesson.arguments
    other = normal_like(subject, given, rng) or given
    result = subject.demanded(subject.converted(given))
    of_result = numbers_of(subject, result)
    first = _pass(subject, given, lesson.cotangents)
    before = _snapshot(subject, first.gradients)
    _pass(subject, other, subject.cotangents(other, rng))
    _unchanged(subject, first.gradients, before, given, "a later backward pass changes the earlier gradient of")
    after = numbers_of(subject, result)
    for path, x in of_result.items():
        same = np.array_equal(after[path], x, equal_nan=is_float(x))
        subject.holds(same, "a backward pass changes an earlier result", given, expected=x, got=after[path])
    third = _pass(subject, given, lesson.cotangents).numbers
    gradients_match(subject, third, lesson.expected, given, "of the same call, made again after another,")
    return True


@checks(operation.GRADIENT, once=True, at_leading=True)
def dtype(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the dtypes of gradients with those of their arguments."""
    lesson = lesson_of(subject, arguments)
    if lesson is None:
        return False
    found = subject.vjp(lesson.arguments, lesson.cotangents)
    for leaf, x in lesson.arguments.floats:
        got = found[leaf.path].dtype.name
        message = f"the gradient of {leaf.path} has dtype {got}, expected {x.dtype.name}"
        subject.holds(got == x.dtype.name, message, lesson.arguments, reason=Reason.DTYPE)
    return True
