"""Checks of options and optional arrays, each alone and in pairs. Options of ``@checks``: see ``Check``."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import doubles, live_rows, sample, wide
from attnspec.conformance.laws.gradient_calls import accepted_masks, accepts_causal, fits_dtype
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.conformance.laws.kernels import grouped_head_sizes
from attnspec.spec.contract.axes import Axis, ScoreEffect
from attnspec.spec.laws import operation as law
from attnspec.spec.laws import training

UNEQUAL = ((4, 6), (6, 4))
"""Numbers of queries and keys: fewer queries, and more queries."""

DECODING = (1, 67)
"""Numbers of queries and keys: one query, more keys than a tile."""

WIDE = 72
"""Features of queries and keys in decoding, more than a tile."""

HIGH = 24.0
"""A number added to sinks in decoding, so that a sink outweighs every key."""

HEADS = (2, 3)
"""Key heads, and query heads per key head: unequal, to tell both orders of heads apart."""

COLUMNS = 6
"""Features of values, more than those of queries and keys."""

Values = Mapping[str, Any]


def _options(subject: Subject, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Arguments, dict[str, Any]]:
    """A call without options, and a value for every option or array that is accepted."""
    operation = subject.operation
    queries, keys = shape
    sizes = dict.fromkeys(operation.sizes_of(Axis.SEQUENCE), 1)
    sizes |= grouped_head_sizes(*HEADS, operation) if operation.sizes_of(Axis.GROUP) else {}
    features = operation.sizes_of(Axis.FEATURE)
    sizes |= {name: subject.allowed_size(name, COLUMNS) for name in features[1:]}
    sizes |= {name: subject.allowed_size(name, WIDE) for name in features[:1] if shape == DECODING}
    bare = sample(subject, rng, (2,), queries=queries, keys=keys, sizes=sizes)
    # ``paged_attention`` requires lengths: at first all positions count.
    required = {path: size for path, size in operation.lengths.items() if bare[path] is not None}
    bare = bare.replaced({path: np.full_like(bare[path], bare.size(size)) for path, size in required.items()})
    complete = sample(subject, rng, (2,), queries=queries, keys=keys, sizes=sizes, whole=True)
    flags = {o.path for o in operation.options if o.choices}
    values: dict[str, Any] = {}
    for name in operation.call.names:
        if name not in operation.defaults or not _is_accepted(subject, name):
            continue
        tried = operation.trial_values.get(name, ())
        # The first value has an effect on few keys; a later one, a window of 256, has none.
        values[name] = True if name in flags else tried[0] if tried else complete[name]
        if name in operation.lengths:
            # Lengths are 0 and 3, in decoding 0 and 1: shorter than any tile.
            step = min(1 if shape == DECODING else 3, bare.size(operation.lengths[name]))
            values[name] = np.arange(values[name].size).reshape(values[name].shape) * step
        elif name == operation.part(ScoreEffect.SINK) and shape == DECODING:
            values[name] = subject.exact(wide(values[name]) + HIGH)
    return bare, values


def _is_accepted(subject: Subject, name: str) -> bool:
    """Return whether the backend accepts an option, array, mask or the causal flag."""
    operation = subject.operation
    if name == operation.flag:
        return accepts_causal(subject) and subject.limits.has(name)
    if name in {mask.path for mask in operation.masks.values()}:
        return bool(accepted_masks(subject)) and subject.limits.has(name)
    return subject.limits.has(name)


def _prefix(names: Values) -> str:
    return "with " + " and ".join(names) + (" alone," if len(names) == 1 else ",")


def _calls_with_options(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[str, Arguments]]:
    """Prefixes and calls with one or two options; short profiles try one shape per subset."""
    calls = [_options(subject, rng, shape) for shape in UNEQUAL]
    names = list(calls[0][1])
    for subset in [*((name,) for name in names), *combinations(names, 2)]:
        i = int(rng.integers(len(calls)))
        for bare, values in calls if subject.effort.slow else calls[i : i + 1]:
            changed = bare.replaced({name: values[name] for name in subset})
            if subject.in_domain(changed):
                yield _prefix(dict.fromkeys(subset)), changed


@checks(law.OPTIONS_HAVE_EFFECT, once=True, leading_dtype_only=True, governs=law.optional_parts)
def options_count(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass each option and optional array alone, also in decoding, and in pairs.

    If one option has no effect on the result but one on the formula, the message names it.
    """
    tried = False
    for shape in (*UNEQUAL, DECODING):
        bare, values = _options(subject, rng, shape)
        for name, value in values.items():
            changed = bare.replaced({name: value})
            if subject.in_domain(changed):
                _demand_effect(subject, bare, changed, name)
                subject.follows_formula(changed, f"with {name} alone,")
                tried = True
    for prefix, changed in _calls_with_options(subject, rng):
        subject.follows_formula(changed, prefix)
    return tried


def _demand_effect(subject: Subject, bare: Arguments, changed: Arguments, name: str) -> None:
    before, budgets, after = doubles(subject.results(bare)), subject.budgets(bare), subject.results(changed)
    if any((np.abs(wide(x) - before[path]) > 8 * budgets[path]).any() for path, x in after.items()):
        return
    leading = subject.operation.leading.path
    message = f"{name} is accepted and has no effect"
    subject.demand(not _visible(subject, bare, changed), message, changed, expected=before[leading], got=after[leading])


def _visible(subject: Subject, bare: Arguments, changed: Arguments) -> bool:
    """Return whether correct results with and without the option differ by 8 budgets.

    Each of the two may err by one budget more.
    """
    before, after = subject.oracles(bare), subject.oracles(changed)
    pairs = [(before[path], after[path]) for path in before]
    return any((np.abs(y.value - x.value) > 9 * x.budget + y.budget).any() for x, y in pairs)


@checks(training.OPTIONS_AFFECT_GRADIENTS, once=True, leading_dtype_only=True)
def options_gradients(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare gradients with one or two options; skip calls with NaN rows."""
    tried = False
    for prefix, changed in _calls_with_options(subject, rng):
        if "nan" in subject.semantics.without_keys.values() and not live_rows(subject, changed).all():
            continue
        cotangents = subject.cotangents(changed, rng)
        expected = subject.gradients(changed, cotangents)
        if fits_dtype(subject, expected):
            gradients_match(subject, subject.vjp(changed, cotangents), expected, changed, prefix)
            tried = True
    return tried


def with_least_bias(arguments: Arguments, tile: int) -> Arguments | None:
    """The call with the most negative finite bias at its first tile of keys.

    It has no masks and no sinks; None without a bias. Such scores are outside of the domain, but the weight is 0 even
    if a sum overflows.
    """
    path, sinks = arguments.operation.part(ScoreEffect.BIAS), arguments.operation.part(ScoreEffect.SINK)
    if not path or arguments[path] is None:
        return None
    bias = arguments.array(path)
    lowered: Numbers = np.array(np.broadcast_to(bias, (*bias.shape[:-1], arguments.keys_count or 0)))
    lowered[..., :tile] = np.nextafter(lowered.dtype.type(-np.inf), lowered.dtype.type(0))
    return arguments.without_masks().replaced({path: lowered, sinks: None})
