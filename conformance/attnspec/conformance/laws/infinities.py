"""Checks of NaN in scores, queries, keys and values, and infinities in scores and values."""

from collections.abc import Iterator

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import mask_shape
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.comparison import number
from attnspec.conformance.judging.observations import OTHER, Observation, Seen
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import before_features, pooled, sample, wide
from attnspec.conformance.laws.lessons import causal_in, masks_of
from attnspec.conformance.laws.semantics import of_keys, probes, samples
from attnspec.spec.laws import attention, normalization

LONG = 130
"""More keys than a tile, so that whole tiles of scores may be −∞."""


@checks(normalization.INFINITE_SCORES, once=True)
def infinite_scores(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set scores of first, last or random keys to −∞, later also one to +∞."""
    (path,) = (leaf.path for leaf in of_keys(subject, subject.operation.asked))
    judged = False
    for queries, keys in ((6, 5), (6, LONG)):
        given = sample(subject, rng, queries=queries, keys=keys)
        shape = mask_shape(given)
        if shape[-1] < 2 or 0 in shape:
            continue
        allowed = rng.random(shape) < 0.8
        place, row = np.arange(shape[-1]), np.arange(shape[-2])[:, None]
        last = int(rng.integers(1 + shape[-1] // 4, shape[-1] - shape[-1] // 4))
        low = np.select([row % 3 == 0, row % 3 == 1], [place < last, place >= last], rng.random(shape) < 0.4)
        # One key of every row keeps its score.
        kept = place == np.argmax(rng.random(shape) * allowed, axis=-1, keepdims=True)
        allowed, low = allowed | kept, low & ~kept
        high = kept & (row >= 3)
        scores = wide(given.array(path))
        stored = np.where(high, np.inf, np.where(low, -np.inf, scores))
        infinite = given.with_mask(allowed).replaced({path: subject.exact(stored)})
        got, oracle = subject.call(infinite), subject.oracle(given.with_mask(allowed & ~low))
        rows = np.broadcast_to(high.any(-1, keepdims=True), shape)
        expected = np.where(rows, np.nan, oracle.value)
        subject.matches(got, expected, oracle.budget, infinite, "with scores of −∞, the weight")
        if subject.semantics.attendable_nan == "propagates":
            _demand_nan(subject, got, high, infinite)
        judged = True
    return judged


def _demand_nan(subject: Subject, got: Numbers, high: Numbers, infinite: Arguments) -> None:
    """Demand NaN for the weights of scores of +∞."""
    finite = high & ~np.isnan(wide(got))
    if finite.any():
        index = tuple(int(i) for i in np.argwhere(finite)[0])
        message = f"the weight[{', '.join(map(str, index))}] of a score of +∞ is {wide(got)[index]:.9g}, expected NaN"
        expected = np.where(high, np.nan, wide(got))
        subject.holds(False, message, infinite, expected=expected, got=got, index=index)


@probes("attendable_nan")
def attendable_nan(subject: Subject, rng: np.random.Generator) -> Seen:
    """Store NaN at a key that some queries may attend to.

    Rows of other queries concern `masked_nonfinite`. If the result has an entry per key, masked entries are not judged.
    """
    seen: Seen = []
    for given in samples(subject, rng):
        shape = mask_shape(given)
        if 0 in shape:
            continue
        chosen = int(rng.integers(shape[-1]))
        mask = rng.random(shape) < 0.6
        mask[..., chosen] |= ~mask.any(-1)
        masked = given.plain().with_mask(mask)
        for leaf in of_keys(subject, subject.operation.asked):
            x = masked.array(leaf.path)
            if leaf in subject.operation.attended:
                x = x.copy()
                x[..., chosen, :] = np.nan
            else:
                x = np.array(np.broadcast_to(x, shape))
                x[..., chosen] = np.nan
            poisoned = masked.replaced({leaf.path: x})
            got = wide(subject.call(poisoned))
            rows = mask[..., chosen].copy()
            if subject.operation.attends_to_itself and leaf.path not in subject.operation.linear:  # it is a query too
                rows[..., chosen] = True
            numbers = before_features(subject, rows) if subject.operation.weighs_keys else rows[..., None] & mask
            found = np.isnan(got[np.broadcast_to(numbers, got.shape)])
            if found.size and found.all() == found.any():
                seen.append(Observation("propagates" if found.all() else "hidden", poisoned))
            elif found.size:
                shown = f"of {found.size} numbers that depend on it, {int(found.sum())} are NaN"
                seen.append(Observation(OTHER, poisoned, shown))
    return [found for found in seen if found.choice != "propagates"] or seen


@probes("nan_queries")
def nan_queries(subject: Subject, rng: np.random.Generator) -> Seen:
    """Store NaN in one feature of every second query; NaN rows do not refute `hidden`."""
    seen: Seen = []
    plain = list(samples(subject, rng))
    for given in (*plain, *_restricted(subject, plain[0])):
        lost = np.arange(given.queries or 0) % 2 == 1
        if not lost.any() or not given.keys_count:
            continue
        changes = {}
        for leaf in subject.operation.queries:
            x = given.array(leaf.path).copy()
            x[..., lost, int(rng.integers(x.shape[-1]))] = np.nan
            changes[leaf.path] = x
        poisoned = given.replaced(changes)
        nan = np.isnan(wide(subject.call(poisoned)))
        rows = np.broadcast_to(before_features(subject, lost), nan.shape)
        if (nan & ~rows).any():
            shown = f"of {nan[~rows].size} numbers of other queries, {int(nan[~rows].sum())} are NaN"
            seen.append(Observation(OTHER, poisoned, shown))
        else:
            seen += [] if nan[rows].all() else [Observation("hidden", poisoned)]
    return seen


def _restricted(subject: Subject, given: Arguments) -> Iterator[Arguments]:
    """The call under a mask without the last key, then under the causal flag."""
    if masks_of(subject):
        mask = np.ones(mask_shape(given), bool)
        mask[..., -1] = False
        yield given.with_mask(mask)
    if causal_in(subject):
        yield given.under_causal()


@probes("minus_infinity")
def minus_infinity(subject: Subject, rng: np.random.Generator) -> Seen:
    """Set all scores of some rows to −∞, also masked unless masks add finite scores."""
    seen: Seen = []
    (scores,) = of_keys(subject, subject.operation.asked)
    for given in samples(subject, rng):
        shape = mask_shape(given)
        if 0 in shape:
            continue
        lost = rng.random((*shape[:-1], 1)) < 0.5
        lost.reshape(-1)[int(rng.integers(lost.size))] = True
        x = given.array(scores.path)
        low = given.replaced({scores.path: np.where(lost, x.dtype.type(-np.inf), x)})
        seen.append(_of_lost_rows(subject, low, np.broadcast_to(lost, shape)))
        if "uniform" not in subject.semantics.without_keys.values():
            mask = rng.random(shape) < 0.6
            mask[..., -1] |= ~mask.any(-1)
            seen.append(_of_lost_rows(subject, low.with_mask(mask), lost & mask))
    return seen


def _of_lost_rows(subject: Subject, low: Arguments, lost: Numbers) -> Observation:
    """The choice that weights of 0/0 show; wrong numbers in other rows are a violation."""
    got, oracle = wide(subject.call(low)), subject.oracle(low)
    title = "minus_infinity cannot be told: of the rows with finite scores, the weight"
    subject.matches(got, oracle.value, oracle.budget, low, title)
    greatest = np.max(got, axis=-1, keepdims=True, where=lost, initial=-np.inf)
    for choice, fits in (("nan", np.isnan(got)), ("zero", got == 0), ("uniform", (got == greatest) & (got > 0))):
        if fits[lost].all():
            return Observation(choice, low)
    index = tuple(np.argwhere(lost & ~np.isnan(got))[0])
    return Observation(
        OTHER, low, f"where scores are all −∞, the weight[{', '.join(map(str, index))}] is {number(got[index])}"
    )


@checks(attention.INFINITE_VALUES, once=True)
def infinite_values(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Store +∞ and −∞ at a key and feature each, where no weight is small."""
    if subject.semantics.attendable_nan != "propagates":
        return False
    judged = False
    for keys in (5, LONG):
        given = _flattened(subject, sample(subject, rng, queries=6, keys=keys))
        shape, value = mask_shape(given), pooled(given)
        if 0 in shape or min(value.shape[-2:]) < 2:
            continue
        mask = rng.random(shape) < 0.6
        mask[..., 0] |= ~mask.any(-1)
        masked = given.with_mask(mask)
        at, columns = (rng.permutation(size)[:2] for size in value.shape[-2:])
        stored = value.copy()
        stored[..., at, columns] = np.inf, -np.inf
        infinite = masked.replaced({subject.operation.pooled: stored})
        got = wide(subject.call(infinite))
        for key, column, sign in zip(at, columns, (1, -1), strict=True):
            reached = before_features(subject, mask[..., key]) & (np.arange(got.shape[-1]) == column)
            _demand_infinity(subject, got, np.broadcast_to(reached, got.shape), sign * np.inf, infinite)
        others = np.where(np.isin(np.arange(got.shape[-1]), columns), np.nan, wide(subject.call(masked)))

        def budget(masked: Arguments = masked) -> Numbers:
            return 2 * subject.budget(masked)

        subject.matches(got, others, budget, infinite, "with infinities in other features, the result")
        judged = True
    return judged


def _flattened(subject: Subject, given: Arguments) -> Arguments:
    """The arguments with scores divided by 8."""
    exponents = subject.operation.sharpened
    return given.replaced({path: subject.exact(0.125**by * wide(given.array(path))) for path, by in exponents.items()})


def _demand_infinity(subject: Subject, got: Numbers, reached: Numbers, infinity: float, infinite: Arguments) -> None:
    """Demand that numbers that an infinity reaches equal it or are NaN."""
    wrong = reached & ~np.isnan(got) & (got != infinity)
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        message = f"the result[{', '.join(map(str, index))}], of a row that attends to {infinity}, is {got[index]:.9g}"
        subject.holds(False, message, infinite, expected=np.where(reached, infinity, got), got=got, index=index)
