"""Checks of the laws of scores."""

from typing import NamedTuple

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, keep
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import (
    bounded,
    broadcast_batches,
    coarse,
    filtered_error,
    normal_like,
    odd_in,
    sample,
    wide,
)
from attnspec.spec.contract.axes import Role
from attnspec.spec.contract.law import of
from attnspec.spec.laws import attention
from attnspec.spec.laws import scoring as law
from attnspec.spec.recurrent import RNNCell
from attnspec.spec.scoring import AdditiveScores, GaussianScores


@checks(law.ISOMETRY)
def isometry(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Exchange queries and keys; rotate both exactly by a signed permutation; shift both."""
    query, key = query_and_key(subject)
    expected, budget = wide(subject.call(arguments)), 2 * subject.budget(arguments)
    exchanged = subject.call(arguments.replaced({query: arguments[key], key: arguments[query]})).swapaxes(-1, -2)
    subject.matches(exchanged, expected, budget, arguments, "with query and key exchanged, the score")
    d = arguments.array(query).shape[-1]
    order, signs = rng.permutation(d), rng.choice([-1, 1], d)
    rotated = {
        p: np.take(arguments.array(p), order, axis=-1) * signs.astype(arguments.array(p).dtype) for p in (query, key)
    }
    found = subject.call(arguments.replaced(rotated))
    subject.matches(found, expected, budget, arguments, "after a rotation of both, the score")
    if subject.operation.protocol is GaussianScores:
        _shifted(subject, arguments, rng)
    return True


def _shifted(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> None:
    """Add a vector to queries and keys, on a grid with exact sums."""
    paths = query_and_key(subject)
    near = arguments.replaced({path: subject.exact(coarse(arguments[path])) for path in paths})
    shift = float(rng.choice([-8.0, 4.0, 16.0]))
    far = near.replaced({path: subject.exact(wide(near.array(path)) + shift) for path in paths})
    budget = 2 * subject.budget(near)
    subject.matches(subject.call(far), wide(subject.call(near)), budget, far, f"shifted by {shift}, the score")


@checks(attention.SCALE, ensemble=True, governs=attention.gives_scores)
def scale(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Matched filter of errors along the scores themselves."""
    given = normal_like(subject, arguments, rng)
    return given is not None and filtered_error(subject, given, subject.oracle(given).value)


@checks(law.PERCEPTRON)
def perceptron(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass [q; k_j] as query, [W_q W_k] as its weight, and a zero key."""
    m = arguments.keys_count
    if not m or subject.limits.head_sizes is not None:
        return False
    j = int(rng.integers(m))
    names = parts(subject)
    query, key = arguments.array(names.query), arguments.array(names.key)
    query, chosen = broadcast_batches(query, key[..., j : j + 1, :], core=2)
    chosen = np.broadcast_to(chosen, (*query.shape[:-1], chosen.shape[-1]))
    batch = () if subject.limits.broadcasting else query.shape[:-2]
    joined = arguments.replaced(
        {
            names.query: np.concatenate([query, chosen], axis=-1),
            names.key: np.zeros((*batch, subject.limits.multiple_of, key.shape[-1]), key.dtype),
            names.of_query: np.concatenate([arguments[names.of_query], arguments[names.of_key]], axis=-1),
        }
    )
    budget = subject.budget(arguments)[..., j : j + 1] + subject.budget(joined)[..., :1]
    expected = wide(subject.call(arguments)[..., j : j + 1])
    subject.matches(subject.call(joined)[..., :1], expected, budget, arguments, "of the concatenation, the score")
    return True


@checks(law.ODD_AND_BOUNDED)
def odd_and_bounded(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Negate vectors and states; bound results, for additive scores of saturated inputs too."""
    operation = subject.operation
    inputs, bound = [arguments], 1.0
    if operation.protocol is AdditiveScores:
        names = parts(subject)
        negated = [names.query, names.key]
        saturated = {path: subject.exact(1e4 * np.sign(wide(arguments.array(path)))) for path in negated}
        inputs.append(arguments.replaced(saturated))
        bound = float(np.abs(wide(arguments.array(names.output))).sum())
    elif operation.protocol is RNNCell:
        # A bias of the other sign belongs to the negated vectors.
        negated = [leaf.path for leaf, _ in arguments.floats if len(leaf.core) == 1]
    else:
        negated = [leaf.path for leaf in operation.leaves if operation.role(leaf) is Role.STATE]
    for given in filter(subject.in_domain, inputs):
        bounded(subject, given, operation.leading.path, bound, f"of at most {bound:.9g}, the result")
    return odd_in(subject, arguments, negated)


@checks(law.SATURATION, once=True)
def saturation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Use identity projections and magnitudes from 10⁻³ to 10⁶, with keys that nearly cancel queries."""
    largest = min(1e6, subject.precision.largest / 4)
    magnitudes = [x for x in (1e-3, 0.1, 1.0, 9.0, 20.0, 43.0, 60.0, 88.0, 89.0, 200.0, 1e3, 1e4, 1e6) if x <= largest]
    count = len(magnitudes)
    names = parts(subject)
    for offset in (0.0, 0.5, -1.0, 3.0, None):
        batch = (count,) if subject.operation.asking is None else ()
        base = sample(subject, rng, batch, queries=count, keys=count, features=WIDTH)
        width = base.array(names.output).shape[-1]
        if any(base.array(path).shape != (width, width) for path in (names.of_query, names.of_key)):
            return False
        signs = rng.choice([-1.0, 1.0], (count, width))
        query = subject.exact(np.array(magnitudes)[:, None] * signs)
        if offset is None:
            key = subject.exact(np.array(magnitudes)[::-1, None] * rng.choice([-1.0, 1.0], (count, width)))
        else:
            key = subject.exact(offset - query.astype(np.float64))
        rows = base.array(names.query).shape[:-1]
        # the backend's limits may have changed their number
        keys = np.resize(key, (base.keys_count or 0, width))
        queries = np.resize(query, (rows[-1], width)) if rows else query[rng.integers(count)]
        given = _unprojected(subject, base, queries, keys)
        if subject.operation.asking is None and rows:
            given = given.replaced({names.key: np.broadcast_to(keys, (*rows, *keys.shape)).copy()})
        _within_budget(subject, given)
    _within_budget(subject, _opposed(subject, rng))
    _within_budget(subject, _opposed(subject, rng, one_sided=True))
    return True


WIDTH = 8
"""The number of features and of hidden units, for which projections are identities."""


class Parts(NamedTuple):
    """The paths of an additive scorer's query, key, and weights of hidden and output layer."""

    query: str
    key: str
    of_query: str
    of_key: str
    output: str


def query_and_key(subject: Subject) -> tuple[str, str]:
    """The paths of the query and of the key."""
    return subject.operation.queries[0].path, subject.operation.attended[0].path


def parts(subject: Subject) -> Parts:
    """The arguments of an additive scorer: a weight shares a size with what it projects."""
    query, key = subject.operation.queries[0], subject.operation.attended[0]
    weights = [leaf for leaf in subject.operation.leaves if subject.operation.role(leaf) is Role.WEIGHT]
    of_query, of_key = (
        next(w for w in weights if len(w.core) > 1 and w.core[-1].factors == x.core[-1].factors) for x in (query, key)
    )
    (output,) = (w for w in weights if len(w.core) == 1)
    return Parts(query.path, key.path, of_query.path, of_key.path, output.path)


def _unprojected(subject: Subject, base: Arguments, query: Numbers, key: Numbers) -> Arguments:
    """Arguments with identity projections: the hidden layer is tanh(query + key)."""
    names = parts(subject)
    identities = {path: subject.exact(np.eye(*base.array(path).shape)) for path in (names.of_query, names.of_key)}
    return base.replaced({names.query: query, names.key: key, **identities})


def _within_budget(subject: Subject, given: Arguments) -> None:
    got, expected = subject.call(given), subject.oracle(given)
    subject.holds(
        bool(np.isfinite(wide(got)).all()), "the result is not finite", given, got=got, expected=expected.value
    )
    subject.matches(got, expected.value, expected.budget, given)


def _opposed(subject: Subject, rng: np.random.Generator, *, one_sided: bool = False) -> Arguments:
    """Queries of all magnitudes up to overflowing exponentials, and keys cancelling them to ±8.

    Kernels change their path at some magnitude, which differs between kernels and between queries and keys. Because
    consecutive magnitudes differ by less than 8, some pair lies on both sides of it. In a quarter of the hidden units
    query and key have equal signs. Where batches broadcast, two batches of keys share one of queries. With `one_sided`
    every query is negative, none is small and none shared, so that no exp(a + b) is large.
    """
    limits = subject.limits
    batches = limits.max_batch_dims > 0
    shared = limits.broadcasting and limits.max_batch_dims > 1 and not one_sided
    names, alone = parts(subject), subject.operation.asking is None
    batch, queries, keys = (64, 2) if shared else (128,), 2 if batches else 64, 8 if batches else 64
    base = sample(subject, rng, batch, queries=queries, keys=keys, features=WIDTH)
    of_query, of_key = (base.array(path).shape for path in (names.query, names.key))
    if shared:
        of_query = (of_query[0], 1, *of_query[2:])
    reach = 1.2 * np.log(np.finfo(np.float64 if subject.dtype == "float64" else np.float32).max)
    least, agreeing = (0.25, 0.0) if one_sided else (0.0, 0.25)

    def magnitudes(shape: tuple[int, ...]) -> Numbers:
        count = int(np.prod(shape[:-1]))
        parts = least + (1 - least) * (np.arange(count) + rng.random(count)) / count
        return np.asarray(reach * parts).reshape(*shape[:-1], 1)

    signs = rng.choice([-1.0, 1.0], (*of_query[: len(base.batch)], 1, max(of_query[-1], of_key[-1])))
    if one_sided:
        signs = -np.abs(signs)
    of_queries = signs[..., 0, : of_query[-1]] if alone else signs[..., : of_query[-1]]
    left = rng.uniform(-7, 7, (*of_key[:-1], 1)) + rng.uniform(-1, 1, of_key)
    against = np.where(rng.random(of_key) < agreeing, 1.0, -1.0) * signs[..., : of_key[-1]]
    query, key = of_queries * magnitudes(of_query), against * (magnitudes(of_key) + left)
    return _unprojected(subject, base, subject.exact(query), subject.exact(key))


@checks(law.SATURATION_GRADIENT, once=True)
def saturation_gradient(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare gradients for queries of all magnitudes, with keys that cancel or double them."""
    given = _opposed(subject, rng)
    cotangents = subject.cotangents(given, rng)
    expected, found = subject.gradients(given, cotangents), subject.vjp(given, cotangents)
    for path, (value, budget) in expected.items():
        if np.abs(value).max(initial=0.0) <= subject.precision.largest / 16:
            subject.matches(found[path], value, budget, given, f"the gradient of {path}")
    return True


@checks(law.ISOMETRY, governs=of(GaussianScores))
def nonpositive(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Demand that no score is positive, and that queries score 0 against themselves."""
    query, key = query_and_key(subject)
    # All pairs of queries may be more than the profile affords, which bounds pairs of a query and a key.
    few = arguments.along(subject.operation.asking or "", keep(arguments.keys_count or 0))
    same = few.replaced({key: few[query]})
    for given in (arguments, same):
        got = subject.call(given)
        subject.holds(
            not bool((got > 0).any()), f"a score is positive: {wide(got).max(initial=0.0):.9g}", given, got=got
        )
    got = subject.call(same)
    diagonal = np.diagonal(wide(got), axis1=-2, axis2=-1)
    budget = np.diagonal(subject.budget(same), axis1=-2, axis2=-1)
    subject.matches(diagonal, np.zeros(diagonal.shape), budget, same, "of queries against themselves, the score")
    return True
