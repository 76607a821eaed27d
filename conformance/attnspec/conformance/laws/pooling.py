"""Checks of the laws of weighted sums of values. Options of ``@checks``: see ``Check``."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import (
    attendable_keys,
    average_tolerance,
    demand_additive_in,
    demand_no_bias,
    has_query_axis,
    live_rows,
    normal_like,
    on_coarse_grid,
    pooled_rows,
    smallest_normal,
    wide,
)
from attnspec.conformance.laws.ensembles import (
    by_element,
    demand_unbiased,
    ensemble,
    ensembles,
    independent_elements,
    single_key_ensembles,
    unrounded,
)
from attnspec.spec.contract.axes import Role
from attnspec.spec.laws import attention
from attnspec.spec.laws import pooling as law


@checks(law.CONVEXITY)
def convexity(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Demand results between the extreme attendable values, also for equal values."""
    judged = _demand_in_hull(subject, arguments, "attendable values")
    value, operation = pooled_rows(arguments), subject.operation
    # Where keys are also the values, as in ``self_attention``, equal values would mean equal keys.
    if value.shape[-2] and operation.pooled in operation.linear:
        constant = subject.exact(on_coarse_grid(3 * rng.standard_normal(value.shape[-1]) + 1, reach=8))
        equal = arguments.replaced({operation.pooled: np.broadcast_to(constant, value.shape).copy()})
        _demand_in_hull(subject, equal, "values, all of them equal")
    return judged


def _demand_in_hull(subject: Subject, arguments: Arguments, label: str) -> bool:
    """Demand results in the hull of attendable values; False if no row has keys."""
    mask = attendable_keys(subject, arguments)[..., None]
    values = wide(pooled_rows(arguments))
    if has_query_axis(arguments):
        values = values[..., None, :, :]
    low = np.where(mask, values, np.inf).min(axis=-2, initial=np.inf)
    high = np.where(mask, values, -np.inf).max(axis=-2, initial=-np.inf)
    live = np.broadcast_to(live_rows(subject, arguments), low.shape)
    if not live.any():
        return False
    got = wide(subject.call(arguments))
    slack = average_tolerance(subject, arguments, values)
    with np.errstate(invalid="ignore"):
        outside = live & ~((got >= low - slack) & (got <= high + slack))
    index = tuple(int(i) for i in np.argwhere(outside)[0]) if outside.any() else ()
    subject.demand(
        not outside.any(),
        f"the result {list(index)} is {got[index] if index else 0:.9g}, outside the {label}",
        arguments,
        expected=np.where(live, np.clip(got, low, high), 0.0),
        got=got,
        budget=np.float64(slack),
    )
    return True


