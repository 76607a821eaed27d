"""Checks of the laws of the training path: results in every mode, while gradients are recorded, and their gradients."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, cast

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.foreign_calls import Raised, call_safely
from attnspec.conformance.judging.left_out import demand_declared
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws.common import sample
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.conformance.laws.lessons import Lesson, lesson_of, numbers_of, rng_of
from attnspec.conformance.laws.registry import checks
from attnspec.spec.laws import training as law

ALL_AT_MOST, SOME = 3, 2
"""Arguments of which every subset is tried; of more, some alone and all but some."""


@checks(law.MODES, once=True, at_leading=True)
def modes(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Call in every mode that the backend names."""
    found = getattr(subject.backend, "modes", None)
    if found is None:
        return False
    # An example of the run may be of zeros, or have no rows, and would not tell one mode from another.
    normal = sample(subject, rng, (2,)[: subject.limits.max_batch_dims], queries=3, keys=5)
    given = arguments if subject.in_domain(arguments) and not subject.in_domain(normal) else normal
    if subject.refuses(given):
        return False
    expected, budgets = {p: x.value for p, x in subject.oracles(given).items()}, subject.budgets(given)
    named = found(subject.dtype if subject.operation.floats else subject.default_dtype, device=subject.device)
    for mode, context in named.items():
        subject.all_match(_within(subject, given, mode, context), expected, budgets, given, f"in mode {mode},")
    return bool(named)


def _within(
    subject: Subject, given: Arguments, mode: str, context: Callable[[], AbstractContextManager[Any]]
) -> Results:
    demand_declared(subject.limits, subject.semantics, given)

    def call() -> Results:
        with context():
            return cast(Results, subject.unfolded(subject.invoke(subject.converted(given))))

    got = call_safely(call)
    if isinstance(got, Raised):
        raise Violation(f"in mode {mode}: raised {got.message}", reason=Reason.RAISED, arguments=given)
    return subject.shaped(cast(Results, got), given)


def _subsets(paths: list[str], rng: np.random.Generator) -> list[tuple[str, ...]]:
    """Every subset that is not empty; of many paths all, some alone, and all but some."""
    if len(paths) <= ALL_AT_MOST:
        return [tuple(p for i, p in enumerate(paths) if bits >> i & 1) for bits in range(1, 2 ** len(paths))]
    alone, spared = (rng.permutation(len(paths))[:SOME] for _ in range(2))
    found = [tuple(paths), *((paths[i],) for i in alone)]
    return found + [tuple(p for j, p in enumerate(paths) if j != i) for i in spared]


class _Record(NamedTuple):
    """The result of a recorded call, and its backward pass."""

    result: Any
    backward: Callable[[Any], Mapping[str, Any]]


def _recorded(subject: Subject, given: Arguments, wanted: Collection[str]) -> _Record:
    inputs = subject.converted(given)
    found = call_safely(lambda: _Record(*subject.backend.pullback(subject.operation.name, inputs, wanted)))
    if isinstance(found, Raised):
        raise Violation(f"pullback raised {found.message}", reason=Reason.RAISED, arguments=given)
    return cast(_Record, found)


def _backward(
    subject: Subject, record: _Record, given: Arguments, cotangents: Results, wanted: Collection[str]
) -> Results:
    cotangent = subject.like_result(cotangents, given)
    return subject.gradients_of(lambda: record.backward(cotangent), given, wanted)


def _learning(subject: Subject, arguments: Arguments) -> Lesson | None:
    """The shared call, if the backend can record."""
    return lesson_of(subject, arguments) if getattr(subject.backend, "pullback", None) else None


class _Trial(NamedTuple):
    """A call that was recorded for some arguments: its results before and after the backward pass, and gradients."""

    wanted: tuple[str, ...]
    before: Results
    gradients: Results
    after: Results


def _trials(subject: Subject, arguments: Arguments, lesson: Lesson) -> list[_Trial]:
    """Calls that were recorded for every subset of arguments."""
    if "trials" not in arguments.memo:
        made = _subsets(list(lesson.expected), rng_of(arguments))
        arguments.memo["trials"] = [_trial(subject, lesson, wanted) for wanted in made]
    return cast("list[_Trial]", arguments.memo["trials"])


def _trial(subject: Subject, lesson: Lesson, wanted: tuple[str, ...]) -> _Trial:
    record = _recorded(subject, lesson.arguments, wanted)
    before = subject.shaped(numbers_of(subject, record.result), lesson.arguments)
    found = _backward(subject, record, lesson.arguments, lesson.cotangents, wanted)
    return _Trial(wanted, before, found, numbers_of(subject, record.result))


@checks(law.RECORDED, once=True, at_leading=True)
def recorded(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Record the call for some of its arguments; compare the result before and after a backward pass."""
    lesson = _learning(subject, arguments)
    if lesson is None:
        return False
    given = lesson.arguments
    expected, budgets = {p: x.value for p, x in subject.oracles(given).items()}, subject.budgets(given)
    for trial in _trials(subject, arguments, lesson):
        what = f"recorded for gradients of {', '.join(trial.wanted)},"
        subject.all_match(trial.before, expected, budgets, given, what)
        subject.all_match(trial.after, expected, budgets, given, f"{what} after the backward pass,")
    return True


@checks(law.SUBSETS, once=True, at_leading=True)
def subsets(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Record the call for some of its arguments; compare the gradients."""
    lesson = _learning(subject, arguments)
    if lesson is None:
        return False
    for trial in _trials(subject, arguments, lesson):
        what = f"recorded for {', '.join(trial.wanted)},"
        gradients_match(subject, trial.gradients, lesson.expected, lesson.arguments, what)
    return True


@checks(law.SECOND_BACKWARD, once=True, at_leading=True)
def second_backward(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Go back twice, with half the cotangent in between."""
    lesson = _learning(subject, arguments)
    if lesson is None:
        return False
    given, wanted = lesson.arguments, tuple(lesson.expected)
    record = _recorded(subject, given, wanted)
    halves = {path: x * x.dtype.type(0.5) for path, x in lesson.cotangents.items()}
    for cotangents, scale, what in ((lesson.cotangents, 1.0, "first"), (halves, 0.5, "second"),
                                    (lesson.cotangents, 1.0, "third")):  # fmt: skip
        found = _backward(subject, record, given, cotangents, wanted)
        gradients_match(subject, found, lesson.expected, given, f"in the {what} backward pass,", scale)
    return True
