"""Checks of the laws of positional encodings."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.foreign_calls import Raised
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws.common import wide
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.law import of
from attnspec.spec.laws import operation
from attnspec.spec.laws import positional as law
from attnspec.spec.positional import LearnedPositions


def _sines_and_cosines(x: Numbers) -> tuple[Numbers, Numbers]:
    """The sines and cosines of all frequencies, without an unpaired last sine."""
    width = x.shape[-1] // 2 * 2
    return x[:, 0:width:2], x[:, 1:width:2]


def _size(arguments: Arguments, kind: Axis) -> tuple[str, int]:
    """The path and the value of the number of positions, or of features."""
    ((path, *_),) = (arguments.operation.sizes_of(kind),)
    return path, arguments[path]


def _width(arguments: Arguments) -> int:
    return _size(arguments, Axis.FEATURE)[1]


def _encoding(subject: Subject, arguments: Arguments) -> tuple[Numbers, Numbers] | None:
    """The encoding and its budget; None for fewer than two positions or a refused width."""
    odd_refused = subject.semantics.odd_encoding == "error" and _width(arguments) % 2
    if _size(arguments, Axis.QUERY)[1] < 2 or odd_refused:
        return None
    return wide(subject.call(arguments)), subject.budget(arguments)


@checks(law.UNIT_LENGTH_PAIRS)
def unit_length_pairs(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check the magnitude of every element, the first row, and the length of pairs."""
    encoding = _encoding(subject, arguments)
    if encoding is None:
        return False
    got, of_elements = encoding
    largest = f"an element of the encoding has magnitude {np.abs(got).max():.9g}"
    subject.demand(bool((np.abs(got) <= 1 + of_elements).all()), largest, arguments, got=got)
    first = (np.arange(got.shape[1]) % 2).astype(np.float64)
    subject.demand_match(got[0], first, of_elements[0], arguments, "position 0")
    if _width(arguments) < 2:
        return True
    (sine, cosine), (sine_budget, cosine_budget) = (_sines_and_cosines(encoding[0]), _sines_and_cosines(encoding[1]))
    budget = 2 * (np.abs(sine) * sine_budget + np.abs(cosine) * cosine_budget) + sine_budget**2 + cosine_budget**2
    lengths = sine**2 + cosine**2
    subject.demand_match(lengths, np.ones(lengths.shape), budget + 2.0**-50, arguments, "the squared length of pair")
    return True


@checks(law.SHIFT_IS_ROTATION)
def shift_is_rotation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Rotate each encoding by that of ``shift``, which gives the one ``shift`` later."""
    encoding = _encoding(subject, arguments)
    if encoding is None or _width(arguments) < 2:
        return False
    got, budget = encoding
    shift = int(rng.integers(1, len(got)))
    sine, cosine = _sines_and_cosines(got)
    turn_sine, turn_cosine = sine[shift], cosine[shift]
    rotated = sine[:-shift] * turn_cosine + cosine[:-shift] * turn_sine
    largest = np.maximum(*_sines_and_cosines(budget))
    # Each of the two products has factors of at most 1, so it errs by the errors of both.
    slack = largest[shift:] + 2 * (largest[:-shift] + largest[shift]) + 2.0**-50
    subject.demand_match(sine[shift:], rotated, slack, arguments, f"{shift} positions later, the sine")
    return True


@checks(law.DISTINCT_POSITIONS)
def distinct_positions(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare all rows with each other, where the dtype can distinguish them."""
    encoding = _encoding(subject, arguments)
    name = subject.call(arguments).dtype.name
    if encoding is None or name not in ("float64", "float32") or (name == "float32" and _width(arguments) < 2):
        return False
    got, _ = encoding
    different = len(np.unique(got, axis=0))
    subject.demand(different == len(got), f"{len(got)} positions have only {different} encodings", arguments, got=got)
    return True


@checks(law.PREFIX_UNCHANGED)
def prefix_unchanged(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Ask for fewer positions, along every axis of positions."""
    operation = subject.operation
    if subject.refuses(arguments):
        return False
    counted = [o.path for o in operation.numbers if not operation.axis(o.path) & Axis.FEATURE]
    fewer = arguments.replaced({path: int(rng.integers(arguments[path] + 1)) for path in counted})
    if subject.refuses(fewer) or not subject.in_domain(fewer):
        return False
    corner = tuple(slice(fewer[path]) for path in counted)
    expected, budget = subject.call(arguments)[corner], 2 * subject.budget(arguments)[corner]
    subject.demand_match(subject.call(fewer), wide(expected), budget, fewer, "of fewer positions, the result")
    return bool(expected.size)


@checks(operation.REJECTION, governs=of(LearnedPositions))
def table_range(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Ask for one row more than the table has."""
    (n,) = subject.operation.sizes_of(Axis.QUERY)
    ((_, table),) = arguments.floats
    broken = arguments.replaced({n: len(table) + 1})
    result = subject.result_or_raised(subject.converted(broken))
    if isinstance(result, Raised):
        return True
    (got,) = result.values()
    raise Violation(
        f"{len(table) + 1} rows of a table of {len(table)} were accepted; expected an exception",
        reason=Reason.ACCEPTED, arguments=broken, got=got,
    )  # fmt: skip


@checks(law.ADDING_ZERO)
def adding_zero(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set each of two addends to 0: the other is the result, bit for bit."""
    for leaf, x in arguments.floats:
        zeroed = arguments.replaced({leaf.path: np.zeros_like(x)})
        got = subject.call(zeroed)
        (other_array,) = (other for inner, other in arguments.floats if inner is not leaf)
        expected = np.broadcast_to(other_array, got.shape)
        subject.demand_equal(got, expected, lambda: subject.budget(zeroed), zeroed, f"with {leaf.path} = 0, the result")  # noqa: B023 - called at once
    return True
