"""Filters over ensembles: an error far below the rounding of every element shows over many batch elements together.

With one θ wrong by ε, the error of batch element b has the part ε g_b, g = ∂/∂θ. The estimate ε̂ = Σ t_b / Σ ‖g_b‖²,
t_b = ⟨got_b − exact_b, g_b⟩, needs no model of the errors: those of different elements are independent, whatever they
are within one. For independent symmetric t_b, |Σ t_b| exceeds z √Σ t_b² with a probability of at most 2 exp(−z²/2),
however they are distributed (Hoeffding's inequality for their signs): 3·10⁻¹⁴ at the z of 8 that is used here.
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
"""Sizes at which the rounding of one key does not average out within a batch element, and many elements are cheap."""

TILE = 128
"""Numbers of keys after which kernels begin another tile, at most."""

LEAST, LEAST_ITSELF = 192, 128
"""Batch elements at least: no error, however large, is more than √B standard errors, and less where elements differ.
Those of self-attention differ little, since each has as many rows as keys."""

FEW = 64
"""Batch elements from which it is told how large scores should be."""

SCORES = tuple(2.0**i for i in range(-4, 3))
"""Factors by which scores are multiplied, of which the clearest is used."""

STEP = 2.0**-12
"""The relative step of the scale by which the derivative of a result is taken."""

MORE_OF_SQUARES = 16
"""How many times as many elements are needed where scores of many features are squared distances."""

GROUPS = 16
"""Calls over which the elements of a gradient are spread that a batch shares."""

Inputs = TypeVar("Inputs")


def judgeable(subject: Subject) -> bool:
    """Whether batch elements err independently: not where the class rounds given weights, which all of them share."""
    shared = any(subject.operation.role(leaf) is Role.WEIGHT for leaf in subject.operation.floats)
    return subject.limits.max_batch_dims > 0 and not (subject.precision.inputs and shared)


def batches(
    subject: Subject, rng: np.random.Generator, count: int, *, keys: int = KEYS, features: int = FEATURES
) -> Arguments:
    """Normal inputs of many batch elements, each with one query; in self-attention with as many queries as keys."""
    queries = keys if subject.operation.attends_to_itself else 1
    return sample(subject, rng, (count,), queries=queries, keys=keys, features=features, heads=2)


def shared(arguments: Arguments, name: str, make: Callable[[np.random.Generator], Inputs]) -> Inputs:
    """Inputs that several laws judge: made once for a template, from its numbers, so that laws share their results."""
    return arguments.once(name, lambda: make(rng_of(arguments)))


def ensemble(subject: Subject, arguments: Arguments) -> Arguments:
    """Normal inputs of as many batch elements as the profile affords, shared by the laws of a template."""
    return shared(arguments, "ensemble", lambda rng: batches(subject, rng, subject.effort.ensemble))


def ensembles(subject: Subject, arguments: Arguments) -> list[tuple[str, Arguments]]:
    """Inputs for a filter, with words for them; where there is time, masked, causal, long and wide ones too."""
    return shared(arguments, "ensembles", lambda rng: list(_ensembles(subject, ensemble(subject, arguments), rng)))


def _ensembles(subject: Subject, plain: Arguments, rng: np.random.Generator) -> Iterator[tuple[str, Arguments]]:
    count, operation = subject.effort.ensemble, subject.operation
    yield "", plain
    if not subject.effort.dear or not (operation.pooled or operation.linear):
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
    # In 16 bits as many elements are needed as are affordable; of self-attention each has as many rows as keys.
    narrow, itself = subject.dtype in NARROW, operation.attends_to_itself
    least, part = (LEAST_ITSELF, 16) if itself else (LEAST, 2 if narrow else 4)
    long = batches(subject, rng, max(count // part, least), keys=TILE + 32)
    if (long.keys_count or 0) > TILE:
        # The keys of other tiles are weighed, and their values are 0.
        valued = [leaf.path for leaf in operation.attended if leaf.path in operation.linear]
        cut = long.replaced({path: _after_tile(long.array(path)) for path in valued})
        yield f" in keys from {TILE} on", _clearest(subject, cut)
    if operation.sharpened and subject.dtype != "float64":
        part = 8 if narrow and not itself else 16
        if _squared(subject) and not narrow:
            part //= MORE_OF_SQUARES
        yield f" of {TILE + 8} features", _clearest(subject, batches(subject, rng, count // part, features=TILE + 8))


def ensembles_of_scores(subject: Subject, arguments: Arguments) -> list[tuple[str, Arguments]]:
    """The inputs of a filter for the scale; where there is time, with scores of the clearest size for normal ones."""

    def found(rng: np.random.Generator) -> list[tuple[str, Arguments]]:
        (words, plain), *others = ensembles(subject, arguments)
        if subject.effort.dear and subject.operation.sharpened:
            plain = _clearest(subject, batches(subject, rng, subject.effort.ensemble))
        return [(words, plain), *others]

    return shared(arguments, "ensembles of scores", found)


def _squared(subject: Subject) -> bool:
    """Whether scores are squared distances, which are far from 0 for many features, and round as coarsely."""
    return all(exponent < 1 for exponent in subject.operation.sharpened.values())


def _clearest(subject: Subject, given: Arguments) -> Arguments:
    """Batch elements with scores of the size at which an error of their scale shows most clearly.

    Weights of almost 1 hardly depend on the scale, equal ones depend on it less than they are rounded. A few elements
    tell which size is best.
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
    """How uncertain an estimate of the scale would be, up to a factor, if every error were as large as its budget.

    An estimate that hangs on few elements of the batch, as where one key outweighs the others in most of them, is the
    more uncertain: it counts as an estimate from these.
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
    """The leading result of the reference in the precision of the oracle, without budgets, computed once."""
    return arguments.once("exact", lambda: subject.unrounded(arguments)[subject.operation.leading.path])


def rescaled(arguments: Arguments, factor: float) -> Arguments:
    """Arguments whose scores are those of the given ones, multiplied by a factor, in double precision."""
    powers = {path: factor**exponent for path, exponent in arguments.operation.sharpened.items()}
    return multiplied(arguments, powers)


def multiplied(arguments: Arguments, factors: Mapping[str, float]) -> Arguments:
    """Arguments in double precision, those of these paths multiplied by a factor."""
    return arguments.replaced(
        {leaf.path: wide(x) * factors[leaf.path] if leaf.path in factors else wide(x) for leaf, x in arguments.floats}
    )


def scale_direction(subject: Subject, arguments: Arguments) -> Numbers:
    """The derivative of the result with respect to the logarithm of the scale, by elements of the batch."""
    return by_element(slope(lambda factor: exact(subject, rescaled(arguments, factor))))


def slope(at: Callable[[float], Numbers]) -> Numbers:
    """The derivative with respect to the logarithm of the scale of what is computed at a factor of it."""
    return (at(1 + STEP) - at(1 - STEP)) / (2 * STEP)


def by_element(x: Numbers) -> Numbers:
    """One row for every element of the batch."""
    return wide(x).reshape(len(x), -1)


def along(
    subject: Subject, arguments: Arguments, error: Numbers, direction: Numbers, what: str, *, steepness: float = 1.0
) -> None:
    """Demand that errors have no part along a direction; both have one row for every independent element.

    Beside 8 standard errors the limit allows 4 unit roundoffs of the accumulation, and the biases of the class, which
    all elements share, and the square of all relative roundings together, by which their mean differs from 0; and that
    all weights are below the smallest step of their format. An error of 1 in all that these multiply shows as one of
    ``steepness`` along the direction.
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
