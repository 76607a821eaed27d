"""Checks of rows without attendable keys, where other results than zero are declared."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import mask_shape
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import live_rows, pooled, sample, wide
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.spec.contract.axes import Part
from attnspec.spec.laws import masking as law

QUERIES = 40
"""Queries of a call that is longer than a tile."""


def evenly(given: Arguments, shape: tuple[int, ...], subject: Subject) -> Numbers:
    """The result of equal weights for all keys, masked or not: all scores are 0."""
    operation = given.operation
    if operation.pooled and not operation.sharpened and operation.attends_to_itself:
        return np.broadcast_to(wide(pooled(given)).mean(-2, keepdims=True), shape)
    return np.broadcast_to(subject.unrounded(with_even_weights(given))[operation.leading.path], shape)


def with_even_weights(given: Arguments) -> Arguments:
    """The call with scores of 0 for all keys and without masks."""
    operation = given.operation
    added = {path for path, part in operation.parts.items() if part in (Part.BIAS, Part.SLOPES)}
    exponents = set(operation.sharpened) or {leaf.path for leaf in operation.queries} | added
    zero = {leaf.path: np.zeros_like(x) for leaf, x in given.floats if leaf.path in exponents}
    return given.replaced(zero).without_masks()


def near_even(rows: Numbers, even: Numbers, subject: Subject) -> Numbers:
    """Mask of rows that equal the average, up to roundings."""
    coarse_unit = max(subject.precision.accumulation, subject.precision.output, subject.precision.operand)
    near: Numbers = np.abs(rows - even) <= 64 * coarse_unit * max(float(np.abs(even).max(initial=0.0)), 1.0)
    return near


@checks(law.ROWS_AS_DECLARED)
def rows_as_declared(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Leave some rows without keys, in the example and in a call of many queries."""
    declared = subject.semantics.without_keys["full"]
    if declared in ("zero", "error"):  # the probe of fully_masked checks that ``error`` raises
        return False
    # No declaration says which keys an average under a causal mask includes.
    arguments = arguments.plain() if declared == "uniform" else arguments
    long = sample(subject, rng, queries=QUERIES, keys=5)
    # With one query or key, a full mask also looks like another encoding.
    one_way = isinstance(subject.semantics.fully_masked, str)
    judged = [_judge_some(subject, given, rng, declared) for given in ((arguments, long) if one_way else (long,))]
    return any(judged)


def _judge_some(subject: Subject, arguments: Arguments, rng: np.random.Generator, declared: str) -> bool:
    """Judge calls in which some rows have no keys, per mask; False without rows."""
    tried = False
    for keys, leaf in subject.operation.masks.items():
        shape = mask_shape(arguments, keys)
        if not np.prod(shape):
            continue
        given = arguments[leaf.path]
        idle = rng.random((*shape[:-1], 1)) < 0.3
        idle.reshape(-1)[int(rng.integers(idle.size))] = True
        masked = arguments.with_mask(np.broadcast_to(True if given is None else given, shape) & ~idle, keys)
        _judge(subject, masked, declared)
        tried = True
    return tried


def _judge(subject: Subject, masked: Arguments, declared: str) -> None:
    got = wide(subject.call(masked))
    dead = np.array(np.broadcast_to(~live_rows(subject, masked), got.shape))
    if declared == "nan":
        expected, right = np.where(dead, np.nan, got), np.isnan(got) == dead
    else:
        expected = np.where(dead, evenly(masked, got.shape, subject), got)
        right = np.isfinite(got) & (~dead | near_even(got, expected, subject))
    if right.all():
        return
    index = tuple(int(i) for i in np.argwhere(~right)[0])
    row = "of a row without attendable keys" if dead[index] else "of a row with attendable keys"
    place = ", ".join(map(str, index))
    message = f"the result[{place}], {row}, is {got[index]:.9g}, where fully_masked is declared {declared}"
    subject.holds(False, message, masked, expected=expected, got=got, index=index)


@checks(law.GRADIENTS, once=True, governs=law.averages_values)
def uniform_rows(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare gradients of values, for cotangents of rows without keys only."""
    if subject.semantics.fully_masked != "uniform":
        return False
    given = sample(subject, rng, (2,), queries=QUERIES, keys=5)
    shape = mask_shape(given)
    idle = rng.random((*shape[:-1], 1)) < 0.3
    idle.reshape(-1)[0] = True
    masked = given.with_mask((rng.random(shape) < 0.6) & ~idle)
    if not subject.in_domain(masked):
        return False
    live = live_rows(subject, masked)
    cotangents = {path: np.where(live, x.dtype.type(0), x) for path, x in subject.cotangents(given, rng).items()}
    # Equal weights are normalized too, so they round like all others.
    expected = subject.gradients(with_even_weights(given), cotangents)
    valued = [leaf.path for leaf in subject.operation.attended if leaf.path in subject.operation.linear]
    found = subject.vjp(masked, cotangents)
    of_values = {path: expected[path] for path in valued if path not in subject.operation.sharpened}
    gradients_match(subject, found, of_values, masked, "of rows without attendable keys,")
    return bool(of_values)
