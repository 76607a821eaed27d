"""Checks of the laws of attention."""

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
    doubles,
    filtered_error,
    in_full_batches,
    live_rows,
    normal_like,
    permuted_alike,
    pooled,
    sample,
    smallest_normal,
    together,
    wide,
)
from attnspec.conformance.laws.ensembles import (
    GROUPS,
    along,
    batches,
    by_element,
    ensemble,
    ensembles_of_scores,
    exact,
    judgeable,
    rescaled,
    scale_direction,
)
from attnspec.spec.laws import attention as law

PERMUTED = ("queries,", "keys and values,", "sequence,", "heads,")
"""Names for messages of what is permuted, in the order of ``law.ORDER_FREE``."""


@checks(law.PERMUTATION)
def permutation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Permute queries, keys, sequences and heads in turn, with their masks and weights."""
    judged = False
    for (kind, but), what in zip(law.ORDER_FREE, PERMUTED, strict=True):
        judged |= permuted_alike(subject, arguments, rng, kind, but, f"of permuted {what}")
    return judged


@checks(law.SINGLE_KEY)
def single_key(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Mask all keys but one, drawn for every query."""
    shape = mask_shape(arguments)
    m = shape[-1]
    if not m or 0 in shape:
        return False
    chosen = rng.integers(0, m, shape[:-1])
    given = arguments.plain().with_mask(np.arange(m) == chosen[..., None])
    alone = subject.operation.asking is None
    value = pooled(given)
    rows = chosen.reshape(*chosen.shape, 1, 1) if alone else chosen[..., None]
    value = np.broadcast_to(value, (*given.batch, *value.shape[-2:]))
    expected = np.take_along_axis(value, rows, axis=-2)
    expected = expected[..., 0, :] if alone else expected
    # Not bit for bit: if a compiler fuses s·c − max·c, the only weight is off 1 by a rounding before the division.
    what = "with one attendable key, the result"
    subject.matches(subject.call(given), wide(expected), subject.budget(given), given, what)
    return True


