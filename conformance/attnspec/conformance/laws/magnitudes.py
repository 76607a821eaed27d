"""Check of extreme inputs, such as huge, subnormal, opposed and low-rank ones."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import sample, wide
from attnspec.spec.contract.tree import Leaf
from attnspec.spec.laws import attention as law

LEAST = {"float64": 2.0**-1060, "float32": 2.0**-132, "bfloat16": 2.0**-132, "float16": 2.0**-20}
"""Factors that make standard normal numbers subnormal, by dtype."""

DISTINCT = 2.0**16
"""The factor that makes scores of standard normal numbers exceed 10⁴."""


@checks(law.MAGNITUDES, once=True, at_leading=True)
def magnitudes(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare with the oracle on one input of each kind within the domain."""
    tried = False
    base = sample(subject, rng, queries=6, keys=12, features=8, heads=2)
    for what, change in KINDS.items():
        given = change(subject, base, rng)
        if all(np.isfinite(wide(x)).all() for _, x in given.floats) and subject.in_domain(given):
            subject.follows_formula(given, f"{what},")
            tried = True
    return tried


def _values(subject: Subject) -> tuple[str, ...]:
    """The arguments whose rows are summed."""
    summed = (*subject.operation.linear, subject.operation.pooled)
    return tuple(leaf.path for leaf in subject.operation.attended if leaf.path in summed)


def _in_rows(subject: Subject, arguments: Arguments, change: Callable[[Leaf, Numbers], Numbers]) -> Arguments:
    """The arguments with ``change`` applied to queries and attended arrays."""
    leaves = {leaf.path: leaf for leaf in (*subject.operation.queries, *subject.operation.attended)}
    given = {leaf.path: x for leaf, x in arguments.floats if leaf.path in leaves}
    return arguments.replaced({path: subject.exact(change(leaves[path], wide(x))) for path, x in given.items()})


def huge(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments:
    """Values of about 10¹¹."""
    return arguments.replaced({p: subject.exact(2.0**37 * wide(arguments.array(p))) for p in _values(subject)})


def subnormal(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments:
    """Queries, keys and values below the smallest normal number."""
    least = LEAST[subject.dtype]
    values = {p: subject.exact(least * wide(arguments.array(p))) for p in _values(subject)}
    return _in_rows(subject, arguments, lambda leaf, x: least * x).replaced(values)


def subnormal_rows(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments:
    """Subnormal queries and keys, whose result is normal and may not be flushed."""
    values = {p: arguments.array(p) for p in _values(subject)}
    return subnormal(subject, arguments, rng).replaced(values)


def opposed(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments:
    """Opposed queries and keys: exponentials of their scores are all 0 in float32."""
    asking = {leaf.path for leaf in subject.operation.queries}

    def change(leaf: Leaf, x: Numbers) -> Numbers:
        away = np.sqrt(150.0 / np.sqrt(max(x.shape[-1], 1)))
        moved: Numbers = 0.25 * x + (away if leaf.path in asking else -away)
        return moved

    return _in_rows(subject, arguments, change)


def outlier(subject: Subject, arguments: Arguments, rng: np.random.Generator, factor: float = 64.0) -> Arguments:
    """One feature ``factor`` times as large as the others."""

    def change(leaf: Leaf, x: Numbers) -> Numbers:
        larger: Numbers = x * np.where(np.arange(x.shape[-1]) == 0, factor, 1.0)
        return larger

    return _in_rows(subject, arguments, change)


def _with_first_keys(subject: Subject, arguments: Arguments, numbers: Sequence[float], spread: float) -> Arguments:
    """Queries with a mean of 2, and first keys that are constant; the arguments as they are if there are too few keys.

    ``spread`` is the factor of all other numbers.
    """
    attended = {leaf.path for leaf in subject.operation.attended}

    def change(leaf: Leaf, x: Numbers) -> Numbers:
        moved: Numbers = spread * x
        if leaf.path not in attended:
            return moved + 2.0
        for place, number in enumerate(numbers):
            moved[..., place, :] = number
        return moved

    return _in_rows(subject, arguments, change) if (arguments.keys_count or 0) >= len(numbers) else arguments


def preferred_key(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments:
    """Queries with a mean, a first key along it and a second one against it."""
    return _with_first_keys(subject, arguments, (4.0, -4.0), 1.0)


def almost_alone(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments:
    """A first key with scores some 10 above those of the others, whose weights together are some 10⁻⁴."""
    return _with_first_keys(subject, arguments, (1.8,), 0.25)


def low_rank(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments:
    """Rows of rank 2 plus small noise, with outliers in a few places."""

    def change(leaf: Leaf, x: Numbers) -> Numbers:
        rows: Numbers = rng.standard_normal((*x.shape[:-1], 2)) @ rng.standard_normal((2, x.shape[-1]))
        return rows + 0.01 * x + 20.0 * (rng.random(x.shape) < 0.02)

    return _in_rows(subject, arguments, change)


def distinct(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments:
    """Scores of tens of thousands."""
    exponents = subject.operation.sharpened
    return arguments.replaced(
        {path: subject.exact(DISTINCT**by * wide(arguments.array(path))) for path, by in exponents.items()}
    )


KINDS: Mapping[str, Callable[[Subject, Arguments, np.random.Generator], Arguments]] = {
    "of values above 10¹⁰": huge,
    "of subnormal numbers": subnormal,
    "of subnormal queries and keys": subnormal_rows,
    "of queries and keys that point away from each other": opposed,
    "of a feature that outweighs the others": outlier,
    "of a key that every query likes and one that none does": preferred_key,
    "of a key that has almost all the weight": almost_alone,
    "of rows of low rank with outliers": low_rank,
    "of scores beyond 10⁴": distinct,
}
