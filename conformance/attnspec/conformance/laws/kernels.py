"""Checks of grouped and latent attention, positions, masks and dropout. Options of ``@checks``: see ``Check``."""

from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, take
from attnspec.conformance.inputs.attendance import attendable, mask_shape, penalised_distances, rows_with_keys
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.common import doubles, key_heads, sample, sum_budgets, wide
from attnspec.spec.contract.axes import Axis, ScoreEffect
from attnspec.spec.contract.law import of
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Kind, Leaf
from attnspec.spec.kernels import DocumentMask, SlidingWindowMask
from attnspec.spec.laws import kernels as law

GROUPS = ((1, 4), (4, 1), (2, 3))
"""Heads of the keys, and query heads per key head."""

GREAT_CAP = 2.0**10
"""A cap far above every score of a sample."""


GEOMETRIC_BASE = 10_000.0
"""Base of rotary frequencies, usual in models."""


def demand_equal(subject: Subject, first: Arguments, second: Arguments, prefix: str) -> None:
    """Demand equal results of two calls, within the sum of their budgets."""

    def budgets() -> Results:
        return sum_budgets(subject.budgets(first), subject.budgets(second))

    subject.all_match(subject.results(first), doubles(subject.results(second)), budgets, first, prefix)


def accepts_parts(subject: Subject, *parts: ScoreEffect) -> bool:
    """Return whether the backend accepts all these parts of the operation."""
    return all(map(subject.limits.has, map(subject.operation.part, parts)))


def accepts_window(subject: Subject) -> bool:
    """Return whether the backend accepts windows."""
    return subject.operation.window is not None and subject.limits.has(subject.operation.window)


def grouped_head_sizes(heads_k: int, group: int, operation: Operation) -> dict[str, int]:
    """The sizes for ``heads_k`` key heads with ``group`` query heads each."""
    (of_keys,), (of_group,) = operation.sizes_of(Axis.HEAD), operation.sizes_of(Axis.GROUP)
    return {of_keys: heads_k, of_group: group}


def operands(operation: Operation) -> tuple[Leaf, ...]:
    """Queries, keys and, unless weights are the result, values; the keys are the array as wide as the queries."""
    (heads,), (group,) = operation.sizes_of(Axis.HEAD), operation.sizes_of(Axis.GROUP)
    query = operation.queries[0]
    arrays = [x for x in operation.floats if heads in x.sizes and group not in x.sizes]
    return query, *sorted(arrays, key=lambda x: x.core[-1].factors != query.core[-1].factors)


def _has_bias(operation: Operation) -> bool:
    return bool(operation.part(ScoreEffect.BIAS))


def _pools_with_bias(operation: Operation) -> bool:
    return _has_bias(operation) and bool(operation.summed_over(operation.key_size or ""))


def logarithm_paths(operation: Operation) -> list[str]:
    """The paths of the results that are log-sum-exps; at most one."""
    return [x.path for x in operation.outputs if x is not operation.leading]


