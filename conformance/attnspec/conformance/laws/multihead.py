"""Checks of the laws of multi-head attention."""

from functools import partial

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, take
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import where_finite, wide
from attnspec.reference.attention import scaled_dot_product_attention
from attnspec.spec.contract.axes import Axis, Role
from attnspec.spec.contract.tree import Leaf
from attnspec.spec.laws import multihead as law
from attnspec.spec.multihead import ConcatHeadsAttention, SplitHeads


@checks(law.ONE_HEAD)
def one_head(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Use one head with identity projections, and keys as wide as queries."""
    operation = subject.operation
    (query,), (key, value) = operation.queries, operation.attended
    d = arguments.array(query.path).shape[-1]
    size = key.core[-1].factors[0]
    given = arguments.along(size, take(np.arange(d) % arguments.size(size)))
    changes = {}
    for leaf in operation.leaves:
        if operation.role(leaf) is Role.WEIGHT:
            # W_o has no axis of its own for heads, and gives back the values as wide as they are.
            by_head = Axis.HEAD in operation.axis(leaf.core[0].factors[0])
            rows = _projected((key, value, query), leaf) if by_head else value
            identity = subject.exact(np.eye(given.array(rows.path).shape[-1]))
            changes[leaf.path] = identity[None] if by_head else identity
    given = given.replaced(changes)
    if not subject.in_domain(given):
        return False
    expected = scaled_dot_product_attention(
        *(wide(given.array(leaf.path)) for leaf in (query, key, value)), mask=given.mask, causal=given.causal
    )
    if subject.semantics.causal_alignment != "top-left" and given.causal:
        return False
    oracle = subject.oracle(given)
    expected = where_finite(expected, oracle)
    subject.matches(subject.call(given), expected, oracle.budget, given, "with one head and identities, the result")
    return True


def _projected(rows: tuple[Leaf, ...], weight: Leaf) -> Leaf:
    """The array that a weight projects: its rows have the weight's last size."""
    return next(leaf for leaf in rows if leaf.core[-1].factors == weight.core[-1].factors)


@checks(law.HEAD_SUM)
def head_sum(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Split the heads into two groups, and add or concatenate their results."""
    (size,) = subject.operation.sizes_of(Axis.HEAD)
    heads = arguments.size(size)
    if heads < 2 or subject.limits.divided_heads:
        return False
    first = int(rng.integers(1, heads))
    groups = [arguments.along(size, take(np.arange(heads)[part])) for part in (slice(first), slice(first, None))]
    whole, (one, two) = subject.budget(arguments), (subject.budget(x) for x in groups)
    if subject.operation.protocol is ConcatHeadsAttention:
        expected = np.concatenate([wide(subject.call(x)) for x in groups], axis=-1)
        budget = whole + np.concatenate([one, two], axis=-1)
    else:
        expected, budget = wide(subject.call(groups[0])) + wide(subject.call(groups[1])), whole + one + two
    what = f"against its first {first} heads and the others, the result"
    subject.matches(subject.call(arguments), expected, budget, arguments, what)
    return True


def _split_up(subject: Subject, arguments: Arguments) -> tuple[np.ndarray, np.ndarray, int, bool]:
    """Rows, rows in heads, the number of heads, and whether heads are the result."""
    operation = subject.operation
    ((_, x),) = arguments.batched
    (size,) = operation.sizes_of(Axis.HEAD)
    splits = operation.protocol is SplitHeads
    got = subject.call(arguments)
    return (x, got, arguments.size(size), True) if splits else (got, x, arguments.size(size), False)


@checks(law.HEAD_COLUMNS)
def head_columns(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the features of every head with its columns."""
    rows, heads, count, splits = _split_up(subject, arguments)
    p = heads.shape[-1]
    for r in range(count):
        columns, head = rows[..., r * p : (r + 1) * p], heads[..., r, :, :]
        got, expected = (head, columns) if splits else (columns, head)
        subject.same(got, expected, partial(np.zeros, expected.shape), arguments, f"of head {r}, the features")
    return bool(heads.size)
