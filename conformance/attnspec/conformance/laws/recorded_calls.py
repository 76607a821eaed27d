"""Checks that later calls and writes keep the gradients of a recorded call. Options of ``@checks``: see ``Check``."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.foreign_calls import Raised, call_safely
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import normal_like
from attnspec.conformance.laws.gradient_calls import (
    GradientCall,
    causal_gradient_call,
    overwrite,
    restricted_gradient_call,
)
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.conformance.laws.training import backward, recordable_calls, recorded_call
from attnspec.spec.contract.axes import Role
from attnspec.spec.contract.shapes import results
from attnspec.spec.contract.tree import flatten
from attnspec.spec.laws import training as law

MAX_WRITTEN_WEIGHTS = 2
"""Most weights of a call that are overwritten."""

UNRECORDED = ("no_grad", "inference_mode", "inference")
"""Names of modes that do not record writes, in order of preference."""

Mode = Callable[[], AbstractContextManager[Any]]


@checks(law.INDEPENDENT_OF_OTHER_PASSES, once=True, leading_dtype_only=True)
def interleaved(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Record a call and two others of its shapes; its backward pass comes last.

    The very first call is not recorded: it runs in a mode without gradients, if the backend has one. A graph compiled
    there must not serve recorded calls.
    """
    calls = recordable_calls(subject, arguments)
    mode = _unrecorded_mode(subject) or nullcontext
    for prefix, call in calls:
        sampled, paths = call.arguments, tuple(call.expected)
        others = [x for x in (normal_like(subject, sampled, rng) for _ in range(2)) if x is not None]
        with mode():
            subject.fresh_results(others[0] if others else sampled)
        for order, place in (((sampled, *others), "the first"), ((*others, sampled), "the last")) if others else ():
            records = [(x, recorded_call(subject, x, paths)) for x in order]
            # ``sampled`` is sorted last, so that the gradients compared below are its own.
            for x, record in sorted(records, key=lambda pair: pair[0] is sampled):
                gradients = backward(subject, record, x, call.cotangents, paths)
            gradients_match(subject, gradients, call.expected, sampled, f"{prefix}in {place} of {len(order)} records,")
    return bool(calls)


@checks(law.LATER_WRITES_HAVE_NO_EFFECT, once=True, leading_dtype_only=True)
def later_writes_have_no_effect(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Record a call per array; overwrite the array with ones before the backward pass."""
    written = []
    for call in _calls_to_write_to(subject, arguments):
        weights = {leaf.path for leaf, _ in call.arguments.floats if subject.operation.role(leaf) & Role.WEIGHT}
        unwritten = set(rng.permutation(sorted(weights))[MAX_WRITTEN_WEIGHTS:])
        written += [_write_and_compare(subject, call, path) for path in call.arguments.arrays if path not in unwritten]
        mode = _unrecorded_mode(subject)
        if mode is not None:
            written += [_write_and_compare(subject, call, leaf.path, mode) for leaf in subject.operation.outputs]
    return any(written)


def _calls_to_write_to(subject: Subject, arguments: Arguments) -> list[GradientCall]:
    """The call under masks and the causal flag; without either, the small call.

    Long profiles take all calls of operations that only weigh keys, such as attention.
    """
    calls = [call for _, call in recordable_calls(subject, arguments)]
    restricted = restricted_gradient_call(subject, arguments)
    if not calls or restricted is None:
        return calls[:1]
    if not subject.effort.slow or not subject.operation.only_weighs_keys:
        return [restricted]
    causal_call = causal_gradient_call(subject, arguments)
    return calls if causal_call is None else [*calls, causal_call]


def _unrecorded_mode(subject: Subject) -> Mode | None:
    modes_of_backend = getattr(subject.backend, "modes", None)
    contexts = {} if modes_of_backend is None else modes_of_backend(subject.dtype, device=subject.device)
    return next((contexts[mode] for mode in UNRECORDED if mode in contexts), None)


def _write_and_compare(subject: Subject, call: GradientCall, path: str, mode: Mode | None = None) -> bool:
    """Record a call, overwrite an array, compare gradients; False for read-only arrays.

    With a ``mode``, the array is a result, overwritten in that mode; else an argument. The backward pass may raise.
    """
    arguments, paths = call.arguments, tuple(call.expected)
    inputs = subject.converted(arguments)
    record = recorded_call(subject, arguments, paths, inputs)
    if mode is None:
        written = overwrite(flatten(inputs)[path])
    else:
        with mode():
            written = overwrite({leaf.path: x for leaf, x in results(subject.operation, record.result)}[path])
    if not written:
        return False
    cotangent = subject.like_result(call.cotangents, arguments)
    backward_result = subject.noted(call_safely(lambda: record.backward(cotangent)), "backward raised", arguments)
    if not isinstance(backward_result, Raised):
        gradients = subject.gradients_of(lambda: backward_result, arguments, paths)
        gradients_match(subject, gradients, call.expected, arguments, f"after a later write to {path},")
    return True
