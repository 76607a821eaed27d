"""Filters over ensembles, batches whose errors together show biases far below rounding.

A parameter θ that is wrong by ε adds ε g_b to the result of batch element b, where g = ∂result/∂θ. The estimate is
ε̂ = Σ t_b / Σ ‖g_b‖² with t_b = ⟨got_b − exact_b, g_b⟩. It needs no model of roundings, since different elements err
independently. For independent symmetric t_b of any distribution, |Σ t_b| exceeds z √Σ t_b² with a probability of at
most 2 exp(−z²/2), by Hoeffding's inequality for their signs. That is 3·10⁻¹⁴ for z = 8, which is used here.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import mask_shape
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import sample, wide
from attnspec.conformance.laws.gradient_calls import rng_from_numbers
from attnspec.reference.budget import WIDTH
from attnspec.spec.contract.axes import Role

KEYS, FEATURES = 8, 8
"""Sizes so small that elements are cheap and roundings of keys do not average out."""

TILE = 128
"""The largest tile of keys in common kernels."""

MIN_ELEMENTS, MIN_OF_SELF_ATTENTION = 192, 128
"""Fewest batch elements B. An estimate is at most √B standard errors, less if elements differ.
Elements of self-attention differ little, since each has as many rows as keys."""

TRIAL_ELEMENTS = 64
"""Batch elements on which factors of scores are tried."""

SCORE_FACTORS = tuple(2.0**i for i in range(-4, 3))
"""Factors of scores to choose from."""

STEP = 2.0**-12
"""The relative step of the scale in numerical derivatives."""

MORE_FOR_SQUARED_DISTANCES = 16
"""Factor of elements for scores that are squared distances of many features."""

GRADIENT_CALLS = 16
"""Calls into which the elements are divided, for gradients of arrays that a batch shares."""

Inputs = TypeVar("Inputs")


def independent_elements(subject: Subject) -> bool:
    """Return whether batch elements err independently: they share no weights that the class rounds."""
    shares_weights = any(subject.operation.role(leaf) is Role.WEIGHT for leaf in subject.operation.floats)
    return subject.limits.max_batch_dims > 0 and not (subject.precision.inputs and shares_weights)


def elements(
    subject: Subject, rng: np.random.Generator, count: int, *, keys: int = KEYS, features: int = FEATURES
) -> Arguments:
    """Normal batch elements with one query each; in self-attention, one per key."""
    queries = keys if subject.operation.attends_to_itself else 1
    return sample(subject, rng, (count,), queries=queries, keys=keys, features=features, heads=2)


def once(arguments: Arguments, name: str, make: Callable[[np.random.Generator], Inputs]) -> Inputs:
    """Inputs made once per template for several laws; its numbers are the seed."""
    return arguments.once(name, lambda: make(rng_from_numbers(arguments)))


def ensemble(subject: Subject, arguments: Arguments) -> Arguments:
    """Normal inputs with as many batch elements as the profile affords."""
    return once(arguments, "ensemble", lambda rng: elements(subject, rng, subject.effort.ensemble))


def ensembles(subject: Subject, arguments: Arguments) -> list[tuple[str, Arguments]]:
    """Labels and inputs of a filter; long profiles add masked, causal, long and wide ones."""
    return once(arguments, "ensembles", lambda rng: list(_ensembles(subject, ensemble(subject, arguments), rng)))


def _ensembles(subject: Subject, unmasked: Arguments, rng: np.random.Generator) -> Iterator[tuple[str, Arguments]]:
    count, operation = subject.effort.ensemble, subject.operation
    yield "", unmasked
    # softmax averages no values, and models such as encoder_layer are linear in none: both get no other inputs.
    if not subject.effort.slow or not (operation.pooled or operation.linear):
        return
    if operation.mask is not None:
        shape = mask_shape(unmasked)
        allowed = rng.random(shape) < 0.6
        forced_key = np.arange(shape[-1]) == rng.integers(shape[-1], size=(*shape[:-1], 1))
        yield " under a mask", unmasked.with_mask(allowed | forced_key)
    if operation.flag is not None:
        batch = (max(count // KEYS, MIN_ELEMENTS),)
        queries = sample(subject, rng, batch, queries=KEYS, keys=KEYS, features=FEATURES, heads=2)
        yield " where it is causal", queries.replaced({operation.flag: True})
    # 16-bit dtypes need more elements. Elements of self-attention cost more: a row per key.
    narrow, self_attention = subject.dtype in NARROW, operation.attends_to_itself
    min_elements, divisor = (MIN_OF_SELF_ATTENTION, 16) if self_attention else (MIN_ELEMENTS, 2 if narrow else 4)
    long_elements = elements(subject, rng, max(count // divisor, min_elements), keys=TILE + 32)
    if (long_elements.keys_count or 0) > TILE:
        # The first tile has values of 0, so that only errors behind it show.
        valued = [leaf.path for leaf in operation.attended if leaf.path in operation.linear]
        cut = long_elements.replaced({path: _zero_in_first_tile(long_elements.array(path)) for path in valued})
        yield f" in keys from {TILE} on", _clearest_scores(subject, cut)
    if operation.scores_scale_with and subject.dtype != "float64":
        divisor = 8 if narrow and not self_attention else 16
        if _scores_are_squared_distances(subject) and not narrow:
            divisor //= MORE_FOR_SQUARED_DISTANCES
        wide_elements = elements(subject, rng, count // divisor, features=TILE + 8)
        yield f" of {TILE + 8} features", _clearest_scores(subject, wide_elements)


def single_key_ensembles(subject: Subject, arguments: Arguments) -> list[tuple[str, Arguments]]:
    """Label and inputs with one key: its weight is 1, where an ε added to sums shows most."""
    sampled = once(arguments, "single keys", lambda rng: elements(subject, rng, subject.effort.ensemble, keys=1))
    return [(" of single keys", sampled)] if sampled.keys_count == 1 else []


def ensembles_of_scores(subject: Subject, arguments: Arguments) -> list[tuple[str, Arguments]]:
    """Labels and inputs to filter the scale; long profiles choose the scores' size."""

    def make(rng: np.random.Generator) -> list[tuple[str, Arguments]]:
        (label, plain), *others = ensembles(subject, arguments)
        if subject.effort.slow and subject.operation.scores_scale_with:
            plain = _clearest_scores(subject, elements(subject, rng, subject.effort.ensemble))
        return [(label, plain), *others]

    return once(arguments, "ensembles of scores", make)


