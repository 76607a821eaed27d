"""Checks of the laws of attention."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, keep, take
from attnspec.conformance.inputs.attendance import attendable, mask_shape
from attnspec.conformance.judging.profiles import NARROW
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import (
    average_tolerance,
    filtered_error,
    live_rows,
    normal_like,
    plain,
    pooled_name,
    sample,
    smallest_normal,
    wide,
)
from attnspec.conformance.laws.registry import proves
from attnspec.reference import REFERENCE
from attnspec.spec.laws import attention as law


@proves(law.QUERY_PERMUTATION)
def query_permutation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Queries, and the rows of the mask, in another order."""
    order = rng.permutation(arguments.size("n"))
    given = plain(arguments)
    budget = np.take(subject.budget(given), order, axis=-2)
    expected = np.take(wide(subject.call(given)), order, axis=-2)
    permuted = given.along("n", take(order))
    subject.matches(subject.call(permuted), expected, 2 * budget, permuted, "of permuted queries, the result")
    return True


@proves(law.KEY_PERMUTATION)
def key_permutation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Keys, values and the columns of the mask in another order."""
    order = rng.permutation(arguments.size("m"))
    given = plain(arguments)
    permuted = given.along("m", take(order))
    budget = subject.budget(given)
    expected = wide(subject.call(given))
    subject.matches(subject.call(permuted), expected, 2 * budget, permuted, "of permuted keys and values, the result")
    return True


@proves(law.SELF_EQUIVARIANCE)
def self_equivariance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The sequence, and rows and columns of the mask, in another order."""
    order = rng.permutation(arguments.size("n"))
    given = plain(arguments)
    permuted = given.along("n", take(order))
    budget = np.take(subject.budget(given), order, axis=-2)
    expected = np.take(wide(subject.call(given)), order, axis=-2)
    subject.matches(subject.call(permuted), expected, 2 * budget, permuted, "of a permuted sequence, the result")
    return True


