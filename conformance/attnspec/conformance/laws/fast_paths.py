"""Checks of calls for which libraries have fast paths, in every mode and recorded.

Results are compared with those of plain calls, and with the oracle only where bits differ.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.rows import judge
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.attention import of_one_array
from attnspec.conformance.laws.common import sample
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.conformance.laws.lessons import TILE, causal_in, masks_of, numbers_of, restricted
from attnspec.conformance.laws.modes import Modes, in_16_bits, modes_of, within
from attnspec.conformance.laws.training import recorded_call
from attnspec.spec.laws import attention
from attnspec.spec.laws import training as law

LONG = TILE + 3
"""Queries and keys: one full tile, and a last tile that is not full."""

STEPS = 11
"""Steps of the longest sequence."""


def _modes(subject: Subject) -> Modes:
    """The modes that round as the declared class does."""
    stored = in_16_bits(subject) if modes_of(subject) else []
    return {mode: context for mode, context in modes_of(subject).items() if mode not in stored}


def _learns(subject: Subject, function: str) -> bool:
    """Return whether the backend declares gradients of this operation and has this function."""
    gives = subject.operation.differentiable and subject.limits.gives_gradients(subject.operation.name)
    return gives and getattr(subject.backend, function, None) is not None


def _same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return all(np.array_equal(found[path], x, equal_nan=x.dtype.kind not in "biu") for path, x in expected.items())


@checks(law.MODES, once=True, at_leading=True, governs=law.may_be_long)
def long_calls(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Make long calls in every mode, and recorded for all arguments."""
    modes, records = _modes(subject), _learns(subject, "pullback")
    calls = list(_long(subject, rng)) if modes or records else []
    for words, given in calls:
        inputs = subject.converted(given)
        for mode, context in modes.items():
            got = within(subject, given, inputs, f"in mode {mode}", context)
            _as_otherwise(subject, given, got, rng, f"in mode {mode}, {words},")
        if records:
            wanted = [leaf.path for leaf, _ in given.floats]
            got = numbers_of(subject, recorded_call(subject, given, wanted, inputs).result)
            _as_otherwise(subject, given, subject.shaped(got, given), rng, f"recorded for gradients, {words},")
    return bool(calls)


def _long(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[str, Arguments]]:
    """Long calls with descriptions: sequences of different lengths, or every kind of mask."""
    operation = subject.operation
    if operation.counts and not subject.effort.slow:
        return
    batch = (2,)[: subject.limits.max_batch_dims]
    for path, size in operation.lengths.items():
        steps = min(STEPS, subject.limits.max_length or STEPS)
        given = sample(subject, rng, batch, queries=3, keys=steps, sizes={size: steps})
        if batch and subject.limits.has(path):
            yield f"of {steps} steps at most", given.replaced({path: np.array([min(3, steps), steps])})
    if operation.asked is None or operation.lengths:
        return
    masked, causal = bool(masks_of(subject)), causal_in(subject)
    given = sample(subject, rng, batch, queries=LONG, keys=LONG, heads=2)
    if given.size(operation.asked) <= TILE:
        return
    if masked:
        yield f"of {LONG} keys under a mask", restricted(subject, given, rng, causal=False)
    if causal:
        yield f"of {LONG} queries where it is causal", given.under_causal()
    if masked and causal:
        yield f"of {LONG} queries where it is masked and causal", restricted(subject, given, rng)


def _as_otherwise(subject: Subject, given: Arguments, got: Results, rng: np.random.Generator, what: str) -> None:
    """Demand the bits of a plain call, or else numbers that follow the formula."""
    if _same(got, subject.results(given)):
        return
    other = given.replaced({})
    other.memo["results"] = got
    judge(subject, other, rng, what)


@checks(attention.SHARED_INPUTS, once=True, at_leading=True, governs=attention.shares_all)
def one_array(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass one array as queries, keys and values, in every mode and for gradients."""
    batch = (2,)[: subject.limits.max_batch_dims]
    plain = of_one_array(sample(subject, rng, batch, queries=5, keys=5, heads=2))
    paths = [leaf.path for leaf in (*subject.operation.queries, *subject.operation.attended)]
    first = subject.operation.attended[0].path
    if not all(np.array_equal(plain[path], plain[first]) for path in paths):
        return False
    for given in (plain, restricted(subject, plain, rng)):
        inputs = subject.converted(given)
        inputs |= dict.fromkeys(paths, inputs[first])
        what = f"with one array as {' and '.join(paths)}"
        for mode, context in _modes(subject).items():
            got = within(subject, given, inputs, f"in mode {mode}", context)
            _as_otherwise(subject, given, got, rng, f"{what} in mode {mode},")
        if _learns(subject, "vjp"):
            cotangents = subject.cotangents(given, rng)
            found = subject.vjp(given, cotangents, inputs)
            if not _same(found, subject.vjp(given, cotangents)) and subject.in_domain(given):
                gradients_match(subject, found, subject.gradients(given, cotangents), given, f"{what},")
    return True
