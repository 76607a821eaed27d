"""Checks of ``vjp``'s cotangents, layouts and memory; each runs once per case, in ``quick`` at one dtype.

Models, whose ``operation.counts`` names numbers of layers, are slow and get fewer calls in short profiles.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.corners import stepwise
from attnspec.conformance.inputs.dtypes import NARROW, is_float
from attnspec.conformance.inputs.layouts import (
    LAYOUTS,
    VIEW_ERRORS,
    Convert,
    Layout,
    every_second,
    heads_behind,
    last_exchanged,
    packed,
    padded_positions,
    padded_rows,
    shifted,
    with_stride_0,
)
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.left_out import demand_layouts
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.judging.violation import Reason
from attnspec.conformance.laws.common import normal_like, sample
from attnspec.conformance.laws.gradient_calls import (
    TILE,
    GradientCall,
    copied_arrays,
    fits_dtype,
    gradient_calls,
    long_gradient_call,
    overwrite,
    restricted_gradient_call,
    small_gradient_call,
)
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.conformance.laws.shared_batches import Index
from attnspec.spec.contract.tree import Leaf, flatten
from attnspec.spec.laws import operation
from attnspec.spec.laws import training as law

LARGE_FACTOR, TINY_FACTOR = 2.0**11, 2.0**-50
"""Factors of cotangents, as of loss scaling, and of a mean over many tokens."""

COTANGENT_LAYOUTS: tuple[Layout, ...] = (
    every_second,
    last_exchanged,
    padded_rows,
    packed,
    padded_positions,
    heads_behind,
    shifted,
)
"""Layouts of a cotangent with no stride 0."""

FEW_LAYOUTS: tuple[Layout, ...] = (last_exchanged, packed, heads_behind)
"""Layouts of arguments in short profiles."""


@checks(law.STRIDES_DO_NOT_MATTER, once=True, leading_dtype_only=True)
def cotangent_strides(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass a cotangent in every layout, as one repeated row, as one number."""
    call = small_gradient_call(subject, arguments)
    if call is None:
        return False
    for layout in (*COTANGENT_LAYOUTS, _one_row):
        _compare_layout(subject, call, layout)
    for other_call in (restricted_gradient_call(subject, arguments), long_gradient_call(subject, arguments)):
        if other_call is not None:
            _compare_layout(subject, other_call, _one_row)
    _compare_many_rows(subject, rng)
    if subject.dtype not in NARROW:  # strides are read alike in all dtypes; 16-bit budgets are widest and show least
        for summed_call in _calls_of_summed_results(subject, arguments):
            _compare_layout(subject, summed_call, _one_number)
    return True


def _calls_of_summed_results(subject: Subject, arguments: Arguments) -> Iterator[GradientCall]:
    """Calls with cotangents of ones, as of ``result.sum()``: under masks if any are accepted, and long."""
    restricted = restricted_gradient_call(subject, arguments)
    calls = [small_gradient_call(subject, arguments) if restricted is None else restricted]
    # Short profiles add the long call only if values enter linearly: it then has enough columns to fill a tile.
    if restricted is not None and (subject.effort.slow or subject.operation.linear):
        calls.append(long_gradient_call(subject, arguments))
    for call in calls:
        if call is not None:
            ones = {path: np.ones_like(x) for path, x in call.cotangents.items()}
            yield GradientCall(call.arguments, ones, subject.gradients(call.arguments, ones))


def _compare_many_rows(subject: Subject, rng: np.random.Generator) -> None:
    """Compare gradients for more queries than a tile; the cotangent has heads behind positions."""
    if subject.operation.counts and not subject.effort.slow:
        return
    sampled = sample(subject, rng, (2,)[: subject.limits.max_batch_dims], queries=TILE + 3, keys=3, heads=2)
    if subject.operation.query_size is None or subject.operation.attends_to_itself or (sampled.queries or 0) <= TILE:
        return
    cotangents = subject.cotangents(sampled, rng)
    convert = subject.convert
    arrays = {path: heads_behind(x, convert) if x.ndim else convert(x) for path, x in cotangents.items()}
    cotangent = subject.like_result(arrays, sampled, convert=False)
    inputs = subject.converted(sampled)
    gradients = subject.gradients_of(lambda: subject.backend.vjp(subject.operation.name, inputs, cotangent), sampled)
    prefix = f"of a cotangent of {sampled.queries} rows laid out as heads behind,"
    gradients_match(subject, gradients, subject.gradients(sampled, cotangents), sampled, prefix)


