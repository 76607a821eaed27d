"""Precisions below all classes that a run may propose, recognised by their rounding-like errors.

Errors are roundings if they have both signs, do not follow the numbers, and change when inputs change a little. The
errors of a wrong formula fail one of these tests. The thresholds are far from both: roundings correlate by about 0, a
wrong factor by 1.

For the classes that a run may propose see :func:`~attnspec.conformance.explaining.precision_classes.wider_classes`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attnspec.conformance.explaining.precision_classes import wider_classes, widest_class
from attnspec.conformance.explaining.probes import Probe, distance, probe_in_domain
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import SMALLEST_NORMAL, numpy_dtype
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.reference.budget.error_array import UNKNOWN
from attnspec.spec.contract.precision import CLASSES, Precision, precision

_HALF, _BFLOAT16 = 2.0**-11, 2.0**-8
"""Unit roundoffs u of float16 and bfloat16."""


class UndeclarablePrecision(NamedTuple):
    """A lower precision and a sentence about it; ``format`` names the narrower format of results, if any."""

    sentence: str
    precision: Precision
    format: str = ""


def _rounded_to(format: str, u: float, dtype: str) -> UndeclarablePrecision:
    """Return the precision of computing in one format and returning results in another dtype."""
    rounding = replace(CLASSES["ieee32"], dtype=dtype, inputs=u, operand=u, stored=u, weights=u, output=u)
    step = 2 * u * SMALLEST_NORMAL[format]  # between subnormal numbers
    rounding = replace(rounding, weights_smallest=step, output_smallest=step, inputs_smallest=step)
    return UndeclarablePrecision(f"The errors look like {format} inside {dtype}.", rounding, format)


def _summed_in(dtype: str, u: float) -> UndeclarablePrecision:
    sums = replace(CLASSES[f"eager-{dtype}"], accumulation=u)
    return UndeclarablePrecision(f"The errors look like sums in {dtype}.", sums)


UNDECLARABLE: Mapping[str, tuple[UndeclarablePrecision, ...]] = {
    "float64": (),
    "float32": (_rounded_to("float16", _HALF, "float32"), _rounded_to("bfloat16", _BFLOAT16, "float32")),
    "bfloat16": (_summed_in("bfloat16", _BFLOAT16),),
    "float16": (_summed_in("float16", _HALF),),
}
"""Precisions that cannot be declared, by dtype, most precise first."""

MIN_SIZE, MIN_SIZE_PER_INPUT = 1 / 8, 1 / 32
"""Smallest root mean square of error/σ that is evidence for a precision: over all wrong inputs, and per input.

Roundings of that precision give nearly 1; far smaller errors have another cause.
"""

MAX_CORRELATION = 0.5
"""Largest correlation of roundings with the numbers, and largest mean of their signs."""

MAX_PERTURBED = 3
"""Largest number of wrong inputs that are perturbed to see whether their errors change."""

MIN_ERRORS = 12
"""Smallest number of errors that can be recognised as roundings; of fewer, signs may agree by chance."""


class LowerSubject(Subject):
    """A backend's operation, judged under another precision than the declared one."""

    def __init__(self, subject: Subject, other: Precision) -> None:
        super().__init__(subject.backend, subject.contract, subject.operation, subject.dtype, subject.device)
        self.other, self.default_dtype = other, subject.default_dtype

    @property
    def precision(self) -> Precision:
        """The precision under which it is judged."""
        return self.other


def undeclarable_precision(
    subject: Subject, probes: Sequence[Probe], call: Callable[[Arguments], Results | None] | None
) -> str | None:
    """Return a sentence on the most precise ``UNDECLARABLE`` entry that explains all results, or None.

    Return None also if a class that can be declared allows all errors. ``call`` calls the backend again, to test that
    errors change with the inputs. Without ``call``, results must instead be exactly representable in the narrower
    format.
    """
    wrong = [probe for probe in probes if probe.wrong]
    unsuited = any(probe.cotangents is not None or probe.views is not None for probe in wrong)
    if not subject.operation.float_result or unsuited:
        return None
    probes = [probe for probe in probes if probe.cotangents is None and probe.views is None]
    dtype = subject.precision.dtype
    classes = wider_classes(subject.contract.precision.name(subject.operation.name, dtype), dtype)
    if classes:
        declarable = LowerSubject(subject, precision(widest_class(classes[-1])))
        if all(_errors(declarable, probe) is not None for probe in probes):
            return None
    for lower in UNDECLARABLE[dtype]:
        lowered = LowerSubject(subject, lower.precision)
        errors = [_errors(lowered, probe) for probe in probes]
        wrong_errors = [x for x, probe in zip(errors, probes, strict=True) if x is not None and probe.wrong]
        if any(x is None for x in errors) or not _like_roundings(wrong_errors):
            continue
        if call is None:
            confirmed = all(_exactly_representable(x, lower.format) for probe in wrong for x in probe.got.values())
        else:
            confirmed = _errors_change(lowered, wrong[:MAX_PERTURBED], call)
        if confirmed:
            return lower.sentence
    return None


