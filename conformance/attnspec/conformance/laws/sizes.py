"""Checks of the laws of large sizes: calls that are long in one size and narrow in all others."""

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.corners import TILE, long_sizes, multiply_adds, stepwise
from attnspec.conformance.judging.rows import judge
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import fitting, sample
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.conformance.laws.registry import checks
from attnspec.spec.contract.axes import Axis
from attnspec.spec.laws import sizes as law

MANY = ((7,), (2, 6))
"""Batches of more elements than the corner cases have, and of more along one dimension."""

CROWDS = ((65535,), (65536,), (33,))
"""As many elements as a grid of CUDA may have along its last dimensions, and one more."""

FEATURES = (192, 256, 96, 160)
LENGTHS = (2049, 1024, 700, 513)
STEPS = (129,)
GRIDS = (65, 33)
WIDEST = 512

MOST = 8
"""Calls that are wide in one size or another, of models with many sizes."""

WORK = 2.0**21
"""The most multiply-adds of a call."""

Sizes = Mapping[str, int]


def _narrow(subject: Subject, rng: np.random.Generator, sizes: Sizes, batch: tuple[int, ...] = ()) -> Arguments | None:
    """A call with these sizes, all others being small; None if the limits or the bound on work do not allow them.

    In the layers of a model positions attend to each other. The largest batches are not masked: tens of thousands of
    rows with one key each are judged elsewhere, by fewer.
    """
    wanted = {name: fitting(subject, name, size) for name, size in sizes.items()}
    if len(batch) > subject.limits.max_batch_dims or any(wanted[name] < size for name, size in sizes.items()):
        return None
    operation = subject.operation
    few = 2 if prod(batch) > TILE else 8 if operation.counts else 4
    wanted = {name: 2 for name in operation.sizes if operation.axis(name) & Axis.GRID} | wanted
    wanted = dict.fromkeys(operation.counts, 1) | wanted
    heads = 1 if batch else 2
    given = sample(subject, rng, batch, queries=2, keys=3, heads=heads, features=few, whole=True, sizes=wanted)
    given = given.replaced({path: _all(given, path, size) for path, size in operation.lengths.items()})
    given = given.without_masks() if prod(batch) > TILE else given
    longest = max([sizes[name] for name in sizes if operation.axis(name) & Axis.POSITION], default=0)
    within = 5 * longest**2 if operation.counts else 0
    return given if max(multiply_adds(dict(given.sizes), batch, operation), within) <= WORK else None


def _all(given: Arguments, path: str, size: str) -> Numbers | None:
    """Lengths that leave nothing out."""
    lengths = given[path]
    return None if lengths is None else np.full_like(lengths, given.size(size))


def _wide(subject: Subject) -> list[str]:
    """The sizes that count features of vectors."""
    return [name for axis in law.WIDE for name in subject.operation.sizes_of(axis)]


def _tried(subject: Subject, calls: Iterator[tuple[str, Arguments | None]], rng: np.random.Generator) -> bool:
    tried = False
    for what, given in calls:
        tried = (given is not None and judge(subject, given, rng, f"with {what},")) or tried
    return tried


def _shown(sizes: Sizes) -> str:
    return " and ".join(f"{name} = {size}" for name, size in sizes.items())


@checks(law.BATCHES, once=True, at_leading=True)
def batches(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Batches of seven elements, and of six along the second dimension."""
    calls = ((f"a batch of {batch}", _narrow(subject, rng, {}, batch)) for batch in MANY)
    return _tried(subject, calls, rng)


@checks(law.FEATURES, once=True, at_leading=True)
def features(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The two sizes of queries and values together at every level, any other at one level."""
    return _tried(subject, _featured(subject, rng, FEATURES), rng)


def _featured(
    subject: Subject, rng: np.random.Generator, levels: tuple[int, ...]
) -> Iterator[tuple[str, Arguments | None]]:
    operation = subject.operation
    together = [name for name in (long_sizes(operation) or ((),))[-1] if operation.axis(name) & Axis.FEATURE]
    groups = [dict.fromkeys(together, level) for level in levels] if together else []
    if len(together) > 1:
        groups.append(dict(zip(together, (max(levels), TILE), strict=True)))
    others = [name for name in _wide(subject) if name not in together]
    groups += [{name: levels[i % len(levels)]} for i, name in enumerate(others)]
    if len(groups) > MOST:
        groups = [groups[i] for i in sorted(rng.permutation(len(groups))[:MOST])]
    for sizes in groups:
        yield _shown(sizes), _narrow(subject, rng, sizes)


@checks(law.BEYOND, once=True, dear=True)
def beyond(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Every length, both under a causal mask, the widest vectors, and at the leading dtype the largest batches."""
    calls = [*_lengths(subject, rng), *_featured(subject, rng, (WIDEST,))]
    if subject.leading and any(leaf.batched for leaf in subject.operation.leaves):
        calls += [(f"a batch of {batch}", _narrow(subject, rng, {}, batch)) for batch in CROWDS]
    return _tried(subject, iter(calls), rng)


def _lengths(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[str, Arguments | None]]:
    """For each size that counts positions, the greatest length that the bound on work allows."""
    operation = subject.operation
    counted = {
        name: STEPS if stepwise(name, operation) else GRIDS if operation.axis(name) & Axis.GRID else LENGTHS
        for name in operation.sizes
        if operation.axis(name) & (Axis.POSITION | Axis.GRID | Axis.VOCABULARY | Axis.LENGTH)
    }
    for name, levels in counted.items():
        for size in levels:
            given = _narrow(subject, rng, {name: size})
            if given is not None:
                yield _shown({name: size}), given
                break
    if operation.flag and operation.asking and operation.asked and not operation.attends_to_itself:
        both = dict.fromkeys((operation.asking, operation.asked), LENGTHS[-1])
        given = _narrow(subject, rng, both)
        if given is not None:
            yield f"{_shown(both)}, causal", given.under_causal()


@checks(law.GRADIENTS, once=True, dear=True)
def gradients(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """A length, the sizes of queries and values, and a batch."""
    if not subject.leading:
        return False
    calls = [
        *_lengths(subject, rng),
        *_featured(subject, rng, (256, 192)),
        ("a batch of 7", _narrow(subject, rng, {}, (7,))),
    ]
    tried = False
    for what, given in calls:
        if given is None or not subject.in_domain(given):
            continue
        cotangents = subject.cotangents(given, rng)
        expected, found = subject.gradients(given, cotangents), subject.vjp(given, cotangents)
        gradients_match(subject, found, expected, given, f"with {what},")
        tried = True
    return tried