def _scores_are_squared_distances(subject: Subject) -> bool:
    """Return whether scores are squared distances, which are large for many features."""
    # As in nadaraya_watson: scores grow by c if queries and keys are multiplied by √c, the exponent being ½.
    return all(exponent < 1 for exponent in subject.operation.scores_scale_with.values())


def _clearest_scores(subject: Subject, arguments: Arguments) -> Arguments:
    """Batch elements whose scores have the size that shows errors of scale best.

    Weights of almost 1 hardly depend on the scale; almost equal weights depend on it by less than their rounding. The
    size is chosen on the first 64 elements.
    """
    if not subject.operation.scores_scale_with:
        return arguments
    trial = arguments.replaced({leaf.path: x[:TRIAL_ELEMENTS] for leaf, x in arguments.batched})
    best = min(SCORE_FACTORS, key=lambda factor: _scale_uncertainty(subject, _times_scores(subject, trial, factor)))
    return _times_scores(subject, arguments, best)


def _times_scores(subject: Subject, arguments: Arguments, factor: float) -> Arguments:
    """Arguments whose scores are multiplied by a factor, rounded to the dtype."""
    changed = rescaled(arguments, factor)
    return changed.replaced({leaf.path: subject.exact(x) for leaf, x in changed.floats})


def _scale_uncertainty(subject: Subject, arguments: Arguments) -> float:
    """The uncertainty of an estimated scale if every error equalled its budget.

    Few batch elements may carry an estimate, for example if one key outweighs the others in most elements. Then it is
    as uncertain as an estimate from these few.
    """
    direction = scale_direction(subject, arguments)
    element_information = wide((direction**2).sum(-1))
    information = float(element_information.sum())
    if information == 0.0:
        return np.inf
    errors = wide(by_element(subject.budget(arguments)) * direction)
    concentration = np.sqrt(float((element_information**2).sum())) / information
    uncertainty = float(np.sqrt((errors**2).sum())) / information * concentration
    return uncertainty if np.isfinite(uncertainty) else np.inf


