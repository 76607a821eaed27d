"""Filters over ensembles: many batch elements together show errors far below rounding.

If θ is wrong by ε, the error of batch element b has the part ε g_b, g = ∂/∂θ. The estimate ε̂ = Σ t_b / Σ ‖g_b‖², t_b =
⟨got_b − exact_b, g_b⟩, needs no model of the errors: different elements err independently, whatever errors are within
one. For independent symmetric t_b, |Σ t_b| exceeds z √Σ t_b² with a probability of at most 2 exp(−z²/2), however they
are distributed (Hoeffding's inequality for their signs): 3·10⁻¹⁴ at the z of 8 that is used here.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import mask_shape
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import sample, wide
from attnspec.conformance.laws.lessons import rng_of
from attnspec.reference.budget import WIDTH
from attnspec.spec.contract.axes import Role

KEYS, FEATURES = 8, 8
"""Small sizes: one key's rounding does not average out, and many elements are cheap."""

TILE = 128
"""The largest tile of keys in common kernels."""

LEAST, LEAST_ITSELF = 192, 128
"""Fewest batch elements B: an error is at most √B standard errors, less where elements differ.
Elements of self-attention differ little, since each has as many rows as keys."""

FEW = 64
"""Batch elements by which the size of scores is chosen."""

SCORES = tuple(2.0**i for i in range(-4, 3))
"""Factors tried on scores; the one that shows errors best is used."""

STEP = 2.0**-12
"""The relative step of the scale in numerical derivatives."""

MORE_OF_SQUARES = 16
"""Factor by which more elements are needed where scores of many features are squared distances."""

GROUPS = 16
"""Calls among which the elements are divided for gradients of arrays that a batch shares."""

Inputs = TypeVar("Inputs")


def judgeable(subject: Subject) -> bool:
    """Return whether batch elements err independently: not if they share weights that the class rounds."""
    shared = any(subject.operation.role(leaf) is Role.WEIGHT for leaf in subject.operation.floats)
    return subject.limits.max_batch_dims > 0 and not (subject.precision.inputs and shared)


def batches(
    subject: Subject, rng: np.random.Generator, count: int, *, keys: int = KEYS, features: int = FEATURES
) -> Arguments:
    """Normal batch elements with one query each, or in self-attention a query per key."""
    queries = keys if subject.operation.attends_to_itself else 1
    return sample(subject, rng, (count,), queries=queries, keys=keys, features=features, heads=2)


def shared(arguments: Arguments, name: str, make: Callable[[np.random.Generator], Inputs]) -> Inputs:
    """Inputs that laws share, made once per template; its numbers are the seed."""
    return arguments.once(name, lambda: make(rng_of(arguments)))


def ensemble(subject: Subject, arguments: Arguments) -> Arguments:
    """Normal inputs of as many batch elements as the profile affords, once per template."""
    return shared(arguments, "ensemble", lambda rng: batches(subject, rng, subject.effort.ensemble))


def ensembles(subject: Subject, arguments: Arguments) -> list[tuple[str, Arguments]]:
    """Inputs for a filter, with descriptions; long profiles add masked, causal, long and wide ones."""
    return shared(arguments, "ensembles", lambda rng: list(_ensembles(subject, ensemble(subject, arguments), rng)))


