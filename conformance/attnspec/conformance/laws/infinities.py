"""Checks of inputs with NaN, and of scores and values with infinities. Options of ``@checks``: see ``Check``."""

from collections.abc import Iterator

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import mask_shape
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.comparison import number_text
from attnspec.conformance.judging.observations import OTHER, Observation, Observations
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import pooled_rows, sample, wide, with_feature_axes
from attnspec.conformance.laws.gradient_calls import accepted_masks, accepts_causal
from attnspec.conformance.laws.semantics import arrays_with_keys, probes, samples
from attnspec.spec.laws import attention, normalization

MANY_KEYS = 130
"""More keys than a tile, so that all scores of a tile may be −∞."""


@checks(normalization.INFINITE_SCORES, once=True)
def infinite_scores(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set scores of first, last or random keys to −∞, some to +∞.

    Scores of −∞ must act as a mask. Beside a score of +∞ no weight is judged; its own is NaN if NaN is to propagate.
    """
    (path,) = (leaf.path for leaf in arrays_with_keys(subject, subject.operation.key_size))
    tried = False
    for queries, keys in ((6, 5), (6, MANY_KEYS)):
        sampled = sample(subject, rng, queries=queries, keys=keys)
        shape = mask_shape(sampled)
        if shape[-1] < 2 or 0 in shape:
            continue
        allowed = rng.random(shape) < 0.8
        key, row = np.arange(shape[-1]), np.arange(shape[-2])[:, None]
        border = int(rng.integers(1 + shape[-1] // 4, shape[-1] - shape[-1] // 4))
        low = np.select([row % 3 == 0, row % 3 == 1], [key < border, key >= border], rng.random(shape) < 0.4)
        # One key of every row keeps its score.
        kept = key == np.argmax(rng.random(shape) * allowed, axis=-1, keepdims=True)
        allowed, low = allowed | kept, low & ~kept
        high = kept & (row >= 3)
        scores = wide(sampled.array(path))
        stored = np.where(high, np.inf, np.where(low, -np.inf, scores))
        infinite = sampled.with_mask(allowed).replaced({path: subject.exact(stored)})
        got, oracle = subject.call(infinite), subject.oracle(sampled.with_mask(allowed & ~low))
        rows = np.broadcast_to(high.any(-1, keepdims=True), shape)
        expected = np.where(rows, np.nan, oracle.value)
        subject.demand_match(got, expected, oracle.budget, infinite, "with scores of −∞, the weight")
        if subject.semantics.attendable_nan == "propagates":
            _demand_nan(subject, got, high, infinite)
        tried = True
    return tried


def _demand_nan(subject: Subject, got: Numbers, is_infinite: Numbers, arguments: Arguments) -> None:
    finite = is_infinite & ~np.isnan(wide(got))
    if finite.any():
        index = tuple(int(i) for i in np.argwhere(finite)[0])
        message = f"the weight[{', '.join(map(str, index))}] of a score of +∞ is {wide(got)[index]:.9g}, expected NaN"
        expected = np.where(is_infinite, np.nan, wide(got))
        subject.demand(False, message, arguments, expected=expected, got=got, index=index)


@probes("attendable_nan")
def attendable_nan(subject: Subject, rng: np.random.Generator) -> Observations:
    """Store NaN at a key that some queries may attend to.

    The probe of `masked_nonfinite` judges the rows of other queries. Masked entries of weights are not judged.
    """
    seen: Observations = []
    for sampled in samples(subject, rng):
        shape = mask_shape(sampled)
        if 0 in shape:
            continue
        chosen = int(rng.integers(shape[-1]))
        mask = rng.random(shape) < 0.6
        mask[..., chosen] |= ~mask.any(-1)
        masked = sampled.unordered().with_mask(mask)
        for leaf in arrays_with_keys(subject, subject.operation.key_size):
            array = masked.array(leaf.path)
            if leaf in subject.operation.attended:
                array = array.copy()
                array[..., chosen, :] = np.nan
            else:
                array = np.array(np.broadcast_to(array, shape))
                array[..., chosen] = np.nan
            poisoned = masked.replaced({leaf.path: array})
            got = wide(subject.call(poisoned))
            rows = mask[..., chosen].copy()
            if subject.operation.attends_to_itself and leaf.path not in subject.operation.linear:  # it is a query too
                rows[..., chosen] = True
            numbers = with_feature_axes(subject, rows) if subject.operation.weighs_keys else rows[..., None] & mask
            nan = np.isnan(got[np.broadcast_to(numbers, got.shape)])
            if nan.size and nan.all() == nan.any():
                seen.append(Observation("propagates" if nan.all() else "hidden", poisoned))
            elif nan.size:
                message = f"of {nan.size} numbers that depend on it, {int(nan.sum())} are NaN"
                seen.append(Observation(OTHER, poisoned, message))
    # One input where NaN does not propagate outweighs all others.
    return [x for x in seen if x.choice != "propagates"] or seen


@probes("nan_queries")
def nan_queries(subject: Subject, rng: np.random.Generator) -> Observations:
    """Store NaN in every second query; numbers in its row show `hidden`."""
    seen: Observations = []
    plain = list(samples(subject, rng))
    for unpoisoned in (*plain, *_with_each_restriction(subject, plain[0])):
        poisoned_rows = np.arange(unpoisoned.queries or 0) % 2 == 1
        if not poisoned_rows.any() or not unpoisoned.keys_count:
            continue
        changes = {}
        for leaf in subject.operation.queries:
            x = unpoisoned.array(leaf.path).copy()
            x[..., poisoned_rows, int(rng.integers(x.shape[-1]))] = np.nan
            changes[leaf.path] = x
        poisoned = unpoisoned.replaced(changes)
        nan = np.isnan(wide(subject.call(poisoned)))
        rows = np.broadcast_to(with_feature_axes(subject, poisoned_rows), nan.shape)
        if (nan & ~rows).any():
            message = f"of {nan[~rows].size} numbers of other queries, {int(nan[~rows].sum())} are NaN"
            seen.append(Observation(OTHER, poisoned, message))
        else:
            # Rows that are all NaN suit either choice: `hidden` allows them.
            seen += [] if nan[rows].all() else [Observation("hidden", poisoned)]
    return seen


def _with_each_restriction(subject: Subject, arguments: Arguments) -> Iterator[Arguments]:
    """The call under a mask without the last key, and the causal call."""
    if accepted_masks(subject):
        mask = np.ones(mask_shape(arguments), bool)
        mask[..., -1] = False
        yield arguments.with_mask(mask)
    if accepts_causal(subject):
        yield arguments.under_causal()


@probes("minus_infinity")
def minus_infinity(subject: Subject, rng: np.random.Generator) -> Observations:
    """Set all scores of some rows to −∞, without a mask and under one."""
    seen: Observations = []
    (scores,) = arrays_with_keys(subject, subject.operation.key_size)
    for sampled in samples(subject, rng):
        shape = mask_shape(sampled)
        if 0 in shape:
            continue
        low_rows = rng.random((*shape[:-1], 1)) < 0.5
        low_rows.reshape(-1)[int(rng.integers(low_rows.size))] = True
        array = sampled.array(scores.path)
        low = sampled.replaced({scores.path: np.where(low_rows, array.dtype.type(-np.inf), array)})
        seen.append(_observe_low_rows(subject, low, np.broadcast_to(low_rows, shape)))
        # Equal weights suggest a finite fill. It exceeds −∞, so that masked keys would get all weight.
        if "uniform" not in subject.semantics.without_keys.values():
            mask = rng.random(shape) < 0.6
            mask[..., -1] |= ~mask.any(-1)
            seen.append(_observe_low_rows(subject, low.with_mask(mask), low_rows & mask))
    return seen


def _observe_low_rows(subject: Subject, arguments: Arguments, is_low: Numbers) -> Observation:
    """The choice that rows of −∞ show; wrong numbers in other rows are a violation."""
    got, oracle = wide(subject.call(arguments)), subject.oracle(arguments)
    title = "minus_infinity cannot be determined: in rows with finite scores, the weight"
    subject.demand_match(got, oracle.value, oracle.budget, arguments, title)
    greatest = np.max(got, axis=-1, keepdims=True, where=is_low, initial=-np.inf)
    for choice, fits in (("nan", np.isnan(got)), ("zero", got == 0), ("uniform", (got == greatest) & (got > 0))):
        if fits[is_low].all():
            return Observation(choice, arguments)
    index = tuple(np.argwhere(is_low & ~np.isnan(got))[0])
    return Observation(
        OTHER,
        arguments,
        f"where scores are all −∞, the weight[{', '.join(map(str, index))}] is {number_text(got[index])}",
    )


@checks(attention.INFINITE_VALUES_PROPAGATE, once=True)
def infinite_values_propagate(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Store +∞ and −∞, each at one key and feature, with no weight small."""
    if subject.semantics.attendable_nan != "propagates":
        return False
    tried = False
    for keys in (5, MANY_KEYS):
        sampled = _with_small_scores(subject, sample(subject, rng, queries=6, keys=keys))
        shape, value = mask_shape(sampled), pooled_rows(sampled)
        if 0 in shape or min(value.shape[-2:]) < 2:
            continue
        mask = rng.random(shape) < 0.6
        mask[..., 0] |= ~mask.any(-1)
        masked = sampled.with_mask(mask)
        places, columns = (rng.permutation(size)[:2] for size in value.shape[-2:])
        stored = value.copy()
        stored[..., places, columns] = np.inf, -np.inf
        infinite = masked.replaced({subject.operation.pooled: stored})
        got = wide(subject.call(infinite))
        for key, column, sign in zip(places, columns, (1, -1), strict=True):
            reached = with_feature_axes(subject, mask[..., key]) & (np.arange(got.shape[-1]) == column)
            _demand_infinity(subject, got, np.broadcast_to(reached, got.shape), sign * np.inf, infinite)
        others = np.where(np.isin(np.arange(got.shape[-1]), columns), np.nan, wide(subject.call(masked)))

        def budget(masked: Arguments = masked) -> Numbers:
            return 2 * subject.budget(masked)

        subject.demand_match(got, others, budget, infinite, "with infinities in other features, the result")
        tried = True
    return tried


def _with_small_scores(subject: Subject, arguments: Arguments) -> Arguments:
    """The arguments with scores divided by 8, so that no weight is small."""
    exponents = subject.operation.scores_scale_with
    return arguments.replaced(
        {path: subject.exact(0.125**exponent * wide(arguments.array(path))) for path, exponent in exponents.items()}
    )


def _demand_infinity(subject: Subject, got: Numbers, reached: Numbers, infinity: float, arguments: Arguments) -> None:
    """Demand that every number that an infinity reaches is this infinity or NaN."""
    wrong = reached & ~np.isnan(got) & (got != infinity)
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        message = f"the result[{', '.join(map(str, index))}], of a row that attends to {infinity}, is {got[index]:.9g}"
        subject.demand(False, message, arguments, expected=np.where(reached, infinity, got), got=got, index=index)
