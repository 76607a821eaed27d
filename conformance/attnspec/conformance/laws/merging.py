"""Checks of merged attentions to parts of the keys, by their log-sum-exps. Options of ``@checks``: see ``Check``."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.caches import grouped_query_attention_of
from attnspec.conformance.laws.common import doubles, sample, sum_budgets, wide
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.conformance.laws.kernels import grouped_head_sizes, logarithm_paths
from attnspec.spec.laws import attention as identities
from attnspec.spec.laws import kernels as law

CUTS = ((0, 3), (3, 3), (3, 7))
"""Three parts of seven keys; the second part is empty."""


def _attend_to_parts(subject: Subject, rng: np.random.Generator) -> tuple[Subject, Arguments, list[Arguments]] | None:
    """The backend's grouped-query attention, a call with all keys, and one per part."""
    attention = grouped_query_attention_of(subject)
    if attention is None or not logarithm_paths(attention.operation):
        return None
    if attention.semantics.logarithms != subject.semantics.logarithms:
        return None
    sizes = grouped_head_sizes(2, 2, attention.operation)
    sampled = sample(attention, rng, (2,), queries=3, keys=CUTS[-1][1], sizes=sizes)
    keys, n = np.arange(sampled.keys_count or 0), sampled.queries or 0
    parts = [sampled.with_mask(np.tile((keys >= first) & (keys < end), (n, 1))) for first, end in CUTS]
    return attention, sampled, parts


def _stacked_results(subject: Subject, attention: Subject, parts: list[Arguments]) -> Arguments:
    each = [attention.results(part) for part in parts]
    outputs, (logarithm,) = attention.operation.leading.path, logarithm_paths(attention.operation)
    stacked = [np.stack([x[outputs] for x in each], axis=-2), np.stack([x[logarithm] for x in each], axis=-1)]
    paths = [leaf.path for leaf in subject.operation.floats]
    return Arguments(subject.operation, dict(zip(paths, stacked, strict=True)))


def _renamed_paths(subject: Subject, attention: Subject, results: Results) -> Results:
    """Results or cotangents of attention, under the paths of the merging operation."""
    operation, other = subject.operation, attention.operation
    (own,), (theirs,) = logarithm_paths(operation), logarithm_paths(other)
    return {operation.leading.path: results[other.leading.path], own: results[theirs]}


def _with_empty_parts(subject: Subject, rng: np.random.Generator) -> Arguments:
    """Rows whose parts are all empty, partly empty (NaN), or far apart in logarithm."""
    # The merging operation declares its parts as keys: four parts.
    sampled = sample(subject, rng, (6,)[: subject.limits.max_batch_dims], keys=4)
    outputs, logarithm = (leaf for leaf, _ in sampled.floats)
    stored, logarithms = (wide(sampled.array(leaf.path)).copy() for leaf in (outputs, logarithm))
    rows = logarithms.reshape(-1, logarithms.shape[-1])
    rows[0::3] = -np.inf
    rows[1::3, ::2] = -np.inf
    rows[2::3, 1:] += rng.permuted(np.resize([1e3, -1e4], rows[2::3, 1:].shape), axis=-1)  # both, in every row
    stored[np.isneginf(logarithms)] = np.nan
    return sampled.replaced({outputs.path: subject.exact(stored), logarithm.path: subject.exact(logarithms)})


def _demand_merged_empty_parts(subject: Subject, rng: np.random.Generator) -> None:
    empty = _with_empty_parts(subject, rng)
    subject.follows_formula(empty, "of parts that are empty or far apart,")
    (logarithm,) = logarithm_paths(subject.operation)
    got, expected = wide(subject.results(empty)[logarithm]), subject.oracles(empty)[logarithm].value
    message = "the log-sum-exp of parts that are all empty is not −∞"
    correct = bool(np.isneginf(got[np.isneginf(expected)]).all())
    subject.demand(correct, message, empty, expected=expected, got=got)