def _errors(lowered: LowerSubject, probe: Probe) -> Numbers | None:
    """Return errors/σ and expected numbers/σ, (2, numbers); None beyond a budget."""
    error_pairs = []
    for path, oracle in lowered.oracles(probe.arguments.replaced({})).items():
        got, expected = probe.got[path], oracle.value
        # An infinity with a budget of 0 is exact: the result must have it.
        allowed = np.where(np.isfinite(expected) | (oracle.budget == 0), oracle.budget, np.inf)
        if distance(got, expected, allowed) > 1:
            return None
        known = (oracle.sigma < UNKNOWN / 2) & (allowed < UNKNOWN / 2) & (oracle.sigma > 0)
        with np.errstate(all="ignore"):
            pairs = np.stack([got.astype(expected.dtype) - expected, expected]) / oracle.sigma
        error_pairs.append(np.where(known, pairs, 0.0).reshape(2, -1).astype(np.float64))
    return np.concatenate(error_pairs, axis=1)


def _like_roundings(errors_of_inputs: Sequence[Numbers]) -> bool:
    """Return True if errors/σ resemble roundings: large enough, of both signs, uncorrelated with the numbers."""
    errors, values = np.concatenate(errors_of_inputs, axis=1)
    if np.count_nonzero(errors) < MIN_ERRORS:
        return False
    sizes = [_size(x[0]) for x in errors_of_inputs if x[0].any()]
    signs = abs(float(np.sign(errors[errors != 0]).mean()))
    large = min(sizes) >= MIN_SIZE_PER_INPUT and _size(errors) >= MIN_SIZE
    return large and max(abs(_correlation(errors, values)), signs) <= MAX_CORRELATION


def _size(errors: Numbers) -> float:
    return float(np.sqrt((errors[errors != 0] ** 2).mean()))


def _errors_change(lowered: LowerSubject, wrong: Sequence[Probe], call: Callable[[Arguments], Results | None]) -> bool:
    """Return True if wrong probes' errors change when inputs change by a few roundings."""
    rng, pairs = np.random.default_rng(0), []
    unit = max(lowered.other.accumulation, lowered.other.operand, lowered.other.inputs, lowered.other.tanh)
    for probe in wrong:
        moves = {leaf.path: 1 + 8 * unit * rng.uniform(-1, 1, x.shape) for leaf, x in probe.arguments.floats}
        moved = {leaf.path: (x * moves[leaf.path]).astype(x.dtype) for leaf, x in probe.arguments.floats}
        arguments = probe.arguments.replaced(moved)
        results = call(arguments) if moved else None
        moved_probe = None if results is None else probe_in_domain(lowered, arguments, results)
        errors = None if moved_probe is None else _errors(lowered, moved_probe)
        if errors is None:
            return False
        before = _errors(lowered, probe)
        if before is not None:
            pairs.append(np.stack([before[0], errors[0]]))
    return bool(pairs) and abs(_correlation(*np.concatenate(pairs, axis=1))) <= MAX_CORRELATION


def _correlation(a: Numbers, b: Numbers) -> float:
    """Return the correlation of two arrays about 0: 1 or −1 for multiples, 0 for unrelated arrays."""
    squares = float((a**2).sum() * (b**2).sum())
    return float((a * b).sum()) / float(np.sqrt(squares)) if squares else 0.0


def _exactly_representable(x: Numbers, format: str) -> bool:
    return bool(format) and bool((x == x.astype(numpy_dtype(format)).astype(x.dtype)).all())
