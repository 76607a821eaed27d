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
    ((leaf, x),) = arguments.batched
    return leaf.path, x


MAX_TAPS = 4
"""Most taps, so that a short sequence has tokens beyond the filter."""


def _with_few_taps(arguments: Arguments, rng: np.random.Generator) -> tuple[Arguments, int]:
    """A copy with the first few taps, and their number."""
    (taps,) = arguments.operation.sizes_of(Axis.TAP)
    count = min(arguments.size(taps), int(rng.integers(2, MAX_TAPS + 1)))
    return arguments.along(taps, take(range(count))), count


@checks(law.TRANSLATION_EQUIVARIANCE)
def translation_equivariance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Put zero tokens before the sequence, and compare the results of the sequence."""
    path, x = _tokens(arguments)
    t = x.shape[-2]
    length = subject.limits.length_from(t + int(rng.integers(1, 4)))
    longest = subject.limits.max_length
    if not x.size or (longest is not None and length > longest):
        return False
    zeros = np.zeros((*x.shape[:-2], length - t, x.shape[-1]), x.dtype)
    shifted = arguments.replaced({path: np.concatenate([zeros, x], axis=-2)})
    got, late_budget = (subject.call(shifted)[..., length - t :, :], subject.budget(shifted)[..., length - t :, :])
    budget = subject.budget(arguments) + late_budget
    subject.demand_match(got, wide(subject.call(arguments)), budget, shifted, f"after {length - t} zeros, the result")
    return True


@checks(law.LOCALITY)
def locality(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Replace all tokens beyond the filter of a result: first, last and random."""
    path, x = _tokens(arguments)
    cut, taps = _with_few_taps(arguments, rng)
    t = x.shape[-2]
    if not x.size or t <= taps:
        return False
    for i in (0, t - 1, int(rng.integers(t))):
        first = i - (taps - 1) // 2
        out_of_reach = (np.arange(t) < first) | (np.arange(t) >= first + taps)
        changed = cut.replaced({path: np.where(out_of_reach[:, None], random_like(x, rng, subject), x)})
        got, expected = subject.call(changed)[..., i, :], wide(subject.call(cut))[..., i, :]
        budget = 2 * subject.budget(cut)[..., i, :]
        subject.demand_match(got, expected, budget, changed, f"with other tokens beyond its filter, result {i}")
    return True


@checks(law.EDGE_CONTRIBUTIONS_ADD)
def edge_contributions_add(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Divide the edges among two graphs at random, and add their results."""
    plain = arguments.unordered()
    edges = attendable(plain)
    if not edges.any():
        return False
    chosen = rng.random(edges.shape) < 0.5
    both = plain.with_mask(edges)
    parts = [plain.with_mask(edges & chosen), plain.with_mask(edges & ~chosen)]
    expected = sum((wide(subject.call(part)) for part in parts), np.zeros(()))
    budget = sum((subject.budget(part) for part in (both, *parts)), np.zeros(()))
    subject.demand_match(subject.call(both), expected, budget, both, "unlike the sum over two graphs, the result")
    return True


@checks(law.EDGE_CONTRIBUTIONS_ADD)
def one_edge(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Give every node one neighbour; compare with nodes that are their own neighbour."""
    n = mask_shape(arguments)[-1]
    if not n or 0 in arguments.batch:
        return False
    plain = arguments.unordered()
    sender = rng.integers(n, size=n)
    own, received = plain.with_mask(np.eye(n, dtype=bool)), plain.with_mask(np.arange(n) == sender[:, None])
    expected, slack = (np.take(y, sender, axis=-2) for y in (wide(subject.call(own)), subject.budget(own)))
    budget = slack + subject.budget(received)
    subject.demand_match(subject.call(received), expected, budget, received, "of a node with one neighbour, the result")
    return True
