"""Checks of the laws of normalization."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.attendance import attendable
from attnspec.conformance.inputs.dtypes import LARGEST, NARROW
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import coarse, live_rows, sample, smallest_normal, wide
from attnspec.conformance.laws.registry import checks
from attnspec.spec.laws import normalization as law

LOW = 2.0**15
"""The offset of rows with low scores: unshifted exponentials underflow, but the scores still have enough precision."""


MANY = 70_000
"""More keys than the largest number of float16."""


def _scores(subject: Subject) -> str:
    """The path of the scores."""
    (leaf,) = subject.operation.floats
    return leaf.path


@checks(law.ROW_SUMS)
def row_sums(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The sums of rows that have an attendable key."""
    got = np.where(live_rows(subject, arguments), wide(subject.call(arguments)), 0.0)
    sums = got.sum(-1)
    expected = np.broadcast_to(live_rows(subject, arguments)[..., 0], sums.shape).astype(np.float64)
    budget = np.nansum(subject.budget(arguments), axis=-1).astype(np.float64)
    subject.matches(sums, expected, budget, arguments, "the sum of a row")
    return bool(expected.any())


@checks(law.NONNEGATIVE)
def nonnegative(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The sign of every weight."""
    got = subject.call(arguments)
    subject.holds(not bool((got < 0).any()), f"a weight is {wide(got).min(initial=0.0):.9g}", arguments, got=got)
    return bool(got.size)


@checks(law.MASKED_ZERO)
def masked_zero(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The weights of masked keys, in rows that have an attendable key."""
    hidden = ~attendable(arguments) & live_rows(subject, arguments)
    got = subject.call(arguments)
    leaked = hidden & (got != 0)
    subject.holds(
        not leaked.any(),
        f"a masked key has weight {wide(got)[leaked][:1]}",
        arguments,
        got=got,
        expected=np.where(hidden, 0.0, wide(got)),
    )
    return bool(hidden.any())


@checks(law.SHIFT_INVARIANCE)
def shift_invariance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Shift scores on a grid on which the shift is exact."""
    path = _scores(subject)
    near = arguments.replaced({path: subject.exact(coarse(arguments[path]))})
    shift = float(rng.choice([-8.0, 4.0, 8.0]))
    far = near.replaced({path: subject.exact(wide(near.array(path)) + shift)})
    budget = subject.budget(near) + subject.budget(far)
    subject.matches(subject.call(far), wide(subject.call(near)), budget, far, f"shifted by {shift}, the weight")
    return True


@checks(law.ORDER)
def order(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Sort the attendable keys by score and compare their weights."""
    allowed = attendable(arguments)
    if allowed.shape[-1] < 2:
        return False
    scores = np.where(allowed, np.broadcast_to(wide(arguments.array(_scores(subject))), allowed.shape), -np.inf)
    places = np.argsort(scores, axis=-1)
    got, budget = wide(subject.call(arguments)), subject.budget(arguments)
    ordered, slack = np.take_along_axis(got, places, -1), np.take_along_axis(budget, places, -1)
    ranked = np.take_along_axis(allowed, places, -1)
    rises = np.take_along_axis(scores, places, -1)
    with np.errstate(invalid="ignore"):
        inverted = ordered[..., 1:] - ordered[..., :-1] < -(slack[..., 1:] + slack[..., :-1])
        wrong = inverted & ranked[..., 1:] & ranked[..., :-1] & (rises[..., 1:] > rises[..., :-1])
    subject.holds(not wrong.any(), "a greater score has the smaller weight", arguments, got=got)
    return True


@checks(law.EXTREME_SCORES)
def extreme_scores(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set some scores to the largest number of the dtype, of either sign, and make all scores of some rows very low."""
    scores = wide(arguments.array(_scores(subject)))
    largest = LARGEST[subject.dtype]
    kind = rng.integers(0, 6, scores.shape)
    row = rng.random((*scores.shape[:-1], 1))
    scores = np.where(row < 0.4, scores - LOW, np.where(kind == 0, largest, np.where(kind < 3, -largest, scores)))
    extreme = arguments.replaced({_scores(subject): subject.exact(np.where(row < 0.1, -largest, scores))})
    got, expected = subject.call(extreme), subject.oracle(extreme)
    rows = np.broadcast_to(live_rows(subject, extreme), got.shape)
    subject.holds(
        bool(np.isfinite(wide(got))[rows].all()), "a weight is not finite", extreme, got=got, expected=expected.value
    )
    subject.matches(got, expected.value, expected.budget, extreme)
    return True


@checks(law.HOMOGENEITY)
def homogeneity(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Double the scores."""
    doubled = arguments.replaced({_scores(subject): 2 * arguments.array(_scores(subject))})
    result = subject.call(arguments)
    # A weight that is not above the smallest normal number may have been rounded more coarsely than its double.
    normal = np.abs(wide(result)) > smallest_normal(subject)
    got = np.where(normal, subject.call(doubled), 2 * result)
    what = "of doubled scores, the weight"
    subject.same(got, 2 * result, lambda: 2 * subject.budget(arguments), doubled, what)
    return True


@checks(law.MANY_KEYS, once=True)
def many_keys(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Ones at more keys than float16 can count."""
    if subject.dtype not in NARROW:
        return False
    given = sample(subject, rng, queries=1, keys=MANY, features=1)
    if (given.keys_count or 0) < MANY:
        return False
    ones = given.replaced({leaf.path: np.ones_like(x) for leaf, x in given.floats})
    subject.follows_formula(ones, f"of {ones.keys_count} ones,")
    return True
