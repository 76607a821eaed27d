"""Checks of the laws of attention. Options of ``@checks``: see ``Check``."""

from functools import partial
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, keep, take
from attnspec.conformance.inputs.attendance import attendable, mask_shape
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import (
    average_tolerance,
    demand_no_bias,
    demand_permuted_results,
    doubles,
    in_full_batches,
    live_rows,
    normal_like,
    pooled_rows,
    sample,
    smallest_normal,
    sum_budgets,
    wide,
)
from attnspec.conformance.laws.ensembles import (
    GRADIENT_CALLS,
    by_element,
    demand_unbiased,
    elements,
    ensemble,
    ensembles_of_scores,
    independent_elements,
    rescaled,
    scale_direction,
    unrounded,
)
from attnspec.spec.contract.axes import Axis
from attnspec.spec.laws import attention as law

PERMUTED = ("queries,", "keys and values,", "sequence,", "heads,")
"""Permuted objects in messages, in the order of ``law.ORDER_FREE``."""


@checks(law.PERMUTATION_EQUIVARIANCE)
def permutation_equivariance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Permute queries, keys, sequences and heads in turn, with their masks and weights."""
    tried = False
    for (kind, excluded), name in zip(law.ORDER_FREE, PERMUTED, strict=True):
        if kind is Axis.HEAD and subject.semantics.head_groups == "interleaved":
            continue  # the axis of query heads is split into key heads and groups as if these were blocks
        tried |= demand_permuted_results(subject, arguments, rng, kind, excluded, f"of permuted {name}")
    return tried


@checks(law.SINGLE_KEY_RETURNS_ITS_VALUE)
def single_key_returns_its_value(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Mask all keys but one, drawn for every query."""
    shape = mask_shape(arguments)
    m = shape[-1]
    if not m or 0 in shape:
        return False
    keys = rng.integers(0, m, shape[:-1])
    one_key = arguments.unordered().with_mask(np.arange(m) == keys[..., None])
    single_query = subject.operation.query_size is None
    value = pooled_rows(one_key)
    rows = keys.reshape(*keys.shape, 1, 1) if single_query else keys[..., None]
    value = np.broadcast_to(value, (*one_key.batch, *value.shape[-2:]))
    expected = np.take_along_axis(value, rows, axis=-2)
    expected = expected[..., 0, :] if single_query else expected
    # Bits may differ: if a compiler fuses s·c − max·c, the only weight is a rounding away from 1.
    title = "with one attendable key, the result"
    subject.demand_match(subject.call(one_key), wide(expected), subject.budget(one_key), one_key, title)
    return True


