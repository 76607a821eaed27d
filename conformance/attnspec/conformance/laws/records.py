"""Checks that nothing between a recorded call and its backward pass changes gradients."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.foreign_calls import Raised, call_safely
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import normal_like
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.conformance.laws.lessons import Lesson, causal_lesson_of, overwritten, restricted_lesson_of
from attnspec.conformance.laws.training import backward, learning, recorded_call
from attnspec.spec.contract.axes import Role
from attnspec.spec.contract.shapes import results
from attnspec.spec.contract.tree import flatten
from attnspec.spec.laws import training as law

FEW = 2
"""Most weights that are written to."""

UNRECORDED = ("no_grad", "inference_mode", "inference")
"""Modes that do not record writes, in order of preference."""

Mode = Callable[[], AbstractContextManager[Any]]


@checks(law.NO_MEMORY, once=True, at_leading=True)
def interleaved(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Record a call and two others of its shapes, and go back from it last.

    One call is made without a record, before all others: in a mode without gradients, if the backend has one.
    """
    lessons = learning(subject, arguments)
    mode = _unrecorded(subject) or nullcontext
    for words, lesson in lessons:
        given, wanted = lesson.arguments, tuple(lesson.expected)
        others = [x for x in (normal_like(subject, given, rng) for _ in range(2)) if x is not None]
        with mode():
            subject.call_anew(others[0] if others else given)
        for order, what in (((given, *others), "the first"), ((*others, given), "the last")) if others else ():
            records = [(x, recorded_call(subject, x, wanted)) for x in order]
            for x, record in sorted(records, key=lambda pair: pair[0] is given):
                found = backward(subject, record, x, lesson.cotangents, wanted)
            gradients_match(subject, found, lesson.expected, given, f"{words}in {what} of {len(order)} records,")
    return bool(lessons)


@checks(law.LATER_WRITES, once=True, at_leading=True)
def later_writes(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Record a call anew for each array, and overwrite it with ones before the backward pass."""
    tried = []
    for lesson in _to_write_to(subject, arguments):
        weights = {leaf.path for leaf, _ in lesson.arguments.floats if subject.operation.role(leaf) & Role.WEIGHT}
        spared = set(rng.permutation(sorted(weights))[FEW:])
        tried += [_written(subject, lesson, path) for path in lesson.arguments.arrays if path not in spared]
        mode = _unrecorded(subject)
        if mode is not None:
            tried += [_written(subject, lesson, leaf.path, mode) for leaf in subject.operation.outputs]
    return any(tried)


def _to_write_to(subject: Subject, arguments: Arguments) -> list[Lesson]:
    """The masked call; in longer profiles, if only keys are weighed, all calls."""
    lessons = [lesson for _, lesson in learning(subject, arguments)]
    restricted = restricted_lesson_of(subject, arguments)
    if not lessons or restricted is None:
        return lessons[:1]
    if not subject.effort.slow or not subject.operation.only_weighs_keys:
        return [restricted]
    causal = causal_lesson_of(subject, arguments)
    return lessons if causal is None else [*lessons, causal]


def _unrecorded(subject: Subject) -> Mode | None:
    found = getattr(subject.backend, "modes", None)
    named = {} if found is None else found(subject.dtype, device=subject.device)
    return next((named[mode] for mode in UNRECORDED if mode in named), None)


def _written(subject: Subject, lesson: Lesson, path: str, mode: Mode | None = None) -> bool:
    """Record a call, overwrite one array, and go back; False if arrays are read-only.

    With a ``mode`` it overwrites a result, not an argument. The backward pass may raise.
    """
    given, wanted = lesson.arguments, tuple(lesson.expected)
    inputs = subject.converted(given)
    record = recorded_call(subject, given, wanted, inputs)
    if mode is None:
        done = overwritten(flatten(inputs)[path])
    else:
        with mode():
            done = overwritten({leaf.path: x for leaf, x in results(subject.operation, record.result)}[path])
    if not done:
        return False
    cotangent = subject.like_result(lesson.cotangents, given)
    found = call_safely(lambda: record.backward(cotangent))
    if not isinstance(found, Raised):
        numbers = subject.gradients_of(lambda: found, given, wanted)
        gradients_match(subject, numbers, lesson.expected, given, f"after a later write to {path},")
    return True
