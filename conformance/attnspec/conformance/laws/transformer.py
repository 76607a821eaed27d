"""Checks of the laws of transformers. Options of ``@checks``: see ``Check``."""

from functools import partial
from typing import TypeAlias

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, keep, take
from attnspec.conformance.inputs.attendance import attendable
from attnspec.conformance.inputs.corners import option_levels
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.common import (
    doubled,
    doubles,
    expected_or_oracle,
    filled_with,
    on_coarse_grid,
    parameters_of,
    sample,
    select_rows,
    sum_budgets,
    wide,
    with_arrays,
    without_layers,
)
from attnspec.conformance.laws.ensembles import (
    by_element,
    demand_unbiased,
    ensemble,
    independent_elements,
    unrounded,
)
from attnspec.reference.transformer import EPSILON, decoder_layer, encoder_layer, encoder_only
from attnspec.spec.contract.axes import Axis, Role
from attnspec.spec.contract.documentation import operation_of
from attnspec.spec.contract.tree import map_tree
from attnspec.spec.laws import transformer as law
from attnspec.spec.multihead import MultiHeadParameters
from attnspec.spec.transformer import (
    DecoderLayer,
    DecoderLayerParameters,
    DecoderOnly,
    EncoderLayerParameters,
    FeedForwardParameters,
    GatedFeedForwardParameters,
    LanguageModelParameters,
    LayerNorm,
    LayerNormParameters,
)

LARGE_SPREAD = 2.0**13
"""Spread of rows whose variance exceeds float16's largest number, 65,504."""

OFFSETS = {"float64": 1024.0, "float32": 1024.0, "float16": 256.0, "bfloat16": 32.0}
"""Offsets, by dtype; adding them to multiples of ¼ up to 4 is exact."""

TAIL = 16.0
"""Magnitude from which GELU is the identity or 0, far within every dtype's roundoff."""

Layer: TypeAlias = EncoderLayerParameters[np.ndarray] | DecoderLayerParameters[np.ndarray]


def _layer(arguments: Arguments) -> Layer:
    values = arguments.values_by_name.values()
    (layer,) = (x for x in values if isinstance(x, EncoderLayerParameters | DecoderLayerParameters))
    return layer


def _attentions(layer: Layer) -> list[MultiHeadParameters[np.ndarray]]:
    return [x for x in vars(layer).values() if isinstance(x, MultiHeadParameters)]


def _row_array(arguments: Arguments) -> tuple[str, np.ndarray]:
    ((leaf, x),) = arguments.batched
    return leaf.path, x


def _with_norm(arguments: Arguments, *, default: bool) -> Arguments:
    """A copy with norm "post", the default, or "pre", which leaves results of layers unnormalized."""
    (option,) = arguments.operation.options
    post, pre = option.choices
    return arguments.replaced({option.path: post if default else pre})


