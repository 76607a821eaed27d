"""Checks of the laws of weighted sums of values."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.attendance import attendable
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import (
    average_tolerance,
    coarse,
    filtered_error,
    live_rows,
    normal_like,
    pooled_name,
    smallest_normal,
    wide,
)
from attnspec.conformance.laws.registry import proves
from attnspec.spec.laws import pooling as law


@proves(law.CONVEXITY)
def convexity(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Smallest and largest attendable value, coordinate by coordinate."""
    bottom_right = subject.semantics.causal_alignment == "bottom-right"
    allowed = attendable(arguments, bottom_right=bottom_right)[..., None]
    values = wide(arguments.array(pooled_name(arguments)))
    if "query" in arguments or pooled_name(arguments) == "x":
        values = values[..., None, :, :]
    low = np.where(allowed, values, np.inf).min(axis=-2, initial=np.inf)
    high = np.where(allowed, values, -np.inf).max(axis=-2, initial=-np.inf)
    live = np.broadcast_to(live_rows(subject, arguments), low.shape)
    if not live.any():
        return False
    got = wide(subject.call(arguments))
    slack = average_tolerance(subject, arguments, values)
    with np.errstate(invalid="ignore"):
        outside = live & ~((got >= low - slack) & (got <= high + slack))
    index = tuple(int(i) for i in np.argwhere(outside)[0]) if outside.any() else ()
    subject.holds(
        not outside.any(),
        f"the result {list(index)} is {got[index] if index else 0:.9g}, outside the attendable values",
        arguments,
        expected=np.where(live, np.clip(got, low, high), 0.0),
        got=got,
        budget=np.float64(slack),
    )
    return True


@proves(law.CONSTANTS)
def constants(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """All values replaced by one."""
    value = arguments.array("value")
    if not value.shape[-2]:
        return False
    constant = subject.exact(coarse(3 * rng.standard_normal(value.shape[-1]) + 1, reach=8))
    given = arguments.with_(value=np.broadcast_to(constant, value.shape).copy())
    live = live_rows(subject, given)
    got = wide(subject.call(given))
    slack = average_tolerance(subject, given, constant)
    wrong = live & ~(np.abs(got - wide(constant)) <= slack)
    subject.holds(
        not wrong.any(), "the average of equal values is another value", given,
        expected=np.where(live, wide(constant), 0.0), got=got, budget=np.float64(slack),
    )  # fmt: skip
    return bool(live.any())


@proves(law.ADDITIVITY)
def additivity(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Values on a grid on which the sum is exact."""
    return additive_in(subject, arguments, rng, "value")


@proves(law.WEIGHT_LINEARITY)
def weight_linearity(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Weights on a grid on which the sum is exact."""
    return additive_in(subject, arguments, rng, "weights")


def additive_in(subject: Subject, arguments: Arguments, rng: np.random.Generator, name: str) -> bool:
    """f(x + y) = f(x) + f(y) in one argument."""
    first = subject.exact(coarse(arguments.array(name)))
    second = subject.exact(coarse(2 * rng.standard_normal(first.shape)))
    total = subject.exact(first.astype(np.float64) + second.astype(np.float64))
    parts = [arguments.with_(**{name: x}) for x in (first, second, total)]
    one, two, both = (subject.call(p) for p in parts)
    budget = sum((subject.budget(p) for p in parts), np.zeros(()))
    subject.matches(both, wide(one) + wide(two), budget, parts[2], f"the result for the sum of two {name}s")
    return True


@proves(law.DOUBLING)
def doubling(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Values times 2 and times −1: exact in every binary format."""
    factor = float(rng.choice([2.0, -1.0]))
    value = arguments.array("value")
    changed = arguments.with_(value=subject.exact(factor * value.astype(np.float64)))
    if not subject.in_domain(changed):
        return False
    result = subject.call(arguments)
    expected = subject.exact(factor * result.astype(np.float64)) if subject.dtype != "float64" else factor * result
    if "w_o" in arguments:
        # Projected values and heads may lie below the smallest normal number, and round more coarsely there.
        budget = 3 * subject.budget(arguments)
        subject.matches(
            subject.call(changed), wide(expected), budget, changed, f"of values times {factor:g}, the result"
        )
        return True
    # A result that is not above the smallest normal number may have been rounded more coarsely than its double.
    normal = np.abs(result.astype(np.float64)) > smallest_normal(subject)
    got = np.where(normal, subject.call(changed), expected)
    what = f"of values times {factor:g}, the result"
    subject.same(got, expected, lambda: 2 * subject.budget(arguments), changed, what)
    return True


@proves(law.ZERO_VALUES)
def zero_values(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """All values 0."""
    given = arguments.with_(value=np.zeros_like(arguments.array("value")))
    got = subject.call(given)
    live = live_rows(subject, given) if "mask" in given else np.ones((1,), bool)
    wrong = live & (got != 0)
    subject.holds(not bool(wrong.any()), "values of 0 do not give 0", given, got=got, expected=np.zeros(got.shape))
    return bool(got.size)


@proves(law.GAIN, ensemble=True)
def gain(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The matched filter along the result itself."""
    given = normal_like(subject, arguments, rng)
    return given is not None and filtered_error(subject, given, subject.oracle(given).value, rows_err_alike=True)


@proves(law.UNIFORM)
def uniform(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """All keys replaced by the first one; the mean of the attendable values."""
    key = arguments.array("key")
    if not key.shape[-2]:
        return False
    given = arguments.with_(key=np.broadcast_to(key[..., :1, :], key.shape).copy())
    bottom_right = subject.semantics.causal_alignment == "bottom-right"
    weights = attendable(given, bottom_right=bottom_right).astype(np.float64)
    live = live_rows(subject, given)
    mean = weights @ wide(given.array("value")) / np.maximum(weights.sum(-1, keepdims=True), 1)
    budget = subject.budget(given)
    got = np.where(live, wide(subject.call(given)), 0.0)
    subject.matches(got, np.where(live, mean, 0.0), 2 * budget, given, "for equal keys, the result")
    return True