@checks(law.GROUPED_HEADS_SHARE_KEYS, once=True)
def grouped_heads_share_keys(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compute some heads alone, each with its own key head."""
    operation = subject.operation
    (of_keys,), (of_group,) = operation.sizes_of(Axis.HEAD), operation.sizes_of(Axis.GROUP)
    for heads_k, group in GROUPS:
        sampled = sample(subject, rng, queries=3, keys=5, sizes=grouped_head_sizes(heads_k, group, operation))
        expected_results, budgets = doubles(subject.results(sampled)), subject.budgets(sampled)
        own = key_heads(subject, heads_k * group, heads_k)
        for r in {0, group - 1, heads_k * group - 1, int(rng.integers(heads_k * group))}:
            changes = {}
            for leaf, x in sampled.leaf_arrays:
                axes = leaf.axes(of_group) or leaf.axes(of_keys)
                if axes:
                    head = r if of_group in leaf.sizes else own[r]
                    changes[leaf.path] = np.take(x, [head], axis=axes[0])
            one_head = sampled.replaced(changes)
            got = subject.results(one_head)
            for leaf in operation.outputs:
                (axis,) = leaf.axes(of_group) or leaf.axes(of_keys)
                head = r if of_group in leaf.sizes else own[r]  # final states have the heads of the keys
                expected, budget = (np.take(x[leaf.path], [head], axis=axis) for x in (expected_results, budgets))
                subject.demand_match(got[leaf.path], expected, 2 * budget, one_head, f"of head {r} alone, {leaf.path}")
    return True


@checks(law.SCORE_CAP_LIMITS, once=True)
def score_cap_limits(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Cap scores s at c = 2¹⁰, which moves them by s³/3c²; then at 2⁻⁶⁰."""
    operation = subject.operation
    if not accepts_parts(subject, ScoreEffect.CAP, ScoreEffect.SCALE):
        return False
    path, scale = operation.part(ScoreEffect.CAP), operation.part(ScoreEffect.SCALE)
    sampled = sample(subject, rng, (2,), queries=4, keys=6)
    if operation.mask is not None:
        sampled = sampled.with_mask((rng.random(mask_shape(sampled)) < 0.5) | (np.arange(sampled.keys_count or 0) == 1))
    capped = sampled.replaced({path: GREAT_CAP})
    query, key, *values = (wide(sampled.array(leaf.path)) for leaf in operands(operation))
    largest = np.sqrt((query**2).sum(-1)).max() * np.sqrt((key**2).sum(-1)).max()
    score_shift = float(largest) ** 3 / (3 * GREAT_CAP**2)
    budgets = sum_budgets(subject.budgets(capped), subject.budgets(sampled))
    # Scores that move by at most δ change weights by at most 2δ relatively, and log-sum-exps by δ.
    largest_value = max((float(np.abs(x).max()) for x in values), default=1.0)
    budgets[operation.leading.path] = budgets[operation.leading.path] + 2 * score_shift * largest_value
    unit = subject.semantics.logarithm_unit
    budgets |= {logarithm: budgets[logarithm] + score_shift / unit for logarithm in logarithm_paths(operation)}
    prefix = "under a cap far above all scores,"
    subject.all_match(subject.results(capped), doubles(subject.results(sampled)), budgets, capped, prefix)
    flat = sampled.replaced({path: 2.0**-60})
    demand_equal(subject, flat, sampled.replaced({scale: 0.0}), "under a cap that leaves scores of about 0,")
    return True


@checks(law.SLOPES_AND_SINKS_ARE_BIASES)
def sink_in_denominator(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Add a sink b: ℓ becomes log(e^ℓ + e^b), and rows are multiplied by e^ℓ / (e^ℓ + e^b)."""
    operation = subject.operation
    if not accepts_parts(subject, ScoreEffect.SINK) or not logarithm_paths(operation):
        return False
    path, (logarithm,), rows = operation.part(ScoreEffect.SINK), logarithm_paths(operation), operation.leading.path
    heads = arguments.array(operands(operation)[0].path).shape[-3]
    with_sink = arguments.replaced({path: subject.exact(rng.standard_normal(heads))})
    without, unit = with_sink.replaced({path: None}), subject.semantics.logarithm_unit
    before, budgets = doubles(subject.results(without)), subject.budgets(without)
    natural, sinks = before[logarithm] * unit, wide(with_sink.array(path))[:, None]
    if not (natural < np.inf).all() or (subject.semantics.sink_alone != "sink" and np.isneginf(natural).any()):
        return False
    if not all(np.isfinite(x).all() for x in (before[rows], *budgets.values())):
        return False  # a result that is open, or not finite, says nothing of its share
    both = np.logaddexp(natural, sinks)
    share = np.exp(natural - both)
    expected = {rows: before[rows] * share[..., None], logarithm: both / unit}
    # An error of ℓ changes the share of the keys by a factor, and counts for the log-sum-exp by that share.
    of_share = share * (1 - share) * unit * budgets[logarithm]
    own = {
        rows: budgets[rows] * share[..., None] + np.abs(before[rows]) * of_share[..., None],
        logarithm: budgets[logarithm] * share,
    }

    def both_budgets() -> Results:
        return sum_budgets(subject.budgets(with_sink), own)

    subject.all_match(subject.results(with_sink), expected, both_budgets, with_sink, "with sinks,")
    return True


@checks(law.SLOPES_AND_SINKS_ARE_BIASES, governs=_pools_with_bias)
def sink(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Replace the sink by an attendable key of zeros; its bias is the sink."""
    operation = subject.operation
    if not accepts_parts(subject, ScoreEffect.SINK, ScoreEffect.BIAS):
        return False
    path, biased = operation.part(ScoreEffect.SINK), operation.part(ScoreEffect.BIAS)
    query, key, value = operands(operation)
    heads, dtype = arguments.array(query.path).shape[-3], arguments.array(query.path).dtype
    with_sink = arguments.unordered().replaced({path: subject.exact(rng.standard_normal(heads))})
    if subject.semantics.sink_alone != "sink" and not rows_with_keys(with_sink).all():
        return False  # a key of zeros would be attendable where the sink does not count
    m = with_sink.keys_count or 0
    bias = np.zeros((1, 1, m), dtype) if with_sink[biased] is None else with_sink.array(biased)
    column = np.broadcast_to(with_sink.array(path)[:, None, None], (*bias.shape[:-3], heads, bias.shape[-2], 1))
    changes: dict[str, Any] = {path: None}
    changes[biased] = np.concatenate([np.broadcast_to(bias, (*column.shape[:-1], m)), column], axis=-1)
    for leaf in (key, value):
        x = with_sink.array(leaf.path)
        changes[leaf.path] = np.concatenate([x, np.zeros_like(x, shape=(*x.shape[:-2], 1, x.shape[-1]))], axis=-2)
    if with_sink.mask is not None and operation.mask is not None:
        mask = attendable(with_sink)
        changes[operation.mask.path] = np.concatenate([mask, np.ones((*mask.shape[:-1], 1), bool)], axis=-1)
    demand_equal(subject, with_sink, with_sink.replaced(changes), "with sinks,")
    return True


@checks(law.SLOPES_AND_SINKS_ARE_BIASES, governs=_has_bias)
def slopes(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Replace slopes by a bias of −slope·distance, for later keys too."""
    operation = subject.operation
    if not accepts_parts(subject, ScoreEffect.SLOPES, ScoreEffect.BIAS):
        return False
    path, biased = operation.part(ScoreEffect.SLOPES), operation.part(ScoreEffect.BIAS)
    query = operands(operation)[0]
    powers = subject.exact(2.0 ** -rng.integers(0, 5, arguments.array(query.path).shape[-3]).astype(float))
    with_slopes = arguments.replaced({path: powers, biased: None} | ({operation.flag: False} if operation.flag else {}))
    exact = -wide(powers)[:, None, None] * penalised_distances(with_slopes, semantics=subject.semantics)
    bias = subject.exact(exact)
    if not np.array_equal(wide(bias), exact):
        return False
    demand_equal(subject, with_slopes, with_slopes.replaced({path: None, biased: bias}), "with slopes,")
    return True


@checks(law.LOG_SUM_EXP, once=True)
def natural_logarithm(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Repeat all keys, which adds log 2; add a bias of 1, which adds 1. To base 2, both are divided by log 2."""
    operation = subject.operation
    if not logarithm_paths(operation):
        return False
    (path,), query = logarithm_paths(operation), operands(operation)[0]
    sampled = sample(subject, rng, (2,), queries=3, keys=5)
    size = operation.key_size or ""
    changes = [(sampled.along(size, take(np.tile(np.arange(sampled.size(size)), 2))), np.log(2.0), "of repeated keys,")]
    if accepts_parts(subject, ScoreEffect.BIAS):
        bias = np.ones((1, 1, 1), sampled.array(query.path).dtype)
        biased = sampled.replaced({operation.part(ScoreEffect.BIAS): bias})
        changes.append((biased, 1.0, "of scores that are greater by 1,"))
    before, budgets = doubles(subject.results(sampled)), subject.budgets(sampled)
    for other, added, text in changes:
        expected = {**before, path: before[path] + added / subject.semantics.logarithm_unit}
        subject.all_match(subject.results(other), expected, sum_budgets(budgets, subject.budgets(other)), other, text)
    return True


@checks(law.LOG_SUM_EXP)
def empty_rows(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Mask all keys of some rows, with a sink and without."""
    operation = subject.operation
    if not arguments.queries:
        return False
    mask = attendable(arguments, semantics=subject.semantics)
    mask[..., int(rng.integers(arguments.queries)), :] = False
    rows_without_keys = np.expand_dims(~mask.any(-1), -2)
    masked, path = arguments.with_mask(mask), operation.part(ScoreEffect.SINK)
    candidates = (masked, masked.replaced({path: None}))
    cases = [case for case in candidates if case[path] is not None or subject.semantics.fully_masked == "zero"]
    for case in cases:
        output = subject.call(case)
        empty = np.broadcast_to(rows_without_keys, output.shape[:-1])
        message = "the result of a row without attendable keys is not 0"
        subject.demand(not output[empty].any(), message, case, got=output)
        if not logarithm_paths(operation):
            continue
        (logarithm,) = logarithm_paths(operation)
        got = subject.results(case)[logarithm]
        expected: Numbers = np.full(got.shape, -np.inf)
        budget = np.zeros(got.shape)
        if case[path] is not None and subject.semantics.sink_alone == "sink":
            of_sinks = wide(case.array(path)) / subject.semantics.logarithm_unit
            expected = np.broadcast_to(of_sinks[:, None], got.shape)
            budget = subject.budgets(case)[logarithm]
        # The comparison covers −∞; the lower bound avoids −∞ − (−∞), which is NaN.
        correct = (wide(got) == expected) | (np.abs(wide(got) - np.maximum(expected, -1e30)) <= budget)
        message = "the log-sum-exp of a row without attendable keys is not its sink, or −∞ without a sink"
        subject.demand(bool(correct[empty].all()), message, case, expected=expected, got=got)
    return bool(cases)


@checks(law.LATENT_WEIGHT_ABSORPTION, once=True)
def latent_weight_absorption(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare with both forms in double precision; queries outnumber keys, then reverse."""
    for queries, keys in ((5, 3), (2, 6)):
        sampled = sample(subject, rng, (2,), queries=queries, keys=keys, heads=3)
        q, q_r, c, k_r, w_k, w_v = (wide(sampled.array(leaf.path)) for leaf in sampled.operation.floats)
        scale = (q.shape[-1] + q_r.shape[-1]) ** -0.5
        heads = q.shape[-3]
        rotated, latent = (np.broadcast_to(x[:, None], (2, heads, *x.shape[1:])) for x in (k_r, c))
        k, v = (latent @ np.swapaxes(w, -1, -2) for w in (w_k, w_v))
        plain = _softmax_weights(np.concatenate([q, q_r], -1), np.concatenate([k, rotated], -1), scale) @ v
        absorbed = _softmax_weights(np.concatenate([q @ w_k, q_r], -1), np.concatenate([latent, rotated], -1), scale)
        for expected, form in ((plain, "plain"), ((absorbed @ latent) @ np.swapaxes(w_v, -1, -2), "absorbed")):
            title = f"unlike the {form} form, the result"
            subject.demand_match(subject.call(sampled), expected, subject.budget(sampled), sampled, title)
    return True


def _softmax_weights(query: Numbers, key: Numbers, scale: float) -> Numbers:
    scores = scale * (query @ np.swapaxes(key, -1, -2))
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    weights: Numbers = exponentials / exponentials.sum(-1, keepdims=True)
    return weights


def _positions(subject: Subject) -> str:
    return next(iter(subject.operation.generated_below))


def _shape_of_positions(subject: Subject, arguments: Arguments) -> tuple[int, ...]:
    """The shape of the positions of one sequence."""
    (leaf,) = (leaf for leaf in subject.operation.leaves if leaf.path == _positions(subject))
    return tuple(map(arguments.size, leaf.sizes))


@checks(law.ROTARY_RELATIVE_POSITION)
def rotary_relative_position(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check squared lengths of rows, rows at position 0, and shifted positions."""
    (path,) = subject.operation.linear
    x, got, budget = wide(arguments.array(path)), wide(subject.call(arguments)), subject.budget(arguments)
    if not got.size:
        return False
    slack = (2 * np.abs(got) * budget + budget**2).sum(-1)
    expected = (np.broadcast_to(x, got.shape) ** 2).sum(-1)
    subject.demand_match((got**2).sum(-1), expected, slack, arguments, "the squared length of row")
    if subject.limits.has(_positions(subject)):
        at_zero = arguments.replaced({_positions(subject): np.zeros(_shape_of_positions(subject, arguments), np.int64)})
        subject.demand_match(subject.call(at_zero), x, subject.budget(at_zero), at_zero, "at position 0, the result")
        _shift_positions(subject, arguments, rng)
    return True


def _shift_positions(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> None:
    """Demand that adding one number to all positions keeps inner products of rows."""
    first, shift = rng.integers(0, 50, _shape_of_positions(subject, arguments)), int(rng.integers(1, 50))
    products: list[Numbers] = []
    slack: Numbers = np.zeros(())
    for positions in (first, first + shift):
        moved_rows = arguments.replaced({_positions(subject): positions})
        got, budget = wide(subject.call(moved_rows)), subject.budget(moved_rows)
        products.append(got @ np.swapaxes(got, -1, -2))
        half = np.abs(got) @ np.swapaxes(budget, -1, -2)
        slack = slack + half + np.swapaxes(half, -1, -2) + budget @ np.swapaxes(budget, -1, -2)
    subject.demand_match(products[1], products[0], slack, moved_rows, f"{shift} positions later, the inner product")


@checks(law.ROTARY_AXES)
def rotary_axes(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Rotate by the first axis, then by the others; compare the features beyond the pairs bit for bit."""
    (path,) = subject.operation.linear
    ((leaf, frequencies),) = ((leaf, x) for leaf, x in arguments.floats if leaf.path != path)
    x, got, budget = arguments.array(path), subject.call(arguments), subject.budget(arguments)
    width = 2 * frequencies.shape[-1]
    expected = np.broadcast_to(x[..., width:], (*got.shape[:-1], x.shape[-1] - width))
    title = "beyond the pairs, the result"
    subject.demand_equal(got[..., width:], expected, lambda: budget[..., width:], arguments, title)
    axis = np.arange(len(frequencies)) == 0
    by_first = arguments.replaced({leaf.path: np.where(axis[:, None], frequencies, frequencies.dtype.type(0))})
    once = subject.call(by_first)
    others = np.where(axis[:, None], frequencies.dtype.type(0), frequencies)
    by_others = by_first.replaced({path: once, leaf.path: others})
    # A rotation keeps lengths: an error of a pair may move to its other feature.
    of_first = subject.budget(by_first)
    slack = budget + subject.budget(by_others) + 2 * of_first.max(-1, keepdims=True, initial=0.0)
    title = "by one axis after another, the result"
    subject.demand_match(subject.call(by_others), wide(got), slack, by_others, title)
    return bool(got.size)


@checks(law.ROTARY_INTERPOLATION, once=True)
def rotary_interpolation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare up to 64 frequencies with the unscaled ones, for two factors and two lengths."""
    (count,) = subject.operation.numbers
    theta, factor, length, *_ = (o.path for o in subject.operation.options if o.kind is Kind.NUMBER)
    if not (subject.limits.has(theta) and subject.limits.has(factor) and subject.limits.has(length)):
        return False
    for pairs in (1, 2, 16, 64):
        plain = Arguments(subject.operation, {count.path: pairs, theta: GEOMETRIC_BASE, factor: 1.0})
        unscaled, error = wide(subject.call(plain)), subject.budget(plain)
        geometric = GEOMETRIC_BASE ** (-np.arange(pairs) / pairs)
        subject.demand_match(unscaled, geometric, error + 2.0**-50 * geometric, plain, "with a factor of 1, the result")
        for divisor, positions in ((8.0, 8192.0), (3.0, 256.0)):
            scaled = plain.replaced({factor: divisor, length: positions})
            got, slack = wide(subject.call(scaled)), subject.budget(scaled) + error
            within = (got <= unscaled + slack) & (got >= unscaled / divisor - slack)
            message = f"a frequency is not between the unscaled one and 1/{divisor:g} of it"
            subject.demand(bool(within.all()), message, scaled, expected=unscaled, got=got)
            ratio, doubt = got / geometric, slack / geometric + 2.0**-50
            falls = ratio[1:] <= ratio[:-1] + doubt[1:] + doubt[:-1]
            message = "the ratio of a frequency and the unscaled one rises from one pair to the next"
            subject.demand(bool(falls.all()), message, scaled, expected=unscaled, got=got)
    return True


@checks(law.GEOMETRIC_ALIBI_SLOPES, once=True)
def geometric_alibi_slopes(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check the slopes of 1 to 16 heads, and of 24."""
    (option,) = subject.operation.numbers
    for heads in (*range(1, 17), 24):
        slopes = Arguments(subject.operation, {option.path: heads})
        got, budget = wide(subject.call(slopes)), subject.budget(slopes)
        power = 1 << (heads.bit_length() - 1)
        # In its powers the error of the first slope counts up to 16 times, which 64 budgets cover.
        powers = got[0] ** np.arange(1, power + 1)
        subject.demand_match(got[:power], powers, 64 * budget[:power], slopes, "unlike powers of the first, the slope")
        last = slice(power - 1, power)
        subject.demand_match(got[last], np.array([2.0**-8]), budget[last], slopes, "the last slope")
        doubled_heads = wide(subject.call(Arguments(subject.operation, {option.path: 2 * power})))
        title = f"unlike every second slope of {2 * power} heads, the slope"
        expected = doubled_heads[0::2][: heads - power]
        subject.demand_match(got[power:], expected, 2 * budget[power:], slopes, title)
    return True


@checks(law.SIGMOIDS_OF_KEYS_ADD_UP)
def sigmoids_of_keys_add_up(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Add the results of two parts of the keys, and of opposite queries."""
    operation, m = subject.operation, arguments.keys_count or 0
    if m < 2 or 0 in arguments.binding.result:
        return False
    whole = arguments.replaced({operation.flag: False}) if operation.flag else arguments
    got, cut = wide(subject.call(whole)), int(rng.integers(1, m))
    parts = [whole.along(operation.key_size or "", take(np.arange(*ends))) for ends in ((0, cut), (cut, m))]
    total = np.sum([wide(subject.call(part)) for part in parts], axis=0)
    slack = subject.budget(whole) + np.sum([subject.budget(part) for part in parts], axis=0)
    subject.demand_match(got, total, slack, whole, "unlike the sum for two parts of the keys, the result")
    (number,) = (o.path for o in operation.options if o.kind is Kind.NUMBER)
    if not subject.limits.has(number):
        return True
    (query,) = operation.queries
    opposite = whole.replaced({query.path: -whole.array(query.path), number: -whole[number]})
    mask = np.ones((1, 1), bool) if whole.mask is None else whole.mask
    value = next(wide(whole.array(x.path)) for x in operation.attended if x.path in operation.linear)
    allowed = np.broadcast_to(mask, (*mask.shape[:-2], got.shape[-2], m)).astype(float)
    both, slack = got + wide(subject.call(opposite)), subject.budget(whole) + subject.budget(opposite)
    expected = np.broadcast_to(allowed @ value, both.shape)
    slack = slack + 2.0**-50 * m * (allowed @ np.abs(value))
    subject.demand_match(both, expected, slack, whole, "added to that of opposite queries, the result")
    return True


@checks(law.BUCKETS_OF_DISTANCES, once=True)
def buckets_of_distances(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Look up 32 different rows for distances up to 300 in both directions."""
    operation, (leaf,) = subject.operation, subject.operation.floats
    queries, keys = operation.generated_below
    (direction,), (largest,) = ([o.path for o in operation.options if bool(o.choices) is x] for x in (True, False))
    if not subject.limits.has(direction):
        return False
    buckets, ahead = 32, np.arange(-300, 301)
    table = np.arange(buckets)[:, None] + np.array([0.0, 64.0])
    for both, start in ((True, 400), (False, 400), (True, 70_000)):
        values = {leaf.path: table, queries: np.array([start]), keys: start + ahead, direction: both}
        call = Arguments(operation, values)
        rows = wide(subject.call(call))[0, 0]
        shifted = call.replaced({queries: call.array(queries) + 17, keys: call.array(keys) + 17})
        again = wide(subject.call(shifted))[0, 0]
        subject.demand_match(again, rows, np.zeros(rows.shape), shifted, "counted from elsewhere, the bias")
        far, near = operation.defaults[largest], rows[ahead == 0]
        behind, later = rows[ahead <= -far], rows[ahead > 0]
        expected = {"of distance 0": (near, np.zeros(1)), "of far keys": (behind, np.full(behind.shape, behind[:1]))}
        if both:
            end = rows[ahead >= far]
            expected["of far later keys"] = (end, np.full(end.shape, end[:1]))
            message = "a later key does not have a bucket of its own direction"
            subject.demand(
                bool((later >= buckets // 2).all()), message, call, expected=table[buckets // 2 :], got=later
            )
        else:
            expected["of later keys"] = (later, np.full(later.shape, near))
        for title, (got, same) in expected.items():
            subject.demand_match(got, same, np.zeros(same.shape), call, f"{title}, the bias")
    return True


@checks(law.WINDOW_AND_DOCUMENT_MASKS, governs=of(SlidingWindowMask))
def window_parts(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare a window of two sides with the masks of its sides."""
    path = subject.operation.window or ""

    def mask(left: int | None, right: int | None) -> Numbers:
        return subject.call(arguments.replaced({path: (left, right)}))

    n, m = (arguments[o.path] for o in subject.operation.numbers)
    own = subject.semantics.own_in_window
    left, right = int(rng.integers(4)), int(rng.integers(4))
    for got, expected in (
        (mask(left, right), mask(left, None) & mask(None, right)),
        (mask(own, 0), np.eye(n, m, dtype=bool)),
        (mask(None, 0), np.tri(n, m, dtype=bool)),
        (mask(None, None), np.ones((n, m), bool)),
    ):
        subject.demand_match(got, expected, np.zeros(expected.shape), arguments, "unlike its two sides, the mask")
    return True


@checks(law.WINDOW_AND_DOCUMENT_MASKS, governs=of(DocumentMask))
def documents(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Renumber documents beyond 24 bits, two of them equal in 16 bits; exchange sides."""
    mask = subject.call(arguments)
    new_numbers = 2**24 + rng.permutation([0, 1, 2**16])  # for the documents 0, 1 and 2
    first, second = (leaf.path for leaf in subject.operation.leaves)
    renamed = arguments.replaced({path: new_numbers[arguments.array(path)] for path in (first, second)})
    title = "of renumbered documents, the mask"
    subject.demand_match(subject.call(renamed), mask, np.zeros(mask.shape), renamed, title)
    exchanged = Arguments(subject.operation, {first: arguments.array(second), second: arguments.array(first)})
    mirror = np.swapaxes(mask, -1, -2)
    title = "with queries and keys exchanged, the mask"
    subject.demand_match(subject.call(exchanged), mirror, np.zeros(mirror.shape), exchanged, title)
    return True


@checks(law.ROWS_OF_PARENTS, once=True)
def rows_of_parents(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check paths and random trees, with several roots, of up to 80 tokens."""
    (leaf,) = subject.operation.leaves
    for n in (1, 5, 80):
        own = np.arange(n)
        for parents in (own - 1, rng.integers(-1, own), rng.integers(np.maximum(own - 5, -1), own)):
            tree = Arguments(subject.operation, {leaf.path: parents})
            mask = subject.call(tree)
            if (parents == own - 1).all():
                subject.demand_match(mask, np.tri(n, dtype=bool), np.zeros((n, n)), tree, "of a path, the mask")
            above = np.where((parents >= 0)[:, None], mask[parents], np.zeros((), bool))
            expected = above | np.eye(n, dtype=bool)
            subject.demand_match(mask, expected, np.zeros((n, n)), tree, "unlike the parent's row and itself, the mask")
    return True


@checks(law.DROPOUT_KEEPS_MEAN)
def dropout_keeps_mean(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Average over all rotations of a mask with k of m keys."""
    operation, m = subject.operation, min(arguments.keys_count or 0, 8)
    if m < 2 or 0 in arguments.binding.result:
        return False
    (rate,) = (o.path for o in operation.options if o.kind is Kind.NUMBER)
    few_keys = arguments.along(operation.key_size or "", take(np.arange(m)))
    kept = int(rng.integers(1, m))
    total: Numbers = np.zeros(())
    slack: Numbers = np.zeros(())
    for shift in range(m):
        keys_kept = np.roll(np.arange(m) < kept, shift)[None]
        dropped = few_keys.with_mask(keys_kept).replaced({rate: 1 - kept / m})
        total = total + wide(subject.call(dropped)) / m
        slack = slack + subject.budget(dropped) / m
    ((_, weights),) = few_keys.floats
    expected = wide(weights)
    slack = slack + 16 * np.finfo(np.float64).eps * np.abs(expected)
    subject.demand_match(total, np.broadcast_to(expected, total.shape), slack, few_keys, "over all masks, the mean")
    return True


@checks(law.OUTPUT_GATE)
def output_gate(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Negate the gates; set them to 0; share the first one among all features."""
    output, gate = (leaf.path for leaf in subject.operation.floats)
    gates = arguments.array(gate)
    shape, shared = arguments.binding.result, gates[..., :1]
    if 0 in shape:
        return False
    opposite, shut, single = (arguments.replaced({gate: x}) for x in (-gates, np.zeros_like(gates), shared))
    repeated = arguments.replaced({gate: np.ascontiguousarray(np.broadcast_to(shared, gates.shape))})
    whole = np.broadcast_to(wide(arguments.array(output)), shape)
    budget = subject.budget(arguments) + subject.budget(opposite)
    added = wide(subject.call(arguments)) + wide(subject.call(opposite))
    subject.demand_match(added, whole, budget, arguments, "with gates of both signs, the sum of outputs")
    subject.demand_match(subject.call(shut), whole / 2, subject.budget(shut), shut, "with gates of 0, the output")
    demand_equal(subject, single, repeated, "with one gate for all features,")
    return True
