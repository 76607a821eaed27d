"""Filters that detect a single key lost, or wrongly counted, among thousands. Options of ``@checks``: see ``Check``.

A weight of key j that is too large by ε moves the result o by ε(v_j − o) towards the value v_j. The filter estimates
ε relative to the mean weight 1/m: −1 if a key of mean weight is lost, 1 if such a key counts although it is masked.
"""

from collections.abc import Iterator

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, take
from attnspec.conformance.inputs.attendance import mask_shape
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.sampled_rows import TILES
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import sample
from attnspec.conformance.laws.ensembles import TILE, by_element, demand_unbiased, independent_elements, unrounded
from attnspec.conformance.laws.spreads import sample_beyond_a_tile
from attnspec.spec.contract.axes import Axis
from attnspec.spec.laws import pooling as law

MANY_KEYS = 2049
"""So many keys that one of them is invisible in any single 16-bit number."""

BATCH, QUERIES, FEATURES = 256, 4, 4
"""Sizes at which the batch shows the error of a single key."""

MAX_ARRAY_SIZE = 2**23
"""Most numbers per array."""


@checks(law.NO_LOST_OR_EXTRA_KEYS, once=True, slow=True)
def no_lost_or_extra_keys(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Filter errors along some keys: first, last, beside tile borders, and zeros."""
    if not independent_elements(subject):
        return False
    for label, sampled in _samples(subject, arguments, rng):
        expected = unrounded(subject, sampled)
        result = by_element(expected)
        error = by_element(subject.call(sampled)) - result
        for key, single in _single_key_calls(sampled):
            alone = np.broadcast_to(unrounded(subject, single), expected.shape)
            filter_key(subject, sampled, (error, by_element(alone) - result, result), f"the weight of {key}{label}")
    return True


def filter_key(subject: Subject, arguments: Arguments, rows: tuple[Numbers, Numbers, Numbers], name: str) -> None:
    """Filter along one key; ``rows`` are errors, the key's value minus results, and results.

    Elements count by ‖g_b‖, not by its square, so that a few large values do not decide. A shared error of the gain
    acts like a weight of a key of zeros, which has a part along other keys: the limit allows for it.
    """
    error, difference, result = rows
    direction = difference / (arguments.keys_count or 1)
    weight = np.sqrt(np.sqrt((direction**2).sum(-1, keepdims=True)))
    weight = np.where(weight > 0, weight, 1.0)
    error, direction, result = error / weight, direction / weight, result / weight
    information = float((direction**2).sum(dtype=np.float64))
    slope = abs(float((result * direction).sum(dtype=np.float64))) / information if information else 0.0
    demand_unbiased(subject, arguments, error, direction, name, steepness=1 + slope)


def _samples(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Iterator[tuple[str, Arguments]]:
    """Labels and inputs: more keys than a tile, then masked behind it; thousands of keys."""
    sampled = sample_beyond_a_tile(subject, arguments)
    keys = sampled.keys_count or 0
    yield f" of {keys}", sampled
    if keys > TILE:
        in_first_tile = np.arange(keys) < np.full(mask_shape(sampled), TILE)
        yield f" of {TILE} and {keys - TILE} masked keys", sampled.with_mask(in_first_tile)
    if subject.dtype in NARROW and not subject.operation.attends_to_itself:
        many_keys = _sample_many_keys(subject, rng)
        yield f" of {many_keys.keys_count}", many_keys


def _sample_many_keys(subject: Subject, rng: np.random.Generator) -> Arguments:
    """Thousands of keys, fewer for wide vectors; without a query axis, more batch elements."""
    batch = BATCH if subject.operation.query_size else BATCH * QUERIES
    widths = [subject.allowed_size(name, FEATURES) for name in subject.operation.sizes_of(Axis.FEATURE)]
    keys = min(MANY_KEYS, MAX_ARRAY_SIZE // (batch * max(widths, default=FEATURES)) + 1)
    return sample(subject, rng, (batch,), queries=QUERIES, keys=keys, features=FEATURES, heads=2)


def _single_key_calls(arguments: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Names of keys, and calls that attend to this key alone."""
    operation, count = arguments.operation, arguments.keys_count or 0
    key_size, unmasked = operation.key_size or "", arguments.without_masks()
    borders = {border + side for border in TILES if border >= 64 for side in (-1, 0)}
    for j in sorted({0, 1, *borders, *range(count - 5, count)}):
        if 0 <= j < count:
            yield f"key {j}", unmasked.along(key_size, take([j]))

    def zeros(x: Numbers, axis: int) -> Numbers:
        return np.zeros_like(np.take(x, [0], axis=axis))

    yield "a key of zeros", unmasked.along(key_size, zeros)