@checks(law.MERGED_PARTS_EQUAL_WHOLE, once=True)
def merged_parts_equal_whole(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Merge parts that are empty or far apart, then the backend's results for parts."""
    _demand_merged_empty_parts(subject, rng)
    whole_and_parts = _attend_to_parts(subject, rng)
    if whole_and_parts is None:
        return True
    attention, whole, parts = whole_and_parts
    stacked = _stacked_results(subject, attention, parts)
    expected = _renamed_paths(subject, attention, doubles(attention.results(whole)))
    of_whole = _renamed_paths(subject, attention, attention.budgets(whole))
    budgets = sum_budgets(of_whole, _budget_of_parts(subject, attention, stacked, parts), subject.budgets(stacked))
    subject.all_match(subject.results(stacked), expected, budgets, stacked, "of parts of the keys,")
    return True


def _budget_of_parts(subject: Subject, attention: Subject, arguments: Arguments, parts: list[Arguments]) -> Results:
    """The budget that errors of the parts add to the merged results.

    Errors of at most δ in the log-sum-exps change each weight by at most 2δ of itself, hence outputs by 2δ max |o|. The
    merged log-sum-exp moves by the weighted mean of these errors. Both are doubled, as a margin.
    """
    outputs, log_sum_exps = (wide(x) for _, x in arguments.floats)
    budgets = [_renamed_paths(subject, attention, attention.budgets(part)) for part in parts]
    leading, (logarithm,) = subject.operation.leading.path, logarithm_paths(subject.operation)
    unit = subject.semantics.logarithm_unit
    weights = np.exp(unit * (log_sum_exps - log_sum_exps.max(-1, keepdims=True)))
    weights = weights / weights.sum(-1, keepdims=True)
    of_logarithms = np.where(weights > 0, np.stack([b[logarithm] for b in budgets], axis=-1), 0)
    shift = (weights * of_logarithms).sum(-1)
    weighted_errors = (weights[..., None] * np.stack([b[leading] for b in budgets], axis=-2)).sum(-2)
    largest_shift = np.abs(outputs).max(-2) * 4 * of_logarithms.max(-1)[..., None]
    return {leading: weighted_errors + largest_shift, logarithm: 2 * shift}


@checks(identities.GRADIENT_IDENTITIES, once=True, governs=identities.merges_parts)
def merged_gradients(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare gradients of the merging; except in 16 bits, also through every part."""
    empty = _with_empty_parts(subject, rng)
    cotangents = subject.cotangents(empty, rng)
    expected, gradients = subject.gradients(empty, cotangents), subject.vjp(empty, cotangents)
    gradients_match(subject, gradients, expected, empty, "of parts that are empty or far apart,")
    whole_and_parts = _attend_to_parts(subject, rng)
    if whole_and_parts is None or subject.precision.output:
        return True
    attention, whole, parts = whole_and_parts
    cotangents = attention.cotangents(whole, rng)
    expected = attention.gradients(whole, cotangents)
    gradients = subject.vjp(_stacked_results(subject, attention, parts), _renamed_paths(subject, attention, cotangents))
    of_outputs, of_logarithms = (gradients[leaf.path] for leaf in subject.operation.floats)
    outputs, (logarithm,) = attention.operation.leading.path, logarithm_paths(attention.operation)
    total: dict[str, Numbers] = {path: np.zeros(value.shape) for path, (value, _) in expected.items()}
    for i, part in enumerate(parts):
        part_cotangents = {outputs: of_outputs[..., i, :].copy(), logarithm: of_logarithms[..., i].copy()}
        for path, g in attention.vjp(part, part_cotangents).items():
            total[path] = total[path] + wide(g)
    for path, (value, budget) in expected.items():
        # Each part rounds as much as the whole does, and the merging once more. Terms of parts may cancel in a number:
        # each gets the array's largest budget.
        slack = (len(parts) + 1) * np.maximum(budget, budget.max(initial=0.0))
        subject.demand_match(total[path], value, slack, whole, f"through the parts, the gradient of {path}")
    return True
