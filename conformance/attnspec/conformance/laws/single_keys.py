"""Filters that detect a single key wrongly left out, or counted, among thousands.

With a weight of ε more for key j, the result moves towards its value by ε(v_j − o). The filter estimates ε/(1/m), the
error relative to the mean of m weights: −1 where a key of that weight is missing, 1 where a masked one counts.
"""

from collections.abc import Iterator

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, take
from attnspec.conformance.inputs.attendance import mask_shape
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.rows import TILES
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import sample
from attnspec.conformance.laws.ensembles import TILE, along, by_element, exact, judgeable
from attnspec.conformance.laws.spreads import beyond_a_tile
from attnspec.spec.contract.axes import Axis
from attnspec.spec.laws import pooling as law

THOUSANDS = 2049
"""Keys among which one is invisible in any single number of a 16-bit dtype."""

BATCH, QUERIES, FEATURES = 256, 4, 4
"""Sizes at which batch elements show enough of a key, and keys are affordable."""

MOST = 2**23
"""Most numbers of an array."""


@checks(law.ENSEMBLE_KEYS, once=True, slow=True)
def ensemble_keys(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Filter errors along some keys: first, last, beside tile borders, and one of zeros."""
    if not judgeable(subject):
        return False
    for words, given in _inputs(subject, arguments, rng):
        expected = exact(subject, given)
        result = by_element(expected)
        error = by_element(subject.call(given)) - result
        for key, single in _singles(given):
            alone = np.broadcast_to(exact(subject, single), expected.shape)
            along_key(subject, given, (error, by_element(alone) - result, result), f"the weight of {key}{words}")
    return True


def along_key(subject: Subject, arguments: Arguments, rows: tuple[Numbers, Numbers, Numbers], what: str) -> None:
    """Filter along one key; ``rows`` are the errors, the key's differences, and exact results.

    Elements count by ‖g_b‖, not by its square, lest few with one large value decide. A gain that is wrong by 1 is a
    weight of −1 for a key of zeros, which has a part along other keys too.
    """
    error, away, result = rows
    direction = away / (arguments.keys_count or 1)
    size = np.sqrt(np.sqrt((direction**2).sum(-1, keepdims=True)))
    size = np.where(size > 0, size, 1.0)
    error, direction, result = error / size, direction / size, result / size
    information = float((direction**2).sum(dtype=np.float64))
    slope = abs(float((result * direction).sum(dtype=np.float64))) / information if information else 0.0
    along(subject, arguments, error, direction, what, steepness=1 + slope)


def _inputs(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Iterator[tuple[str, Arguments]]:
    """Described inputs: more keys than a tile, a tile before masked keys, thousands of keys."""
    given = beyond_a_tile(subject, arguments)
    keys = given.keys_count or 0
    yield f" of {keys}", given
    if keys > TILE:
        within = np.arange(keys) < np.full(mask_shape(given), TILE)
        yield f" of {TILE} and {keys - TILE} masked ones", given.with_mask(within)
    if subject.dtype in NARROW and not subject.operation.attends_to_itself:
        many = _many(subject, rng)
        yield f" of {many.keys_count}", many


def _many(subject: Subject, rng: np.random.Generator) -> Arguments:
    """Thousands of keys, fewer for wide vectors; more batch elements with one row each."""
    batch = BATCH if subject.operation.asking else BATCH * QUERIES
    widths = [subject.fitting(name, FEATURES) for name in subject.operation.sizes_of(Axis.FEATURE)]
    keys = min(THOUSANDS, MOST // (batch * max(widths, default=FEATURES)) + 1)
    return sample(subject, rng, (batch,), queries=QUERIES, keys=keys, features=FEATURES, heads=2)


def _singles(given: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Calls that attend to one key alone, in turn, with descriptions."""
    operation, count = given.operation, given.keys_count or 0
    asked, plain = operation.asked or "", given.without_masks()
    borders = {border + side for border in TILES if border >= 64 for side in (-1, 0)}
    for j in sorted({0, 1, *borders, *range(count - 5, count)}):
        if 0 <= j < count:
            yield f"key {j}", plain.along(asked, take([j]))

    def zeros(x: Numbers, axis: int) -> Numbers:
        return np.zeros_like(np.take(x, [0], axis=axis))

    yield "a key of zeros", plain.along(asked, zeros)