@checks(law.DUPLICATION)
def duplication(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Repeat every key and value."""
    most, operation = subject.limits.max_length, subject.operation
    sizes = [keys for keys in operation.unordered_keys if most is None or 2 * arguments.size(keys) <= most]
    given = arguments.plain()
    for keys in sizes:
        twice = given.along(keys, lambda x, axis: np.concatenate([x, x], axis=axis))
        budgets = together(subject.budgets(given), subject.budgets(twice))
        expected = doubles(subject.results(given))
        subject.all_match(subject.results(twice), expected, budgets, twice, "of duplicated pairs,")
    return bool(sizes)


@checks(law.SPLIT_AND_MERGE)
def split_and_merge(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Merge the results of attention to both halves of the keys.

    The weight of the first half is the result for values that are 1 in the first half and 0 in the second.
    """
    keys = subject.operation.asked
    assert keys is not None
    m = arguments.size(keys)
    half = subject.limits.length_from(max(m // 2, 1))
    if half >= m or (m - half) % subject.limits.multiple_of:
        return False
    given = arguments.plain()
    # A mask of size 1 along the keys must be repeated before its columns can be divided.
    if given.mask is not None:
        given = given.with_mask(attendable(given))
    value = pooled(given)
    first_half = np.broadcast_to(np.arange(m)[:, None] < half, value.shape).astype(value.dtype)
    share = given.replaced({subject.operation.pooled: first_half})
    first, second = given.along(keys, keep(half)), given.along(keys, take(np.arange(half, m)))
    lam, one, two = (wide(subject.call(x)) for x in (share, first, second))
    for part in (first, second):
        # A half without attendable keys has no share, whatever a backend gives for it.
        if not live_rows(subject, part).all() and subject.semantics.fully_masked != "zero":
            return False
    parts = [subject.budget(x) for x in (given, first, second, share)]
    budget = parts[0] + np.maximum(parts[1], parts[2]) + parts[3] * (np.abs(one) + np.abs(two))
    merged = lam * one + (1 - lam) * two
    live = live_rows(subject, given)
    got = np.where(live, wide(subject.call(given)), 0.0)
    subject.matches(got, np.where(live, merged, 0.0), budget, given, "against its two halves merged, the result")
    return True


def _query_and_key(arguments: Arguments) -> tuple[str, str]:
    """The paths of the queries and of those keys that are not also values."""
    operation = arguments.operation
    (query,) = operation.queries
    key = next(leaf for leaf in operation.attended if leaf.path != operation.pooled)
    return query.path, key.path


@checks(law.HARD_LIMIT, once=True, governs=law.inner_products)
def hard_limit(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Put keys at the corners of a cube, and each query far out towards one."""
    base = sample(subject, rng, queries=6, keys=6, features=8)
    query, key = _query_and_key(base)
    (n, _), (m, d) = base.array(query).shape, base.array(key).shape
    if not n or not m:
        return False
    corners = 1 - 2 * ((np.arange(m)[:, None] >> np.arange(d)) & 1)
    best = rng.integers(0, min(m, 2 ** min(d, 20)), n)
    for beta in (64.0, 512.0):
        given = base.replaced({key: subject.exact(corners), query: subject.exact(beta * corners[best])})
        expected = wide(pooled(base))[best]
        oracle = subject.oracle(given)
        distance = np.abs(wide(oracle.value) - expected)
        subject.matches(subject.call(given), expected, oracle.budget + distance, given, f"at β = {beta:g}, the result")
    return True


ENSEMBLE = 2048
"""Rows that show small errors above the rounding of 16-bit weights, shared by columns."""


@checks(law.SCALE, governs=law.averages_by_scores)
def scale(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Matched filter of errors along the result's derivative by the logarithm of the scale."""
    given = normal_like(subject, arguments.plain(), rng)
    if given is None:
        return False
    if subject.dtype in NARROW:
        given = sample(subject, rng, queries=ENSEMBLE, keys=16, features=16)
    formula, step = subject.formula(), 2.0**-12
    up, down = (formula(**rescaled(given, 1 + s).values_by_name) for s in (step, -step))
    return filtered_error(subject, given, (up - down) / (2 * step), rows_err_alike=True)


@checks(law.SCALE, once=True, governs=law.scales_once)
def ensemble_scale(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Filter errors of many batch elements along the derivative by the logarithm of the scale."""
    if not judgeable(subject):
        return False
    for words, given in ensembles_of_scores(subject, arguments):
        error = by_element(subject.call(given)) - by_element(exact(subject, given))
        along(subject, given, error, scale_direction(subject, given), f"the scale of the scores{words}")
    return True


@checks(law.ENSEMBLE_GRADIENT, once=True, slow=True)
def ensemble_gradient(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Filter the errors of every gradient along itself, where it exceeds its budget.

    An array that the batch shares has one gradient per call, hence several calls; each of its numbers counts alone.
    """
    if not judgeable(subject):
        return False
    errors: dict[str, list[Numbers]] = {}
    directions: dict[str, list[Numbers]] = {}
    for _ in range(GROUPS):
        given = batches(subject, rng, subject.effort.ensemble // GROUPS)
        cotangents = subject.cotangents(given, rng)
        found = subject.vjp(given, cotangents)
        for path, (value, budget) in subject.gradients(given, cotangents).items():
            shape = (len(value), -1) if given.leaves[path].batched else (-1, 1)
            errors.setdefault(path, []).append((wide(found[path]) - value).reshape(shape))
            directions.setdefault(path, []).append(np.where(np.abs(value) > budget, value, 0.0).reshape(shape))
    for path, error in errors.items():
        along(subject, given, np.vstack(error), np.vstack(directions[path]), f"the gradient of {path}")
    return True


@checks(law.GRADIENT_IDENTITIES, once=True, governs=law.bilinear_scores)
def gradient_balance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Filter ⟨q, ∂q⟩ − ⟨k, ∂k⟩ along the mean of both, without the oracle."""
    if not judgeable(subject):
        return False
    given = ensemble(subject, arguments)
    found = subject.vjp(given, subject.cotangents(given, rng))
    one, two = (
        (by_element(given.array(path)) * by_element(found[path])).sum(-1, keepdims=True)
        for path in _query_and_key(given)
    )
    along(subject, given, one - two, (one + two) / 2, "the gradient of the queries against that of the keys")
    return True


@checks(law.GRADIENT_IDENTITIES, once=True, governs=law.inner_products)
def key_gradient_sum(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Filter summed key gradients along the error of omitting Σ α dα = c·o."""
    if not judgeable(subject):
        return False
    given = ensemble(subject, arguments)
    cotangents = subject.cotangents(given, rng)
    query, key = _query_and_key(given)
    total = wide(subject.vjp(given, cotangents)[key]).sum(-2)
    left = (wide(subject.call(given)) * wide(cotangents[subject.operation.leading.path])).sum(-1, keepdims=True)
    forgotten = (wide(given.array(query)) * left).sum(-2)
    along(subject, given, total, forgotten, "the sum of the gradients of all keys")
    return True


@checks(law.SCALE_TRADE)
def scale_trade(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Negate queries and keys; trade a factor of 4 between them, where exact."""
    query_path, key_path = _query_and_key(arguments)
    expected = subject.call(arguments)
    for factor, what in ((-1.0, "of −q and −k"), (4.0, "of 4q and k/4")):
        query = subject.exact(factor * wide(arguments.array(query_path)))
        key = subject.exact(wide(arguments.array(key_path)) / factor)
        if factor > 1 and not _scaled_exactly(subject, wide(arguments.array(query_path)), wide(query), wide(key)):
            continue
        traded = arguments.replaced({query_path: query, key_path: key})
        budget = partial(subject.budget, arguments)
        subject.same(subject.call(traded), expected, budget, traded, f"{what}, the result")
    return True


def _scaled_exactly(subject: Subject, query: Numbers, larger: Numbers, key: Numbers) -> bool:
    """Return whether 4q is finite, and no number is small enough to lose bits."""
    least = smallest_normal(subject) * np.sqrt(max(query.shape[-1], 1))
    return bool(np.isfinite(larger).all()) and not any((np.abs(x[x != 0]) < least).any() for x in (query, key))


@checks(law.HARD_LIMIT, once=True)
def input_dependence(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Use distant keys as queries: each query finds the value of its own key."""
    base = sample(subject, rng, queries=5, keys=5, features=5)
    asking = {leaf.path for leaf in subject.operation.queries}
    keys = [leaf.path for leaf in subject.operation.attended if leaf.path != subject.operation.pooled]
    points = {path: 32.0 * np.eye(*base.array(path).shape) for path in {*asking, *keys}}
    count = min(min(x.shape) for x in points.values())
    if count < 2:
        return False
    given = base.replaced({path: subject.exact(x) for path, x in points.items()})
    expected = wide(pooled(given))[:count]
    got = wide(subject.call(given))[:count]
    slack = average_tolerance(subject, given, expected)
    subject.holds(
        bool((np.abs(got - expected) <= slack).all()),
        "queries that equal one key each do not find its value",
        given,
        expected=expected,
        got=got,
        budget=np.float64(slack),
    )
    return True


@checks(law.SHARED_INPUTS, governs=law.shares_keys)
def shared_inputs(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass one array as key and value, and as query too if the sizes allow."""
    if not arguments.keys_count or not arguments.queries:
        return False
    # The law operation.broadcasting judges batches that only the mask has.
    given = in_full_batches(of_one_array(arguments))
    attended = [leaf.path for leaf in subject.operation.attended]
    for paths in (attended, [*(leaf.path for leaf in subject.operation.queries), *attended]):
        if not all(np.array_equal(given[path], given[attended[0]]) for path in paths):
            continue
        inputs = subject.converted(given)
        inputs |= dict.fromkeys(paths, inputs[attended[0]])
        got = subject.numbers(subject.demanded(inputs))
        expected = wide(subject.call(given))
        subject.holds(got.shape == expected.shape, f"one array as {' and '.join(paths)} changes the shape", given)
        what = f"with one array as {' and '.join(paths)}, the result"
        subject.matches(got, expected, lambda: 2 * subject.budget(given), given, what)
    return True


def of_one_array(arguments: Arguments) -> Arguments:
    """Arguments whose keys are also the values and, resized, the queries."""
    operation, sizes = arguments.operation, arguments.sizes
    key, *others = operation.attended
    width = sizes[key.core[-1].factors[0]]

    def cycle(size: str, to: int) -> Any:
        return take(np.arange(to) % sizes[size])

    given = arguments
    for leaf in (*operation.queries, *others):
        size = leaf.core[-1].factors[0]
        given = given if size == key.core[-1].factors[0] else given.along(size, cycle(size, width))
    if operation.asking is not None:
        given = given.along(operation.asking, cycle(operation.asking, given.keys_count or 0))
    shared: Numbers = given.array(key.path)
    return given.replaced({leaf.path: shared.copy() for leaf in (*operation.queries, *others)})
