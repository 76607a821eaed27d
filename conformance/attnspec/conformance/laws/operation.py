"""Checks of the laws that govern every operation. Options of ``@checks``: see ``Check``."""

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
from attnspec.conformance.judging.violation import OutsideDeclaration, Reason, Violation
from attnspec.conformance.laws.common import (
    bits_equal,
    doubled,
    doubles,
    in_full_batches,
    live_rows,
    normal_like,
    sample,
    wide,
)
from attnspec.conformance.laws.gradient_calls import accepted_masks, overwrite
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.precision import DEFAULTS
from attnspec.spec.contract.shapes import ShapeError, bind
from attnspec.spec.contract.tree import Kind, Leaf, flatten, map_tree
from attnspec.spec.laws import operation as law

MAX_VALUES = 2
"""Most option values tried on one example."""


@checks(law.ORACLE)
def oracle(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the result with the reference, element by element."""
    subject.follows_formula(arguments)
    return True


@checks(law.SHAPE)
def shape(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Call the backend; the subject checks the shape of every result."""
    subject.results(arguments)
    return True


@checks(law.DTYPE)
def dtype(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the dtypes of results; without float inputs any float dtype is right."""
    results = subject.results(arguments)
    for leaf in subject.operation.outputs:
        got = results[leaf.path].dtype
        message = f"{subject.title_of(leaf)} has dtype {got.name}, expected {_expected_dtype(subject, leaf)}"
        fits = got.kind in "iu" if leaf.kind is Kind.INT else got.name in _expected_dtype(subject, leaf).split(" or ")
        subject.demand(fits, message, arguments, reason=Reason.DTYPE)
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
    budgets = doubled(_element(subject.budgets(arguments), subject, index))
    alone = subject.results(arguments.element(index))
    subject.all_match(alone, whole, budgets, arguments, f"for element {index} of the batch, computed alone,")
    return True


def _element(results: Results, subject: Subject, index: tuple[int, ...]) -> Results:
    return {
        leaf.path: element(results[leaf.path], len(leaf.core), index) if leaf.batched else results[leaf.path]
        for leaf in subject.operation.outputs
    }


@checks(law.BROADCAST_EQUALS_REPEAT, governs=law.several_batches)
def broadcast_equals_repeat(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare with the call whose batches are repeated in full."""
    full = in_full_batches(arguments)
    if full is arguments or not subject.limits.broadcasting:
        return False
    got, budgets = subject.results(arguments), subject.budgets(arguments)
    expected = doubles(subject.results(full))
    subject.all_match(got, expected, doubled(budgets), arguments, "of batches that broadcast,")
    return True


@checks(law.BROADCAST_EQUALS_REPEAT, once=True, leading_dtype_only=True, governs=law.several_batches)
def fewer_dimensions(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Drop the batch of each argument in turn; then of all except the mask."""
    if not subject.limits.broadcasting or not subject.limits.max_batch_dims:
        return False
    sampled = sample(subject, rng, (2,), queries=3, keys=5)
    for leaf, x in sampled.batched:
        alone = sampled.replaced({leaf.path: np.asarray(x[0])})
        subject.follows_formula(alone, f"with a {leaf.path} that has no batch,")
    if accepted_masks(subject) and sampled.operation.mask is not None:
        mask = (rng.random(mask_shape(sampled)) < 0.6) | (np.arange(sampled.keys_count or 0) == 0)
        alone = sampled.replaced({leaf.path: np.asarray(x[0]) for leaf, x in sampled.batched}).with_mask(mask)
        subject.follows_formula(alone, "with a mask alone that has a batch,")
    return True


@checks(law.EMPTY_BATCH, once=True, leading_dtype_only=True)
def empty_batch(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass empty batches of one and two dimensions; the subject checks shapes."""
    tried = False
    for batch in ((0,), (2, 0)):
        if len(batch) <= subject.limits.max_batch_dims:
            sampled = sample(subject, rng, batch)
            subject.results(sampled)
            if subject.operation.masks:
                subject.results(_with_full_masks(subject, sampled))
            tried = True
    return tried


@checks(law.NO_MUTATION)
def no_mutation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the backend's arrays before and after a call."""
    demand_declared(subject.limits, subject.semantics, arguments)
    backend_arrays: dict[str, Any] = {}

    def convert(path: str, x: Any) -> Any:
        array = backend_arrays[path] = subject.convert(x)
        return array

    inputs = {name: map_tree(x, convert, name) for name, x in arguments.passed.items()}
    result = subject.result_or_raised(inputs)
    if isinstance(result, Raised):
        raise Violation(f"raised {result.message}", reason=Reason.RAISED)
    for path, x in arguments.arrays.items():
        if path in backend_arrays:
            after = subject.numbers(backend_arrays[path])
            subject.demand(
                np.array_equal(after, x, equal_nan=is_float(x)),
                f"{path} was written to",
                arguments,
                reason=Reason.MUTATED_INPUT,
                expected=x,
                got=after.copy(),
            )
    return True


@checks(law.INDEPENDENT_OF_OTHER_CALLS)
def independent_of_other_calls(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Repeat a call after another call, with all results overwritten in between; then with each array reversed."""
    subject.results(arguments)  # an exception is reported here
    first_raw = subject.raw_result(subject.converted(arguments))
    first = _copied_results(subject, first_raw)
    changes = {leaf.path: subject.exact(-0.5 * x.astype(np.float64) + 0.25) for leaf, x in arguments.floats}
    other = arguments.replaced(changes)
    subject.results(other)
    other_raw = subject.raw_result(subject.converted(other))
    _demand_same(subject, _copied_results(subject, first_raw), first, arguments, "after a later call, the earlier")
    for raw in (first_raw, other_raw):
        map_tree(raw, lambda _, x: overwrite(x))
    again = _copied_results(subject, subject.raw_result(subject.converted(arguments)))
    _demand_same(subject, again, first, arguments, "of the call repeated after another call, the")
    if all(np.isfinite(x).all() for _, x in arguments.floats):
        _reverse_numbers(subject, arguments)
    return True


def _reverse_numbers(subject: Subject, arguments: Arguments) -> None:
    """Pass each array in reverse order: a cache keyed by sums confuses both."""
    # With four significant bits, sums of numbers of similar size are exact, and the same in both orders.
    forwards = arguments.replaced({leaf.path: subject.exact(_four_bits(x)) for leaf, x in arguments.floats})
    backwards = forwards.replaced({leaf.path: np.asarray(np.flip(x)) for leaf, x in forwards.floats})
    if not (subject.in_domain(forwards) and subject.in_domain(backwards)):
        return
    unchanged = bits_equal(subject.results(forwards), subject.results(backwards))
    if unchanged and not bits_equal(subject.oracle_values(forwards), subject.oracle_values(backwards)):
        subject.follows_formula(backwards, "of the same numbers in reverse order, the")


def _four_bits(x: Numbers) -> Numbers:
    """Numbers rounded towards 0 to four bits."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.asarray(np.ldexp(np.trunc(16 * mantissa), exponent - 4))


def _copied_results(subject: Subject, raw: Any) -> Results:
    return {path: np.array(x) for path, x in subject.numpy_arrays(raw).items()}


def _demand_same(subject: Subject, got: Results, expected: Results, arguments: Arguments, prefix: str) -> None:
    for path, x in expected.items():
        title = f"{prefix} {path if len(expected) > 1 else 'result'}"
        subject.demand_equal(got[path], x, partial(_budget, subject, arguments, path), arguments, title)


def _budget(subject: Subject, arguments: Arguments, path: str) -> Numbers:
    return subject.budgets(arguments)[path]


@checks(law.RESULT_OWNS_MEMORY, once=True, leading_dtype_only=True)
def result_owns_memory(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Write to the result of a call, then to the arguments of another."""
    written = False
    for sampled in _calls_with_little_to_do(subject, rng):
        for kind in ("result", "argument"):
            inputs_of_backend = subject.converted(sampled)
            input_arrays = {path: x for path, x in flatten(inputs_of_backend).items() if path in sampled.arrays}
            raw = subject.raw_result(inputs_of_backend)
            result = subject.arrays(raw)
            overwritten_arrays, others = (result, input_arrays) if kind == "result" else (input_arrays, result)
            before = {path: np.array(subject.numbers(x)) for path, x in others.items()}
            paths = [path for path, x in overwritten_arrays.items() if overwrite(x)]
            written |= bool(paths)
            for path, x in others.items():
                same = np.array_equal(subject.numbers(x), before[path], equal_nan=is_float(before[path]))
                names = kind if paths == [kind] else f"{kind}{'s' if len(paths) > 1 else ''} {', '.join(paths)}"
                message = f"writing to the {names} changes {path}"
                subject.demand(same, message, sampled, reason=Reason.MUTATED_INPUT, expected=before[path])
    return written


def _calls_with_little_to_do(subject: Subject, rng: np.random.Generator) -> Iterator[Arguments]:
    """Calls of common sizes, and of sizes that may leave nothing to compute."""
    yield sample(subject, rng, (2,), queries=3, keys=5)
    yield sample(subject, rng, (), queries=1, keys=1, heads=1, features=1)
    for kind in (Axis.LAYER, Axis.TIME):
        for size in (s for s in subject.operation.sizes if kind in subject.operation.axis(s)):
            if subject.operation.least(size) == 0 and not subject.operation.axis(size) & (Axis.QUERY | Axis.KEY):
                yield sample(subject, rng).along(size, take([]))


@checks(law.OPTIONS_HAVE_EFFECT, governs=law.has_options)
def options_have_effect(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare with the formula for other option values, on the same arrays."""
    tried = False
    for path, value in _other_values(subject, arguments, rng):
        changed = arguments.replaced({path: value})
        if subject.in_domain(changed):
            subject.follows_formula(changed, f"with {path}={value!r},")
            tried = True
    return tried


def _other_values(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> list[tuple[str, Any]]:
    """At most :data:`MAX_VALUES` pairs of an option and another value than the call's."""
    candidates, operation = [], subject.operation
    for option in (o for o in operation.options if o.kind is not Kind.SIZE and o.path != operation.flag):
        below = operation.indices.get(option.path)  # the vocabulary, for an end token
        for level in option_levels(option, operation, subject.limits):
            value = level if below is None else level % arguments.size(below)
            if value != arguments[option.path]:
                candidates.append((option.path, value))
    return [candidates[i] for i in sorted(rng.permutation(len(candidates))[:MAX_VALUES])]


@checks(law.REJECTION, leading_dtype_only=True, governs=law.refuses_shapes)
def rejection(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Make the shape of every argument wrong in turn, with and without a batch.

    Left out if rejection is declared unchecked, since such a call might end the process.
    """
    if subject.semantics.rejection == "unchecked":
        raise OutsideDeclaration("semantics rejection = unchecked")
    subject.observed.setdefault("rejection", "raises")
    whole = _with_full_masks(subject, arguments)
    alone = whole if 0 in whole.batch else whole.element((0,) * len(whole.batch))
    # A list, so that the second demand is made whatever the first one returns.
    return any([_all_raise(subject, whole, wrong_sizes(whole)), _all_raise(subject, alone, without_axis(alone))])


def _all_raise(subject: Subject, arguments: Arguments, wrong_calls: Iterator[tuple[str, Arguments]]) -> bool:
    """Demand that every wrong call raises; False without wrong calls."""
    tried = False
    # Arrays are converted once, since no call should compute anything.
    valid_arrays = {path: subject.convert(x) for path, x in arguments.items()}
    for path, broken in wrong_calls:
        expected = _shape_error(broken)
        if expected is None:
            continue
        tried = True
        inputs = valid_arrays | {path: subject.convert(broken[path])}
        result = subject.result_or_raised(broken.passed_as(inputs.__getitem__))
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


def _with_full_masks(subject: Subject, arguments: Arguments) -> Arguments:
    """A copy with masks of True for missing masks, if the backend accepts masks."""
    masks = arguments.operation.masks if subject.limits.mask else {}
    lacking = {keys: leaf.path for keys, leaf in masks.items() if arguments[leaf.path] is None}
    return arguments.replaced({path: np.ones(mask_shape(arguments, keys), bool) for keys, path in lacking.items()})


def _shape_error(broken: Arguments) -> str | None:
    """The Protocol's message about these shapes; None if they fit."""
    try:
        bind(broken.operation, broken.values_by_name)
    except ShapeError as error:
        return str(error)
    return None


def wrong_sizes(arguments: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Paths of arguments, each with a call in which this argument has a wrong size."""
    for option in arguments.operation.numbers:
        yield option.path, arguments.replaced({option.path: -1})
    for leaf, x in arguments.leaf_arrays:
        for axis in range(x.ndim):
            if x.shape[axis]:
                longer = np.concatenate([x, np.take(x, [0], axis=axis)], axis=axis)
                yield leaf.path, arguments.replaced({leaf.path: longer})
            if x.shape[axis] > 2:
                yield leaf.path, arguments.replaced({leaf.path: np.take(x, np.arange(x.shape[axis] - 1), axis=axis)})


def without_axis(arguments: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Paths of arguments, each with a call in which this argument lacks an axis."""
    for leaf, x in arguments.leaf_arrays:
        if x.ndim == len(leaf.core) and x.size and x.ndim:
            yield leaf.path, arguments.replaced({leaf.path: x[0]})


def _is_small(arguments: Arguments) -> bool:
    """Return whether products of some array may underflow in float16, whose smallest number is 2⁻²⁴."""
    sizes = [np.abs(wide(x)) for _, x in arguments.floats if x.size]
    return any(x.max() < 2.0**-5 or (x[x > 0].min(initial=1.0) < 2.0**-12) for x in sizes)


def _empty_rows_in_one_element(arguments: Arguments) -> Arguments:
    """A copy in which only the first batch element has rows without keys."""
    if not arguments.batch:
        return arguments
    for keys, leaf in arguments.operation.masks.items():
        shape, allowed = mask_shape(arguments, keys), attendable(arguments, keys)
        if allowed.shape == shape and arguments[leaf.path] is not None:
            later_elements = np.arange(shape[0]).reshape(-1, *(1,) * (len(shape) - 1)) > 0
            forced_true = ~allowed.any(-1, keepdims=True) & later_elements
            mask = np.broadcast_to(arguments[leaf.path], shape)
            arguments = arguments.replaced({leaf.path: mask | forced_true})
    return arguments


def _nan_where_rows_are_nan(
    subject: Subject, arguments: Arguments, expected: Mapping[str, tuple[Numbers, Numbers]], live: Numbers
) -> dict[str, tuple[Numbers, Numbers]]:
    """Gradients of fully batched arguments; NaN, hence not compared, in elements with NaN rows."""
    core = len(subject.operation.leading.core)
    rows = np.broadcast_to(live, arguments.binding.shape(subject.operation.leading))
    alive = rows.all(axis=tuple(range(-core, 0)))
    gradients = {}
    for leaf, x in arguments.batched:
        if leaf.path in expected and arguments.batch and x.shape[: x.ndim - len(leaf.core)] == arguments.batch:
            value, budget = expected[leaf.path]
            element_alive = np.expand_dims(alive, tuple(range(-len(leaf.core), 0)))
            gradients[leaf.path] = np.where(element_alive, value, np.nan), budget
    return gradients


@checks(law.GRADIENT)
def gradient(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the gradients of a random weighted sum of the results.

    Small float16 inputs are drawn anew, since their products underflow; for this reason training scales losses.
    """
    if subject.dtype == "float16" and _is_small(arguments):
        changed = normal_like(subject, arguments, rng)
        if changed is None:
            return False
        arguments = changed
    if subject.operation.masks and "nan" in subject.semantics.without_keys.values():
        arguments = _empty_rows_in_one_element(arguments)
    if not any(x.size for x in subject.results(arguments).values()):
        return False
    cotangents = subject.cotangents(arguments, rng)
    if subject.operation.masks:
        live = live_rows(subject, arguments)
        if subject.operation.only_weighs_keys:  # gradients of rows without keys depend on a choice
            cotangents = {path: np.where(live, x, x.dtype.type(0)) for path, x in cotangents.items()}
    expected = subject.gradients(arguments, cotangents)
    if subject.operation.masks and "nan" in subject.semantics.without_keys.values() and not live.all():
        expected = _nan_where_rows_are_nan(subject, arguments, expected, live)
    if any(np.abs(value).max(initial=0.0) > subject.precision.largest / 16 for value, _ in expected.values()):
        return False
    if not any(np.isfinite(value).any() for value, _ in expected.values()):
        return False
    gradients = subject.vjp(arguments, cotangents)
    gradients_match(subject, gradients, expected, arguments)
    return True
