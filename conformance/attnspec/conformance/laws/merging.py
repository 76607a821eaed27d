"""Checks of the laws of merging attention over parts of the keys."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.caches import in_one_piece
from attnspec.conformance.laws.common import doubles, sample, together, wide
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.conformance.laws.kernels import logarithms, with_heads
from attnspec.spec.laws import attention as identities
from attnspec.spec.laws import kernels as law

CUTS = ((0, 3), (3, 3), (3, 7))
"""The parts of seven keys, of which the middle one is empty."""


def _in_parts(subject: Subject, rng: np.random.Generator) -> tuple[Subject, Arguments, list[Arguments]] | None:
    """Grouped-query attention by the backend, to all keys and to each part, or None."""
    attention = in_one_piece(subject)
    if attention is None or not logarithms(attention.operation):
        return None
    sizes = with_heads(2, 2, attention.operation)
    whole = sample(attention, rng, (2,), queries=3, keys=CUTS[-1][1], sizes=sizes)
    keys, n = np.arange(whole.keys_count or 0), whole.queries or 0
    parts = [whole.with_mask(np.tile((keys >= first) & (keys < end), (n, 1))) for first, end in CUTS]
    return attention, whole, parts


def _stacked(subject: Subject, attention: Subject, parts: list[Arguments]) -> Arguments:
    """The results of the parts, as arguments of the merging operation."""
    found = [attention.results(part) for part in parts]
    outputs, (beside,) = attention.operation.leading.path, logarithms(attention.operation)
    stacked = [np.stack([x[outputs] for x in found], axis=-2), np.stack([x[beside] for x in found], axis=-1)]
    paths = [leaf.path for leaf in subject.operation.floats]
    return Arguments(subject.operation, dict(zip(paths, stacked, strict=True)))


def _named(subject: Subject, attention: Subject, found: Results) -> Results:
    """Results or cotangents of attention, by the paths of the merging operation."""
    mine, its = subject.operation, attention.operation
    (here,), (there,) = logarithms(mine), logarithms(its)
    return {mine.leading.path: found[its.leading.path], here: found[there]}


def _mostly_nothing(subject: Subject, rng: np.random.Generator) -> Arguments:
    """Parts that are all, partly or not empty (outputs NaN), and logarithms far apart."""
    given = sample(subject, rng, (6,)[: subject.limits.max_batch_dims], keys=4)
    outputs, beside = (leaf for leaf, _ in given.floats)
    stored, numbers = (wide(given.array(leaf.path)).copy() for leaf in (outputs, beside))
    rows = numbers.reshape(-1, numbers.shape[-1])
    rows[0::3] = -np.inf
    rows[1::3, ::2] = -np.inf
    rows[2::3, 1:] += rng.choice([-1e4, 1e3], rows[2::3, 1:].shape)
    stored[np.isneginf(numbers)] = np.nan
    return given.replaced({outputs.path: subject.exact(stored), beside.path: subject.exact(numbers)})


def _merged_nothing(subject: Subject, rng: np.random.Generator) -> None:
    given = _mostly_nothing(subject, rng)
    subject.follows_formula(given, "of parts that are empty or far apart,")
    (beside,) = logarithms(subject.operation)
    got, expected = wide(subject.results(given)[beside]), subject.oracles(given)[beside].value
    message = "the logarithm of parts of which all are empty is not −∞"
    right = bool(np.isneginf(got[np.isneginf(expected)]).all())
    subject.holds(right, message, given, expected=expected, got=got)


@checks(law.MERGED, once=True)
def merged(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Merge parts that are empty or far apart, then the backend's results for parts."""
    _merged_nothing(subject, rng)
    found = _in_parts(subject, rng)
    if found is None:
        return True
    attention, whole, parts = found
    given = _stacked(subject, attention, parts)
    expected = _named(subject, attention, doubles(attention.results(whole)))
    of_whole = _named(subject, attention, attention.budgets(whole))
    budgets = together(of_whole, _moved(subject, attention, given, parts), subject.budgets(given))
    subject.all_match(subject.results(given), expected, budgets, given, "of parts of the keys,")
    return True


def _moved(subject: Subject, attention: Subject, given: Arguments, parts: list[Arguments]) -> Results:
    """The distance by which errors of the parts may move the merged results."""
    outputs, numbers = (wide(x) for _, x in given.floats)
    budgets = [_named(subject, attention, attention.budgets(part)) for part in parts]
    leading, (beside,) = subject.operation.leading.path, logarithms(subject.operation)
    weights = np.exp(numbers - numbers.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    of_logarithms = np.where(weights > 0, np.stack([b[beside] for b in budgets], axis=-1), 0)
    shift = (weights * of_logarithms).sum(-1)
    direct = (weights[..., None] * np.stack([b[leading] for b in budgets], axis=-2)).sum(-2)
    reach = np.abs(outputs).max(-2) * 4 * of_logarithms.max(-1)[..., None]
    return {leading: direct + reach, beside: 2 * shift}


@checks(identities.GRADIENT_IDENTITIES, once=True, governs=identities.merges_parts)
def merged_gradients(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Take gradients through the merging and, in wide dtypes, the attention of every part."""
    nothing = _mostly_nothing(subject, rng)
    weights = subject.cotangents(nothing, rng)
    of_nothing = subject.gradients(nothing, weights)
    gradients_match(
        subject, subject.vjp(nothing, weights), of_nothing, nothing, "of parts that are empty or far apart,"
    )
    found = _in_parts(subject, rng)
    if found is None or subject.precision.output:
        return True
    attention, whole, parts = found
    cotangents = attention.cotangents(whole, rng)
    expected = attention.gradients(whole, cotangents)
    back = subject.vjp(_stacked(subject, attention, parts), _named(subject, attention, cotangents))
    of_outputs, of_logarithms = (back[leaf.path] for leaf in subject.operation.floats)
    outputs, (beside,) = attention.operation.leading.path, logarithms(attention.operation)
    total: dict[str, Numbers] = {path: np.zeros(value.shape) for path, (value, _) in expected.items()}
    for p, part in enumerate(parts):
        own = {outputs: of_outputs[..., p, :].copy(), beside: of_logarithms[..., p].copy()}
        for path, g in attention.vjp(part, own).items():
            total[path] = total[path] + wide(g)
    for path, (value, budget) in expected.items():
        # Each part rounds as much as the whole, and so does the merging, to which all parts contribute.
        slack = (len(parts) + 1) * np.maximum(budget, budget.max(initial=0.0))
        subject.matches(total[path], value, slack, whole, f"through the parts, the gradient of {path}")
    return True
