"""Checks of the laws of positional encodings."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.foreign_calls import Raised
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws.common import joined_in_order, wide
from attnspec.conformance.laws.registry import checks
from attnspec.spec.contract.axes import Axis
from attnspec.spec.laws import positional as law


def _pairs(x: Numbers) -> tuple[Numbers, Numbers]:
    """The pairs of sine and cosine of each frequency, without the unpaired sine of an odd width."""
    even = x.shape[-1] // 2 * 2
    return x[:, 0:even:2], x[:, 1:even:2]


def _size(arguments: Arguments, kind: Axis) -> tuple[str, int]:
    """The path and the value of the argument that counts positions, or features."""
    ((path, *_),) = (arguments.operation.sizes_of(kind),)
    return path, arguments[path]


def _width(arguments: Arguments) -> int:
    return _size(arguments, Axis.FEATURE)[1]


def _encoded(subject: Subject, arguments: Arguments) -> tuple[Numbers, Numbers] | None:
    """The encoding and its budget; None for fewer than two positions, or a width that the backend does not encode."""
    odd_refused = subject.semantics.odd_encoding == "error" and _width(arguments) % 2
    if _size(arguments, Axis.QUERY)[1] < 2 or odd_refused:
        return None
    return wide(subject.call(arguments)), subject.budget(arguments)


@checks(law.BOUNDS)
def bounds(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """No magnitude exceeds 1, and the first row is 0, 1, 0, 1, …."""
    found = _encoded(subject, arguments)
    if found is None:
        return False
    got, budget = found
    subject.holds(bool((np.abs(got) <= 1 + budget).all()), f"an element is {np.abs(got).max():.9g}", arguments, got=got)
    first = (np.arange(got.shape[1]) % 2).astype(np.float64)
    subject.matches(got[0], first, budget[0], arguments, "position 0")
    return True


@checks(law.UNIT_PAIRS)
def unit_pairs(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The norm of each pair."""
    found = _encoded(subject, arguments)
    if found is None or _width(arguments) < 2:
        return False
    (sine, cosine), (sine_budget, cosine_budget) = _pairs(found[0]), _pairs(found[1])
    budget = 2 * (np.abs(sine) * sine_budget + np.abs(cosine) * cosine_budget) + sine_budget**2 + cosine_budget**2
    lengths = sine**2 + cosine**2
    subject.matches(lengths, np.ones(lengths.shape), budget + 2.0**-50, arguments, "the squared length of pair")
    return True


@checks(law.ROTATION)
def rotation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Rotate each position by the pairs of position ``shift``: this gives the position ``shift`` later."""
    found = _encoded(subject, arguments)
    if found is None or _width(arguments) < 2:
        return False
    got, budget = found
    shift = int(rng.integers(1, len(got)))
    sine, cosine = _pairs(got)
    turn_sine, turn_cosine = sine[shift], cosine[shift]
    rotated = sine[:-shift] * turn_cosine + cosine[:-shift] * turn_sine
    largest = np.maximum(*_pairs(budget))
    total = largest[shift:] + 2 * (largest[:-shift] + largest[shift]) + 2.0**-50
    subject.matches(sine[shift:], rotated, total, arguments, f"{shift} positions later, the sine")
    return True


@checks(law.DISTANCE)
def distance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The inner products of positions at a fixed distance."""
    found = _encoded(subject, arguments)
    if found is None or _width(arguments) % 2:
        return False
    got, budget = found
    shift = int(rng.integers(1, len(got)))
    products = (got[:-shift] * got[shift:]).sum(-1)
    slack = (np.abs(got[:-shift]) * budget[shift:] + np.abs(got[shift:]) * budget[:-shift]).sum(-1)
    slack = slack + slack[0] + got.shape[1] * 2.0**-50
    expected = np.full(products.shape, products[0])
    # Inner products may be near 0 by cancellation, so they are measured against the squared length d/2.
    whole = np.append(products, got.shape[1] / 2), np.append(expected, got.shape[1] / 2), np.append(slack, 1.0)
    subject.matches(*whole, arguments, f"at distance {shift}, the inner product")
    return True


@checks(law.DISTINCT)
def distinct(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare all rows with each other, where the dtype has enough precision to distinguish them."""
    found = _encoded(subject, arguments)
    name = subject.call(arguments).dtype.name
    if found is None or name not in ("float64", "float32") or (name == "float32" and _width(arguments) < 2):
        return False
    got, _ = found
    different = len(np.unique(got, axis=0))
    subject.holds(different == len(got), f"{len(got)} positions have {different} encodings", arguments, got=got)
    return True


@checks(law.POSITION_PREFIX)
def position_prefix(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Encode fewer positions."""
    found = _encoded(subject, arguments)
    if found is None:
        return False
    got, budget = found
    count = int(rng.integers(1, len(got)))
    fewer = arguments.replaced({_size(arguments, Axis.QUERY)[0]: count})
    subject.matches(subject.call(fewer), got[:count], 2 * budget[:count], fewer, "of fewer positions, the encoding")
    return True


@checks(law.TABLE_ROWS)
def table_rows(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """NaN in every row that no position has, and in one more."""
    (n,) = subject.operation.sizes_of(Axis.QUERY)
    ((leaf, table),) = arguments.floats
    spoiled = np.full((len(table) + 1, *table.shape[1:]), np.nan, table.dtype)
    spoiled[: arguments.size(n)] = table[: arguments.size(n)]
    given = arguments.replaced({leaf.path: spoiled})
    expected = table[: arguments.size(n)]
    subject.same(subject.call(given), expected, lambda: np.zeros(expected.shape), given, "the encoding")
    return bool(expected.size)


@checks(law.TABLE_RANGE)
def table_range(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Ask for one row more than there is."""
    (n,) = subject.operation.sizes_of(Axis.QUERY)
    ((_, table),) = arguments.floats
    broken = arguments.replaced({n: len(table) + 1})
    result = subject.outcome(subject.converted(broken))
    if isinstance(result, Raised):
        return True
    (got,) = result.values()
    raise Violation(
        f"{len(table) + 1} rows of a table of {len(table)} were accepted, expected an exception",
        reason=Reason.ACCEPTED, arguments=broken, got=got,
    )  # fmt: skip


@checks(law.ADDED)
def added(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set each of the two to 0: the other is the result, bit for bit."""
    for leaf, x in arguments.floats:
        given = arguments.replaced({leaf.path: np.zeros_like(x)})
        got = subject.call(given)
        (kept,) = (other for inner, other in arguments.floats if inner is not leaf)
        expected = np.broadcast_to(kept, got.shape)
        subject.same(got, expected, lambda: subject.budget(given), given, f"with {leaf.path} = 0, the result")  # noqa: B023 - called at once
    return True


@checks(law.BESIDE)
def beside(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The features of x, then those of p."""
    return joined_in_order(subject, arguments)
