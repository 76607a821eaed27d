"""Checks of the laws of embeddings, contexts and outputs of a decoder."""

from functools import partial

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, take
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import (
    bounded,
    doubles,
    joined_in_order,
    odd_in,
    random_like,
    refuses_outside,
    together,
    twice,
    wide,
)
from attnspec.conformance.laws.registry import checks
from attnspec.spec.contract.axes import Axis, Role
from attnspec.spec.laws import seq2seq as law
from attnspec.spec.seq2seq import AttentionDecoderParameters


@checks(law.INDEPENDENT_STATES)
def independent_states(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Several states that share annotations, in one call and one by one."""
    if not subject.limits.broadcasting or subject.limits.max_batch_dims < 1:
        return False
    (state,), (annotations,) = subject.operation.queries, subject.operation.attended
    rows = arguments.array(annotations.path)
    if 0 in rows.shape[:-2]:
        return False
    alone = rows[(0,) * (rows.ndim - 2)]
    states = subject.exact(rng.standard_normal((3, arguments.array(state.path).shape[-1])))
    mask = arguments.mask
    if mask is not None:
        mask = np.array(np.broadcast_to(mask[(0,) * (mask.ndim - 1)], alone.shape[:1]))
    given = arguments.replaced({state.path: states, annotations.path: alone.copy()}).with_mask(mask)
    if not subject.in_domain(given):
        return False
    together, budget = wide(subject.call(given)), subject.budget(given)
    for i, x in enumerate(states):
        got = subject.call(given.replaced({state.path: x}))
        subject.matches(got, together[i], 2 * budget[i], given, f"for state {i} alone, the context")
    return True


@checks(law.CONTEXT_FOLLOWS_CONTENT)
def context_follows_content(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Exchange the first and the last annotation, without a mask."""
    size, m = subject.operation.asked, arguments.keys_count or 0
    if m < 2 or size is None:
        return False
    order = np.arange(m)
    order[[0, -1]] = order[[-1, 0]]
    given = arguments.with_mask(None)
    exchanged = given.along(size, take(order))
    expected, what = wide(subject.call(given)), "with two annotations exchanged, the context"
    subject.matches(subject.call(exchanged), expected, lambda: 2 * subject.budget(given), exchanged, what)
    return True


@checks(law.ATTENTIONAL_BOUND)
def attentional_bound(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The magnitude of every element, and the result of negated vectors."""
    operation = subject.operation
    bounded(subject, arguments, operation.outputs[0].path, 1.0, "the result")
    return odd_in(subject, arguments, [x.path for x in operation.leaves if operation.role(x) is Role.STATE])


@checks(law.CONTEXT_FIRST)
def context_first(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The features of the context, then those of the state."""
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
    """NaN in every row that no token names, and in one more."""
    path, table = _table(arguments)
    tokens = arguments.array(tokens_of(arguments)[0])
    spoiled = np.full((len(table) + 1, *table.shape[1:]), np.nan, table.dtype)
    spoiled[tokens] = table[tokens]
    given = arguments.replaced({path: spoiled})
    got = subject.call(given)
    expected = table[tokens]
    subject.same(got, expected, lambda: np.zeros(expected.shape), given, "the embedding")
    return bool(got.size)


@checks(law.VOCABULARY_RANGE)
def vocabulary_range(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass the token −1, or one more than the last."""
    judged = False
    for path, last in _every_token(arguments):
        judged |= refuses_outside(subject, arguments, path, last, rng, "a token")
    return judged


@checks(law.DISTRIBUTION)
def distribution(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The least probability, and the sums."""
    got, budget = wide(subject.call(arguments)), subject.budget(arguments)
    if not got.size:
        return False
    subject.holds(bool((got >= 0).all()), f"a probability is {got.min():.9g}", arguments, got=got)
    sums = got.sum(-1)
    slack = np.where(np.isfinite(budget), budget, 1.0).sum(-1)
    subject.matches(sums, np.ones(sums.shape), slack, arguments, "the sum of the probabilities")
    return True


@checks(law.LAST_STATE)
def last_state(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare with the state at the length, where all other states are NaN: lengths as given, of 0, and others."""
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
    """Keep the first annotation alone, and exchange the weights of the scores."""
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
    """Three sentences from three states with the annotations of one source, in one call and one by one."""
    if not subject.limits.broadcasting or subject.limits.max_batch_dims < 1 or 0 in arguments.batch:
        return False
    alone = arguments.element((0,) * len(arguments.batch))
    (state,), (path, last) = subject.operation.queries, tokens_of(alone)
    several = {
        state.path: subject.exact(rng.standard_normal((3, *alone.array(state.path).shape))),
        path: rng.integers(0, last, (3, *alone.array(path).shape), endpoint=True),
    }
    given = alone.replaced(several)
    if not subject.in_domain(given):
        return False
    together_, budgets = doubles(subject.results(given)), twice(subject.budgets(given))
    for i in range(3):
        one = given.replaced({name: np.asarray(x[i]) for name, x in several.items()})
        expected, budget = ({name: x[i] for name, x in each.items()} for each in (together_, budgets))
        subject.all_match(subject.results(one), expected, budget, given, f"for sentence {i} of the source, alone,")
    return True


@checks(law.LOG_DISTRIBUTION)
def log_distribution(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The greatest logarithm, and the sums of the probabilities."""
    got, budget = wide(subject.call(arguments)), subject.budget(arguments)
    if not got.size:
        return False
    slack = np.where(np.isfinite(budget), budget, np.inf)
    subject.holds(bool((got <= slack).all()), f"a logarithm is {got.max():.9g}", arguments, got=got)
    with np.errstate(over="ignore"):
        sums = np.exp(got).sum(-1)
        slack = (np.exp(got) * np.expm1(np.minimum(slack, 100.0))).sum(-1)
    slack = slack + got.shape[-1] * np.finfo(np.float64).eps
    subject.matches(sums, np.ones(sums.shape), slack, arguments, "the sum of the probabilities")
    return True


@checks(law.STEP_BY_STEP)
def step_by_step(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Cut the tokens in two. Half dtypes round the state in between, so that there the two ways differ by more."""
    (size,) = subject.operation.sizes_of(Axis.TIME)
    t = arguments.size(size)
    if t < 2 or subject.dtype in NARROW or 0 in arguments.batch:
        return False
    cut = int(rng.integers(1, t))
    (state,) = subject.operation.queries
    first, second = (arguments.along(size, take(part)) for part in (np.arange(cut), np.arange(cut, t)))
    of_time, of_end = subject.operation.outputs
    before = subject.results(first)
    after = subject.results(second.replaced({state.path: before[of_end.path]}))
    got = {
        of_time.path: np.concatenate([x[of_time.path] for x in (before, after)], axis=-2),
        of_end.path: after[of_end.path],
    }
    expected, budgets = doubles(subject.results(arguments)), twice(subject.budgets(arguments))
    subject.all_match(got, expected, budgets, arguments, f"decoded up to {cut} and from there on,")
    return True
