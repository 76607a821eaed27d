"""Check of extreme inputs: huge, subnormal, opposed, low-rank and others. Options of ``@checks``: see ``Check``."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import mask_shape
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import sample, wide
from attnspec.spec.contract.tree import Leaf
from attnspec.spec.laws import attention as law

SUBNORMAL_FACTORS = {"float64": 2.0**-1060, "float32": 2.0**-132, "bfloat16": 2.0**-132, "float16": 2.0**-20}
"""Factors that make standard normal numbers subnormal, by dtype."""

SLOPES = (0.4, 2.0, 10.0)
"""Means of queries in ``rising_scores``."""

RISING_KEYS = 300
"""Keys of ``rising_scores``, more than two tiles of 128."""

DISTINCT_FACTOR = 2.0**16
"""Factor of scores of standard normal numbers, which makes them exceed 10⁴."""


@checks(law.EXTREME_MAGNITUDES, once=True, leading_dtype_only=True)
def extreme_magnitudes(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare with the oracle on one input of each kind within the domain."""
    tried = False
    sampled = sample(subject, rng, queries=6, keys=12, features=8, heads=2)
    for label, change in KINDS.items():
        changed = change(subject, sampled, rng)
        finite = all(np.isfinite(wide(x)).all() for _, x in changed.floats)
        if changed is not sampled and finite and subject.in_domain(changed):
            subject.follows_formula(changed, f"{label},")
            tried = True
    return tried


def _value_paths(subject: Subject) -> tuple[str, ...]:
    """The paths of the arrays whose rows are averaged."""
    summed = (*subject.operation.linear, subject.operation.pooled)
    return tuple(leaf.path for leaf in subject.operation.attended if leaf.path in summed)


def _with_rows_changed(subject: Subject, arguments: Arguments, change: Callable[[Leaf, Numbers], Numbers]) -> Arguments:
    """A copy with ``change`` applied to queries and attended arrays."""
    leaves = {leaf.path: leaf for leaf in (*subject.operation.queries, *subject.operation.attended)}
    rows = {leaf.path: x for leaf, x in arguments.floats if leaf.path in leaves}
    return arguments.replaced({path: subject.exact(change(leaves[path], wide(x))) for path, x in rows.items()})


