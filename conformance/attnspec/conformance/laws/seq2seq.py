"""Checks of the laws of embeddings, contexts and outputs of a decoder."""

from functools import partial

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, take
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import (
    doubles,
    joined_in_order,
    random_like,
    refuses_outside,
    together,
    twice,
)
from attnspec.spec.contract.axes import Axis
from attnspec.spec.laws import operation
from attnspec.spec.laws import seq2seq as law
from attnspec.spec.seq2seq import AttentionDecoderParameters


@checks(law.CONTEXT_FIRST)
def context_first(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Demand the features of the context, then those of the state."""
    return joined_in_order(subject, arguments)


def _table(arguments: Arguments) -> tuple[str, Numbers]:
    """The path and the numbers of the only weights."""
    ((leaf, x),) = arguments.floats
    return leaf.path, x


def _every_token(arguments: Arguments) -> list[tuple[str, int]]:
    """The paths of tokens, with the last token of each vocabulary."""
    operation = arguments.operation
    paths = [leaf.path for leaf in operation.leaves if leaf.path in operation.indices]
    return [(path, arguments.size(operation.indices[path]) - 1) for path in paths]


def tokens_of(arguments: Arguments) -> tuple[str, int]:
    """The path of the first tokens, and the last token."""
    return _every_token(arguments)[0]


@checks(law.EMBEDDING_ROWS)
def embedding_rows(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Store NaN in every table row that is not asked for, and in one more."""
    path, table = _table(arguments)
    if subject.operation.indices:
        tokens = arguments.array(tokens_of(arguments)[0])
    else:
        (n,) = subject.operation.sizes_of(Axis.QUERY)
        tokens = np.arange(arguments.size(n))
    spoiled = np.full((len(table) + 1, *table.shape[1:]), np.nan, table.dtype)
    spoiled[tokens] = table[tokens]
    given = arguments.replaced({path: spoiled})
    got = subject.call(given)
    expected = table[tokens]
    subject.same(got, expected, lambda: np.zeros(expected.shape), given, "the row")
    return bool(got.size)


@checks(operation.REJECTION)
def vocabulary_range(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass the token −1, or one more than the last."""
    judged = False
    for path, last in _every_token(arguments):
        judged |= refuses_outside(subject, arguments, path, last, rng, "a token")
    return judged


@checks(law.LAST_STATE)
def last_state(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare with the state at the length, all other states being NaN."""
    ((leaf, states),) = arguments.floats
    (path,) = arguments.operation.lengths
    t = states.shape[-2]
    zeros = np.zeros(arguments.batch, int)
    for lengths in (arguments[path], zeros, rng.integers(0, t, arguments.batch, endpoint=True)):
        last = np.broadcast_to(t if lengths is None else lengths, arguments.batch)
        counts = np.broadcast_to(np.arange(1, t + 1) == last[..., None], (*arguments.batch, t))[..., None]
        spoiled = np.where(counts, states, states.dtype.type(np.nan))
        given = arguments.replaced({leaf.path: spoiled, path: None if lengths is None else np.asarray(lengths)})
        expected = np.where(counts, states, states.dtype.type(0)).sum(-2, dtype=states.dtype)
        subject.same(subject.call(given), expected, partial(np.zeros, expected.shape), given, "the context")
    return bool(zeros.size)


@checks(law.ONE_ANNOTATION)
def one_annotation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Keep only the first annotation, and change the weights of the scores."""
    size = subject.operation.asked
    if not arguments.keys_count or size is None or arguments.keys_count < subject.limits.length_from(1):
        return False
    one = arguments.with_mask(None).along(size, take([0]))
    (p,) = (x for x in one.values_by_name.values() if isinstance(x, AttentionDecoderParameters))
    scoring = {id(w) for w in (p.w_q, p.w_k, p.w_v)}
    others = {leaf.path: random_like(x, rng, subject) for leaf, x in one.floats if id(x) in scoring}
    changed = one.replaced(others)
    if not (subject.in_domain(one) and subject.in_domain(changed)):
        return False
    expected, budgets = doubles(subject.results(one)), together(subject.budgets(one), subject.budgets(changed))
    subject.all_match(subject.results(changed), expected, budgets, changed, "with other weights of the scores,")
    return True


@checks(law.SHARED_SOURCE)
def shared_source(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare three states that share one source's annotations with each state alone."""
    if not subject.limits.broadcasting or subject.limits.max_batch_dims < 1 or 0 in arguments.batch:
        return False
    alone = arguments.element((0,) * len(arguments.batch))
    (state,) = subject.operation.queries
    several = {state.path: subject.exact(rng.standard_normal((3, *alone.array(state.path).shape)))}
    for path, last in _every_token(alone)[:1]:
        several[path] = rng.integers(0, last, (3, *alone.array(path).shape), endpoint=True)
    given = alone.replaced(several)
    if not subject.in_domain(given):
        return False
    together_, budgets = doubles(subject.results(given)), twice(subject.budgets(given))
    for i in range(3):
        one = given.replaced({name: np.asarray(x[i]) for name, x in several.items()})
        expected, budget = ({name: x[i] for name, x in each.items()} for each in (together_, budgets))
        subject.all_match(subject.results(one), expected, budget, given, f"for state {i} of one source, alone,")
    return True