def _compare_layout(subject: Subject, call: GradientCall, layout: Layout) -> None:
    demand_layouts(subject.limits)
    cotangents = call.cotangents
    try:
        arrays = {path: layout(x, subject.convert) if x.ndim else subject.convert(x) for path, x in cotangents.items()}
    except VIEW_ERRORS:
        return
    cotangent = subject.like_result(arrays, call.arguments, convert=False)
    prefix = f"of a cotangent laid out as {_layout_name(layout)},"
    _compare(subject, call, subject.converted(call.arguments), cotangent, prefix)


def _compare(subject: Subject, call: GradientCall, inputs: Mapping[str, Any], cotangent: Any, prefix: str) -> None:
    arguments = call.arguments
    gradients = subject.gradients_of(lambda: subject.backend.vjp(subject.operation.name, inputs, cotangent), arguments)
    gradients_match(subject, gradients, call.expected, arguments, prefix)


def _layout_name(layout: Layout) -> str:
    return layout.__name__.strip("_").replace("_", " ")


def _one_row(x: Numbers, convert: Convert) -> Any:
    """The first row for all rows, with stride 0."""
    return with_stride_0(x, tuple(range(x.ndim - 1)), convert)


def _one_number(x: Numbers, convert: Convert) -> Any:
    """The first number for all numbers, with stride 0."""
    return with_stride_0(x, tuple(range(x.ndim)), convert)


