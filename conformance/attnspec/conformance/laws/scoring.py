"""Checks of the laws of scores. Options of ``@checks``: see ``Check``."""

from typing import NamedTuple

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, keep
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import (
    broadcast_batches,
    demand_bounded,
    demand_no_bias,
    demand_odd_in,
    normal_like,
    on_coarse_grid,
    sample,
    wide,
)
from attnspec.spec.contract.axes import Role
from attnspec.spec.contract.law import of
from attnspec.spec.laws import attention
from attnspec.spec.laws import scoring as law
from attnspec.spec.recurrent import RNNCell
from attnspec.spec.scoring import AdditiveScores, GaussianScores


@checks(law.ISOMETRY_INVARIANCE)
def isometry_invariance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Exchange queries and keys; rotate both by a signed permutation, which is exact; shift both."""
    query, key = query_and_key(subject)
    expected, budget = wide(subject.call(arguments)), 2 * subject.budget(arguments)
    exchanged = subject.call(arguments.replaced({query: arguments[key], key: arguments[query]})).swapaxes(-1, -2)
    subject.demand_match(exchanged, expected, budget, arguments, "with query and key exchanged, the score")
    d = arguments.array(query).shape[-1]
    order, signs = rng.permutation(d), rng.choice([-1, 1], d)
    arrays = {path: np.take(arguments.array(path), order, axis=-1) for path in (query, key)}
    rotated = {path: x * signs.astype(x.dtype) for path, x in arrays.items()}
    rotated_scores = subject.call(arguments.replaced(rotated))
    subject.demand_match(rotated_scores, expected, budget, arguments, "after a rotation of both, the score")
    if subject.operation.protocol is GaussianScores:
        _compare_shifted(subject, arguments, rng)
    return True


def _compare_shifted(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> None:
    """Add a number to queries and keys, on a grid with exact sums."""
    paths = query_and_key(subject)
    near = arguments.replaced({path: subject.exact(on_coarse_grid(arguments[path])) for path in paths})
    shift = float(rng.choice([-8.0, 4.0, 16.0]))
    far = near.replaced({path: subject.exact(wide(near.array(path)) + shift) for path in paths})
    budget = 2 * subject.budget(near)
    subject.demand_match(subject.call(far), wide(subject.call(near)), budget, far, f"shifted by {shift}, the score")


@checks(attention.UNBIASED_SCALE, ensemble=True, governs=attention.returns_scores)
def unbiased_scale(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Filter errors along the scores."""
    inputs = normal_like(subject, arguments, rng)
    return inputs is not None and demand_no_bias(subject, inputs, subject.oracle(inputs).value)


