"""Checks of the laws of embeddings, contexts and outputs of a decoder."""

from functools import partial

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, take
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import (
    demand_joined_in_order,
    demand_refusal,
    doubled,
    doubles,
    random_like,
    sum_budgets,
)
from attnspec.spec.contract.axes import Axis
from attnspec.spec.laws import operation
from attnspec.spec.laws import seq2seq as law
from attnspec.spec.seq2seq import AttentionDecoderParameters


@checks(law.CONCATENATION_ORDER)
def concatenation_order(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Demand the features of the context, then those of the state."""
    return demand_joined_in_order(subject, arguments)


def _table(arguments: Arguments) -> tuple[str, Numbers]:
    ((leaf, x),) = arguments.floats
    return leaf.path, x


def _every_token(arguments: Arguments) -> list[tuple[str, int]]:
    """The paths of tokens, each with the last token of its vocabulary."""
    operation = arguments.operation
    paths = [leaf.path for leaf in operation.leaves if leaf.path in operation.indices]
    return [(path, arguments.size(operation.indices[path]) - 1) for path in paths]


def tokens_of(arguments: Arguments) -> tuple[str, int]:
    """The first path of tokens, and the last token of its vocabulary."""
    return _every_token(arguments)[0]


@checks(law.EMBEDDING_IS_TABLE_ROW)
def embedding_is_table_row(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Store NaN in all table rows that are not requested; add one more."""
    path, table = _table(arguments)
    if subject.operation.indices:
        tokens = arguments.array(tokens_of(arguments)[0])
    else:  # ``learned_positions``, whose tokens are the positions
        (n,) = subject.operation.sizes_of(Axis.QUERY)
        tokens = np.arange(arguments.size(n))
    spoiled = np.full((len(table) + 1, *table.shape[1:]), np.nan, table.dtype)
    spoiled[tokens] = table[tokens]
    spoiled_call = arguments.replaced({path: spoiled})
    got = subject.call(spoiled_call)
    expected = table[tokens]
    subject.demand_equal(got, expected, lambda: np.zeros(expected.shape), spoiled_call, "the row")
    return bool(got.size)


@checks(operation.REJECTION)
def vocabulary_range(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass the token −1, or one more than the last."""
    tried = False
    for path, last in _every_token(arguments):
        tried |= demand_refusal(subject, arguments, path, last, rng, "a token")
    return tried


@checks(law.CONTEXT_IS_LAST_STATE)
def context_is_last_state(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the context with the state at the length; all other states are NaN."""
    ((leaf, states),) = arguments.floats
    path = next(iter(arguments.operation.lengths), None)
    t = states.shape[-2]
    zeros = np.zeros(arguments.batch, int)
    tried = (None,) if path is None else (arguments[path], zeros, rng.integers(0, t, arguments.batch, endpoint=True))
    for lengths in tried:
        last = np.broadcast_to(t if lengths is None else lengths, arguments.batch)
        is_last = np.broadcast_to(np.arange(1, t + 1) == last[..., None], (*arguments.batch, t))[..., None]
        spoiled = np.where(is_last, states, states.dtype.type(np.nan))
        changed = arguments.replaced({leaf.path: spoiled})
        if path is not None:
            changed = changed.replaced({path: None if lengths is None else np.asarray(lengths)})
        expected = np.where(is_last, states, states.dtype.type(0)).sum(-2, dtype=states.dtype)
        subject.demand_equal(subject.call(changed), expected, partial(np.zeros, expected.shape), changed, "the context")
    return bool(zeros.size)


@checks(law.ONE_ANNOTATION_IS_CONTEXT)
def one_annotation_is_context(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Keep only the first annotation; change the weights of the scores."""
    size = subject.operation.key_size
    # ``length_from(1)`` is the least number of keys, from 1 on, that the backend accepts; the check needs a single one.
    if not arguments.keys_count or size is None or subject.limits.length_from(1) > 1:
        return False
    first = arguments.with_mask(None).along(size, take([0]))
    (parameters,) = (x for x in first.values_by_name.values() if isinstance(x, AttentionDecoderParameters))
    # ``floats`` holds the very arrays of ``parameters``, so their identity gives the paths.
    scoring = {id(weight) for weight in (parameters.w_q, parameters.w_k, parameters.w_v)}
    others = {leaf.path: random_like(x, rng, subject) for leaf, x in first.floats if id(x) in scoring}
    changed = first.replaced(others)
    if not (subject.in_domain(first) and subject.in_domain(changed)):
        return False
    expected, budgets = (doubles(subject.results(first)), sum_budgets(subject.budgets(first), subject.budgets(changed)))
    subject.all_match(subject.results(changed), expected, budgets, changed, "with other weights of the scores,")
    return True


@checks(law.SHARED_SOURCE_EQUALS_SEPARATE)
def shared_source_equals_separate(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare three states that share one source with each state alone."""
    if not subject.limits.broadcasting or subject.limits.max_batch_dims < 1 or 0 in arguments.batch:
        return False
    alone = arguments.element((0,) * len(arguments.batch))
    (state,) = subject.operation.queries
    states = {state.path: subject.exact(rng.standard_normal((3, *alone.array(state.path).shape)))}
    for path, last in _every_token(alone)[:1]:
        states[path] = rng.integers(0, last, (3, *alone.array(path).shape), endpoint=True)
    several = alone.replaced(states)
    if not subject.in_domain(several):
        return False
    of_all, budgets = (doubles(subject.results(several)), doubled(subject.budgets(several)))
    for i in range(3):
        one_state = several.replaced({name: np.asarray(x[i]) for name, x in states.items()})
        expected, budget = ({name: x[i] for name, x in each.items()} for each in (of_all, budgets))
        subject.all_match(subject.results(one_state), expected, budget, several, f"for state {i} of one source, alone,")
    return True