@checks(law.LINEAR_IN_COTANGENT, once=True, leading_dtype_only=True)
def cotangent_scale(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Multiply the cotangent by a large number, a tiny number, and 0."""
    call = small_gradient_call(subject, arguments)
    if call is None:
        return False
    large = LARGE_FACTOR
    while large > 1 and not fits_dtype(subject, call.expected, 16 * large):
        large /= 2
    for scale, label in ((large, "large"), (TINY_FACTOR, "tiny"), (0.0, "0")):
        if scale == TINY_FACTOR and subject.dtype == "float16":
            continue  # float16 cannot hold such gradients; for this reason training scales losses
        cotangents = {path: x * x.dtype.type(scale) for path, x in call.cotangents.items()}
        gradients = subject.vjp(call.arguments, cotangents)
        if scale:
            gradients_match(subject, gradients, call.expected, call.arguments, f"of a {label} cotangent,", scale)
            continue
        for path, gradient in gradients.items():
            message = f"of a cotangent that is 0, the gradient of {path} is not 0"
            subject.demand(not np.any(gradient != 0), message, call.arguments, got=gradient)
    return True


@checks(law.LINEAR_IN_COTANGENT, once=True, leading_dtype_only=True, governs=law.several_results)
def parts(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass the cotangent of one result at a time, and None for the others."""
    call = small_gradient_call(subject, arguments)
    if call is None:
        return False
    for path, cotangent in call.cotangents.items():
        one_cotangent = {path: cotangent}
        expected = subject.gradients(call.arguments, one_cotangent)
        gradients = subject.vjp(call.arguments, one_cotangent)
        gradients_match(subject, gradients, expected, call.arguments, f"of the result {path} alone,")
    return True


@checks(law.BROADCAST_GRADIENTS_SUM, once=True, leading_dtype_only=True)
def broadcast_gradients_sum(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare gradients of arguments that broadcast along batch dimensions or other axes.

    The first argument lacks the batch, then all others do; then the first has one batch dimension and the others the
    other one. At the same time, axes that may broadcast are cut to size 1: one axis per call, or all of them. Short
    profiles use one batch dimension for models and steps.
    """
    if not subject.limits.broadcasting or not subject.limits.max_batch_dims:
        return False
    operation = subject.operation
    few_dimensions = bool(operation.counts) or any(stepwise(size, operation) for size in operation.sizes)
    batch = (2,) if few_dimensions and not subject.effort.slow else (2, 3)[-subject.limits.max_batch_dims :]
    whole = sample(subject, rng, batch, queries=3, keys=5, whole=True).without_masks()
    lengths = {path: size for path, size in operation.lengths.items() if whole[path] is not None}
    whole = whole.replaced({path: np.full_like(whole[path], whole.size(size)) for path, size in lengths.items()})
    # Indices that drop all batch dimensions, or cut the first or the second one to size 1.
    no_batch, first_dimension, second = (0,) * len(batch), (slice(1),), (slice(None), slice(1))
    index_pairs: list[tuple[Index, Index]] = [(no_batch, ()), ((), no_batch)]
    if len(batch) > 1:
        index_pairs += [(first_dimension, second), (second, first_dimension)]
    first = next(leaf.path for leaf, _ in whole.floats if leaf.batched)
    for i, (of_first, of_others) in enumerate(index_pairs):
        changes = {}
        for leaf, x in whole.floats:
            index = () if not leaf.batched else of_first if leaf.path == first else of_others
            changes[leaf.path] = np.array(_cut_broadcast_axes(x, leaf, i)[index])
        shared = whole.replaced(changes)
        cotangents = subject.cotangents(shared, rng)
        expected = subject.gradients(shared, cotangents)
        if not fits_dtype(subject, expected):
            return False
        shapes = " and ".join(f"{path} {x.shape}" for path, x in changes.items() if x.shape != whole[path].shape)
        gradients_match(subject, subject.vjp(shared, cotangents), expected, shared, f"with {shapes},")
    return True


def _cut_broadcast_axes(x: Numbers, leaf: Leaf, number: int) -> Numbers:
    """The array cut to size 1 along broadcastable axis ``number``, else along all of them."""
    axes = [i - len(leaf.core) for i, d in enumerate(leaf.core) if d.broadcast]
    for axis in axes[number : number + 1] or axes:
        x = np.take(x, [0], axis=axis)
    return x


@checks(law.STRIDES_DO_NOT_MATTER, once=True, leading_dtype_only=True)
def strided_inputs(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare gradients of arguments in some layouts; long profiles try all."""
    demand_layouts(subject.limits)
    layouts = LAYOUTS if subject.effort.slow else FEW_LAYOUTS
    tried = False
    calls = [call for _, call in gradient_calls(subject, arguments)]
    for call in calls if subject.effort.slow else calls[-2:]:
        cotangent = subject.like_result(call.cotangents, call.arguments)
        for layout in layouts:
            try:
                inputs = call.arguments.passed_as(partial(_array_in_layout, subject, call.arguments, layout))
            except VIEW_ERRORS:
                continue
            _compare(subject, call, inputs, cotangent, f"of arguments laid out as {_layout_name(layout)},")
            tried = True
    return tried


def _array_in_layout(subject: Subject, arguments: Arguments, layout: Layout, path: str) -> Any:
    x = arguments[path]
    return layout(x, subject.convert) if isinstance(x, np.ndarray) and x.ndim else subject.convert(x)


class _BackwardPass(NamedTuple):
    """A backward pass: the backend's inputs, cotangents and gradients; gradients in NumPy."""

    inputs: dict[str, Any]
    cotangents: dict[str, Any]
    gradients: Mapping[str, Any]
    copies: Results


def _backward_pass(subject: Subject, arguments: Arguments, cotangents: Results) -> _BackwardPass:
    inputs = subject.converted(arguments)
    cotangent = subject.like_result(cotangents, arguments)
    raw: dict[str, Any] = {}

    def call() -> dict[str, Any]:
        raw.update(subject.backend.vjp(subject.operation.name, inputs, cotangent))
        return raw

    copies = subject.gradients_of(call, arguments)
    arrays = {f"the cotangent {path}".strip(): c for path, c in flatten(cotangent).items() if c is not None}
    input_arrays = {path: x for path, x in flatten(inputs).items() if path in arguments.arrays}
    return _BackwardPass(input_arrays, arrays, raw, copies)


def _snapshot(subject: Subject, arrays: Mapping[str, Any]) -> Results:
    return {path: np.array(subject.numbers(x)) for path, x in arrays.items()}


def _demand_unchanged(
    subject: Subject, arrays: Mapping[str, Any], before: Results, arguments: Arguments, event: str
) -> None:
    for path, x in _snapshot(subject, arrays).items():
        same = np.array_equal(x, before[path], equal_nan=is_float(x))
        message = f"{event} {path}"
        subject.demand(same, message, arguments, reason=Reason.MUTATED_INPUT, expected=before[path], got=x)


@checks(law.GRADIENTS_OWN_MEMORY, once=True, leading_dtype_only=True)
def no_mutation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare inputs and cotangents before and after a backward pass."""
    call = small_gradient_call(subject, arguments)
    if call is None:
        return False
    sampled = call.arguments
    backward_pass = _backward_pass(subject, sampled, call.cotangents)
    before = dict(zip(backward_pass.cotangents, call.cotangents.values(), strict=True))
    _demand_unchanged(subject, backward_pass.inputs, sampled.arrays, sampled, "the backward pass wrote to")
    _demand_unchanged(subject, backward_pass.cotangents, before, sampled, "the backward pass wrote to")
    return True


@checks(law.GRADIENTS_OWN_MEMORY, once=True, leading_dtype_only=True)
def gradients_own_memory(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Overwrite each gradient in turn, and compare all other arrays."""
    call = small_gradient_call(subject, arguments)
    if call is None:
        return False
    backward_pass = _backward_pass(subject, call.arguments, call.cotangents)
    written = False
    for path, gradient in backward_pass.gradients.items():
        others = {f"the gradient of {other}": x for other, x in backward_pass.gradients.items() if other != path}
        arrays = {**backward_pass.inputs, **backward_pass.cotangents, **others}
        before = _snapshot(subject, arrays)
        if overwrite(gradient):
            written = True
            message = f"writing to the gradient of {path} changes"
            _demand_unchanged(subject, arrays, before, call.arguments, message)
    return written


@checks(law.INDEPENDENT_OF_OTHER_PASSES, once=True, leading_dtype_only=True)
def independent_of_other_passes(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Make three backward passes, the second with other numbers; compare earlier arrays."""
    call = small_gradient_call(subject, arguments)
    if call is None:
        return False
    sampled = call.arguments
    other = normal_like(subject, sampled, rng) or sampled
    result = subject.raw_result(subject.converted(sampled))
    before_passes = copied_arrays(subject, result)
    first = _backward_pass(subject, sampled, call.cotangents)
    before = _snapshot(subject, first.gradients)
    _backward_pass(subject, other, subject.cotangents(other, rng))
    _demand_unchanged(subject, first.gradients, before, sampled, "a later backward pass changes the gradient of")
    after = copied_arrays(subject, result)
    for path, x in before_passes.items():
        same = np.array_equal(after[path], x, equal_nan=is_float(x))
        subject.demand(same, "a backward pass changes an earlier result", sampled, expected=x, got=after[path])
    third = _backward_pass(subject, sampled, call.cotangents).copies
    gradients_match(subject, third, call.expected, sampled, "of the call repeated after another call,")
    return True


@checks(operation.GRADIENT, once=True, leading_dtype_only=True)
def dtype(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the dtypes of gradients with those of their arguments."""
    call = small_gradient_call(subject, arguments)
    if call is None:
        return False
    gradients = subject.vjp(call.arguments, call.cotangents)
    for leaf, x in call.arguments.floats:
        got = gradients[leaf.path].dtype.name
        message = f"the gradient of {leaf.path} has dtype {got}, expected {x.dtype.name}"
        subject.demand(got == x.dtype.name, message, call.arguments, reason=Reason.DTYPE)
    return True
