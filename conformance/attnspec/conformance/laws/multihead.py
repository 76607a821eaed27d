"""Checks of the laws of multi-head attention."""

from functools import partial

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, take
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import expected_or_oracle, live_rows, wide
from attnspec.reference.attention import scaled_dot_product_attention
from attnspec.spec.contract.axes import Axis, Role
from attnspec.spec.contract.tree import Leaf
from attnspec.spec.laws import multihead as law
from attnspec.spec.multihead import ConcatHeadsAttention, SplitHeads


@checks(law.ONE_HEAD_IS_ATTENTION)
def one_head_is_attention(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Use one head with identity projections, and keys as wide as queries."""
    operation = subject.operation
    (query,), (key, value) = operation.queries, operation.attended
    d = arguments.array(query.path).shape[-1]
    size = key.core[-1].factors[0]  # the features of keys, which become as many as those of queries
    single = arguments.along(size, take(np.arange(d) % arguments.size(size)))
    changes = {}
    for leaf in operation.leaves:
        if operation.role(leaf) is Role.WEIGHT:
            # W_o has no separate axis of heads; with one head its identity has the width of the values.
            by_head = Axis.HEAD in operation.axis(leaf.core[0].factors[0])
            rows = _projected_array((key, value, query), leaf) if by_head else value
            identity = subject.exact(np.eye(single.array(rows.path).shape[-1]))
            changes[leaf.path] = identity[None] if by_head else identity
    single = single.replaced(changes)
    if not subject.in_domain(single):
        return False
    expected = scaled_dot_product_attention(
        *(wide(single.array(leaf.path)) for leaf in (query, key, value)), mask=single.mask, causal=single.causal
    )
    if subject.semantics.causal_alignment != "top-left" and single.causal:
        return False
    oracle = subject.oracle(single)
    expected = expected_or_oracle(expected, oracle)
    title = "with one head and identity projections, the result"
    subject.demand_match(subject.call(single), expected, oracle.budget, single, title)
    return True


def _projected_array(rows: tuple[Leaf, ...], weight: Leaf) -> Leaf:
    """The array that a weight projects, recognised by the weight's last size."""
    return next(leaf for leaf in rows if leaf.core[-1].factors == weight.core[-1].factors)


@checks(law.HEADS_ADD_UP)
def heads_add_up(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Split the heads into two groups; add or concatenate their results."""
    (size,) = subject.operation.sizes_of(Axis.HEAD)
    heads = arguments.size(size)
    # With divided heads, of d/heads features each, fewer heads would be wider.
    if heads < 2 or subject.limits.divided_heads:
        return False
    first = int(rng.integers(1, heads))
    groups = [arguments.along(size, take(np.arange(heads)[part])) for part in (slice(first), slice(first, None))]
    whole, (left, right) = subject.budget(arguments), (subject.budget(x) for x in groups)
    if subject.operation.protocol is ConcatHeadsAttention:
        expected = np.concatenate([wide(subject.call(x)) for x in groups], axis=-1)
        budget = whole + np.concatenate([left, right], axis=-1)
    else:
        expected, budget = (wide(subject.call(groups[0])) + wide(subject.call(groups[1])), whole + left + right)
    title = f"unlike its first {first} heads and the others together, the result"
    subject.demand_match(subject.call(arguments), expected, budget, arguments, title)
    return True


def _weights(subject: Subject) -> list[str]:
    """Paths of the weights in order, biases last."""
    return [leaf.path for leaf in subject.operation.leaves if subject.operation.role(leaf) is Role.WEIGHT]


@checks(law.KEY_BIAS_CANCELS)
def key_bias_cancels(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Replace the biases of the keys by zeros."""
    *_, keys, _values, _output = _weights(subject)
    without = arguments.replaced({keys: np.zeros_like(arguments.array(keys))})
    if not subject.in_domain(without):
        return False
    expected, budget = wide(subject.call(without)), subject.budget(without) + subject.budget(arguments)
    title = "unlike without biases of the keys, the result"
    subject.demand_match(subject.call(arguments), expected, budget, arguments, title)
    return bool(expected.size)


@checks(law.BIASES_OF_THE_OUTPUT)
def biases_of_the_output(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Replace biases of values and output by zeros, and add their vector to the rows."""
    *_, projection, _queries, _keys, values, output = _weights(subject)
    biases = {path: arguments.array(path) for path in (values, output)}
    without = arguments.replaced({path: np.zeros_like(b) for path, b in biases.items()})
    if not subject.in_domain(without):
        return False
    pooled = wide(arguments.array(projection)) @ wide(biases[values]).reshape(-1)
    pooled = np.where(live_rows(subject, arguments), pooled, 0)
    expected = wide(subject.call(without)) + pooled + wide(biases[output])
    budget = subject.budget(without) + subject.budget(arguments)
    title = "unlike without biases of values and output, plus their vector, the result"
    subject.demand_match(subject.call(arguments), expected, budget, arguments, title)
    return bool(expected.size)


def _rows_and_heads(subject: Subject, arguments: Arguments) -> tuple[np.ndarray, np.ndarray, int, bool]:
    """Rows, rows in heads, the number of heads, and True if heads are the result."""
    operation = subject.operation
    ((_, x),) = arguments.batched
    (size,) = operation.sizes_of(Axis.HEAD)
    splits = operation.protocol is SplitHeads
    got = subject.call(arguments)
    return (x, got, arguments.size(size), True) if splits else (got, x, arguments.size(size), False)


@checks(law.HEAD_COLUMN_ORDER)
def head_column_order(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the features of every head with its columns."""
    rows, heads, count, splits = _rows_and_heads(subject, arguments)
    width = heads.shape[-1]
    for i in range(count):
        columns, head = rows[..., i * width : (i + 1) * width], heads[..., i, :, :]
        got, expected = (head, columns) if splits else (columns, head)
        subject.demand_equal(got, expected, partial(np.zeros, expected.shape), arguments, f"of head {i}, the features")
    return bool(heads.size)
