"""``suggest_inputs``: inputs of given shapes that reveal defects which other inputs hide."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from attnspec.conformance.harness.ensemble import Ensemble
from attnspec.conformance.harness.hidden_defects import has_tried_defects, hidden_defects, with_zero_key
from attnspec.conformance.harness.parts import Part, parts, whole, with_explicit_positions
from attnspec.conformance.harness.reading import arguments_of, generator, in_one_dtype, operation_named, subject_of
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import exact_in
from attnspec.conformance.inputs.examples import numbers, within
from attnspec.conformance.judging.sampled_rows import sample_indices
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.ensembles import unrounded
from attnspec.spec.contract.axes import Role
from attnspec.spec.contract.tree import Leaf

HEAVIER_KEYS = 32
"""Number of keys with larger weights: the first, the last, those at borders of tiles, and a random sample."""

CLOSER = 0.4
"""Relative amount by which the negative scores of the heavier keys are nearer to 0."""

STEPS = 24
"""Tried distances between queries and keys: from ¼, each √2 times the one before."""


def suggest_inputs(
    operation: str,
    *arguments: Any,
    precision: str | Mapping[str, Any] | None = None,
    semantics: Mapping[str, Any] | None = None,
    seed: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """Return arguments of the given shapes, masks and options that reveal known defects.

    Float arrays are replaced by float32 or float64 arrays of NumPy, whose numbers are exact in the original dtype. Of
    several candidates, the first that hides no known defect (``Verdict.cannot_see``) is returned, else the one that
    hides the fewest. Errors: those of ``judge``.
    """
    described = operation_named(operation, "suggest_inputs")
    dtype, inputs = in_one_dtype(described, arguments_of(described, arguments, options))
    subject = subject_of(described, dtype, precision, semantics, inputs)
    best: tuple[int, Arguments] | None = None
    for candidate in _candidates(subject, inputs, generator(seed, "suggest_inputs")):
        hidden_count = len(_hidden_defects(subject, candidate, seed))
        if best is None or hidden_count < best[0]:
            best = hidden_count, candidate
        if not hidden_count:
            break
    chosen = inputs if best is None else best[1]
    wide_dtype = np.dtype(np.float64 if dtype == "float64" else np.float32)
    return chosen.replaced({leaf.path: x.astype(wide_dtype) for leaf, x in chosen.floats}).passed


def _hidden_defects(subject: Subject, arguments: Arguments, seed: int) -> tuple[str, ...]:
    judged_parts = list(parts(subject, _without_results(subject, arguments), np.random.default_rng(seed)))
    return hidden_defects(Ensemble(subject, arguments, judged_parts))


def _candidates(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Iterator[Arguments]:
    """Yield normal inputs, then some with scores below 0, where a key of zeros dominates."""
    normal = arguments.replaced({leaf.path: _normal(subject, leaf, x.shape, rng) for leaf, x in arguments.floats})
    yield normal
    if not has_tried_defects(subject.operation) or not all(arguments.batch):
        return
    query, key = _query_and_key(subject, normal)
    if query is None or key is None:
        return
    direction = rng.choice([-1.0, 1.0], arguments.array(query.path).shape[-1])
    direction /= np.linalg.norm(direction)
    for step in range(STEPS):
        distance = 0.25 * 2 ** (step / 2)
        candidate = _moved_apart(subject, normal, query.path, key.path, distance * direction)
        if _reveals_zero_key(subject, candidate):
            yield candidate
            return


def _normal(subject: Subject, leaf: Leaf, shape: tuple[int, ...], rng: np.random.Generator) -> Numbers:
    weight = bool(subject.operation.role(leaf) & Role.WEIGHT)
    drawn = numbers("normal", shape, rng, subject.dtype, weight)
    return exact_in(within(drawn, subject.operation.generated_within.get(leaf.path)), subject.dtype)


def _query_and_key(subject: Subject, arguments: Arguments) -> tuple[Leaf | None, Leaf | None]:
    """Return queries and keys with the same feature axis; None for both if there are none."""
    operation = subject.operation
    keys = [leaf for leaf in operation.attended if leaf.path not in operation.linear and leaf not in operation.queries]
    candidates = ((q, k) for q in operation.queries for k in keys if q.core[-1].factors == k.core[-1].factors)
    return next(candidates, (None, None))


def _moved_apart(subject: Subject, arguments: Arguments, query: str, key: str, shift: Numbers) -> Arguments:
    """Move queries by ``shift`` and keys by its opposite; the heavier keys move less."""
    directions = np.full((arguments.keys_count or 0, 1), -1.0)
    directions[sample_indices(len(directions), HEAVIER_KEYS, np.random.default_rng(0))] += CLOSER
    moved = {query: arguments.array(query) + shift, key: arguments.array(key) + directions * shift}
    return arguments.replaced({path: exact_in(x, subject.dtype) for path, x in moved.items()})


def _reveals_zero_key(subject: Subject, arguments: Arguments) -> bool:
    """Return True if a key of zeros would change a result by half its norm."""
    element = arguments.element((0,) * len(arguments.batch))
    part = next(parts(subject, _without_results(subject, element), np.random.default_rng(0)))
    expected = unrounded(subject, part.arguments)
    with_padding = with_zero_key(with_explicit_positions(subject, part.arguments))
    return bool(2 * np.linalg.norm(unrounded(subject, with_padding) - expected) > np.linalg.norm(expected))


def _without_results(subject: Subject, arguments: Arguments) -> Part:
    shapes = {leaf.path: arguments.binding.shape(leaf) for leaf in subject.operation.outputs}
    return whole(arguments, {path: np.zeros(shape, np.bool_) for path, shape in shapes.items()})
