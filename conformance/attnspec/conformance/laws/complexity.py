"""Checks of the laws of convolution and graph layers, to which attention is compared."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, take
from attnspec.conformance.inputs.attendance import attendable, mask_shape
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import random_like, wide
from attnspec.spec.contract.axes import Axis
from attnspec.spec.laws import complexity as law


def _tokens(arguments: Arguments) -> tuple[str, Numbers]:
    """The path and the numbers of the sequence."""
    ((leaf, x),) = arguments.batched
    return leaf.path, x


FEW = 4
"""Most taps to keep, so that a short sequence has tokens out of reach."""


def _with_few_taps(arguments: Arguments, rng: np.random.Generator) -> tuple[Arguments, int]:
    """A copy with the first few taps, and their number."""
    (taps,) = arguments.operation.sizes_of(Axis.TAP)
    kept = min(arguments.size(taps), int(rng.integers(2, FEW + 1)))
    return arguments.along(taps, take(range(kept))), kept


@checks(law.TRANSLATION)
def translation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Put zero tokens before the others, and compare the results of the others."""
    path, x = _tokens(arguments)
    t = x.shape[-2]
    moved_to = subject.limits.length_from(t + int(rng.integers(1, 4)))
    longest = subject.limits.max_length
    if not x.size or (longest is not None and moved_to > longest):
        return False
    zeros = np.zeros((*x.shape[:-2], moved_to - t, x.shape[-1]), x.dtype)
    moved = arguments.replaced({path: np.concatenate([zeros, x], axis=-2)})
    got, ahead = subject.call(moved)[..., moved_to - t :, :], subject.budget(moved)[..., moved_to - t :, :]
    budget = subject.budget(arguments) + ahead
    subject.matches(got, wide(subject.call(arguments)), budget, moved, f"after {moved_to - t} zeros, the result")
    return True


@checks(law.LOCALITY)
def locality(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Replace all tokens out of reach of the first, the last and another result."""
    path, x = _tokens(arguments)
    given, taps = _with_few_taps(arguments, rng)
    t = x.shape[-2]
    if not x.size or t <= taps:
        return False
    for i in (0, t - 1, int(rng.integers(t))):
        first = i - (taps - 1) // 2
        unseen = (np.arange(t) < first) | (np.arange(t) >= first + taps)
        changed = given.replaced({path: np.where(unseen[:, None], random_like(x, rng, subject), x)})
        got, expected = subject.call(changed)[..., i, :], wide(subject.call(given))[..., i, :]
        budget = 2 * subject.budget(given)[..., i, :]
        subject.matches(got, expected, budget, changed, f"with other tokens out of reach of token {i}, the result")
    return True


@checks(law.EDGES)
def edges(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Divide the edges between two graphs at random, and add their results."""
    given = arguments.plain()
    whole = attendable(given)
    if not whole.any():
        return False
    chosen = rng.random(whole.shape) < 0.5
    both = given.with_mask(whole)
    parts = [given.with_mask(whole & chosen), given.with_mask(whole & ~chosen)]
    expected = sum((wide(subject.call(part)) for part in parts), np.zeros(()))
    budget = sum((subject.budget(part) for part in (both, *parts)), np.zeros(()))
    subject.matches(subject.call(both), expected, budget, both, "of the edges of two graphs, the result")
    return True


@checks(law.EDGES)
def one_edge(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Give every node one neighbour, and compare with nodes that are their own."""
    n = mask_shape(arguments)[-1]
    if not n or 0 in arguments.batch:
        return False
    given = arguments.plain()
    sender = rng.integers(n, size=n)
    alone, received = given.with_mask(np.eye(n, dtype=bool)), given.with_mask(np.arange(n) == sender[:, None])
    expected, budget = (np.take(y, sender, axis=-2) for y in (wide(subject.call(alone)), subject.budget(alone)))
    subject.matches(
        subject.call(received), expected, budget + subject.budget(received), received, "along one edge, the result"
    )
    return True