@checks(law.ZERO_SUBLAYERS_IDENTITY)
def zero_sublayers_identity(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set the last weights of all sublayers to 0: the result is the input."""
    if not subject.has_all_features:  # norm "pre" is a feature, which a backend may lack
        return False
    layer = _layer(arguments)
    last = [*(attention.w_o for attention in _attentions(layer)), layer.feed_forward.w_2, layer.feed_forward.b_2]
    zeros = filled_with(arguments, [(x, 0) for x in last])
    zeroed = _with_norm(zeros, default=False)
    (rows,) = subject.operation.queries
    got = subject.call(zeroed)
    oracle = subject.oracle(zeroed)
    expected = expected_or_oracle(wide(zeroed.array(rows.path)), oracle)
    subject.demand_match(got, expected, oracle.budget, zeroed, "with sublayers that give 0, the result")
    return True


@checks(law.LAYER_NORM_MOMENTS)
def layer_norm_moments(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check mean and mean square of every row; in float16, also if squares overflow."""
    alone = subject.operation.protocol is LayerNorm
    norm = parameters_of(arguments, LayerNormParameters) if alone else _layer(arguments).feed_forward_norm
    normalized = filled_with(arguments, [(norm.gain, 1), (norm.bias, 0)])
    if not alone:
        return _demand_moments(subject, _with_norm(normalized, default=True), None)
    path, x = _row_array(normalized)
    tried = _demand_moments(subject, normalized, wide(x).var(-1), _epsilon(normalized))
    # Intermediate numbers that are not stored in float16 are float32, which holds these squares.
    if tried and subject.dtype == "float16" and not subject.precision.stored:
        large_rows = subject.exact(LARGE_SPREAD * rng.standard_normal(x.shape))
        large = normalized.replaced({path: large_rows})
        _demand_moments(subject, large, wide(large_rows).var(-1), _epsilon(large))
    return tried


def _demand_moments(
    subject: Subject, arguments: Arguments, variance: Numbers | None, epsilon: float = EPSILON, *, centred: bool = True
) -> bool:
    """Check the moments of finite rows; ``variance`` of the input is None in layers."""
    oracle = subject.oracle(arguments)
    finite = np.isfinite(oracle.value).all(-1)
    got, budget = wide(subject.call(arguments))[finite], oracle.budget[finite]
    if not got.size:
        return False
    budget = np.where(np.isfinite(budget), budget, 0)
    # Budgets that are wide compared with the largest expected number are not judged. Means are 0, so the magnitude of
    # rows, 1, is appended for this comparison.
    means, slack = got.mean(-1), budget.mean(-1) + 2.0**-50
    if centred:
        zeros = np.append(np.zeros(means.shape), 1.0)
        subject.demand_match(np.append(means, 1.0), zeros, np.append(slack, 1.0), arguments, "the mean of row")
    squares, square_slack = (got**2).mean(-1), (2 * np.abs(got) * budget + budget**2).mean(-1) + 2.0**-50
    expected = np.minimum(squares, 1.0) if variance is None else (variance / (variance + epsilon))[finite]
    subject.demand_match(np.append(squares, 1.0), np.append(expected, 1.0), np.append(square_slack, 1.0), arguments,
                    "the mean square of row")  # fmt: skip
    return True


@checks(law.POSITION_WISE)
def position_wise(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare a position alone with the sequence; w_v = 0 disables attention."""
    size, n = subject.operation.key_size, arguments.queries or 0
    if n < 2 or size is None or subject.limits.multiple_of > 1:
        return False
    silent = filled_with(arguments, [(attention.w_v, 0) for attention in _attentions(_layer(arguments))])
    i = int(rng.integers(n))
    alone = silent.along(size, take([i]))
    expected, budget = (np.take(x, [i], axis=-2) for x in (wide(subject.call(silent)), subject.budget(silent)))
    value_alone = subject.oracle(alone).value
    expected = np.where(np.isfinite(value_alone), expected, value_alone)
    subject.demand_match(subject.call(alone), expected, 2 * budget, alone, f"of position {i} alone, the result")
    return True


@checks(law.LAYER_NORM_IGNORES_SHIFT)
def layer_norm_ignores_shift(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Add an offset to multiples of ¼, which is exact."""
    path, x = _row_array(arguments)
    plain = arguments.replaced({path: subject.exact(on_coarse_grid(x))})
    shifted = arguments.replaced({path: subject.exact(on_coarse_grid(x) + OFFSETS[subject.dtype])})
    budget = subject.budget(plain) + subject.budget(shifted)
    expected = wide(subject.call(plain))
    title = f"of features with {OFFSETS[subject.dtype]:g} added, the result"
    subject.demand_match(subject.call(shifted), expected, budget, shifted, title)
    return bool(expected.size)


def _epsilon(arguments: Arguments) -> float:
    """The number that a norm adds to the variance or the mean square."""
    (option,) = arguments.operation.options
    return float(arguments[option.path])


def _with_factor_1(subject: Subject, arguments: Arguments) -> Arguments:
    (weight,) = (x for leaf, x in arguments.floats if subject.operation.role(leaf) is Role.WEIGHT)
    return filled_with(arguments, [(weight, 0 if subject.semantics.rms_weight == "plus-one" else 1)])


@checks(law.RMS_NORM_MEAN_SQUARE)
def rms_norm_mean_square(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check the mean square of every row, of a sum where there is a residual."""
    normalized = _with_factor_1(subject, arguments)
    rows = sum(wide(x) for _, x in normalized.batched)
    return _demand_moments(subject, normalized, np.square(rows).mean(-1), _epsilon(normalized), centred=False)


@checks(law.RMS_NORM_IGNORES_SCALE)
def rms_norm_ignores_scale(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Double the rows, with 4 times ε where the backend has it; change their signs."""
    expected, budget = wide(subject.call(arguments)), subject.budget(arguments)
    changes = [("with all signs changed", -1.0, _epsilon(arguments))]
    if subject.limits.has(subject.operation.options[0].path):
        changes.append(("of doubled rows and 4 times ε", 2.0, 4 * _epsilon(arguments)))
    for title, factor, epsilon in changes:
        rows = {leaf.path: subject.exact(factor * wide(x)) for leaf, x in arguments.batched}
        changed = arguments.replaced({**rows, subject.operation.options[0].path: epsilon})
        if subject.in_domain(changed):
            scaled = expected if factor > 0 else -expected
            subject.demand_match(subject.call(changed), scaled, 2 * budget, changed, f"{title}, the result")
    return bool(expected.size)


@checks(law.RMS_NORM_UNBIASED_FACTOR, once=True)
def rms_norm_unbiased_factor(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Filter the errors of many rows along each feature of the result."""
    if not independent_elements(subject):
        return False
    rows = ensemble(subject, arguments)
    exact = by_element(unrounded(subject, rows))
    error = by_element(subject.call(rows)) - exact
    for i in range(exact.shape[-1]):
        demand_unbiased(subject, rows, error[:, i : i + 1], exact[:, i : i + 1], f"the factor of feature {i}")
    return True


@checks(law.RESIDUAL_IS_ADDED)
def residual_is_added(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set the residual to 0; exchange it with x."""
    (of_x, x), (of_residual, residual) = ((leaf.path, array) for leaf, array in arguments.batched)
    _, total = (leaf.path for leaf in subject.operation.outputs)
    alone = arguments.replaced({of_residual: np.zeros_like(residual)})
    got = subject.results(alone)[total]
    unchanged = partial(np.zeros, got.shape)
    subject.demand_equal(got, np.broadcast_to(x, got.shape), unchanged, alone, f"with a residual of 0, the {total}")
    exchanged = arguments.replaced({of_x: residual, of_residual: x})
    expected, budgets = doubles(subject.results(arguments)), doubled(subject.budgets(arguments))
    subject.all_match(subject.results(exchanged), expected, budgets, exchanged, "with x and the residual exchanged,")
    return bool(got.size)


@checks(law.RELU_HOMOGENEITY)
def relu_homogeneity(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Double the input of a network without biases."""
    parameters = parameters_of(arguments, FeedForwardParameters)
    linear = filled_with(arguments, [(parameters.b_1, 0), (parameters.b_2, 0)])
    path, x = _row_array(linear)
    larger = linear.replaced({path: subject.exact(2 * wide(x))})
    if not subject.in_domain(larger):
        return False
    expected, budget = (2 * wide(subject.call(linear)), 2 * subject.budget(linear) + subject.budget(larger))
    subject.demand_match(subject.call(larger), expected, budget, larger, "of twice the input, the result")
    return bool(expected.size)


@checks(law.GELU_ODD_PART)
def gelu_odd_part(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Subtract the result of the rows with all signs changed."""
    path, x = _row_array(arguments)
    changed = arguments.replaced({path: -x})
    difference = wide(subject.call(arguments)) - wide(subject.call(changed))
    budget = subject.budget(arguments) + subject.budget(changed)
    subject.demand_match(difference, wide(x), budget, changed, "GELU of x less GELU of −x")
    return bool(x.size)


@checks(law.GELU_TAILS)
def gelu_tails(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Move all features away from 0, by 16."""
    path, x = _row_array(arguments)
    far = arguments.replaced({path: subject.exact(wide(x) + np.where(wide(x) < 0, -TAIL, TAIL))})
    expected = np.maximum(wide(far.array(path)), 0)
    subject.demand_match(subject.call(far), expected, subject.budget(far), far, "of features beyond ±16, GELU")
    return bool(x.size)


@checks(law.GELU_OF_EACH_FEATURE)
def gelu_of_each_feature(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Reverse the order of the features."""
    path, x = _row_array(arguments)
    reversed_order = arguments.replaced({path: x[..., ::-1].copy()})
    expected, budget = wide(subject.call(arguments))[..., ::-1], 2 * subject.budget(arguments)[..., ::-1]
    title = "of features in reverse order, GELU in reverse order"
    subject.demand_match(subject.call(reversed_order), expected, budget, reversed_order, title)
    return bool(x.shape[-1] > 1)


@checks(law.UP_PROJECTION_IS_LINEAR)
def up_projection_is_linear(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Double the weights of the up-projection."""
    w_up = parameters_of(arguments, GatedFeedForwardParameters).w_up
    larger = with_arrays(arguments, [(w_up, subject.exact(2 * wide(w_up)))])
    if not subject.in_domain(larger):
        return False
    expected, budget = 2 * wide(subject.call(arguments)), 2 * subject.budget(arguments) + subject.budget(larger)
    subject.demand_match(subject.call(larger), expected, budget, larger, "with twice the up-projection, the result")
    return bool(expected.size)


@checks(law.CLOSED_GATE)
def closed_gate(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set the weights of the gate to 0."""
    closed = filled_with(arguments, [(parameters_of(arguments, GatedFeedForwardParameters).w_gate, 0)])
    got = subject.call(closed)
    subject.demand_match(got, np.zeros(got.shape), subject.budget(closed), closed, "with a gate of 0, the result")
    return bool(got.size)


@checks(law.STACK_IS_COMPOSITION)
def stack_is_composition(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Call without layers; except in 16 bits, call lower and upper layers in turn."""
    operation = subject.operation
    (count,) = operation.counts
    (rows, *_) = operation.queries or operation.along(operation.sizes_of(Axis.TIME)[0])
    allows_no_layers = operation.least(count) == 0
    if allows_no_layers:
        no_layers = without_layers(arguments)
        got = subject.call(no_layers)
        unchanged = np.broadcast_to(no_layers.array(rows.path), got.shape)
        subject.demand_equal(got, unchanged, lambda: subject.budget(no_layers), no_layers, "without layers, the result")
    depth = arguments.size(count)
    # The intermediate result has the full batch and a memory may have none, which needs broadcasting.
    needs_full_batch = bool(operation.queries) and not subject.limits.broadcasting
    if depth < 2 or subject.dtype in NARROW or needs_full_batch:
        return allows_no_layers
    lower_count = int(rng.integers(1, depth))
    lower = subject.call(arguments.along(count, keep(lower_count)))
    others = np.arange(lower_count, depth)
    upper = arguments.along(count, take(others)).replaced({rows.path: lower})
    if not np.isfinite(wide(lower)).all() or not subject.in_domain(upper):
        return allows_no_layers
    expected = select_rows(doubles(subject.results(arguments)), count, others, subject, arguments)

    def budgets() -> Results:
        own = select_rows(subject.budgets(arguments), count, others, subject, arguments)
        return sum_budgets(doubled(own), subject.budgets(upper))

    prefix = f"of the layers from {lower_count} on, applied to the earlier ones' result,"
    subject.all_match(subject.results(upper), expected, budgets, upper, prefix)
    return True


@checks(law.DECODER_WITHOUT_MEMORY)
def decoder_without_memory(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare with the reference's encoder or encoder layer under a causal mask."""
    operation = subject.operation
    if operation.protocol is DecoderOnly:
        model = map_tree(parameters_of(arguments, LanguageModelParameters), lambda _, w: wide(w))
        (tokens,), alone = operation.indices, arguments
        expected = encoder_only(alone[tokens], model, mask=attendable(alone, operation.query_size))
    else:
        if not subject.has_all_features:
            return False
        p = parameters_of(arguments, DecoderLayerParameters)
        alone = _with_norm(filled_with(arguments, [(p.cross_attention.w_o, 0)]), default=False)
        encoder = EncoderLayerParameters(p.attention, p.attention_norm, p.feed_forward, p.feed_forward_norm)
        (rows,), (option,) = operation.queries, operation.options
        x, layer = wide(alone.array(rows.path)), map_tree(encoder, lambda _, w: wide(w))
        expected = encoder_layer(x, layer, mask=attendable(alone, operation.query_size), norm=alone[option.path])
    oracle = subject.oracle(alone)
    expected = expected_or_oracle(expected, oracle)
    subject.demand_match(subject.call(alone), expected, oracle.budget, alone, "unlike a causal encoder, the result")
    return True


@checks(law.CACHE_EQUALS_FULL_DECODER, once=True)
def cache_equals_full_decoder(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare steps from an empty cache with the reference's decoder layer."""
    operation, limits = subject.operation, subject.limits
    if limits.length_from(0) or limits.multiple_of > 1:
        return False
    (row,), cached, (option,) = operation.queries, str(operation.key_size), operation.options
    (sources,) = (keys for keys in operation.masks if keys != cached)
    (memory,) = operation.rows(sources)
    for norm in option_levels(option, operation, limits):
        step = sample(subject, rng, queries=1, keys=3).along(cached, keep(0)).replaced({option.path: norm})
        step = step.with_mask(np.array([True, False, True]), sources)
        x = subject.exact(rng.standard_normal((5, *step.array(row.path).shape)))
        layer = parameters_of(step, DecoderLayerParameters)
        mask = step[operation.masks[sources].path][None]
        whole = operation_of(DecoderLayer)
        assert whole is not None
        values = (x, step.array(memory.path), layer, None, mask, norm)
        judged = subject.with_budgets(decoder_layer, dict(zip(whole.call.names, values, strict=True)))
        for i, step_row in enumerate(x):
            step = step.replaced({row.path: step_row})
            results, budget = subject.results(step), judged.budget[i] + subject.budget(step)
            title = f"unlike position {i} of the whole decoder layer, the result"
            subject.demand_match(subject.call(step), judged.value[i], budget, step, title)
            cache_outputs = zip(operation.rows(cached), operation.outputs[1:], strict=True)
            step = step.replaced({leaf.path: results[out.path] for leaf, out in cache_outputs})
    return True


@checks(law.POSITIONS_MATTER, once=True)
def positions_matter(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Exchange the first and last token: with zero positions, then with random positions.

    16-bit models have no layers here, since their budgets would hide the effect of positions.
    """
    operation = subject.operation
    sampled = sample(subject, rng, queries=6)
    if subject.dtype in NARROW:
        sampled = without_layers(sampled)
    n = sampled.queries or 0
    (tokens,) = operation.indices
    (table,) = (leaf for leaf in operation.along(operation.query_size) if operation.role(leaf) & Role.WEIGHT)
    if n < 2 or sampled.size(operation.indices[tokens]) < 2:
        return False
    tokens_of_call, order = np.zeros(n, int), np.arange(n)
    tokens_of_call[-1], order[[0, -1]] = 1, order[[-1, 0]]
    table_values = wide(sampled.array(table.path))
    for positions, equal in ((subject.exact(0 * table_values), True), (subject.exact(8 * table_values), False)):
        plain = sampled.replaced({tokens: tokens_of_call, table.path: positions})
        other = plain.replaced({tokens: tokens_of_call[order]})
        expected = wide(subject.call(plain))[..., order, :]
        budget = subject.budget(plain)[..., order, :] + subject.budget(other)
        if equal:
            subject.demand_match(subject.call(other), expected, budget, other, "of exchanged tokens, the result")
            continue
        difference = np.abs(wide(subject.call(other)) - expected)
        message = "exchanging two tokens only exchanges their results: positions have no effect"
        subject.demand(bool((difference > budget).any()), message, other)
    return True


@checks(law.ENCODER_SEES_NO_TARGET, once=True)
def encoder_sees_no_target(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Replace the last token of the source, which is masked, and of the target."""
    operation = subject.operation
    (sources,) = operation.separate_keys
    masked = sample(subject, rng, queries=5, keys=4)
    mask = np.arange(masked.size(sources)) < masked.size(sources) - 1
    masked = masked.with_mask(mask, sources)
    for path, size in operation.indices.items():
        tokens = masked.array(path)
        for token in range(masked.size(size)):
            changed = masked.replaced({path: np.append(tokens[..., :-1], token)})
            got, expected = (subject.call(x)[..., :-1, :] for x in (changed, masked))
            title = f"with another last token of the {path}, the result"
            subject.demand_equal(got, expected, lambda: subject.budget(masked)[..., :-1, :], changed, title)
    return True