@proves(law.SINGLE_KEY)
def single_key(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """A mask that leaves every query one key of its own."""
    shape = mask_shape(arguments)
    m = shape[-1]
    if not m or 0 in shape:
        return False
    chosen = rng.integers(0, m, shape[:-1])
    given = plain(arguments).with_(mask=np.arange(m) == chosen[..., None])
    value = given.array(pooled_name(given))
    rows = chosen.reshape(*chosen.shape, 1, 1) if "state" in given else chosen[..., None]
    value = np.broadcast_to(value, (*given.batch, *value.shape[-2:]))
    expected = np.take_along_axis(value, rows, axis=-2)
    expected = expected[..., 0, :] if "state" in given else expected
    got, what = subject.call(given), "with one attendable key, the result"
    if subject.precision.inputs:
        # The class rounds values before it multiplies them.
        subject.matches(got, wide(expected), subject.budget(given), given, what)
    else:
        subject.same(got, expected, lambda: subject.budget(given), given, what)
    return True


@proves(law.DUPLICATION)
def duplication(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Every key and value twice."""
    m = arguments.size("m")
    if subject.limits.max_length is not None and 2 * m > subject.limits.max_length:
        return False
    given = plain(arguments)
    twice = given.along("m", lambda x, axis: np.concatenate([x, x], axis=axis))
    budget = subject.budget(given) + subject.budget(twice)
    subject.matches(subject.call(twice), wide(subject.call(given)), budget, twice, "of duplicated pairs, the result")
    return True


@proves(law.SPLIT_AND_MERGE)
def split_and_merge(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Both halves, and the share of the first: attention to values that are 1 in the first half, 0 in the second."""
    m, multiple = arguments.size("m"), subject.limits.multiple_of
    half = -(-max(m // 2, 1) // multiple) * multiple
    if half >= m or (m - half) % multiple:
        return False
    given = plain(arguments)
    # A mask of size 1 along the keys must be repeated before its columns can be divided.
    if given.mask is not None:
        given = given.with_(mask=attendable(given))
    value = given.array("value")
    share = given.with_(value=np.broadcast_to(np.arange(m)[:, None] < half, value.shape).astype(value.dtype))
    first, second = given.along("m", keep(half)), given.along("m", take(np.arange(half, m)))
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


@proves(law.HARD_LIMIT, once=True)
def hard_limit(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Keys that are the corners of a cube, and queries far out towards one corner each."""
    base = sample(subject, rng, n=6, m=6, d=8)
    n, m, d = (base.size(name) for name in ("n", "m", "d"))
    if not n or not m:
        return False
    corners = 1 - 2 * ((np.arange(m)[:, None] >> np.arange(d)) & 1)
    best = rng.integers(0, min(m, 2 ** min(d, 20)), n)
    for beta in (64.0, 512.0):
        given = base.with_(key=subject.exact(corners), query=subject.exact(beta * corners[best]))
        expected = wide(base.array("value"))[best]
        oracle = subject.oracle(given)
        distance = np.abs(wide(oracle.value) - expected)
        subject.matches(subject.call(given), expected, oracle.budget + distance, given, f"at β = {beta:g}, the result")
    return True


def _changed_scale(arguments: Arguments, factor: float) -> dict[str, Any]:
    """Float64 arguments whose scores are those of the given ones times a factor."""
    values = {name: wide(x) if x.dtype != bool else x for name, x in arguments.arrays.items()}
    whole = {**dict(arguments), **values}
    if "w_v" in arguments:
        return {**whole, "w_v": whole["w_v"] * factor}
    if arguments.operation.name == "nadaraya_watson":
        return {**whole, "query": whole["query"] * np.sqrt(factor), "key": whole["key"] * np.sqrt(factor)}
    return {**whole, "query": whole["query"] * factor}


ENSEMBLE = 2048
"""Rows for a small error to stand out from the roundings of narrow weights, which all columns share."""


@proves(law.SCALE)
def scale(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The matched filter along the derivative of the result by the logarithm of the scale."""
    given = normal_like(subject, plain(arguments), rng)
    if given is None:
        return False
    if subject.dtype in NARROW:
        given = sample(subject, rng, n=ENSEMBLE, m=16, d=16, d_q=16, d_k=16, h=16)
    formula, step = REFERENCE[subject.operation.name], 2.0**-12
    up, down = (formula(**_changed_scale(given, 1 + s)) for s in (step, -step))
    return filtered_error(subject, given, (up - down) / (2 * step), rows_err_alike=True)


@proves(law.SIGN)
def sign(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Queries and keys negated."""
    negated = arguments.with_(query=-arguments["query"], key=-arguments["key"])
    what = "of negated queries and keys, the result"
    subject.same(subject.call(negated), subject.call(arguments), lambda: subject.budget(arguments), negated, what)
    return True


@proves(law.SCALE_TRADE)
def scale_trade(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Queries times 4, keys divided by 4, where both are exact."""
    query = subject.exact(4 * wide(arguments.array("query")))
    key = subject.exact(wide(arguments.array("key")) / 4)
    small = wide(key)[wide(key) != 0]
    if not np.isfinite(wide(query)).all() or (small.size and np.abs(small).min() < smallest_normal(subject)):
        return False
    traded = arguments.with_(query=query, key=key)
    what = "of 4q and k/4, the result"
    subject.same(subject.call(traded), subject.call(arguments), lambda: subject.budget(arguments), traded, what)
    return True


@proves(law.INPUT_DEPENDENCE, once=True)
def input_dependence(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Queries equal to keys far apart: everyone finds its own value."""
    names = {"n": 5, "d": 5} | ({"m": 5} if "m" in subject.operation.size_names else {})
    base = sample(subject, rng, **names)
    n, d = base.size("n"), base.size("d")
    count = min(n, d, base.binding.sizes.get("m", n))
    if count < 2:
        return False
    points = subject.exact(32.0 * np.eye(n, d))
    if "x" in base:
        given = base.with_(x=points)
    else:
        given = base.with_(query=points, key=subject.exact(32.0 * np.eye(base.size("m"), d)))
    expected = wide(given.array(pooled_name(given)))[:count]
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


@proves(law.SHARED_INPUTS)
def shared_inputs(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """One array as key and value, and as query too where the lengths allow it."""
    if not arguments.size("m") or not arguments.size("n"):
        return False
    given = _shared(arguments)
    if given is None:
        return False
    for names in (("key", "value"), ("query", "key", "value")):
        if not all(np.array_equal(given[name], given["key"]) for name in names):
            continue
        inputs = subject.converted(given)
        inputs |= dict.fromkeys(names, inputs["key"])
        got = subject.numbers(subject.demanded(inputs))
        expected, budget = wide(subject.call(given)), subject.budget(given)
        subject.holds(got.shape == expected.shape, f"one array as {' and '.join(names)} changes the shape", given)
        subject.matches(got, expected, 2 * budget, given, f"with one array as {' and '.join(names)}, the result")
    return True


def _shared(arguments: Arguments) -> Arguments | None:
    """Arguments whose key serves as value and, resized to its length and width, as query."""
    sizes: Mapping[str, int] = arguments.binding.sizes
    width = arguments.array("key").shape[-1]

    def cycle(size: str, to: int) -> Any:
        return take(np.arange(to) % sizes[size])

    given = arguments.along("d_v", cycle("d_v", width)) if "d_v" in sizes else arguments
    if "d_q" in sizes:
        given = given.along("d_q", cycle("d_q", width))
    given = given.along("n", cycle("n", sizes["m"]))
    key: Numbers = given.array("key")
    return given.with_(query=key.copy(), value=key.copy())
