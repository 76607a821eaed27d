"""Checks of the laws of contexts."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, take
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import wide
from attnspec.conformance.laws.registry import proves
from attnspec.spec.laws import seq2seq as law


@proves(law.CONTEXT_IS_ATTENTION)
def context_is_attention(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Several states that share annotations, together and one by one."""
    if not subject.limits.broadcasting or subject.limits.max_batch_dims < 1:
        return False
    annotations = arguments.array("annotations")
    if 0 in annotations.shape[:-2]:
        return False
    alone = annotations[(0,) * (annotations.ndim - 2)]
    width = arguments.array("state").shape[-1]
    states = subject.exact(rng.standard_normal((3, width)))
    mask = arguments.mask
    given = arguments.with_(
        state=states,
        annotations=alone.copy(),
        mask=None if mask is None else np.array(np.broadcast_to(mask[(0,) * (mask.ndim - 1)], alone.shape[:1])),
    )
    if not subject.in_domain(given):
        return False
    together, budget = wide(subject.call(given)), subject.budget(given)
    for i, state in enumerate(states):
        got = subject.call(given.with_(state=state))
        subject.matches(got, together[i], 2 * budget[i], given, f"the context of state {i} alone")
    return True


@proves(law.CONTEXT_FOLLOWS_CONTENT)
def context_follows_content(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The first and the last annotation exchanged, unmasked."""
    m = arguments.size("m")
    if m < 2:
        return False
    order = np.arange(m)
    order[[0, -1]] = order[[-1, 0]]
    given = arguments.with_(mask=None)
    exchanged = given.along("m", take(order))
    budget = subject.budget(given)
    expected = wide(subject.call(given))
    subject.matches(
        subject.call(exchanged), expected, 2 * budget, exchanged, "with two annotations exchanged, the context"
    )
    return True
