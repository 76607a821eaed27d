"""Checks of the laws of multi-head attention."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, take
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import wide
from attnspec.conformance.laws.registry import proves
from attnspec.reference import scaled_dot_product_attention
from attnspec.spec.laws import multihead as law


@proves(law.ONE_HEAD)
def one_head(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """One head, identity projections, keys as wide as queries."""
    sizes = arguments.binding.sizes
    d, d_v = sizes["d_q"], sizes["d_v"]
    given = arguments.along("d_k", take(np.arange(d) % sizes["d_k"]))
    identity, of_values = subject.exact(np.eye(d)), subject.exact(np.eye(d_v))
    given = given.with_(w_q=identity[None], w_k=identity[None], w_v=of_values[None], w_o=of_values)
    if not subject.in_domain(given):
        return False
    expected = scaled_dot_product_attention(
        *(wide(given.array(name)) for name in ("query", "key", "value")), mask=given.mask, causal=given.causal
    )
    if subject.semantics.causal_alignment != "top-left" and given.causal:
        return False
    oracle = subject.oracle(given)
    expected = np.where(np.isfinite(oracle.value), expected, oracle.value)
    subject.matches(subject.call(given), expected, oracle.budget, given, "with one head and identities, the result")
    return True


@proves(law.HEAD_PERMUTATION)
def head_permutation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Heads, and the blocks of W_o, in another order."""
    h = arguments.size("h")
    if h < 2:
        return False
    permuted = arguments.along("h", take(np.roll(rng.permutation(h), 1)))
    budget = subject.budget(arguments)
    subject.matches(
        subject.call(permuted), wide(subject.call(arguments)), 2 * budget, permuted, "of permuted heads, the result"
    )
    return True


@proves(law.HEAD_SUM)
def head_sum(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The heads in two groups."""
    h = arguments.size("h")
    if h < 2:
        return False
    first = int(rng.integers(1, h))
    groups = [arguments.along("h", take(np.arange(h)[part])) for part in (slice(first), slice(first, None))]
    budget = sum((subject.budget(x) for x in (arguments, *groups)), np.zeros(()))
    total = wide(subject.call(groups[0])) + wide(subject.call(groups[1]))
    subject.matches(subject.call(arguments), total, budget, arguments, "against the sum over its heads, the result")
    return True
