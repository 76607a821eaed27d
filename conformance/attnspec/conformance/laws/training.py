"""Checks of recorded calls: their results and their gradients. Options of ``@checks``: see ``Check``."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.foreign_calls import Raised, call_safely
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws.common import sample
from attnspec.conformance.laws.gradient_calls import (
    MANY_KEYS,
    RESTRICTED,
    GradientCall,
    copied_arrays,
    gradient_calls,
    rng_from_numbers,
)
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.spec.laws import training as law

MANY_ROWS, REPETITIONS = 67, 2
"""Number of queries and of keys, enough for several threads; repetitions of a backward pass."""

MAX_ARGUMENTS, SELECTED = 3, 2
"""Most arguments for which all subsets are tried; number of arguments tried alone or omitted."""


def _subsets(call: GradientCall, prefix: str, rng: np.random.Generator) -> list[tuple[str, ...]]:
    """Subsets of arguments to record for gradients.

    At most three arguments: all non-empty subsets. More: all of them, two alone, all but one twice. Under a mask: all,
    and each batched argument alone. With many keys: all.
    """
    paths = list(call.expected)
    if prefix == MANY_KEYS:
        return [tuple(paths)]
    if len(paths) <= MAX_ARGUMENTS:
        return [tuple(path for i, path in enumerate(paths) if bits >> i & 1) for bits in range(1, 2 ** len(paths))]
    if prefix == RESTRICTED:
        return [tuple(paths), *((leaf.path,) for leaf, _ in call.arguments.batched if leaf.path in call.expected)]
    alone_numbers, omitted_numbers = (rng.permutation(len(paths))[:SELECTED] for _ in range(2))
    subsets_of_paths = [tuple(paths), *((paths[i],) for i in alone_numbers)]
    return subsets_of_paths + [tuple(path for j, path in enumerate(paths) if j != i) for i in omitted_numbers]


class RecordedCall(NamedTuple):
    """A call recorded by ``pullback``: its result, and its backward pass."""

    result: Any
    backward: Callable[[Any], Mapping[str, Any]]


def recorded_call(
    subject: Subject, arguments: Arguments, paths: Collection[str], inputs: Mapping[str, Any] | None = None
) -> RecordedCall:
    """Record a call for the gradients of ``paths``; ``inputs`` are its backend arrays."""
    inputs = subject.converted(arguments) if inputs is None else inputs
    call = partial(subject.backend.pullback, subject.operation.name, inputs, paths)
    record = subject.noted(call_safely(lambda: RecordedCall(*call())), "pullback raised", arguments)
    if isinstance(record, Raised):
        raise Violation(f"pullback raised {record.message}", reason=Reason.RAISED, arguments=arguments)
    return cast(RecordedCall, record)


def backward(
    subject: Subject, record: RecordedCall, arguments: Arguments, cotangents: Results, paths: Collection[str]
) -> Results:
    """The gradients of a recorded call; an exception is a violation."""
    cotangent = subject.like_result(cotangents, arguments)
    return subject.gradients_of(lambda: record.backward(cotangent), arguments, paths)


def recordable_calls(subject: Subject, arguments: Arguments) -> list[tuple[str, GradientCall]]:
    """Prefixes and calls to record; none if the backend has no ``pullback``."""
    return list(gradient_calls(subject, arguments)) if getattr(subject.backend, "pullback", None) else []


class _RecordedTrial(NamedTuple):
    """A recorded call: results before and after its backward pass, and its gradients."""

    paths: tuple[str, ...]
    before: Results
    gradients: Results
    after: Results


def _recorded_trials(subject: Subject, arguments: Arguments) -> list[tuple[str, GradientCall, _RecordedTrial]]:
    """Prefixes and calls, recorded for subsets of arguments, cached per template."""

    def trials() -> list[tuple[str, GradientCall, _RecordedTrial]]:
        rng = rng_from_numbers(arguments)
        return [
            (prefix, call, _recorded_trial(subject, call, paths))
            for prefix, call in recordable_calls(subject, arguments)
            for paths in _subsets(call, prefix, rng)
        ]

    return arguments.once(f"trials {subject.sampled}", trials)


def _recorded_trial(subject: Subject, call: GradientCall, paths: tuple[str, ...]) -> _RecordedTrial:
    record = recorded_call(subject, call.arguments, paths)
    before = subject.demand_shapes(copied_arrays(subject, record.result), call.arguments)
    gradients = backward(subject, record, call.arguments, call.cotangents, paths)
    return _RecordedTrial(paths, before, gradients, copied_arrays(subject, record.result))


@checks(law.RECORDING_CHANGES_NOTHING, once=True, leading_dtype_only=True)
def recording_changes_nothing(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare recorded results with the oracle, before and after a backward pass."""
    trials = _recorded_trials(subject, arguments)
    for prefix, call, trial in trials:
        sampled = call.arguments
        expected, budgets = ({path: x.value for path, x in subject.oracles(sampled).items()}, subject.budgets(sampled))
        title = f"{prefix}recorded for gradients of {', '.join(trial.paths)},"
        subject.all_match(trial.before, expected, budgets, sampled, title)
        subject.all_match(trial.after, expected, budgets, sampled, f"{title} after the backward pass,")
    return bool(trials)


@checks(law.RECORDING_CHANGES_NOTHING, once=True, leading_dtype_only=True)
def subsets(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the gradients of calls recorded for subsets of their arguments."""
    trials = _recorded_trials(subject, arguments)
    for prefix, call, trial in trials:
        title = f"{prefix}recorded for {', '.join(trial.paths)},"
        gradients_match(subject, trial.gradients, call.expected, call.arguments, title)
    return bool(trials)


@checks(law.INDEPENDENT_OF_OTHER_PASSES, once=True, leading_dtype_only=True)
def second_backward(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Make three backward passes of one recorded call, the second with half the cotangent."""
    calls = recordable_calls(subject, arguments)
    for prefix, call in calls:
        sampled, paths = call.arguments, tuple(call.expected)
        record = recorded_call(subject, sampled, paths)
        halves = {path: x * x.dtype.type(0.5) for path, x in call.cotangents.items()}
        for cotangents, scale, which in ((call.cotangents, 1.0, "first"), (halves, 0.5, "second"),
                                        (call.cotangents, 1.0, "third")):  # fmt: skip
            gradients = backward(subject, record, sampled, cotangents, paths)
            gradients_match(subject, gradients, call.expected, sampled, f"{prefix}in the {which} backward pass,", scale)
    return bool(calls)


@checks(law.INDEPENDENT_OF_OTHER_PASSES, once=True, leading_dtype_only=True)
def repeatable(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Repeat a backward pass over several tiles of queries and keys; compare bits."""
    if subject.within_budget:
        return False
    long = not subject.operation.counts or subject.effort.slow
    sampled = sample(subject, rng, (2,), queries=MANY_ROWS if long else 5, keys=MANY_ROWS if long else 5, heads=2)
    cotangents = subject.cotangents(sampled, rng)
    first = subject.vjp(sampled, cotangents)
    for _ in range(REPETITIONS):
        again = subject.vjp(sampled, cotangents)
        for path, gradient in first.items():
            same = np.array_equal(again[path], gradient, equal_nan=True)
            message = (
                f"the gradient of {path} has other bits when the call is repeated; if that is meant, "
                'declare semantics = {"repeatability": "within-budget"}'
            )
            subject.demand(same, message, sampled, expected=gradient, got=again[path])
    return True