@checks(law.DUPLICATED_KEYS_CHANGE_NOTHING)
def duplicated_keys_change_nothing(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Repeat every key and value."""
    max_length, operation = subject.limits.max_length, subject.operation
    sizes = [keys for keys in operation.unordered_keys if max_length is None or 2 * arguments.size(keys) <= max_length]
    plain = arguments.unordered()
    for keys in sizes:
        twice = plain.along(keys, lambda x, axis: np.concatenate([x, x], axis=axis))
        budgets = sum_budgets(subject.budgets(plain), subject.budgets(twice))
        expected = doubles(subject.results(plain))
        subject.all_match(subject.results(twice), expected, budgets, twice, "of duplicated keys and values,")
    return bool(sizes)


@checks(law.SPLIT_AND_MERGE)
def split_and_merge(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Merge the results of attention to both halves of the keys.

    The weight of the first half is the result for values that are 1 in the first half and 0 in the second.
    """
    keys = subject.operation.key_size
    assert keys is not None
    m = arguments.size(keys)
    half = subject.limits.length_from(max(m // 2, 1))
    if half >= m or (m - half) % subject.limits.multiple_of:
        return False
    masked = arguments.unordered()
    # A mask of size 1 along the keys must be repeated before its columns can be divided.
    if masked.mask is not None:
        masked = masked.with_mask(attendable(masked))
    value = pooled_rows(masked)
    first_half = np.broadcast_to(np.arange(m)[:, None] < half, value.shape).astype(value.dtype)
    first_weights = masked.replaced({subject.operation.pooled: first_half})
    first, second = masked.along(keys, keep(half)), masked.along(keys, take(np.arange(half, m)))
    weight_of_first, of_first, of_second = (wide(subject.call(x)) for x in (first_weights, first, second))
    for part in (first, second):
        # A half without attendable keys has no share, whatever a backend gives for it.
        if not live_rows(subject, part).all() and subject.semantics.fully_masked != "zero":
            return False
    parts = [subject.budget(x) for x in (masked, first, second, first_weights)]
    budget = parts[0] + np.maximum(parts[1], parts[2]) + parts[3] * (np.abs(of_first) + np.abs(of_second))
    merged = weight_of_first * of_first + (1 - weight_of_first) * of_second
    live = live_rows(subject, masked)
    got = np.where(live, wide(subject.call(masked)), 0.0)
    subject.demand_match(got, np.where(live, merged, 0.0), budget, masked, "unlike its two halves merged, the result")
    return True


def _query_and_key(arguments: Arguments) -> tuple[str, str]:
    """The paths of the queries and of the keys, which are not the values."""
    operation = arguments.operation
    (query,) = operation.queries
    key = next(leaf for leaf in operation.attended if leaf.path != operation.pooled)
    return query.path, key.path


@checks(law.HARDMAX_LIMIT, once=True, governs=law.inner_products)
def hardmax_limit(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Put keys at the corners of a cube, and each query far out towards one."""
    sampled = sample(subject, rng, queries=6, keys=6, features=8)
    query, key = _query_and_key(sampled)
    (n, _), (m, d) = sampled.array(query).shape, sampled.array(key).shape
    if not n or not m:
        return False
    # Signs of a corner are the bits of its number. Few features have few corners, so later keys repeat them.
    corners = 1 - 2 * ((np.arange(m)[:, None] >> np.arange(d)) & 1)
    nearest = rng.integers(0, min(m, 2 ** min(d, 20)), n)  # 2²⁰ exceeds every m; 2^d may exceed 64 bits
    for beta in (64.0, 512.0):
        far = sampled.replaced({key: subject.exact(corners), query: subject.exact(beta * corners[nearest])})
        expected, oracle = wide(pooled_rows(sampled))[nearest], subject.oracle(far)
        budget = oracle.budget + np.abs(wide(oracle.value) - expected)
        title = f"with queries {beta:g} times their key, the result"
        subject.demand_match(subject.call(far), expected, budget, far, title)
    return True


ENSEMBLE = 2048
"""Rows that suffice to show small errors among roundings of 16-bit weights."""


@checks(law.UNBIASED_SCALE, governs=law.averages_by_scaled_scores)
def unbiased_scale(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Filter errors along the derivative of the result by the logarithm of the scale."""
    inputs = normal_like(subject, arguments.unordered(), rng)
    if inputs is None:
        return False
    if subject.dtype in NARROW:
        inputs = sample(subject, rng, queries=ENSEMBLE, keys=16, features=16)
    formula, step = subject.formula(), 2.0**-12
    up, down = (formula(**rescaled(inputs, 1 + s).values_by_name) for s in (step, -step))
    return demand_no_bias(subject, inputs, (up - down) / (2 * step), rows_err_alike=True)


@checks(law.UNBIASED_SCALE, once=True, governs=law.scales_scores_once)
def ensemble_scale(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Filter errors of many batch elements along the derivative by the logarithm of the scale."""
    if not independent_elements(subject):
        return False
    for label, sampled in ensembles_of_scores(subject, arguments):
        error = by_element(subject.call(sampled)) - by_element(unrounded(subject, sampled))
        demand_unbiased(subject, sampled, error, scale_direction(subject, sampled), f"the scale of the scores{label}")
    return True


@checks(law.UNBIASED_GRADIENT, once=True, slow=True)
def unbiased_gradient(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Filter the errors of every gradient along the gradient, beyond its budget.

    An array that the batch shares has one gradient per call. So there are several calls, and each number of such a
    gradient is an independent element.
    """
    if not independent_elements(subject):
        return False
    errors: dict[str, list[Numbers]] = {}
    directions: dict[str, list[Numbers]] = {}
    for _ in range(GRADIENT_CALLS):
        sampled = elements(subject, rng, subject.effort.ensemble // GRADIENT_CALLS)
        cotangents = subject.cotangents(sampled, rng)
        gradients = subject.vjp(sampled, cotangents)
        for path, (value, budget) in subject.gradients(sampled, cotangents).items():
            shape = (len(value), -1) if sampled.leaves[path].batched else (-1, 1)
            errors.setdefault(path, []).append((wide(gradients[path]) - value).reshape(shape))
            directions.setdefault(path, []).append(np.where(np.abs(value) > budget, value, 0.0).reshape(shape))
    for path, error in errors.items():
        demand_unbiased(subject, sampled, np.vstack(error), np.vstack(directions[path]), f"the gradient of {path}")
    return True


@checks(law.GRADIENT_IDENTITIES, once=True, governs=law.bilinear_scores)
def gradient_balance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Filter ⟨q, ∂q⟩ − ⟨k, ∂k⟩, which is 0, along the mean of both."""
    if not independent_elements(subject):
        return False
    sampled = ensemble(subject, arguments)
    gradients = subject.vjp(sampled, subject.cotangents(sampled, rng))
    query, key = (
        (by_element(sampled.array(path)) * by_element(gradients[path])).sum(-1, keepdims=True)
        for path in _query_and_key(sampled)
    )
    demand_unbiased(subject, sampled, query - key, (query + key) / 2, "⟨q, ∂q⟩ = ⟨k, ∂k⟩")
    return True


@checks(law.GRADIENT_IDENTITIES, once=True, governs=law.inner_products)
def key_gradient_sum(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Filter the sum of key gradients along the error of omitting Σ α dα."""
    if not independent_elements(subject):
        return False
    sampled = ensemble(subject, arguments)
    cotangents = subject.cotangents(sampled, rng)
    query, key = _query_and_key(sampled)
    total = wide(subject.vjp(sampled, cotangents)[key]).sum(-2)
    weight = (wide(subject.call(sampled)) * wide(cotangents[subject.operation.leading.path])).sum(-1, keepdims=True)
    omitted = (wide(sampled.array(query)) * weight).sum(-2)
    demand_unbiased(subject, sampled, total, omitted, "the sum of the gradients of all keys")
    return True


@checks(law.QUERY_KEY_SCALE_EXCHANGE)
def query_key_scale_exchange(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Negate queries and keys; move a factor of 4 between them, where that is exact."""
    query_path, key_path = _query_and_key(arguments)
    expected = subject.call(arguments)
    for factor, prefix in ((-1.0, "of −q and −k"), (4.0, "of 4q and k/4")):
        query = subject.exact(factor * wide(arguments.array(query_path)))
        key = subject.exact(wide(arguments.array(key_path)) / factor)
        if factor > 1 and not _scaled_exactly(subject, wide(arguments.array(query_path)), wide(query), wide(key)):
            continue
        traded = arguments.replaced({query_path: query, key_path: key})
        budget = partial(subject.budget, arguments)
        subject.demand_equal(subject.call(traded), expected, budget, traded, f"{prefix}, the result")
    return True


def _scaled_exactly(subject: Subject, query: Numbers, larger: Numbers, key: Numbers) -> bool:
    """Return whether 4q is finite, and no number loses bits even if divided by √d."""
    least = smallest_normal(subject) * np.sqrt(max(query.shape[-1], 1))
    return bool(np.isfinite(larger).all()) and not any((np.abs(x[x != 0]) < least).any() for x in (query, key))


@checks(law.HARDMAX_LIMIT, once=True)
def input_dependence(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Use distant keys as queries: each query returns the value of its own key."""
    sampled = sample(subject, rng, queries=5, keys=5, features=5)
    query_paths = {leaf.path for leaf in subject.operation.queries}
    keys = [leaf.path for leaf in subject.operation.attended if leaf.path != subject.operation.pooled]
    points = {path: 32.0 * np.eye(*sampled.array(path).shape) for path in {*query_paths, *keys}}
    count = min(min(x.shape) for x in points.values())
    if count < 2:
        return False
    changed = sampled.replaced({path: subject.exact(x) for path, x in points.items()})
    expected = wide(pooled_rows(changed))[:count]
    got = wide(subject.call(changed))[:count]
    slack = average_tolerance(subject, changed, expected)
    subject.demand(
        bool((np.abs(got - expected) <= slack).all()),
        "queries along one key each do not return that key's value",
        changed,
        expected=expected,
        got=got,
        budget=np.float64(slack),
    )
    return True


@checks(law.SAME_ARRAY_PASSED_TWICE, governs=law.keys_may_be_values)
def same_array_passed_twice(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass one array as key and value, and as query if sizes allow."""
    if not arguments.keys_count or not arguments.queries:
        return False
    # The law operation.broadcast-equals-repeat judges batches that only the mask has.
    shared = in_full_batches(of_one_array(arguments))
    attended = [leaf.path for leaf in subject.operation.attended]
    for paths in (attended, [*(leaf.path for leaf in subject.operation.queries), *attended]):
        if not all(np.array_equal(shared[path], shared[attended[0]]) for path in paths):
            continue
        inputs = subject.converted(shared)
        inputs |= dict.fromkeys(paths, inputs[attended[0]])
        got = subject.numbers(subject.raw_result(inputs))
        expected = wide(subject.call(shared))
        title = f"with one array as {' and '.join(paths)}, the result"
        subject.demand(got.shape == expected.shape, f"{title} has another shape", shared)
        subject.demand_match(got, expected, lambda: 2 * subject.budget(shared), shared, title)
    return True


def of_one_array(arguments: Arguments) -> Arguments:
    """Arguments whose keys are also the values and, resized, the queries."""
    operation, sizes = arguments.operation, arguments.sizes
    key, *others = operation.attended
    width = sizes[key.core[-1].factors[0]]

    def cycle(size: str, count: int) -> Any:
        return take(np.arange(count) % sizes[size])

    changed = arguments
    for leaf in (*operation.queries, *others):
        size = leaf.core[-1].factors[0]
        changed = changed if size == key.core[-1].factors[0] else changed.along(size, cycle(size, width))
    if operation.query_size is not None:
        changed = changed.along(operation.query_size, cycle(operation.query_size, changed.keys_count or 0))
    shared: Numbers = changed.array(key.path)
    return changed.replaced({leaf.path: shared.copy() for leaf in (*operation.queries, *others)})