def huge_values(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments:
    """Values of about 10¹¹."""
    return arguments.replaced({p: subject.exact(2.0**37 * wide(arguments.array(p))) for p in _value_paths(subject)})


def subnormal(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments:
    """Queries, keys and values below the smallest normal number."""
    least = SUBNORMAL_FACTORS[subject.dtype]
    values = {p: subject.exact(least * wide(arguments.array(p))) for p in _value_paths(subject)}
    return _with_rows_changed(subject, arguments, lambda leaf, x: least * x).replaced(values)


def subnormal_rows(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments:
    """Subnormal queries and keys with normal values, so that the result is normal."""
    values = {p: arguments.array(p) for p in _value_paths(subject)}
    return subnormal(subject, arguments, rng).replaced(values)


def zero_queries(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments:
    """Queries of 0; where the backend takes masks, only the first half of the keys may be attended to.

    A kernel that skips work for equal scores may forget the mask.
    """
    queries = {leaf.path for leaf in subject.operation.queries}
    changes = {leaf.path: np.zeros_like(x) for leaf, x in arguments.floats if leaf.path in queries}
    for keys, leaf in subject.operation.masks.items() if subject.limits.mask else ():
        attended = np.arange(arguments.size(keys)) < max(1, arguments.size(keys) // 2)
        changes[leaf.path] = np.broadcast_to(attended, mask_shape(arguments, keys)).copy()
    return arguments.replaced(changes)


def opposed(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments:
    """Opposed queries and keys: unshifted exponentials of scores are 0 in float32."""
    query_paths = {leaf.path for leaf in subject.operation.queries}

    def change(leaf: Leaf, x: Numbers) -> Numbers:
        # Scores are about −150 after the division by √d.
        away = np.sqrt(150.0 / np.sqrt(max(x.shape[-1], 1)))
        changed: Numbers = 0.25 * x + (away if leaf.path in query_paths else -away)
        return changed

    return _with_rows_changed(subject, arguments, change)


def outlier(subject: Subject, arguments: Arguments, rng: np.random.Generator, factor: float = 64.0) -> Arguments:
    """One feature ``factor`` times as large as the others."""

    def change(leaf: Leaf, x: Numbers) -> Numbers:
        larger: Numbers = x * np.where(np.arange(x.shape[-1]) == 0, factor, 1.0)
        return larger

    return _with_rows_changed(subject, arguments, change)


def _with_first_keys(subject: Subject, arguments: Arguments, numbers: Sequence[float], spread: float) -> Arguments:
    """Queries with a mean of 2, and first keys filled with ``numbers``.

    ``spread`` multiplies all other numbers. Too few keys leave the arguments unchanged.
    """
    attended = {leaf.path for leaf in subject.operation.attended}

    def change(leaf: Leaf, x: Numbers) -> Numbers:
        changed: Numbers = spread * x
        if leaf.path not in attended:
            return changed + 2.0
        for place, number in enumerate(numbers):
            changed[..., place, :] = number
        return changed

    return _with_rows_changed(subject, arguments, change) if (arguments.keys_count or 0) >= len(numbers) else arguments


def preferred_key(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments:
    """Queries with a mean, a first key along it, and a second key against it."""
    return _with_first_keys(subject, arguments, (4.0, -4.0), 1.0)


def dominant_key(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments:
    """A first key with scores some 10 above all others, which weigh 10⁻⁴ together."""
    return _with_first_keys(subject, arguments, (1.8,), 0.25)


def rising_scores(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments:
    """Scores that rise along the keys, by about 1, 6 or 30 in 64.

    Online softmax then meets a larger maximum in every tile, however long its tiles are. Self-attention keeps its
    arguments, and is left out.
    """
    if subject.operation.attends_to_itself:
        return arguments
    attended = {leaf.path for leaf in subject.operation.attended}
    rising = sample(subject, rng, queries=len(SLOPES), keys=RISING_KEYS, features=8, heads=2)

    def change(leaf: Leaf, x: Numbers) -> Numbers:
        if leaf.path not in attended:
            return 0.25 * x + np.resize(SLOPES, x.shape[-2])[:, None] if x.ndim > 1 else x
        return 0.25 * x + np.linspace(0.0, 5.0, x.shape[-2])[:, None]

    return _with_rows_changed(subject, rising, change)


def low_rank_rows(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments:
    """Rows of rank 2 plus small noise, with outliers in a few places."""

    def change(leaf: Leaf, x: Numbers) -> Numbers:
        rows: Numbers = rng.standard_normal((*x.shape[:-1], 2)) @ rng.standard_normal((2, x.shape[-1]))
        return rows + 0.01 * x + 20.0 * (rng.random(x.shape) < 0.02)

    return _with_rows_changed(subject, arguments, change)


def distinct_scores(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments:
    """Scores of tens of thousands; ``scores_scale_with`` holds exponents of the factor, by path."""
    exponents = subject.operation.scores_scale_with
    return arguments.replaced(
        {path: subject.exact(DISTINCT_FACTOR**power * wide(arguments.array(path))) for path, power in exponents.items()}
    )


KINDS: Mapping[str, Callable[[Subject, Arguments, np.random.Generator], Arguments]] = {
    "of values above 10¹⁰": huge_values,
    "of subnormal numbers": subnormal,
    "of subnormal queries and keys": subnormal_rows,
    "of queries of 0": zero_queries,
    "of queries and keys that point away from each other": opposed,
    "of a feature that outweighs the others": outlier,
    "of a key along every query and one against all queries": preferred_key,
    "of a key that has almost all the weight": dominant_key,
    "of rows of low rank with outliers": low_rank_rows,
    "of scores beyond 10⁴": distinct_scores,
    "of scores that rise along the keys": rising_scores,
}
