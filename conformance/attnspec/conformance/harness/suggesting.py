"""Suggested inputs of given shapes that reveal defects which other inputs hide."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from attnspec.conformance.harness.hidden import hidden, padded, tried
from attnspec.conformance.harness.parts import parts, spelled, whole
from attnspec.conformance.harness.reading import arguments_of, generator, in_one_dtype, operation_named, subject_of
from attnspec.conformance.harness.together import Ensemble
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import exact_in
from attnspec.conformance.inputs.examples import numbers
from attnspec.conformance.judging.rows import sampled
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.ensembles import exact
from attnspec.spec.contract.axes import Role
from attnspec.spec.contract.tree import Leaf

BORDERS = 32
"""Number of heavier keys: the first, the last, those at borders of tiles, some more."""

CLOSER = 0.4
"""Relative amount by which the scores of these ``BORDERS`` keys are nearer to 0 than others."""

STEPS = 24
"""Times that the query–key distance grows by √2, from ¼, until zero keys dominate."""


def suggest_inputs(
    operation: str,
    *arguments: Any,
    precision: str | Mapping[str, Any] | None = None,
    semantics: Mapping[str, Any] | None = None,
    seed: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """Return arguments of the given shapes, masks and options that reveal known defects.

    Float arrays are replaced by NumPy arrays of float32 or float64, with numbers that the given dtype represents
    exactly. The first candidate that hides no known defect (``Verdict.cannot_see``) is chosen, or else the one that
    hides the fewest.

    Errors: as of ``judge``.
    """
    described = operation_named(operation, "suggest_inputs")
    dtype, given = in_one_dtype(described, arguments_of(described, arguments, options))
    subject = subject_of(described, dtype, precision, semantics)
    best: tuple[int, Arguments] | None = None
    for candidate in _candidates(subject, given, generator(seed, "suggest_inputs")):
        hides = len(_hidden(subject, candidate, seed))
        if best is None or hides < best[0]:
            best = hides, candidate
        if not hides:
            break
    chosen = given if best is None else best[1]
    wide = np.dtype(np.float64 if dtype == "float64" else np.float32)
    return chosen.replaced({leaf.path: x.astype(wide) for leaf, x in chosen.floats}).passed


def _hidden(subject: Subject, given: Arguments, seed: int) -> tuple[str, ...]:
    """Return the defects that arguments hide, in the rows that would be judged."""
    chosen = list(parts(subject, whole(given, _nothing(subject, given)), np.random.default_rng(seed)))
    return hidden(Ensemble(subject, given, chosen))


def _candidates(subject: Subject, given: Arguments, rng: np.random.Generator) -> Iterator[Arguments]:
    """Yield normal inputs, then queries and keys so far apart that a key of zeros weighs most."""
    normal = given.replaced({leaf.path: _normal(subject, leaf, x.shape, rng) for leaf, x in given.floats})
    yield normal
    if not tried(subject.operation) or not all(given.batch):
        return
    query, key = _opposites(subject, normal)
    if query is None or key is None:
        return
    direction = rng.choice([-1.0, 1.0], given.array(query.path).shape[-1])
    direction /= np.linalg.norm(direction)
    for step in range(STEPS):
        distance = 0.25 * 2 ** (step / 2)
        candidate = _apart(subject, normal, query.path, key.path, distance * direction)
        if _padding_shows(subject, candidate):
            yield candidate
            return


def _normal(subject: Subject, leaf: Leaf, shape: tuple[int, ...], rng: np.random.Generator) -> Numbers:
    weight = bool(subject.operation.role(leaf) & Role.WEIGHT)
    return exact_in(numbers("normal", shape, rng, subject.dtype, weight), subject.dtype)


def _opposites(subject: Subject, given: Arguments) -> tuple[Leaf | None, Leaf | None]:
    """Return the queries and the keys, if they are vectors of the same space."""
    operation = subject.operation
    keys = [leaf for leaf in operation.attended if leaf.path not in operation.linear and leaf not in operation.queries]
    pairs = ((q, k) for q in operation.queries for k in keys if q.core[-1].factors == k.core[-1].factors)
    return next(pairs, (None, None))


def _apart(subject: Subject, given: Arguments, query: str, key: str, shift: Numbers) -> Arguments:
    """Move queries by a vector and keys by its opposite; keys at borders of tiles move less."""
    moved = np.full((given.keys_count or 0, 1), -1.0)
    moved[sampled(len(moved), BORDERS, np.random.default_rng(0))] += CLOSER
    return given.replaced(
        {
            query: exact_in(given.array(query) + shift, subject.dtype),
            key: exact_in(given.array(key) + moved * shift, subject.dtype),
        }
    )


def _padding_shows(subject: Subject, given: Arguments) -> bool:
    """Return whether a key of zeros would dominate some rows of one batch element."""
    one = given.element((0,) * len(given.batch))
    part = next(parts(subject, whole(one, _nothing(subject, one)), np.random.default_rng(0)))
    expected = exact(subject, part.arguments)
    longer = padded(spelled(subject, part.arguments))
    return bool(2 * np.linalg.norm(exact(subject, longer) - expected) > np.linalg.norm(expected))


def _nothing(subject: Subject, given: Arguments) -> Results:
    """Return placeholder results of the shapes that follow from the arguments."""
    return {leaf.path: np.zeros(given.binding.shape(leaf), np.bool_) for leaf in subject.operation.outputs}