@checks(law.ADDITIVE_IS_PERCEPTRON)
def additive_is_perceptron(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass [q; k_j] as query, [W_q W_k] as its weight, and a zero key."""
    m = arguments.keys_count
    # The joined query would be wider than declared head sizes allow.
    if not m or subject.limits.head_sizes is not None:
        return False
    key_index = int(rng.integers(m))
    paths = scorer_paths(subject)
    query, key = arguments.array(paths.query), arguments.array(paths.key)
    query, chosen_key = broadcast_batches(query, key[..., key_index : key_index + 1, :], core=2)
    chosen_key = np.broadcast_to(chosen_key, (*query.shape[:-1], chosen_key.shape[-1]))
    batch = () if subject.limits.broadcasting else query.shape[:-2]
    joined = arguments.replaced(
        {
            paths.query: np.concatenate([query, chosen_key], axis=-1),
            paths.key: np.zeros((*batch, subject.limits.multiple_of, key.shape[-1]), key.dtype),
            paths.of_query: np.concatenate([arguments[paths.of_query], arguments[paths.of_key]], axis=-1),
        }
    )
    budget = subject.budget(arguments)[..., key_index : key_index + 1] + subject.budget(joined)[..., :1]
    expected = wide(subject.call(arguments)[..., key_index : key_index + 1])
    subject.demand_match(subject.call(joined)[..., :1], expected, budget, arguments, "of the concatenation, the score")
    return True


@checks(law.TANH_ODD_AND_BOUNDED)
def tanh_odd_and_bounded(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Negate vectors and states; bound results, also of saturated additive scores."""
    operation = subject.operation
    inputs, bound = [arguments], 1.0
    if operation.protocol is AdditiveScores:
        paths = scorer_paths(subject)
        negated = [paths.query, paths.key]
        saturated = {path: subject.exact(1e4 * np.sign(wide(arguments.array(path)))) for path in negated}
        inputs.append(arguments.replaced(saturated))
        bound = float(np.abs(wide(arguments.array(paths.output))).sum())
    elif operation.protocol is RNNCell:
        # A bias of the other sign belongs to the negated vectors.
        negated = [leaf.path for leaf, _ in arguments.floats if len(leaf.core) == 1]
    else:
        negated = [leaf.path for leaf in operation.leaves if operation.role(leaf) is Role.STATE]
    for changed in filter(subject.in_domain, inputs):
        demand_bounded(subject, changed, operation.leading.path, bound, f"bounded by {bound:.9g}, the result")
    return demand_odd_in(subject, arguments, negated)


@checks(law.SATURATION_STAYS_FINITE, once=True)
def saturation_stays_finite(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Use identity projections, magnitudes from 10⁻³ to 10⁶, and keys that cancel queries."""
    largest = min(1e6, subject.precision.largest / 4)
    # tanh saturates in float32 from about 9 on, in float64 from about 20; exp overflows in float32 between 88 and 89.
    magnitudes = [x for x in (1e-3, 0.1, 1.0, 9.0, 20.0, 43.0, 60.0, 88.0, 89.0, 200.0, 1e3, 1e4, 1e6) if x <= largest]
    count = len(magnitudes)
    paths = scorer_paths(subject)
    # Keys cancel queries up to an offset; with None they are independent.
    for offset in (0.0, 0.5, -1.0, 3.0, None):
        batch = (count,) if subject.operation.query_size is None else ()  # ``bahdanau_context``: one query per element
        sampled = sample(subject, rng, batch, queries=count, keys=count, features=WIDTH)
        width = sampled.array(paths.output).shape[-1]
        if any(sampled.array(path).shape != (width, width) for path in (paths.of_query, paths.of_key)):
            return False
        signs = rng.choice([-1.0, 1.0], (count, width))
        query = subject.exact(np.array(magnitudes)[:, None] * signs)
        if offset is None:
            key = subject.exact(np.array(magnitudes)[::-1, None] * rng.choice([-1.0, 1.0], (count, width)))
        else:
            key = subject.exact(offset - query.astype(np.float64))
        rows = sampled.array(paths.query).shape[:-1]
        # The backend's limits may have changed the number of rows.
        keys = np.resize(key, (sampled.keys_count or 0, width))
        queries = np.resize(query, (rows[-1], width)) if rows else query[rng.integers(count)]
        changed = _with_identity_projections(subject, sampled, queries, keys)
        if subject.operation.query_size is None and rows:
            changed = changed.replaced({paths.key: np.broadcast_to(keys, (*rows, *keys.shape)).copy()})
        _demand_finite_result(subject, changed)
    _demand_finite_result(subject, _opposing_call(subject, rng))
    _demand_finite_result(subject, _opposing_call(subject, rng, one_sided=True))
    return True


WIDTH = 8
"""Features and hidden units, equal in number so that projections can be identities."""


class ScorerPaths(NamedTuple):
    """Paths of an additive scorer: query, key, two hidden weights, output weight."""

    query: str
    key: str
    of_query: str
    of_key: str
    output: str


def query_and_key(subject: Subject) -> tuple[str, str]:
    """The paths of the query and of the key."""
    return subject.operation.queries[0].path, subject.operation.attended[0].path


def scorer_paths(subject: Subject) -> ScorerPaths:
    """The paths of an additive scorer; a weight has the feature size that it projects."""
    query, key = subject.operation.queries[0], subject.operation.attended[0]
    weights = [leaf for leaf in subject.operation.leaves if subject.operation.role(leaf) is Role.WEIGHT]
    matrices = {w.core[-1].factors: w for w in reversed(weights) if len(w.core) > 1}
    of_query, of_key = (matrices[x.core[-1].factors] for x in (query, key))
    (output,) = (w for w in weights if len(w.core) == 1)
    return ScorerPaths(query.path, key.path, of_query.path, of_key.path, output.path)


def _with_identity_projections(subject: Subject, arguments: Arguments, query: Numbers, key: Numbers) -> Arguments:
    """Arguments with identity projections: the hidden layer is tanh(query + key)."""
    paths = scorer_paths(subject)
    identities = {path: subject.exact(np.eye(*arguments.array(path).shape)) for path in (paths.of_query, paths.of_key)}
    return arguments.replaced({paths.query: query, paths.key: key, **identities})


def _demand_finite_result(subject: Subject, arguments: Arguments) -> None:
    got, expected = subject.call(arguments), subject.oracle(arguments)
    finite = bool(np.isfinite(wide(got)).all())
    subject.demand(finite, "the result is not finite", arguments, got=got, expected=expected.value)
    subject.demand_match(got, expected.value, expected.budget, arguments)


def _opposing_call(subject: Subject, rng: np.random.Generator, *, one_sided: bool = False) -> Arguments:
    """Queries of all magnitudes up to overflowing exponentials; keys cancel them to ±8.

    Kernels change their path at some magnitude of queries or keys. Consecutive magnitudes differ by less than 8, so
    some pair has one number on either side. In a quarter of the hidden units query and key have equal signs. If
    batches broadcast, two batches of keys share one batch of queries. With ``one_sided`` all queries are negative,
    large and not shared, and no signs are equal, so that no exp(a + b) is large.
    """
    limits = subject.limits
    batches = limits.max_batch_dims > 0
    queries_broadcast = limits.broadcasting and limits.max_batch_dims > 1 and not one_sided
    paths, single_query = scorer_paths(subject), subject.operation.query_size is None
    batch = (64, 2) if queries_broadcast else (128,)
    queries, keys = (2, 8) if batches else (64, 64)
    sampled = sample(subject, rng, batch, queries=queries, keys=keys, features=WIDTH)
    query_shape, key_shape = (sampled.array(path).shape for path in (paths.query, paths.key))
    if queries_broadcast:
        query_shape = (query_shape[0], 1, *query_shape[2:])
    # The largest magnitude of queries: exp overflows from 5/6 of it on.
    reach = 1.2 * np.log(np.finfo(np.float64 if subject.dtype == "float64" else np.float32).max)
    smallest_part, agreeing = (0.25, 0.0) if one_sided else (0.0, 0.25)

    def magnitudes(shape: tuple[int, ...]) -> Numbers:
        count = int(np.prod(shape[:-1]))
        fractions = smallest_part + (1 - smallest_part) * (np.arange(count) + rng.random(count)) / count
        return np.asarray(reach * fractions).reshape(*shape[:-1], 1)

    signs = rng.choice([-1.0, 1.0], (*query_shape[: len(sampled.batch)], 1, max(query_shape[-1], key_shape[-1])))
    if one_sided:
        signs = -np.abs(signs)
    query_signs = signs[..., 0, : query_shape[-1]] if single_query else signs[..., : query_shape[-1]]
    remainder = rng.uniform(-7, 7, (*key_shape[:-1], 1)) + rng.uniform(-1, 1, key_shape)
    key_signs = np.where(rng.random(key_shape) < agreeing, 1.0, -1.0) * signs[..., : key_shape[-1]]
    query, key = query_signs * magnitudes(query_shape), key_signs * (magnitudes(key_shape) + remainder)
    return _with_identity_projections(subject, sampled, subject.exact(query), subject.exact(key))


@checks(law.SATURATION_GRADIENT, once=True)
def saturation_gradient(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare gradients for queries of all magnitudes; keys cancel or double them."""
    opposed = _opposing_call(subject, rng)
    cotangents = subject.cotangents(opposed, rng)
    expected, gradients = subject.gradients(opposed, cotangents), subject.vjp(opposed, cotangents)
    for path, (value, budget) in expected.items():
        if np.abs(value).max(initial=0.0) <= subject.precision.largest / 16:
            subject.demand_match(gradients[path], value, budget, opposed, f"the gradient of {path}")
    return True


@checks(law.ISOMETRY_INVARIANCE, governs=of(GaussianScores))
def nonpositive(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Demand that scores are at most 0, and those of queries against themselves 0."""
    query, key = query_and_key(subject)
    # Profiles bound query-key pairs, and all query-query pairs may be too many.
    few_queries = arguments.along(subject.operation.query_size or "", keep(arguments.keys_count or 0))
    same = few_queries.replaced({key: few_queries[query]})
    for call in (arguments, same):
        got = subject.call(call)
        largest = wide(got).max(initial=0.0)
        subject.demand(not largest > 0, f"a score is positive: {largest:.9g}", call, got=got)
    got = subject.call(same)
    diagonal = np.diagonal(wide(got), axis1=-2, axis2=-1)
    budget = np.diagonal(subject.budget(same), axis1=-2, axis2=-1)
    subject.demand_match(diagonal, np.zeros(diagonal.shape), budget, same, "of queries against themselves, the score")
    return True
