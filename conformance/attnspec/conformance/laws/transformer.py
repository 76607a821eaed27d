"""Checks of the laws of transformers."""

from typing import TypeAlias

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, keep, take
from attnspec.conformance.inputs.attendance import attendable
from attnspec.conformance.inputs.corners import option_levels
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.common import (
    coarse,
    doubles,
    filled,
    picked,
    record,
    sample,
    together,
    twice,
    where_finite,
    wide,
    without_layers,
)
from attnspec.reference.transformer import EPSILON, decoder_layer, encoder_layer, encoder_only
from attnspec.spec.contract.axes import Axis, Role
from attnspec.spec.contract.documentation import operation_of
from attnspec.spec.contract.tree import mapped
from attnspec.spec.laws import transformer as law
from attnspec.spec.multihead import MultiHeadParameters
from attnspec.spec.transformer import (
    DecoderLayer,
    DecoderLayerParameters,
    DecoderOnly,
    EncoderLayerParameters,
    FeedForwardParameters,
    LanguageModelParameters,
    LayerNorm,
    LayerNormParameters,
)

GREAT = 2.0**13
"""Spread of rows whose variance exceeds float16's largest number, 65,504."""

OFFSETS = {"float64": 1024.0, "float32": 1024.0, "float16": 256.0, "bfloat16": 32.0}
"""Offsets, by dtype, to which multiples of ¼ up to 4 add exactly."""

Layer: TypeAlias = EncoderLayerParameters[np.ndarray] | DecoderLayerParameters[np.ndarray]


def _layer(arguments: Arguments) -> Layer:
    """The parameters of the layer."""
    values = arguments.values_by_name.values()
    (found,) = (x for x in values if isinstance(x, EncoderLayerParameters | DecoderLayerParameters))
    return found


def _attentions(layer: Layer) -> list[MultiHeadParameters[np.ndarray]]:
    """The attentions of a layer."""
    return [x for x in vars(layer).values() if isinstance(x, MultiHeadParameters)]


def _rows(arguments: Arguments) -> tuple[str, np.ndarray]:
    """The path and the numbers of the only array that is no weight."""
    ((leaf, x),) = arguments.batched
    return leaf.path, x


def _with_norm(arguments: Arguments, *, default: bool) -> Arguments:
    """A copy with the default norm, or with the other one."""
    (option,) = arguments.operation.options
    usual = arguments.operation.defaults[option.path]
    (choice,) = (c for c in option.choices if (c == usual) is default)
    return arguments.replaced({option.path: choice})