@checks(law.LINEARITY)
def linearity(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Demand additivity in every linear argument; multiply one by 2 or −1, and 0.

    Short profiles try additivity in all of them only at the leading dtype.
    """
    linear = subject.operation.linear
    path = str(rng.choice(linear))
    for summed in linear if subject.is_leading_dtype or subject.effort.slow else (path,):
        demand_additive_in(subject, arguments, rng, summed, "the result")
    _compare_multiplied(subject, arguments, path, float(rng.choice([2.0, -1.0])))
    zeroed = arguments.replaced({path: np.zeros_like(arguments.array(path))})
    got = subject.call(zeroed)
    live = live_rows(subject, zeroed) if subject.operation.mask is not None else np.ones((1,), bool)
    is_zero = not (live & (got != 0)).any()
    subject.demand(is_zero, f"with {path} = 0, the result is not 0", zeroed, got=got, expected=np.zeros(got.shape))
    return True


def _compare_multiplied(subject: Subject, arguments: Arguments, path: str, factor: float) -> None:
    """Multiply an argument by 2 or −1, both exact in every binary format."""
    changed = arguments.replaced({path: subject.exact(factor * arguments.array(path).astype(np.float64))})
    if not subject.in_domain(changed):
        return
    result = subject.call(arguments)
    expected = subject.exact(factor * result.astype(np.float64)) if subject.dtype != "float64" else factor * result
    title = f"of {factor:g} times {path}, the result"
    if not _only_weighted(subject, path) or subject.precision.inputs_smallest:
        # Products of weights, and numbers in 8 bits, may lie below the smallest normal number, and round more coarsely
        # there.
        subject.demand_match(subject.call(changed), wide(expected), 3 * subject.budget(arguments), changed, title)
        return
    # A result that is not above the smallest normal number may have been rounded more coarsely than its double.
    normal = np.abs(result.astype(np.float64)) > smallest_normal(subject)
    got = np.where(normal, subject.call(changed), expected)
    subject.demand_equal(got, expected, lambda: 2 * subject.budget(arguments), changed, title)


def _only_weighted(subject: Subject, path: str) -> bool:
    """Return whether attention weights are all that multiplies an argument."""
    operation = subject.operation
    if len(operation.floats) == 1:
        return True
    if all(leaf.path != path for leaf in operation.attended) or not operation.weighs_keys:
        return False
    # A weight matrix that shares the size of its features multiplies it too, as ``w_v`` in multi-head attention.
    width = next(leaf for leaf in operation.leaves if leaf.path == path).core[-1].factors[0]
    return not any(operation.role(leaf) == Role.WEIGHT and width in leaf.sizes for leaf in operation.leaves)


@checks(law.UNBIASED_GAIN, ensemble=True, governs=law.averages_or_sums_keys)
def unbiased_gain(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Filter errors along the result."""
    inputs = normal_like(subject, arguments, rng)
    return inputs is not None and demand_no_bias(subject, inputs, subject.oracle(inputs).value, rows_err_alike=True)


@checks(law.UNBIASED_GAIN, once=True, governs=law.weighs_once)
def ensemble_gain(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Filter errors of many batch elements along the result."""
    if not independent_elements(subject):
        return False
    for label, sampled in [*ensembles(subject, arguments), *single_key_ensembles(subject, arguments)]:
        expected = unrounded(subject, sampled)
        error = by_element(subject.call(sampled)) - by_element(expected)
        demand_unbiased(subject, sampled, error, by_element(expected), f"the gain{label}")
    return True


@checks(attention.GRADIENT_IDENTITIES, once=True, governs=law.linear_in_batches)
def gradient_of_linear(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Filter ⟨x, ∂x⟩ − ⟨result, cotangent⟩, which is 0 for linear arguments x."""
    if not independent_elements(subject):
        return False
    sampled = ensemble(subject, arguments)
    leading = subject.operation.leading.path
    cotangent = subject.cotangents(sampled, rng)[leading]
    gradients, result = subject.vjp(sampled, {leading: cotangent}), subject.call(sampled)
    product = (by_element(result) * by_element(cotangent)).sum(-1, keepdims=True)
    for leaf, x in sampled.batched:
        if leaf.path in subject.operation.linear:
            path = leaf.path
            got = (by_element(x) * by_element(gradients[path])).sum(-1, keepdims=True)
            demand_unbiased(subject, sampled, got - product, product, f"⟨{path}, ∂{path}⟩ = ⟨result, cotangent⟩")
    return True


@checks(law.EQUAL_KEYS_GIVE_MEAN)
def equal_keys_give_mean(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Replace all keys by the first: results are means of attendable values."""
    changes = {}
    for leaf in subject.operation.attended:
        key = arguments.array(leaf.path)
        if leaf.path != subject.operation.pooled:
            changes[leaf.path] = np.broadcast_to(key[..., :1, :], key.shape).copy()
    if not arguments.keys_count:
        return False
    equal_keys = arguments.replaced(changes)
    weights = attendable_keys(subject, equal_keys).astype(np.float64)
    live = live_rows(subject, equal_keys)
    mean = weights @ wide(pooled_rows(equal_keys)) / np.maximum(weights.sum(-1, keepdims=True), 1)
    budget = subject.budget(equal_keys)
    got = np.where(live, wide(subject.call(equal_keys)), 0.0)
    subject.demand_match(got, np.where(live, mean, 0.0), 2 * budget, equal_keys, "for equal keys, the result")
    return True
