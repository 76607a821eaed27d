"""Precisions below every class that a run may propose, recognised by errors that look like roundings.

A run never proposes classes of 8 bits or truncation; see ``classes.wider_classes``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attnspec.conformance.explaining.classes import wider_classes, widest
from attnspec.conformance.explaining.probes import Probe, distance, judged_by
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import SMALLEST_NORMAL, numpy_dtype
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.reference.budget.error_array import UNKNOWN
from attnspec.spec.contract.precision import CLASSES, Precision, precision

_HALF, _BFLOAT16 = 2.0**-11, 2.0**-8


class Lower(NamedTuple):
    """A lower precision class and a sentence about it; ``format`` is set if results have fewer bits."""

    sentence: str
    precision: Precision
    format: str = ""


def _inside(format: str, u: float, dtype: str) -> Lower:
    """Everything is rounded to one format and returned as another dtype."""
    rounding = replace(CLASSES["ieee32"], dtype=dtype, inputs=u, operand=u, stored=u, weights=u, output=u)
    step = 2 * u * SMALLEST_NORMAL[format]
    rounding = replace(rounding, weights_smallest=step, output_smallest=step, inputs_smallest=step)
    return Lower(f"It looks like {format} inside {dtype}.", rounding, format)


LOWER: Mapping[str, tuple[Lower, ...]] = {
    "float64": (),
    "float32": (_inside("float16", _HALF, "float32"), _inside("bfloat16", _BFLOAT16, "float32")),
    **{
        dtype: (Lower(f"It looks like sums in {dtype}.", replace(CLASSES[f"eager-{dtype}"], accumulation=u)),)
        for dtype, u in (("bfloat16", _BFLOAT16), ("float16", _HALF))
    },
}
"""Precisions that cannot be declared, by the declared dtype, most precise first."""

LEAST, LEAST_OF_ONE = 1 / 8, 1 / 32
"""Smallest root mean square of error/σ that indicates a class: over all wrong inputs, and per input."""

TOGETHER = 0.5
"""Largest correlation of a few roundings with the numbers, or of their signs with each other."""

MOVED = 3
"""Wrong inputs that are perturbed, to see whether their errors change."""

ENOUGH = 12
"""Smallest number of errors that can be recognised as roundings."""


class Lowered(Subject):
    """An operation of a backend, judged under another precision class."""

    def __init__(self, subject: Subject, other: Precision) -> None:
        super().__init__(subject.backend, subject.contract, subject.operation, subject.dtype, subject.device)
        self.other, self.default_dtype = other, subject.default_dtype

    @property
    def precision(self) -> Precision:
        """The other class."""
        return self.other


def of_precisions(
    subject: Subject, probes: Sequence[Probe], call: Callable[[Arguments], Results | None] | None
) -> str | None:
    """Return a sentence about the most precise entry of ``LOWER`` that explains all results, or None.

    None also if the widest class that a run may propose allows all errors: then the declaration has to change.
    Roundings change if the inputs move a little, so ``call`` calls the backend again. Without ``call``, only results
    that a narrower format represents exactly count.
    """
    wrong = [probe for probe in probes if probe.wrong]
    unsuited = any(probe.cotangents is not None or probe.views is not None for probe in wrong)
    if not subject.operation.float_result or unsuited:
        return None
    probes = [probe for probe in probes if probe.cotangents is None and probe.views is None]
    dtype = subject.precision.dtype
    classes = wider_classes(subject.contract.precision.name(subject.operation.name, dtype), dtype)
    if classes:
        declarable = Lowered(subject, precision(widest(classes[-1])))
        if all(_errors(declarable, probe) is not None for probe in probes):
            return None
    for lower in LOWER[dtype]:
        lowered = Lowered(subject, lower.precision)
        errors = [_errors(lowered, probe) for probe in probes]
        of_wrong = [x for x, probe in zip(errors, probes, strict=True) if x is not None and probe.wrong]
        if any(x is None for x in errors) or not _like_roundings(of_wrong):
            continue
        if call is None:
            random = all(_held(x, lower.format) for probe in wrong for x in probe.got.values())
        else:
            random = _change(lowered, wrong[:MOVED], call)
        if random:
            return lower.sentence
    return None


def _errors(lowered: Lowered, probe: Probe) -> Numbers | None:
    """Return errors and expected numbers over σ, (2, numbers); None if an error exceeds its budget."""
    found = []
    for path, oracle in lowered.oracles(probe.arguments.replaced({})).items():
        got, expected = probe.got[path], oracle.value
        # An infinity with a budget of 0 is exact: rounding neither creates nor removes it.
        allowed = np.where(np.isfinite(expected) | (oracle.budget == 0), oracle.budget, np.inf)
        if distance(got, expected, allowed) > 1:
            return None
        known = (oracle.sigma < UNKNOWN / 2) & (allowed < UNKNOWN / 2) & (oracle.sigma > 0)
        with np.errstate(all="ignore"):
            pairs = np.stack([got.astype(expected.dtype) - expected, expected]) / oracle.sigma
        found.append(np.where(known, pairs, 0.0).reshape(2, -1).astype(np.float64))
    return np.concatenate(found, axis=1)


def _like_roundings(found: Sequence[Numbers]) -> bool:
    """Return whether errors over σ are as large as roundings, of both signs, and uncorrelated with the numbers."""
    errors, values = np.concatenate(found, axis=1)
    if np.count_nonzero(errors) < ENOUGH:
        return False
    sizes = [_size(x[0]) for x in found if x[0].any()]
    signs = abs(float(np.sign(errors[errors != 0]).mean()))
    large = min(sizes) >= LEAST_OF_ONE and _size(errors) >= LEAST
    return large and max(abs(_correlation(errors, values)), signs) <= TOGETHER


def _size(errors: Numbers) -> float:
    """Return the root mean square of the nonzero errors."""
    return float(np.sqrt((errors[errors != 0] ** 2).mean()))


def _change(lowered: Lowered, wrong: Sequence[Probe], call: Callable[[Arguments], Results | None]) -> bool:
    """Return whether the errors of wrong probes change when the inputs move by a few roundings."""
    rng, pairs = np.random.default_rng(0), []
    unit = max(lowered.other.accumulation, lowered.other.operand, lowered.other.inputs, lowered.other.tanh)
    for probe in wrong:
        moves = {leaf.path: 1 + 8 * unit * rng.uniform(-1, 1, x.shape) for leaf, x in probe.arguments.floats}
        moved = {leaf.path: (x * moves[leaf.path]).astype(x.dtype) for leaf, x in probe.arguments.floats}
        arguments = probe.arguments.replaced(moved)
        found = call(arguments) if moved else None
        again = None if found is None else judged_by(lowered, arguments, found)
        errors = None if again is None else _errors(lowered, again)
        if errors is None:
            return False
        before = _errors(lowered, probe)
        if before is not None:
            pairs.append(np.stack([before[0], errors[0]]))
    return bool(pairs) and abs(_correlation(*np.concatenate(pairs, axis=1))) <= TOGETHER


def _correlation(one: Numbers, other: Numbers) -> float:
    """Return the correlation of two arrays about 0: 1 or −1 for multiples, 0 for unrelated arrays."""
    squares = float((one**2).sum() * (other**2).sum())
    return float((one * other).sum()) / float(np.sqrt(squares)) if squares else 0.0


def _held(x: Numbers, format: str) -> bool:
    """Return whether a format of fewer bits represents all numbers exactly."""
    return bool(format) and bool((x == x.astype(numpy_dtype(format)).astype(x.dtype)).all())