@checks(law.ZERO_SUBLAYERS)
def zero_sublayers(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set the last weights of all sublayers to 0: the result is x."""
    if not subject.has_features:
        return False
    p = _layer(arguments)
    last = [*(attention.w_o for attention in _attentions(p)), p.feed_forward.w_2, p.feed_forward.b_2]
    zeros = filled(arguments, [(x, 0) for x in last])
    given = _with_norm(zeros, default=False)
    (rows,) = subject.operation.queries
    got = subject.call(given)
    oracle = subject.oracle(given)
    expected = where_finite(wide(given.array(rows.path)), oracle)
    subject.matches(got, expected, oracle.budget, given, "with sublayers that give 0, the result")
    return True


@checks(law.NORMALIZED)
def normalized(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check mean and mean square of every row, in float16 also for overflowing squares."""
    alone = subject.operation.protocol is LayerNorm
    norm = record(arguments, LayerNormParameters) if alone else _layer(arguments).feed_forward_norm
    given = filled(arguments, [(norm.gain, 1), (norm.bias, 0)])
    if not alone:
        return _have_moments(subject, _with_norm(given, default=True), None)
    path, x = _rows(given)
    judged = _have_moments(subject, given, wide(x).var(-1))
    # If intermediates are not stored in float16, they are float32, where these squares do not overflow.
    if judged and subject.dtype == "float16" and not subject.precision.stored:
        great = subject.exact(GREAT * rng.standard_normal(x.shape))
        _have_moments(subject, given.replaced({path: great}), wide(great).var(-1))
    return judged


def _have_moments(subject: Subject, given: Arguments, variance: Numbers | None) -> bool:
    """Check the moments of finite rows; ``variance`` is None inside of a layer."""
    oracle = subject.oracle(given)
    live = np.isfinite(oracle.value).all(-1)
    got, budget = wide(subject.call(given))[live], oracle.budget[live]
    if not got.size:
        return False
    budget = np.where(np.isfinite(budget), budget, 0)
    means, slack = got.mean(-1), budget.mean(-1) + 2.0**-50
    subject.matches(np.append(means, 1.0), np.append(np.zeros(means.shape), 1.0), np.append(slack, 1.0), given,
                    "the mean of row")  # fmt: skip
    squares, more = (got**2).mean(-1), (2 * np.abs(got) * budget + budget**2).mean(-1) + 2.0**-50
    expected = np.minimum(squares, 1.0) if variance is None else (variance / (variance + EPSILON))[live]
    subject.matches(np.append(squares, 1.0), np.append(expected, 1.0), np.append(more, 1.0), given,
                    "the mean square of row")  # fmt: skip
    return True


@checks(law.POSITION_WISE)
def position_wise(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare one position alone with the sequence, where w_v = 0 disables attention."""
    size, n = subject.operation.asked, arguments.queries or 0
    if n < 2 or size is None or subject.limits.multiple_of > 1:
        return False
    given = filled(arguments, [(attention.w_v, 0) for attention in _attentions(_layer(arguments))])
    i = int(rng.integers(n))
    alone = given.along(size, take([i]))
    expected, budget = (np.take(x, [i], axis=-2) for x in (wide(subject.call(given)), subject.budget(given)))
    by_itself = subject.oracle(alone).value
    expected = np.where(np.isfinite(by_itself), expected, by_itself)
    subject.matches(subject.call(alone), expected, 2 * budget, alone, f"position {i} alone: the result")
    return True


@checks(law.LAYER_NORM_SHIFT)
def layer_norm_shift(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare multiples of ¼ with the same plus an offset that keeps them exact."""
    path, x = _rows(arguments)
    plain = arguments.replaced({path: subject.exact(coarse(x))})
    shifted = arguments.replaced({path: subject.exact(coarse(x) + OFFSETS[subject.dtype])})
    budget = subject.budget(plain) + subject.budget(shifted)
    expected = wide(subject.call(plain))
    subject.matches(
        subject.call(shifted),
        expected,
        budget,
        shifted,
        f"of features with {OFFSETS[subject.dtype]:g} added, the result",
    )
    return bool(expected.size)


@checks(law.HOMOGENEOUS)
def homogeneous(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Double the input, without biases."""
    p = record(arguments, FeedForwardParameters)
    given = filled(arguments, [(p.b_1, 0), (p.b_2, 0)])
    path, x = _rows(given)
    twice = given.replaced({path: subject.exact(2 * wide(x))})
    if not subject.in_domain(twice):
        return False
    expected, budget = 2 * wide(subject.call(given)), 2 * subject.budget(given) + subject.budget(twice)
    subject.matches(subject.call(twice), expected, budget, twice, "of twice the input, the result")
    return bool(expected.size)


@checks(law.LAYER_BY_LAYER)
def layer_by_layer(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Call without layers, then with the layers split, unless the dtype rounds in between."""
    operation = subject.operation
    (count,) = operation.counts
    (rows, *_) = operation.queries or operation.along(operation.sizes_of(Axis.TIME)[0])
    may_be_empty = operation.least(count) == 0
    if may_be_empty:
        given = without_layers(arguments)
        got = subject.call(given)
        unchanged = np.broadcast_to(given.array(rows.path), got.shape)
        subject.same(got, unchanged, lambda: subject.budget(given), given, "without layers, the result")
    depth = arguments.size(count)
    # Rows handed on have the whole batch, and a memory may have none: this needs broadcasting.
    repeats = bool(operation.queries) and not subject.limits.broadcasting
    if depth < 2 or subject.dtype in NARROW or repeats:
        return may_be_empty
    first = int(rng.integers(1, depth))
    middle = subject.call(arguments.along(count, keep(first)))
    others = np.arange(first, depth)
    upper = arguments.along(count, take(others)).replaced({rows.path: middle})
    if not np.isfinite(wide(middle)).all() or not subject.in_domain(upper):
        return may_be_empty
    expected = picked(doubles(subject.results(arguments)), count, others, subject, arguments)

    def budgets() -> Results:
        return together(
            twice(picked(subject.budgets(arguments), count, others, subject, arguments)), subject.budgets(upper)
        )

    what = f"of the layers from {first} on, on what those before give,"
    subject.all_match(subject.results(upper), expected, budgets, upper, what)
    return True


@checks(law.WITHOUT_MEMORY)
def without_memory(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare with the reference's encoder layer, or its encoder, under the causal mask."""
    operation = subject.operation
    if operation.protocol is DecoderOnly:
        model = mapped(record(arguments, LanguageModelParameters), lambda _, w: wide(w))
        (tokens,), given = operation.indices, arguments
        expected = encoder_only(given[tokens], model, mask=attendable(given, operation.asking))
    else:
        if not subject.has_features:
            return False
        p = record(arguments, DecoderLayerParameters)
        given = _with_norm(filled(arguments, [(p.cross_attention.w_o, 0)]), default=False)
        encoder = EncoderLayerParameters(p.attention, p.attention_norm, p.feed_forward, p.feed_forward_norm)
        (rows,), (option,) = operation.queries, operation.options
        x, layer = wide(given.array(rows.path)), mapped(encoder, lambda _, w: wide(w))
        expected = encoder_layer(x, layer, mask=attendable(given, operation.asking), norm=given[option.path])
    oracle = subject.oracle(given)
    expected = where_finite(expected, oracle)
    subject.matches(subject.call(given), expected, oracle.budget, given, "against an encoder, the result")
    return True


@checks(law.CACHED_IS_FULL, once=True)
def cached_is_full(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare steps from an empty cache on with the reference's decoder layer."""
    operation, limits = subject.operation, subject.limits
    if limits.length_from(0) or limits.multiple_of > 1:
        return False
    (row,), cached, (option,) = operation.queries, str(operation.asked), operation.options
    (sources,) = (keys for keys in operation.masks if keys != cached)
    (memory,) = operation.rows(sources)
    for norm in option_levels(option, operation, limits):
        given = sample(subject, rng, queries=1, keys=3).along(cached, keep(0)).replaced({option.path: norm})
        given = given.with_mask(np.array([True, False, True]), sources)
        x = subject.exact(rng.standard_normal((5, *given.array(row.path).shape)))
        layer = record(given, DecoderLayerParameters)
        mask = given[operation.masks[sources].path][None]
        whole = operation_of(DecoderLayer)
        assert whole is not None
        values = (x, given.array(memory.path), layer, None, mask, norm)
        found = subject.judged(decoder_layer, dict(zip(whole.call.names, values, strict=True)))
        for i, one in enumerate(x):
            given = given.replaced({row.path: one})
            results, budget = subject.results(given), found.budget[i] + subject.budget(given)
            subject.matches(
                subject.call(given), found.value[i], budget, given, f"against position {i} of the decoder, the result"
            )
            grown = zip(operation.rows(cached), operation.outputs[1:], strict=True)
            given = given.replaced({leaf.path: results[out.path] for leaf, out in grown})
    return True


@checks(law.POSITIONS_MATTER, once=True)
def positions_matter(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Exchange the first and the last token, with positions of 0 and with random ones.

    In half dtypes without layers, whose budget would hide the effect of positions.
    """
    operation = subject.operation
    given = sample(subject, rng, queries=6)
    if subject.dtype in NARROW:
        given = without_layers(given)
    n = given.queries or 0
    (tokens,) = operation.indices
    (table,) = (leaf for leaf in operation.along(operation.asking) if operation.role(leaf) & Role.WEIGHT)
    if n < 2 or given.size(operation.indices[tokens]) < 2:
        return False
    numbers, order = np.zeros(n, int), np.arange(n)
    numbers[-1], order[[0, -1]] = 1, order[[-1, 0]]
    drawn = wide(given.array(table.path))
    for positions, equal in ((subject.exact(0 * drawn), True), (subject.exact(8 * drawn), False)):
        plain = given.replaced({tokens: numbers, table.path: positions})
        other = plain.replaced({tokens: numbers[order]})
        expected = wide(subject.call(plain))[..., order, :]
        budget = subject.budget(plain)[..., order, :] + subject.budget(other)
        if equal:
            subject.matches(subject.call(other), expected, budget, other, "of exchanged tokens, the result")
            continue
        moved = np.abs(wide(subject.call(other)) - expected)
        subject.holds(bool((moved > budget).any()), "tokens were exchanged, and positions had no effect", other)
    return True


@checks(law.ENCODER_ALONE, once=True)
def encoder_alone(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Replace the last token of the source (masked) and of the target by all others."""
    operation = subject.operation
    (sources,) = operation.separate_keys
    given = sample(subject, rng, queries=5, keys=4)
    mask = np.arange(given.size(sources)) < given.size(sources) - 1
    given = given.with_mask(mask, sources)
    for path, size in operation.indices.items():
        tokens = given.array(path)
        for token in range(given.size(size)):
            changed = given.replaced({path: np.append(tokens[..., :-1], token)})
            got, expected = (subject.call(x)[..., :-1, :] for x in (changed, given))
            subject.same(
                got,
                expected,
                lambda: subject.budget(given)[..., :-1, :],
                changed,
                f"with another end of the {path}, the result",
            )
    return True
