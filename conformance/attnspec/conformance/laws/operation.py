"""Checks of the laws of every operation."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, shapes
from attnspec.conformance.inputs.attendance import mask_shape
from attnspec.conformance.inputs.dtypes import is_float
from attnspec.conformance.judging.foreign_calls import Raised
from attnspec.conformance.judging.subject import Subject, Violation
from attnspec.conformance.laws.common import batched, boolean, element, live_rows, normal_like, sample, wide
from attnspec.conformance.laws.registry import proves
from attnspec.spec.contract.operation import Kind
from attnspec.spec.contract.precision import DEFAULTS
from attnspec.spec.contract.shapes import ShapeError, bind
from attnspec.spec.laws import operation as law


@proves(law.ORACLE)
def oracle(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare with the reference, element by element."""
    got = subject.call(arguments)
    expected = subject.oracle(arguments)
    subject.matches(got, expected.value, expected.budget, arguments)
    return True


@proves(law.SHAPE)
def shape(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """``call`` itself demands the shape."""
    subject.call(arguments)
    return True


@proves(law.DTYPE)
def dtype(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The dtype by name; an operation without float inputs may answer in any float dtype."""
    got = subject.call(arguments).dtype.name
    if boolean(arguments):
        expected = ["bool"]
    elif subject.operation.float_arguments:
        expected = [subject.dtype]
    else:
        expected = list(DEFAULTS)
    message = f"the result has dtype {got}, expected {' or '.join(expected)}"
    subject.holds(got in expected, message, arguments, reason="dtype")
    return True


@proves(law.BATCH_INVARIANCE)
def batch_invariance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """One element of the batch alone."""
    if not arguments.batch or 0 in arguments.batch:
        return False
    index = tuple(int(rng.integers(size)) for size in arguments.batch)
    whole, budget = subject.call(arguments), subject.budget(arguments)
    what = f"the result for element {index} of the batch, computed alone,"
    subject.matches(subject.call(element(arguments, index)), wide(whole[index]), 2 * budget[index], arguments, what)
    return True


@proves(law.BROADCASTING)
def broadcasting(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """All batches repeated in full."""
    full = {}
    for a in batched(arguments):
        x = arguments.array(a.name)
        repeated = np.broadcast_to(x, (*arguments.batch, *x.shape[x.ndim - len(a.core) :]))
        if repeated.shape != x.shape:
            full[a.name] = np.ascontiguousarray(repeated)
    if not full or not subject.limits.broadcasting:
        return False
    got, budget = subject.call(arguments), subject.budget(arguments)
    repeated_result = wide(subject.call(arguments.with_(**full)))
    subject.matches(got, repeated_result, 2 * budget, arguments, "the result of batches that broadcast")
    return True


@proves(law.FEWER_DIMENSIONS, once=True)
def fewer_dimensions(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Each argument in turn without a batch, beside others that have one."""
    if not subject.limits.broadcasting or not subject.limits.max_batch_dims:
        return False
    given = sample(subject, rng, (2,), n=3, m=5)
    for a in batched(given):
        alone = given.with_(**{a.name: given.array(a.name)[0]})
        expected = subject.oracle(alone)
        what = f"the result with a {a.name} that has no batch"
        subject.matches(subject.call(alone), expected.value, expected.budget, alone, what)
    return True


@proves(law.EMPTY_BATCH, once=True)
def empty_batch(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Batches without elements, of one dimension and of two; ``call`` demands the shape."""
    tried = False
    for batch in ((0,), (2, 0)):
        if len(batch) <= subject.limits.max_batch_dims:
            given = sample(subject, rng, batch)
            subject.call(given)
            if "mask" in given:
                subject.call(given.with_(mask=np.ones(mask_shape(given), bool)))
            tried = True
    return tried


@proves(law.NON_CONTIGUOUS)
def non_contiguous(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Every second number of arrays twice as long, with garbage in between; or the last axes, or all, transposed."""
    inputs = subject.converted(arguments)
    strided = dict(inputs)
    way = int(rng.integers(3))
    for name, x in arguments.arrays.items():
        if name in inputs and x.ndim:
            try:
                strided[name] = _strided(subject, x, way)
            except (TypeError, IndexError, AttributeError):
                return False  # arrays of this backend cannot be cut or transposed
    got = subject.outcome(strided)
    if isinstance(got, Raised):
        raise Violation(f"strided inputs raised {got.told}", reason="raised")
    expected, budget = subject.call(arguments), subject.budget(arguments)
    subject.holds(
        isinstance(got, np.ndarray) and got.shape == expected.shape, "strided inputs change the shape", arguments
    )
    if boolean(arguments):
        subject.matches(got, expected, budget, arguments, "the result of strided inputs")
    else:
        subject.matches(got, wide(expected), 2 * budget, arguments, "the result of strided inputs")
    return True


def _strided(subject: Subject, x: Numbers, way: int) -> Any:
    if way and x.ndim > 1:
        pairs = [(-1, -2)] if way == 1 else [(i, x.ndim - 1 - i) for i in range(x.ndim // 2)]
        for pair in pairs:
            x = x.swapaxes(*pair)
        result = subject.convert(np.ascontiguousarray(x))
        for pair in pairs:
            result = result.swapaxes(*pair)
        return result
    garbage = ~x if x.dtype == bool else x + x.dtype.type(1)
    return subject.convert(np.stack([x, garbage], axis=-1).reshape(*x.shape[:-1], 2 * x.shape[-1]))[..., ::2]


@proves(law.NO_MUTATION)
def no_mutation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The backend's own arrays, before and after a call."""
    inputs = subject.converted(arguments)
    result = subject.outcome(inputs)
    if isinstance(result, Raised):
        raise Violation(f"raised {result.told}", reason="raised")
    for name, x in arguments.arrays.items():
        if name in inputs:
            after = subject.numbers(inputs[name])
            subject.holds(
                np.array_equal(after, x, equal_nan=is_float(x)),
                f"{name} was written to",
                arguments,
                reason="mutated-input",
                expected=x,
                got=after.copy(),
            )
    return True


@proves(law.NO_MEMORY)
def no_memory(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The same call before and after another one, whose result is overwritten in between."""
    subject.call(arguments)  # what raises is told here
    first_raw = subject.demanded(subject.converted(arguments))
    first = np.array(subject.numbers(first_raw))
    other = arguments.with_(
        **{
            name: subject.exact(-0.5 * x.astype(np.float64) + 0.25)
            for name, x in arguments.arrays.items()
            if is_float(x)
        }
    )
    subject.call(other)
    other_raw = subject.demanded(subject.converted(other))

    def budget() -> Numbers:
        return subject.budget(arguments)

    subject.same(
        np.array(subject.numbers(first_raw)), first, budget, arguments, "an earlier result, after a later call,"
    )
    for raw in (first_raw, other_raw):
        _poison(raw)
    again = np.array(subject.numbers(subject.demanded(subject.converted(arguments))))
    subject.same(again, first, budget, arguments, "the result of the same call, made again after another,")
    return True


def _poison(raw: Any) -> None:
    try:
        raw[...] = 1
    except (TypeError, ValueError, RuntimeError, IndexError):
        return  # arrays of this backend cannot be written to


@proves(law.REJECTION)
def rejection(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Every shape made wrong in turn, that of a mask too."""
    if "mask" in arguments and arguments.mask is None:
        arguments = arguments.with_(mask=np.ones(mask_shape(arguments), bool))
    tried = False
    for name, values in violations(arguments):
        broken = Arguments(arguments.operation, values)
        expected = _complaint(broken, values)
        if expected is None:
            continue
        tried = True
        result = subject.outcome(subject.converted(broken))
        if not isinstance(result, Raised):
            raise Violation(
                f"a wrong shape of {name} was accepted ({expected}); expected an exception, got a result of shape "
                f"{np.shape(result)}",
                reason="accepted",
                arguments=broken,
            )
    return tried


def _complaint(broken: Arguments, values: Mapping[str, Any]) -> str | None:
    """What the Protocol has against these shapes; None if they fit after all."""
    try:
        bind(broken.operation, shapes(broken.operation, values))
    except ShapeError as error:
        return str(error)
    return None


def violations(arguments: Arguments) -> Iterator[tuple[str, dict[str, Any]]]:
    """Arguments with one shape that violates the Protocol, and the name of the culprit."""
    values = dict(arguments)
    for a in arguments.operation.arguments:
        x = values[a.name]
        if a.kind is Kind.SIZE:
            yield a.name, {**values, a.name: -1}
        if not isinstance(x, np.ndarray):
            continue
        for axis in range(x.ndim):
            if x.shape[axis]:
                longer = np.concatenate([x, np.take(x, [0], axis=axis)], axis=axis)
                yield a.name, {**values, a.name: longer}
            if x.shape[axis] > 2:
                yield a.name, {**values, a.name: np.take(x, np.arange(x.shape[axis] - 1), axis=axis)}
        if x.ndim == len(a.core) and x.size and x.ndim:
            yield a.name, {**values, a.name: x[0]}


def _small(arguments: Arguments) -> bool:
    """Whether some input is small throughout, or spread over many magnitudes."""
    sizes = [np.abs(wide(x)) for x in arguments.arrays.values() if is_float(x) and x.size]
    return any(x.max() < 2.0**-5 or (x[x > 0].min(initial=1.0) < 2.0**-12) for x in sizes)


@proves(law.GRADIENT)
def gradient(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The gradient of a weighted sum of the results, with random weights.

    In float16 products of small numbers underflow, which is why people scale their losses: inputs are not small there.
    """
    if subject.dtype == "float16" and _small(arguments):
        changed = normal_like(subject, arguments, rng)
        if changed is None:
            return False
        arguments = changed
    got = subject.call(arguments)
    if not got.size:
        return False
    cotangent = subject.exact(rng.standard_normal(got.shape))
    if subject.operation.takes("mask"):
        if subject.semantics.fully_masked == "nan" and not live_rows(subject, arguments).all():
            return False
        if subject.operation.chapter != "normalization":
            cotangent = np.where(live_rows(subject, arguments), cotangent, cotangent.dtype.type(0))
    expected = subject.gradients(arguments, cotangent)
    if any(np.abs(value).max(initial=0.0) > subject.precision.largest / 16 for value, _ in expected.values()):
        return False
    found = subject.vjp(arguments, cotangent)
    for name, (value, budget) in expected.items():
        subject.matches(found[name], value, budget, arguments, f"the gradient of {name}")
    return True
