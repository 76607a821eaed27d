"""Checks of calls that libraries often compute by special paths: long calls, one array.

Results in a mode, or recorded for gradients, must equal those of plain calls; if bits differ, the oracle decides. Short
profiles skip long calls of models, whose ``operation.counts`` names layers. Options of ``@checks``: see ``Check``.
"""

from collections.abc import Iterator

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.sampled_rows import judge_rows
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.attention import of_one_array
from attnspec.conformance.laws.common import bits_equal, sample
from attnspec.conformance.laws.gradient_calls import TILE, accepted_masks, accepts_causal, copied_arrays, restrict
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.conformance.laws.modes import Modes, in_16_bits, modes_of, within
from attnspec.conformance.laws.training import recorded_call
from attnspec.spec.laws import attention
from attnspec.spec.laws import training as law

MANY = TILE + 3
"""Queries and keys: one full tile, and a last tile that is not full."""

MAX_STEPS = 11
"""Steps of the longer sequence; the other has 3."""


def _same_precision_modes(subject: Subject) -> Modes:
    """The modes that keep the rounding of the declared class."""
    stored = in_16_bits(subject) if modes_of(subject) else []
    return {mode: context for mode, context in modes_of(subject).items() if mode not in stored}


def _has_gradients(subject: Subject, function: str) -> bool:
    """Return whether the backend has gradients of the operation, and the function for them."""
    gives = subject.operation.differentiable and subject.limits.gives_gradients(subject.operation.name)
    return gives and getattr(subject.backend, function, None) is not None


@checks(law.SAME_IN_EVERY_MODE, once=True, leading_dtype_only=True, governs=law.may_be_long)
def long_calls(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Make long calls in every mode; record them for the gradients of all arguments."""
    modes, records = _same_precision_modes(subject), _has_gradients(subject, "pullback")
    calls = list(_long_calls(subject, rng)) if modes or records else []
    for label, sampled in calls:
        inputs = subject.converted(sampled)
        for mode, context in modes.items():
            got = within(subject, sampled, inputs, f"in mode {mode}", context)
            _demand_plain(subject, sampled, got, rng, f"in mode {mode}, {label},")
        if records:
            paths = [leaf.path for leaf, _ in sampled.floats]
            copies = copied_arrays(subject, recorded_call(subject, sampled, paths, inputs).result)
            got = subject.demand_shapes(copies, sampled)
            _demand_plain(subject, sampled, got, rng, f"recorded for gradients, {label},")
    return bool(calls)


def _long_calls(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[str, Arguments]]:
    """Labels and long calls: sequences of different lengths, or masked and causal calls."""
    operation = subject.operation
    if operation.counts and not subject.effort.slow:
        return
    batch = (2,)[: subject.limits.max_batch_dims]
    for path, size in operation.lengths.items():
        steps = min(MAX_STEPS, subject.limits.max_length or MAX_STEPS)
        sampled = sample(subject, rng, batch, queries=3, keys=steps, sizes={size: steps})
        if batch and subject.limits.has(path):
            yield f"of {steps} steps at most", sampled.replaced({path: np.array([min(3, steps), steps])})
    if operation.key_size is None or operation.lengths:
        return
    masked, causal = bool(accepted_masks(subject)), accepts_causal(subject)
    sampled = sample(subject, rng, batch, queries=MANY, keys=MANY, heads=2)
    if sampled.size(operation.key_size) <= TILE:
        return
    if masked:
        yield f"of {MANY} keys under a mask", restrict(subject, sampled, rng, causal=False)
    if causal:
        yield f"of {MANY} queries under a causal mask", sampled.under_causal()
    if masked and causal:
        yield f"of {MANY} queries under both masks", restrict(subject, sampled, rng)


def _demand_plain(subject: Subject, arguments: Arguments, got: Results, rng: np.random.Generator, prefix: str) -> None:
    """Demand the bits of a plain call, or else numbers within their budgets."""
    if bits_equal(got, subject.results(arguments)):
        return
    copy = arguments.replaced({})
    copy.memo["results"] = got  # ``judge_rows`` reads cached results
    judge_rows(subject, copy, rng, prefix)


@checks(attention.SAME_ARRAY_PASSED_TWICE, once=True, leading_dtype_only=True, governs=attention.queries_may_be_keys)
def one_array(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass one array as queries, keys and values: in every mode, and for gradients."""
    batch = (2,)[: subject.limits.max_batch_dims]
    unmasked = of_one_array(sample(subject, rng, batch, queries=5, keys=5, heads=2))
    paths = [leaf.path for leaf in (*subject.operation.queries, *subject.operation.attended)]
    first = subject.operation.attended[0].path
    if not all(np.array_equal(unmasked[path], unmasked[first]) for path in paths):
        return False
    for shared in (unmasked, restrict(subject, unmasked, rng)):
        inputs = subject.converted(shared)
        inputs |= dict.fromkeys(paths, inputs[first])
        prefix = f"with one array as {' and '.join(paths)}"
        for mode, context in _same_precision_modes(subject).items():
            got = within(subject, shared, inputs, f"in mode {mode}", context)
            _demand_plain(subject, shared, got, rng, f"{prefix} in mode {mode},")
        if _has_gradients(subject, "vjp"):
            cotangents = subject.cotangents(shared, rng)
            gradients = subject.vjp(shared, cotangents, inputs)
            if not bits_equal(gradients, subject.vjp(shared, cotangents)) and subject.in_domain(shared):
                gradients_match(subject, gradients, subject.gradients(shared, cotangents), shared, f"{prefix},")
    return True
