"""Checks of options and optional arrays: each alone, and each with every other."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import doubles, live_rows, sample, wide
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.conformance.laws.kernels import with_heads
from attnspec.conformance.laws.lessons import causal_in, fits, masks_of
from attnspec.spec.contract.axes import Axis, Part
from attnspec.spec.laws import operation as law
from attnspec.spec.laws import training

UNEQUAL = ((4, 6), (6, 4))
"""Queries and keys: fewer queries than keys, and more."""

DECODING = (1, 67)
"""One query, and more keys than a tile has."""

WIDE = 72
"""Features of queries and keys in decoding: more than a tile has."""

HIGH = 24.0
"""Added to sinks in decoding, so that a sink outweighs every key."""

HEADS = (2, 3)
"""Key heads, and query heads for each: unequal, to distinguish both numberings of heads."""

COLUMNS = 6
"""Columns of values, more than features of queries and keys."""

Values = Mapping[str, Any]


def _bare(subject: Subject, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Arguments, dict[str, Any]]:
    """A call without options, and a value for every option or array the backend accepts."""
    operation = subject.operation
    queries, keys = shape
    fixed = dict.fromkeys(operation.sizes_of(Axis.SEQUENCE), 1)
    fixed |= with_heads(*HEADS, operation) if operation.sizes_of(Axis.GROUP) else {}
    features = operation.sizes_of(Axis.FEATURE)
    fixed |= {name: subject.fitting(name, COLUMNS) for name in features[1:]}
    fixed |= {name: subject.fitting(name, WIDE) for name in features[:1] if shape == DECODING}
    bare = sample(subject, rng, (2,), queries=queries, keys=keys, sizes=fixed)
    required = {path: size for path, size in operation.lengths.items() if bare[path] is not None}
    bare = bare.replaced({path: np.full_like(bare[path], bare.size(size)) for path, size in required.items()})
    whole = sample(subject, rng, (2,), queries=queries, keys=keys, sizes=fixed, whole=True)
    flags = {o.path for o in operation.options if o.choices}
    values: dict[str, Any] = {}
    for name in operation.call.names:
        if name not in operation.defaults or not _accepts(subject, name):
            continue
        tried = operation.tried.get(name, ())
        # The first value that is tried has an effect on few keys; a window of 256 has none.
        values[name] = True if name in flags else tried[0] if tried else whole[name]
        if name in operation.lengths:
            # Lengths 0 and 3, or 0 and 1 in decoding: shorter than any tile.
            each = 1 if shape == DECODING else 3
            values[name] = np.arange(values[name].size).reshape(values[name].shape) * each
        elif name == operation.part(Part.SINK) and shape == DECODING:
            values[name] = subject.exact(wide(values[name]) + HIGH)
    return bare, values


def _accepts(subject: Subject, name: str) -> bool:
    """Return whether the backend accepts an option, optional array, mask or the causal flag."""
    operation = subject.operation
    if name == operation.flag:
        return causal_in(subject) and subject.limits.has(name)
    if name in {mask.path for mask in operation.masks.values()}:
        return bool(masks_of(subject)) and subject.limits.has(name)
    return subject.limits.has(name)


def _named(chosen: Values) -> str:
    return "with " + " and ".join(chosen) + (" alone," if len(chosen) == 1 else ",")


def _chosen(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[str, Arguments]]:
    """Calls with one and two options; in ``quick``, with one of :data:`UNEQUAL` each."""
    calls = [_bare(subject, rng, shape) for shape in UNEQUAL]
    names = list(calls[0][1])
    for chosen in [*((name,) for name in names), *combinations(names, 2)]:
        few = int(rng.integers(len(calls)))
        for bare, values in calls if subject.effort.slow else calls[few : few + 1]:
            given = bare.replaced({name: values[name] for name in chosen})
            if subject.in_domain(given):
                yield _named(dict.fromkeys(chosen)), given


@checks(law.OPTION_EFFECT, once=True, at_leading=True, governs=law.optional_parts)
def options_count(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass each option and optional array alone, in decoding too, and two together.

    Where an option alone changes nothing although the formula changes by more than roundings, the message names it.
    """
    tried = False
    for shape in (*UNEQUAL, DECODING):
        bare, values = _bare(subject, rng, shape)
        for name, value in values.items():
            given = bare.replaced({name: value})
            if subject.in_domain(given):
                _demand_effect(subject, bare, given, name)
                subject.follows_formula(given, f"with {name} alone,")
                tried = True
    for what, given in _chosen(subject, rng):
        subject.follows_formula(given, what)
    return tried


def _demand_effect(subject: Subject, bare: Arguments, given: Arguments, name: str) -> None:
    before, budgets, after = doubles(subject.results(bare)), subject.budgets(bare), subject.results(given)
    if any((np.abs(wide(x) - before[path]) > 8 * budgets[path]).any() for path, x in after.items()):
        return
    leading = subject.operation.leading.path
    message = f"{name} is accepted and has no effect"
    subject.holds(not _shows(subject, bare, given), message, given, expected=before[leading], got=after[leading])


def _shows(subject: Subject, bare: Arguments, given: Arguments) -> bool:
    """Return whether all pairs of correct results differ by 8 budgets somewhere."""
    before, after = subject.oracles(bare), subject.oracles(given)
    return any(
        (np.abs(after[path].value - x.value) > 9 * x.budget + after[path].budget).any() for path, x in before.items()
    )


@checks(training.OPTIONS, once=True, at_leading=True)
def options_gradients(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Take gradients with each option and each pair; calls with NaN rows are skipped."""
    tried = False
    for what, given in _chosen(subject, rng):
        if "nan" in subject.semantics.without_keys.values() and not live_rows(subject, given).all():
            continue
        cotangents = subject.cotangents(given, rng)
        expected = subject.gradients(given, cotangents)
        if fits(subject, expected):
            gradients_match(subject, subject.vjp(given, cotangents), expected, given, what)
            tried = True
    return tried


def with_least_bias(given: Arguments, tile: int) -> Arguments | None:
    """The unmasked call with the most negative finite bias at its first tile of keys.

    It has no sinks. Such scores are beyond the domain; the weight is 0 even if a sum overflows. None where no bias is
    given.
    """
    path, sinks = given.operation.part(Part.BIAS), given.operation.part(Part.SINK)
    if not path or given[path] is None:
        return None
    bias = given.array(path)
    lowered: Numbers = np.array(np.broadcast_to(bias, (*bias.shape[:-1], given.keys_count or 0)))
    lowered[..., :tile] = np.nextafter(lowered.dtype.type(-np.inf), lowered.dtype.type(0))
    return given.without_masks().replaced({path: lowered, sinks: None})
