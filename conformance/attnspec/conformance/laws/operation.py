"""Checks of the laws that govern every operation."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, element, take
from attnspec.conformance.inputs.attendance import attendable, mask_shape
from attnspec.conformance.inputs.corners import option_levels
from attnspec.conformance.inputs.dtypes import is_float
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.foreign_calls import Raised
from attnspec.conformance.judging.left_out import demand_declared
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.judging.violation import LeftOut, Reason, Violation
from attnspec.conformance.laws.common import (
    doubles,
    in_full_batches,
    live_rows,
    normal_like,
    sample,
    twice,
    wide,
)
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.conformance.laws.lessons import masks_of, overwritten
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.precision import DEFAULTS
from attnspec.spec.contract.shapes import ShapeError, bind
from attnspec.spec.contract.tree import Kind, Leaf, flatten, mapped
from attnspec.spec.laws import operation as law

FEW_VALUES = 2
"""Most values of options tried on one example."""


@checks(law.ORACLE)
def oracle(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the result with the reference, element by element."""
    subject.follows_formula(arguments)
    return True


@checks(law.SHAPE)
def shape(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Call the backend: the subject checks the shapes of every result."""
    subject.results(arguments)
    return True


@checks(law.DTYPE)
def dtype(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare names of dtypes; operations without float inputs may return any float dtype."""
    results = subject.results(arguments)
    for leaf in subject.operation.outputs:
        got = results[leaf.path].dtype
        message = f"{subject.titled(leaf)} has dtype {got.name}, expected {_expected_dtype(subject, leaf)}"
        fits = got.kind in "iu" if leaf.kind is Kind.INT else got.name in _expected_dtype(subject, leaf).split(" or ")
        subject.holds(fits, message, arguments, reason=Reason.DTYPE)
    return True


def _expected_dtype(subject: Subject, leaf: Leaf) -> str:
    if leaf.kind is not Kind.FLOAT:
        return "bool" if leaf.kind is Kind.BOOL else "integers"
    return subject.dtype if subject.operation.floats else " or ".join(DEFAULTS)


@checks(law.BATCH_INVARIANCE, governs=law.batched)
def batch_invariance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare one element of the batch with the same element computed alone."""
    if not arguments.batch or 0 in arguments.batch:
        return False
    index = tuple(int(rng.integers(size)) for size in arguments.batch)
    whole = _element(doubles(subject.results(arguments)), subject, index)
    budgets = twice(_element(subject.budgets(arguments), subject, index))
    alone = subject.results(arguments.element(index))
    subject.all_match(alone, whole, budgets, arguments, f"for element {index} of the batch, computed alone,")
    return True


def _element(results: Results, subject: Subject, index: tuple[int, ...]) -> Results:
    return {
        leaf.path: element(results[leaf.path], len(leaf.core), index) if leaf.batched else results[leaf.path]
        for leaf in subject.operation.outputs
    }


@checks(law.BROADCASTING, governs=law.several_batches)
def broadcasting(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare with all batches repeated in full."""
    full = in_full_batches(arguments)
    if full is arguments or not subject.limits.broadcasting:
        return False
    got, budgets = subject.results(arguments), subject.budgets(arguments)
    expected = doubles(subject.results(full))
    subject.all_match(got, expected, twice(budgets), arguments, "of batches that broadcast,")
    return True


@checks(law.BROADCASTING, once=True, at_leading=True, governs=law.several_batches)
def fewer_dimensions(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Drop the batch of each argument in turn; then of all but a mask."""
    if not subject.limits.broadcasting or not subject.limits.max_batch_dims:
        return False
    given = sample(subject, rng, (2,), queries=3, keys=5)
    for leaf, x in given.batched:
        alone = given.replaced({leaf.path: np.asarray(x[0])})
        subject.follows_formula(alone, f"with a {leaf.path} that has no batch,")
    if masks_of(subject) and given.operation.mask is not None:
        mask = (rng.random(mask_shape(given)) < 0.6) | (np.arange(given.keys_count or 0) == 0)
        alone = given.replaced({leaf.path: np.asarray(x[0]) for leaf, x in given.batched}).with_mask(mask)
        subject.follows_formula(alone, "with a mask alone that has a batch,")
    return True


@checks(law.EMPTY_BATCH, once=True, at_leading=True)
def empty_batch(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass batches without elements, of one and two dimensions; the subject checks result shapes."""
    tried = False
    for batch in ((0,), (2, 0)):
        if len(batch) <= subject.limits.max_batch_dims:
            given = sample(subject, rng, batch)
            subject.results(given)
            if subject.operation.masks:
                subject.results(_masked(subject, given))
            tried = True
    return tried


@checks(law.NO_MUTATION)
def no_mutation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the backend's arrays before and after a call."""
    demand_declared(subject.limits, subject.semantics, arguments)
    kept: dict[str, Any] = {}

    def convert(path: str, x: Any) -> Any:
        moved = kept[path] = subject.convert(x)
        return moved

    inputs = {name: mapped(x, convert, name) for name, x in arguments.passed.items()}
    result = subject.outcome(inputs)
    if isinstance(result, Raised):
        raise Violation(f"raised {result.message}", reason=Reason.RAISED)
    for path, x in arguments.arrays.items():
        if path in kept:
            after = subject.numbers(kept[path])
            subject.holds(
                np.array_equal(after, x, equal_nan=is_float(x)),
                f"{path} was written to",
                arguments,
                reason=Reason.MUTATED_INPUT,
                expected=x,
                got=after.copy(),
            )
    return True


@checks(law.NO_MEMORY)
def no_memory(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Repeat a call after another one, whose result is overwritten in between."""
    subject.results(arguments)  # an exception is reported here
    first_raw = subject.demanded(subject.converted(arguments))
    first = _copied(subject, first_raw)
    other = arguments.replaced(
        {leaf.path: subject.exact(-0.5 * x.astype(np.float64) + 0.25) for leaf, x in arguments.floats}
    )
    subject.results(other)
    other_raw = subject.demanded(subject.converted(other))
    _same(subject, _copied(subject, first_raw), first, arguments, "after a later call, the earlier")
    for raw in (first_raw, other_raw):
        mapped(raw, lambda _, x: overwritten(x))
    again = _copied(subject, subject.demanded(subject.converted(arguments)))
    _same(subject, again, first, arguments, "of the same call, made again after another, the")
    return True


def _copied(subject: Subject, raw: Any) -> Results:
    return {path: np.array(x) for path, x in subject.unfolded(raw).items()}


def _same(subject: Subject, got: Results, expected: Results, arguments: Arguments, what: str) -> None:
    for path, x in expected.items():
        named = f"{what} {path if len(expected) > 1 else 'result'}"
        subject.same(got[path], x, partial(_budget, subject, arguments, path), arguments, named)


def _budget(subject: Subject, arguments: Arguments, path: str) -> Numbers:
    return subject.budgets(arguments)[path]


@checks(law.OWN_MEMORY, once=True, at_leading=True)
def own_memory(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Write to the result, then, after another call, to the arguments."""
    written = False
    for given in _little_to_do(subject, rng):
        for first in ("result", "argument"):
            moved = subject.converted(given)
            paths = {path: x for path, x in flatten(moved).items() if path in given.arrays}
            raw = subject.demanded(moved)
            result = subject.arrays(raw)
            mine, others = (result, paths) if first == "result" else (paths, result)
            before = {path: np.array(subject.numbers(x)) for path, x in others.items()}
            done = [path for path, x in mine.items() if overwritten(x)]
            written |= bool(done)
            for path, x in others.items():
                same = np.array_equal(subject.numbers(x), before[path], equal_nan=is_float(before[path]))
                what = first if done == [first] else f"{first}{'s' if len(done) > 1 else ''} {', '.join(done)}"
                message = f"writing to the {what} changes {path}"
                subject.holds(same, message, given, reason=Reason.MUTATED_INPUT, expected=before[path])
    return written


def _little_to_do(subject: Subject, rng: np.random.Generator) -> Iterator[Arguments]:
    """Calls of common sizes, and of sizes that may leave nothing to compute."""
    yield sample(subject, rng, (2,), queries=3, keys=5)
    yield sample(subject, rng, (), queries=1, keys=1, heads=1, features=1)
    for kind in (Axis.LAYER, Axis.TIME):
        for size in (s for s in subject.operation.sizes if kind in subject.operation.axis(s)):
            if subject.operation.least(size) == 0 and not subject.operation.axis(size) & (Axis.QUERY | Axis.KEY):
                yield sample(subject, rng).along(size, take([]))


@checks(law.OPTION_EFFECT, governs=law.has_options)
def option_effect(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare with the formula for other values of options, on the same arrays."""
    tried = False
    for path, value in _others(subject, arguments, rng):
        given = arguments.replaced({path: value})
        if subject.in_domain(given):
            subject.follows_formula(given, f"with {path}={value!r},")
            tried = True
    return tried


def _others(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> list[tuple[str, Any]]:
    """At most :data:`FEW_VALUES` options with values that a call does not have."""
    found, operation = [], subject.operation
    for option in (o for o in operation.options if o.kind is not Kind.SIZE and o.path != operation.flag):
        below = operation.indices.get(option.path)
        for level in option_levels(option, operation, subject.limits):
            value = level if below is None else level % arguments.size(below)
            if value != arguments[option.path]:
                found.append((option.path, value))
    return [found[i] for i in sorted(rng.permutation(len(found))[:FEW_VALUES])]


@checks(law.REJECTION, at_leading=True, governs=law.refuses_shapes)
def rejection(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Make the shape of every argument wrong in turn, masks included, with and without batch.

    No such call is made where shapes are declared to be unchecked: it might end the process.
    """
    if subject.semantics.rejection == "unchecked":
        raise LeftOut("semantics rejection = unchecked")
    subject.observed.setdefault("rejection", "raises")
    whole = _masked(subject, arguments)
    alone = whole if 0 in whole.batch else whole.element((0,) * len(whole.batch))
    # Both are tried, whatever the first one returns.
    return any([_all_rejected(subject, whole, wrong_sizes(whole)), _all_rejected(subject, alone, lost_axes(alone))])


def _all_rejected(subject: Subject, given: Arguments, violations: Iterator[tuple[str, Arguments]]) -> bool:
    """Demand that every forbidden shape raises; return whether there are any."""
    tried = False
    # Converted once for all calls: none of them computes anything.
    fitting = {path: subject.convert(x) for path, x in given.items()}
    for path, broken in violations:
        expected = _complaint(broken)
        if expected is None:
            continue
        tried = True
        inputs = fitting | {path: subject.convert(broken[path])}
        result = subject.outcome(broken.passed_as(inputs.__getitem__))
        if not isinstance(result, Raised):
            got = " and ".join(f"{np.shape(x)}" for x in result.values())
            subject.observed["rejection"] = "unchecked"
            raise Violation(
                f"a wrong shape of {path} was accepted ({expected}); expected an exception, got a result of shape "
                f"{got}",
                reason=Reason.ACCEPTED,
                arguments=broken,
            )
    return tried


def _masked(subject: Subject, arguments: Arguments) -> Arguments:
    """The arguments with masks of True in place of missing ones, if the backend takes masks."""
    masks = arguments.operation.masks if subject.limits.mask else {}
    lacking = {keys: leaf.path for keys, leaf in masks.items() if arguments[leaf.path] is None}
    return arguments.replaced({path: np.ones(mask_shape(arguments, keys), bool) for keys, path in lacking.items()})


def _complaint(broken: Arguments) -> str | None:
    """The Protocol's objection to these shapes; None if it accepts them."""
    try:
        bind(broken.operation, broken.values_by_name)
    except ShapeError as error:
        return str(error)
    return None


def wrong_sizes(arguments: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Paths of arguments, each with a call in which one of its sizes is forbidden."""
    for option in arguments.operation.numbers:
        yield option.path, arguments.replaced({option.path: -1})
    for leaf, x in arguments.given:
        for axis in range(x.ndim):
            if x.shape[axis]:
                longer = np.concatenate([x, np.take(x, [0], axis=axis)], axis=axis)
                yield leaf.path, arguments.replaced({leaf.path: longer})
            if x.shape[axis] > 2:
                yield leaf.path, arguments.replaced({leaf.path: np.take(x, np.arange(x.shape[axis] - 1), axis=axis)})


def lost_axes(arguments: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Paths of arguments, each with a call in which it lacks an axis."""
    for leaf, x in arguments.given:
        if x.ndim == len(leaf.core) and x.size and x.ndim:
            yield leaf.path, arguments.replaced({leaf.path: x[0]})


def _small(arguments: Arguments) -> bool:
    """Return whether an input is small throughout, or spans many orders of magnitude."""
    sizes = [np.abs(wide(x)) for _, x in arguments.floats if x.size]
    return any(x.max() < 2.0**-5 or (x[x > 0].min(initial=1.0) < 2.0**-12) for x in sizes)


def _idle_in_one_element(arguments: Arguments) -> Arguments:
    """The arguments with rows without keys in the first element of the batch only."""
    if not arguments.batch:
        return arguments
    for keys, leaf in arguments.operation.masks.items():
        shape, rows = mask_shape(arguments, keys), attendable(arguments, keys)
        if rows.shape == shape and arguments[leaf.path] is not None:
            later = np.arange(shape[0]).reshape(-1, *(1,) * (len(shape) - 1)) > 0
            idle = ~rows.any(-1, keepdims=True) & later
            full = np.broadcast_to(arguments[leaf.path], shape)
            arguments = arguments.replaced({leaf.path: full | idle})
    return arguments


def _of_elements_without_nan(
    subject: Subject, arguments: Arguments, expected: Mapping[str, tuple[Numbers, Numbers]], live: Numbers
) -> dict[str, tuple[Numbers, Numbers]]:
    """Gradients of fully batched arguments, NaN (not compared) in elements with a NaN row."""
    core = len(subject.operation.leading.core)
    rows = np.broadcast_to(live, arguments.binding.shape(subject.operation.leading))
    alive = rows.all(axis=tuple(range(-core, 0)))
    found = {}
    for leaf, x in arguments.batched:
        if leaf.path in expected and arguments.batch and x.shape[: x.ndim - len(leaf.core)] == arguments.batch:
            value, budget = expected[leaf.path]
            found[leaf.path] = (
                np.where(np.expand_dims(alive, tuple(range(-len(leaf.core), 0))), value, np.nan),
                budget,
            )
    return found


@checks(law.GRADIENT)
def gradient(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the gradient of a sum of the results, weighted at random.

    Inputs in float16 are not small, since products of small numbers underflow; this is why losses are scaled.
    """
    if subject.dtype == "float16" and _small(arguments):
        changed = normal_like(subject, arguments, rng)
        if changed is None:
            return False
        arguments = changed
    if subject.operation.masks and "nan" in subject.semantics.without_keys.values():
        arguments = _idle_in_one_element(arguments)
    if not any(x.size for x in subject.results(arguments).values()):
        return False
    cotangents = subject.cotangents(arguments, rng)
    if subject.operation.masks:
        live = live_rows(subject, arguments)
        if subject.operation.only_weighs_keys:
            cotangents = {path: np.where(live, x, x.dtype.type(0)) for path, x in cotangents.items()}
    expected = subject.gradients(arguments, cotangents)
    if subject.operation.masks and "nan" in subject.semantics.without_keys.values() and not live.all():
        expected = _of_elements_without_nan(subject, arguments, expected, live)
    if any(np.abs(value).max(initial=0.0) > subject.precision.largest / 16 for value, _ in expected.values()):
        return False
    if not any(np.isfinite(value).any() for value, _ in expected.values()):
        return False
    found = subject.vjp(arguments, cotangents)
    gradients_match(subject, found, expected, arguments)
    return True
