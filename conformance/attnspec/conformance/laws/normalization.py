"""Checks of the laws of normalization."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import attendable
from attnspec.conformance.inputs.dtypes import LARGEST
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import live_rows, on_coarse_grid, wide
from attnspec.spec.contract.axes import ScoreEffect
from attnspec.spec.kernels import AttentionWeights
from attnspec.spec.laws import normalization as law
from attnspec.spec.normalization import Softmax
from attnspec.spec.seq2seq import TeacherForcedDecode

LOW = 2.0**15
"""Offset of rows with low scores: unshifted exponentials underflow, scores stay precise."""


def _scores(subject: Subject) -> str:
    (leaf,) = subject.operation.floats
    return leaf.path


@checks(law.SUMS_TO_ONE)
def sums_to_one(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check the signs of weights, and the sums of rows with an attendable key."""
    sink = subject.operation.part(ScoreEffect.SINK)
    arguments = arguments.replaced({sink: None}) if sink else arguments
    got, budget = wide(subject.call(arguments)), subject.budget(arguments)
    if not got.size:
        return False
    if subject.operation.protocol is TeacherForcedDecode:
        _log_distribution(subject, arguments, got, budget)
        return True
    live: Numbers = np.ones(got.shape[:-1], bool)
    if subject.operation.protocol in (Softmax, AttentionWeights):
        live = np.broadcast_to(live_rows(subject, arguments)[..., 0], live.shape)
    subject.demand(not (got < 0).any(), f"a weight or probability is {np.nanmin(got):.9g}", arguments, got=got)
    sums = np.where(live, got.sum(-1), 0.0)
    slack = np.where(np.isfinite(budget), budget, 1.0).sum(-1)
    subject.demand_match(sums, live.astype(np.float64), slack, arguments, "the sum of row")
    return bool(live.any())


def _log_distribution(subject: Subject, arguments: Arguments, got: Numbers, budget: Numbers) -> None:
    """Check the greatest logarithm, and sums of probabilities."""
    slack = np.where(np.isfinite(budget), budget, np.inf)
    subject.demand(bool((got <= slack).all()), f"a logarithm is {got.max():.9g}", arguments, got=got)
    with np.errstate(over="ignore"):
        sums = np.exp(got).sum(-1)
        slack = (np.exp(got) * np.expm1(np.minimum(slack, 100.0))).sum(-1)
    slack = slack + got.shape[-1] * np.finfo(np.float64).eps
    subject.demand_match(sums, np.ones(sums.shape), slack, arguments, "of the probabilities, the sum of row")


@checks(law.MASKED_WEIGHT_IS_ZERO)
def masked_weight_is_zero(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check the weights of masked keys, in rows that have an attendable key."""
    got = subject.call(arguments)
    # Weights of several heads have an axis of heads before those of queries and keys.
    heads = tuple(range(-len(subject.operation.leading.core), -2))
    masked = np.expand_dims(~attendable(arguments, semantics=subject.semantics), heads)
    hidden = np.broadcast_to(masked & live_rows(subject, arguments), got.shape)
    leaked = hidden & (got != 0)
    subject.demand(
        not leaked.any(),
        f"a masked key has weight {wide(got)[leaked][:1]}",
        arguments,
        got=got,
        expected=np.where(hidden, 0.0, wide(got)),
    )
    return bool(hidden.any())


@checks(law.SHIFT_INVARIANCE)
def shift_invariance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Add a number to all scores, on a grid with exact sums."""
    path = _scores(subject)
    near = arguments.replaced({path: subject.exact(on_coarse_grid(arguments[path]))})
    shift = float(rng.choice([-8.0, 4.0, 8.0]))
    far = near.replaced({path: subject.exact(wide(near.array(path)) + shift)})
    budget = subject.budget(near) + subject.budget(far)
    subject.demand_match(subject.call(far), wide(subject.call(near)), budget, far, f"shifted by {shift}, the weight")
    return True


@checks(law.ORDER_PRESERVED)
def order_preserved(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Sort the attendable keys by score and compare their weights."""
    allowed = attendable(arguments)
    if allowed.shape[-1] < 2:
        return False
    scores = np.where(allowed, np.broadcast_to(wide(arguments.array(_scores(subject))), allowed.shape), -np.inf)
    ranking = np.argsort(scores, axis=-1)
    got, budget = wide(subject.call(arguments)), subject.budget(arguments)
    ordered, slack = np.take_along_axis(got, ranking, -1), np.take_along_axis(budget, ranking, -1)
    ranked = np.take_along_axis(allowed, ranking, -1)
    rises = np.take_along_axis(scores, ranking, -1)
    with np.errstate(invalid="ignore"):
        inverted = ordered[..., 1:] - ordered[..., :-1] < -(slack[..., 1:] + slack[..., :-1])
        wrong = inverted & ranked[..., 1:] & ranked[..., :-1] & (rises[..., 1:] > rises[..., :-1])
    subject.demand(not wrong.any(), "a greater score has the smaller weight", arguments, got=got)
    return True


@checks(law.EXTREME_SCORES_STAY_FINITE)
def extreme_scores_stay_finite(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set some scores to ± the dtype's largest number, and some rows very low."""
    scores = wide(arguments.array(_scores(subject)))
    largest = LARGEST[subject.dtype]
    choice = rng.integers(0, 6, scores.shape)
    row = rng.random((*scores.shape[:-1], 1))
    scores = np.where(row < 0.4, scores - LOW, np.where(choice == 0, largest, np.where(choice < 3, -largest, scores)))
    extreme = arguments.replaced({_scores(subject): subject.exact(np.where(row < 0.1, -largest, scores))})
    got, expected = subject.call(extreme), subject.oracle(extreme)
    rows = np.broadcast_to(live_rows(subject, extreme), got.shape)
    finite = bool(np.isfinite(wide(got))[rows].all())
    subject.demand(finite, "a weight is not finite", extreme, got=got, expected=expected.value)
    subject.demand_match(got, expected.value, expected.budget, extreme)
    return True