def _ensembles(subject: Subject, plain: Arguments, rng: np.random.Generator) -> Iterator[tuple[str, Arguments]]:
    count, operation = subject.effort.ensemble, subject.operation
    yield "", plain
    if not subject.effort.slow or not (operation.pooled or operation.linear):
        return
    if operation.mask is not None:
        shape = mask_shape(plain)
        allowed = rng.random(shape) < 0.6
        kept = np.arange(shape[-1]) == rng.integers(shape[-1], size=(*shape[:-1], 1))
        yield " under a mask", plain.with_mask(allowed | kept)
    if operation.flag is not None:
        batch = (max(count // KEYS, LEAST),)
        queries = sample(subject, rng, batch, queries=KEYS, keys=KEYS, features=FEATURES, heads=2)
        yield " where it is causal", queries.replaced({operation.flag: True})
    # 16-bit dtypes need as many elements as affordable; one of self-attention has as many rows as keys.
    narrow, itself = subject.dtype in NARROW, operation.attends_to_itself
    least, part = (LEAST_ITSELF, 16) if itself else (LEAST, 2 if narrow else 4)
    long = batches(subject, rng, max(count // part, least), keys=TILE + 32)
    if (long.keys_count or 0) > TILE:
        # Keys of the first tile have weights, and values of 0.
        valued = [leaf.path for leaf in operation.attended if leaf.path in operation.linear]
        cut = long.replaced({path: _after_tile(long.array(path)) for path in valued})
        yield f" in keys from {TILE} on", _clearest(subject, cut)
    if operation.sharpened and subject.dtype != "float64":
        part = 8 if narrow and not itself else 16
        if _squared(subject) and not narrow:
            part //= MORE_OF_SQUARES
        yield f" of {TILE + 8} features", _clearest(subject, batches(subject, rng, count // part, features=TILE + 8))


def ensembles_of_scores(subject: Subject, arguments: Arguments) -> list[tuple[str, Arguments]]:
    """Inputs of a filter for the scale; in long profiles, scores have the best size."""

    def found(rng: np.random.Generator) -> list[tuple[str, Arguments]]:
        (words, plain), *others = ensembles(subject, arguments)
        if subject.effort.slow and subject.operation.sharpened:
            plain = _clearest(subject, batches(subject, rng, subject.effort.ensemble))
        return [(words, plain), *others]

    return shared(arguments, "ensembles of scores", found)


def _squared(subject: Subject) -> bool:
    """Return whether scores are squared distances: for many features large, and coarsely rounded."""
    return all(exponent < 1 for exponent in subject.operation.sharpened.values())


def _clearest(subject: Subject, given: Arguments) -> Arguments:
    """Batch elements with scores of the size that shows errors of scale best.

    Weights of almost 1 hardly depend on the scale; almost equal ones depend on it by less than their rounding. A few
    elements decide the size.
    """
    if not subject.operation.sharpened:
        return given
    few = given.replaced({leaf.path: x[:FEW] for leaf, x in given.batched})
    best = min(SCORES, key=lambda factor: _haze(subject, _of_scores(subject, few, factor)))
    return _of_scores(subject, given, best)


def _of_scores(subject: Subject, arguments: Arguments, factor: float) -> Arguments:
    """Arguments whose scores are multiplied by a factor, as numbers of the dtype."""
    changed = rescaled(arguments, factor)
    return changed.replaced({leaf.path: subject.exact(x) for leaf, x in changed.floats})


def _haze(subject: Subject, arguments: Arguments) -> float:
    """The relative uncertainty of a scale estimate if every error equalled its budget.

    An estimate that depends on few batch elements, as where one key outweighs the others in most, is less certain: it
    counts as an estimate from these few.
    """
    direction = scale_direction(subject, arguments)
    told = wide((direction**2).sum(-1))
    information = float(told.sum())
    if information == 0.0:
        return np.inf
    errors = wide(by_element(subject.budget(arguments)) * direction)
    few = np.sqrt(float((told**2).sum())) / information
    haze = float(np.sqrt((errors**2).sum())) / information * few
    return haze if np.isfinite(haze) else np.inf


def _after_tile(x: Numbers) -> Numbers:
    changed: Numbers = x.copy()
    changed[..., :TILE, :] = 0
    return changed


def exact(subject: Subject, arguments: Arguments) -> Numbers:
    """The reference's leading result in oracle precision, without budgets, computed once."""
    return arguments.once("exact", lambda: subject.unrounded(arguments)[subject.operation.leading.path])


def rescaled(arguments: Arguments, factor: float) -> Arguments:
    """Arguments in double precision, with scores multiplied by a factor."""
    powers = {path: factor**exponent for path, exponent in arguments.operation.sharpened.items()}
    return multiplied(arguments, powers)


def multiplied(arguments: Arguments, factors: Mapping[str, float]) -> Arguments:
    """Arguments in double precision, those at some paths multiplied by a factor."""
    return arguments.replaced(
        {leaf.path: wide(x) * factors[leaf.path] if leaf.path in factors else wide(x) for leaf, x in arguments.floats}
    )


def scale_direction(subject: Subject, arguments: Arguments) -> Numbers:
    """The derivative of the result by the logarithm of the scale, per batch element."""
    return by_element(slope(lambda factor: exact(subject, rescaled(arguments, factor))))


def slope(at: Callable[[float], Numbers]) -> Numbers:
    """The derivative of ``at`` by the logarithm of its argument, at 1."""
    return (at(1 + STEP) - at(1 - STEP)) / (2 * STEP)


def by_element(x: Numbers) -> Numbers:
    """One row for every element of the batch."""
    return wide(x).reshape(len(x), -1)


def along(
    subject: Subject, arguments: Arguments, error: Numbers, direction: Numbers, what: str, *, steepness: float = 1.0
) -> None:
    """Demand that errors have no part along a direction; rows are independent elements.

    The limit is 8 standard errors plus errors that all elements share: 4 unit roundoffs of the accumulation, the biases
    of the class, the square of all relative roundings together (by which their mean differs from 0), and weights below
    the smallest step of their format. A relative error of 1 of this kind shows as ``steepness`` along the direction.
    """
    p = subject.precision
    information = float((direction**2).sum(dtype=np.float64))
    if information == 0.0:
        return
    parts = (error * direction).sum(-1).astype(np.float64)
    estimate = float(parts.sum()) / information
    common = 4 * (p.accumulation + p.bias) + p.tanh
    second = (p.operand + p.inputs + p.stored + p.weights + p.output) ** 2
    vanishing = (arguments.keys_count or 0) * p.weights_smallest
    limit = WIDTH * float(np.sqrt((parts**2).sum())) / information + steepness * (common + second + vanishing)
    subject.estimates[what] = estimate, limit
    subject.ratio = max(subject.ratio, abs(estimate) / limit)
    subject.holds(
        abs(estimate) <= limit,
        f"a relative error of {estimate:.3g} in {what} shows over {len(error)} independent elements, roundings "
        f"leave at most {limit:.3g}",
        arguments,
        expected=np.float64(0.0),
        got=np.float64(estimate),
    )
