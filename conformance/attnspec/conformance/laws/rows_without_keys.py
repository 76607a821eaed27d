"""Checks of rows without attendable keys, where NaN or averages are declared. Options of ``@checks``: see ``Check``."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.attendance import mask_shape
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.left_open import always_causal_keys
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import live_rows, sample, wide
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.reference.budget import Judged
from attnspec.spec.laws import masking as law

QUERIES = 40
"""Number of queries, more than a tile of 16 or 32 has."""


def oracle_of_averages(arguments: Arguments, subject: Subject) -> Judged:
    """The leading result if rows without attendable keys weigh all keys equally."""
    choices = {**subject.choices, "fully_masked": "uniform"}
    return subject.normative_oracles(arguments, choices=choices)[subject.operation.leading.path]


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
    for keys, leaf in subject.operation.emptying_masks.items():
        if declared == "uniform" and keys == always_causal_keys(subject.operation):
            continue
        shape = mask_shape(arguments, keys)
        if not np.prod(shape):
            continue
        mask = arguments[leaf.path]
        empty_rows = rng.random((*shape[:-1], 1)) < 0.3
        empty_rows.reshape(-1)[int(rng.integers(empty_rows.size))] = True
        # Under a partial mask, an average over the keys of another row differs from one over all keys.
        allowed = rng.random(shape) < 0.6 if mask is None else mask
        masked = arguments.with_mask(allowed & ~empty_rows, keys)
        _judge_empty_rows(subject, masked, declared)
        tried = True
    return tried


def _judge_empty_rows(subject: Subject, arguments: Arguments, declared: str) -> None:
    got = wide(subject.call(arguments))
    empty = np.array(np.broadcast_to(~live_rows(subject, arguments), got.shape))
    if declared == "nan":
        expected, correct = np.where(empty, np.nan, got), np.isnan(got) == empty
    else:
        average = oracle_of_averages(arguments, subject)
        expected = np.where(empty, average.value, got)
        correct = np.isfinite(got) & (np.abs(got - expected) <= average.budget)
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
    expected = subject.gradients(masked, cotangents)
    value_paths = [leaf.path for leaf in subject.operation.attended if leaf.path in subject.operation.linear]
    gradients = subject.vjp(masked, cotangents)
    of_values = {path: expected[path] for path in value_paths if path not in subject.operation.scores_scale_with}
    gradients_match(subject, gradients, of_values, masked, "of rows without attendable keys,")
    return bool(of_values)