def _zero_in_first_tile(x: Numbers) -> Numbers:
    changed: Numbers = x.copy()
    changed[..., :TILE, :] = 0
    return changed


def unrounded(subject: Subject, arguments: Arguments) -> Numbers:
    """The reference's leading result in oracle precision, cached."""
    return arguments.once("exact", lambda: subject.oracle_values(arguments)[subject.operation.leading.path])


def rescaled(arguments: Arguments, factor: float) -> Arguments:
    """Arguments in double precision, with scores multiplied by a factor."""
    powers = {path: factor**exponent for path, exponent in arguments.operation.scores_scale_with.items()}
    return multiplied(arguments, powers)


def multiplied(arguments: Arguments, factors: Mapping[str, float]) -> Arguments:
    """Arguments in double precision, multiplied by the factors of their paths."""
    return arguments.replaced(
        {leaf.path: wide(x) * factors[leaf.path] if leaf.path in factors else wide(x) for leaf, x in arguments.floats}
    )


def scale_direction(subject: Subject, arguments: Arguments) -> Numbers:
    """The derivative of the result by the logarithm of the scale, per batch element."""
    return by_element(log_derivative(lambda factor: unrounded(subject, rescaled(arguments, factor))))


def log_derivative(at: Callable[[float], Numbers]) -> Numbers:
    """The derivative of ``at`` by the logarithm of its argument, at 1."""
    return (at(1 + STEP) - at(1 - STEP)) / (2 * STEP)


def by_element(x: Numbers) -> Numbers:
    """The array with one row per batch element."""
    return wide(x).reshape(len(x), -1)


def demand_unbiased(
    subject: Subject, arguments: Arguments, error: Numbers, direction: Numbers, name: str, *, steepness: float = 1.0
) -> None:
    """Demand that errors have no part along a direction; each row is one batch element.

    The limit is 8 standard errors plus errors that all elements share: 4 unit roundoffs of the accumulation, the biases
    of the class, the square of the summed relative roundings (their mean is not exactly 0), and weights below the
    smallest step of their format. A shared relative error of 1 moves the estimate by ``steepness``.
    """
    p = subject.precision
    information = float((direction**2).sum(dtype=np.float64))
    if information == 0.0:
        return
    parts = (error * direction).sum(-1).astype(np.float64)
    estimate = float(parts.sum()) / information
    shared = 4 * (p.accumulation + p.bias) + p.tanh
    squared = (p.operand + p.inputs + p.stored + p.weights + p.output) ** 2
    lost = (arguments.keys_count or 0) * p.weights_smallest
    limit = WIDTH * float(np.sqrt((parts**2).sum())) / information + steepness * (shared + squared + lost)
    subject.estimates[name] = estimate, limit
    subject.ratio = max(subject.ratio, abs(estimate) / limit)
    subject.demand(
        abs(estimate) <= limit,
        f"a relative error of {estimate:.3g} in {name} shows over {len(error)} independent elements; rounding "
        f"explains at most {limit:.3g}",
        arguments,
        expected=np.float64(0.0),
        got=np.float64(estimate),
    )
