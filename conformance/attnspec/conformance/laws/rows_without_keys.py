"""Checks of rows without attendable keys, where NaN or averages are declared. Options of ``@checks``: see ``Check``."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import mask_shape
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import live_rows, pooled_rows, sample, wide
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.spec.contract.axes import ScoreEffect
from attnspec.spec.laws import masking as law

QUERIES = 40
"""Number of queries, more than a tile of 16 or 32 has."""


def result_of_equal_weights(arguments: Arguments, shape: tuple[int, ...], subject: Subject) -> Numbers:
    """The result with equal weights for all keys, masked keys included."""
    operation = arguments.operation
    # These conditions select ``self_attention``: its input gives the scores and is averaged, so it must not become 0.
    if operation.pooled and not operation.scores_scale_with and operation.attends_to_itself:
        return np.broadcast_to(wide(pooled_rows(arguments)).mean(-2, keepdims=True), shape)
    return np.broadcast_to(subject.oracle_values(with_even_weights(arguments))[operation.leading.path], shape)


def with_even_weights(arguments: Arguments) -> Arguments:
    """The call without masks and with scores of 0.

    Arguments with which all scores scale become 0, such as the query of dot products; without any, queries and added
    terms do, as in ``grouped_query_attention``. In stacks of layers this changes more than scores.
    """
    operation = arguments.operation
    score_terms = {path for path, part in operation.parts.items() if part in (ScoreEffect.BIAS, ScoreEffect.SLOPES)}
    zeroed_paths = set(operation.scores_scale_with) or {leaf.path for leaf in operation.queries} | score_terms
    zeroed = {leaf.path: np.zeros_like(x) for leaf, x in arguments.floats if leaf.path in zeroed_paths}
    return arguments.replaced(zeroed).without_masks()


def equals_average(rows: Numbers, average: Numbers, subject: Subject) -> Numbers:
    """Mask of the numbers that equal ``average``, up to roundings."""
    # No budget covers rows without keys: the oracle has the normative result there, or leaves them open.
    coarse_unit = max(subject.precision.accumulation, subject.precision.output, subject.precision.operand)
    near: Numbers = np.abs(rows - average) <= 64 * coarse_unit * max(float(np.abs(average).max(initial=0.0)), 1.0)
    return near


@checks(law.ROWS_WITHOUT_KEYS_AS_DECLARED)
def rows_without_keys_as_declared(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Leave some rows without keys: in the example, and in a call with 40 queries."""
    declared = subject.semantics.without_keys["full"]
    if declared in ("zero", "error"):  # the probe of fully_masked checks that ``error`` raises
        return False
    # Under a causal mask, no declaration tells which keys an average includes.
    arguments = arguments.unordered() if declared == "uniform" else arguments
    long = sample(subject, rng, queries=QUERIES, keys=5)
    # If choices depend on the mask's encoding, the example is skipped: with one query or key, encodings look alike.
    one_choice = isinstance(subject.semantics.fully_masked, str)
    calls = (arguments, long) if one_choice else (long,)
    tried = [_judge_masks(subject, call, rng, declared) for call in calls]
    return any(tried)


def _judge_masks(subject: Subject, arguments: Arguments, rng: np.random.Generator, declared: str) -> bool:
    """Judge a call per mask in which some rows have no keys; False without rows."""
    tried = False
    for keys, leaf in subject.operation.masks.items():
        shape = mask_shape(arguments, keys)
        if not np.prod(shape):
            continue
        mask = arguments[leaf.path]
        empty_rows = rng.random((*shape[:-1], 1)) < 0.3
        empty_rows.reshape(-1)[int(rng.integers(empty_rows.size))] = True
        masked = arguments.with_mask(np.broadcast_to(True if mask is None else mask, shape) & ~empty_rows, keys)
        _judge_empty_rows(subject, masked, declared)
        tried = True
    return tried


def _judge_empty_rows(subject: Subject, arguments: Arguments, declared: str) -> None:
    got = wide(subject.call(arguments))
    empty = np.array(np.broadcast_to(~live_rows(subject, arguments), got.shape))
    if declared == "nan":
        expected, correct = np.where(empty, np.nan, got), np.isnan(got) == empty
    else:
        expected = np.where(empty, result_of_equal_weights(arguments, got.shape, subject), got)
        correct = np.isfinite(got) & (~empty | equals_average(got, expected, subject))
    if correct.all():
        return
    index = tuple(int(i) for i in np.argwhere(~correct)[0])
    row = "of a row without attendable keys" if empty[index] else "of a row with attendable keys"
    position = ", ".join(map(str, index))
    message = f"the result[{position}], {row}, is {got[index]:.9g}, where fully_masked is declared {declared}"
    subject.demand(False, message, arguments, expected=expected, got=got, index=index)


@checks(law.MASKED_GETS_NO_GRADIENT, once=True, governs=law.averages_values)
def uniform_rows(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare gradients of values; only rows without keys have cotangents."""
    if subject.semantics.fully_masked != "uniform":
        return False
    sampled = sample(subject, rng, (2,), queries=QUERIES, keys=5)
    shape = mask_shape(sampled)
    empty_rows = rng.random((*shape[:-1], 1)) < 0.3
    empty_rows.reshape(-1)[0] = True
    masked = sampled.with_mask((rng.random(shape) < 0.6) & ~empty_rows)
    if not subject.in_domain(masked):
        return False
    live = live_rows(subject, masked)
    cotangents = {path: np.where(live, x.dtype.type(0), x) for path, x in subject.cotangents(sampled, rng).items()}
    # Backends normalize equal weights too, so budgets are those of a call without masks.
    expected = subject.gradients(with_even_weights(sampled), cotangents)
    value_paths = [leaf.path for leaf in subject.operation.attended if leaf.path in subject.operation.linear]
    gradients = subject.vjp(masked, cotangents)
    of_values = {path: expected[path] for path in value_paths if path not in subject.operation.scores_scale_with}
    gradients_match(subject, gradients, of_values, masked, "of rows without attendable keys,")
    return bool(of_values)
