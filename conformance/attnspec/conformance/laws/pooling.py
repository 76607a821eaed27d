"""Checks of the laws of weighted sums of values."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import (
    additive_in,
    allowed,
    average_tolerance,
    coarse,
    filtered_error,
    live_rows,
    normal_like,
    pooled,
    rows_of_queries,
    smallest_normal,
    wide,
)
from attnspec.conformance.laws.ensembles import along, by_element, ensemble, ensembles, exact, judgeable
from attnspec.spec.contract.axes import Role
from attnspec.spec.laws import attention
from attnspec.spec.laws import pooling as law


@checks(law.CONVEXITY)
def convexity(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Demand results between the extreme attendable values, also where all values are equal."""
    judged = _in_the_hull(subject, arguments, "attendable values")
    value, operation = pooled(arguments), subject.operation
    # Keys that are their own values would be equal too.
    if value.shape[-2] and operation.pooled in operation.linear:
        constant = subject.exact(coarse(3 * rng.standard_normal(value.shape[-1]) + 1, reach=8))
        equal = arguments.replaced({operation.pooled: np.broadcast_to(constant, value.shape).copy()})
        _in_the_hull(subject, equal, "values, which are all equal")
    return judged


def _in_the_hull(subject: Subject, arguments: Arguments, what: str) -> bool:
    """Demand results in the hull of attendable values; return whether a row has keys."""
    attendable = allowed(subject, arguments)[..., None]
    values = wide(pooled(arguments))
    if rows_of_queries(arguments):
        values = values[..., None, :, :]
    low = np.where(attendable, values, np.inf).min(axis=-2, initial=np.inf)
    high = np.where(attendable, values, -np.inf).max(axis=-2, initial=-np.inf)
    live = np.broadcast_to(live_rows(subject, arguments), low.shape)
    if not live.any():
        return False
    got = wide(subject.call(arguments))
    slack = average_tolerance(subject, arguments, values)
    with np.errstate(invalid="ignore"):
        outside = live & ~((got >= low - slack) & (got <= high + slack))
    index = tuple(int(i) for i in np.argwhere(outside)[0]) if outside.any() else ()
    subject.holds(
        not outside.any(),
        f"the result {list(index)} is {got[index] if index else 0:.9g}, outside the {what}",
        arguments,
        expected=np.where(live, np.clip(got, low, high), 0.0),
        got=got,
        budget=np.float64(slack),
    )
    return True


@checks(law.LINEARITY)
def linearity(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Demand additivity in every linear argument; multiply one by 2 or −1, and by 0.

    In short profiles, dtypes but the leading one try additivity in that one alone.
    """
    linear = subject.operation.linear
    path = str(rng.choice(linear))
    for summed in linear if subject.leading or subject.effort.slow else (path,):
        additive_in(subject, arguments, rng, summed, "the result")
    _multiplied(subject, arguments, path, float(rng.choice([2.0, -1.0])))
    given = arguments.replaced({path: np.zeros_like(arguments.array(path))})
    got = subject.call(given)
    live = live_rows(subject, given) if subject.operation.mask is not None else np.ones((1,), bool)
    wrong = live & (got != 0)
    subject.holds(not bool(wrong.any()), f"{path} = 0 does not give 0", given, got=got, expected=np.zeros(got.shape))
    return True


def _multiplied(subject: Subject, arguments: Arguments, path: str, factor: float) -> None:
    """Multiply an argument by 2 or −1, both exact in every binary format."""
    changed = arguments.replaced({path: subject.exact(factor * arguments.array(path).astype(np.float64))})
    if not subject.in_domain(changed):
        return
    result = subject.call(arguments)
    expected = subject.exact(factor * result.astype(np.float64)) if subject.dtype != "float64" else factor * result
    what = f"of {factor:g} times {path}, the result"
    if not _weighted_alone(subject, path) or subject.precision.inputs_smallest:
        # Products of weights, and numbers in 8 bits, may lie below the smallest normal number, and round more coarsely
        # there.
        subject.matches(subject.call(changed), wide(expected), 3 * subject.budget(arguments), changed, what)
        return
    # A result that is not above the smallest normal number may have been rounded more coarsely than its double.
    normal = np.abs(result.astype(np.float64)) > smallest_normal(subject)
    got = np.where(normal, subject.call(changed), expected)
    subject.same(got, expected, lambda: 2 * subject.budget(arguments), changed, what)


def _weighted_alone(subject: Subject, path: str) -> bool:
    """Return whether only attention weights multiply an argument, or no other argument exists."""
    operation = subject.operation
    if len(operation.floats) == 1:
        return True
    if all(leaf.path != path for leaf in operation.attended) or not operation.weighs_keys:
        return False
    width = next(leaf for leaf in operation.leaves if leaf.path == path).core[-1].factors[0]
    return not any(operation.role(leaf) == Role.WEIGHT and width in leaf.sizes for leaf in operation.leaves)


@checks(law.GAIN, ensemble=True, governs=law.sums_over_keys)
def gain(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Matched filter of errors along the result itself."""
    given = normal_like(subject, arguments, rng)
    return given is not None and filtered_error(subject, given, subject.oracle(given).value, rows_err_alike=True)


@checks(law.GAIN, once=True, governs=law.weighs_once)
def ensemble_gain(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Filter errors of many batch elements along the result itself."""
    if not judgeable(subject):
        return False
    for words, given in ensembles(subject, arguments):
        expected = exact(subject, given)
        error = by_element(subject.call(given)) - by_element(expected)
        along(subject, given, error, by_element(expected), f"the gain{words}")
    return True


@checks(attention.GRADIENT_IDENTITIES, once=True, governs=law.linear_in_batches)
def gradient_of_linear(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Filter ⟨x, ∂x⟩ − ⟨result, cotangent⟩ of linear arguments, without the oracle."""
    if not judgeable(subject):
        return False
    given = ensemble(subject, arguments)
    leading = subject.operation.leading.path
    cotangent = subject.cotangents(given, rng)[leading]
    found, result = subject.vjp(given, {leading: cotangent}), subject.call(given)
    expected = (by_element(result) * by_element(cotangent)).sum(-1, keepdims=True)
    for leaf, x in given.batched:
        if leaf.path in subject.operation.linear:
            got = (by_element(x) * by_element(found[leaf.path])).sum(-1, keepdims=True)
            along(subject, given, got - expected, expected, f"the gradient of {leaf.path} against the result")
    return True


@checks(law.UNIFORM)
def uniform(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Replace all keys by the first: the result is the mean of attendable values."""
    changes = {}
    for leaf in subject.operation.attended:
        key = arguments.array(leaf.path)
        if leaf.path != subject.operation.pooled:
            changes[leaf.path] = np.broadcast_to(key[..., :1, :], key.shape).copy()
    if not arguments.keys_count:
        return False
    given = arguments.replaced(changes)
    weights = allowed(subject, given).astype(np.float64)
    live = live_rows(subject, given)
    mean = weights @ wide(pooled(given)) / np.maximum(weights.sum(-1, keepdims=True), 1)
    budget = subject.budget(given)
    got = np.where(live, wide(subject.call(given)), 0.0)
    subject.matches(got, np.where(live, mean, 0.0), 2 * budget, given, "for equal keys, the result")
    return True
