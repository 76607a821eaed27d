"""Checks of results recorded for gradients, and of their gradients."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.foreign_calls import Raised, call_safely
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws.common import sample
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.conformance.laws.lessons import MANY_KEYS, RESTRICTED, Lesson, lessons_of, numbers_of, rng_of
from attnspec.spec.laws import training as law

MANY_ROWS, TIMES = 67, 2
"""Queries and keys, enough for several threads, and repetitions of their gradients."""

ALL_AT_MOST, SOME = 3, 2
"""Most arguments of which all subsets are tried; how many of more are alone or omitted."""


def _subsets(lesson: Lesson, words: str, rng: np.random.Generator) -> list[tuple[str, ...]]:
    """Subsets of arguments to record: all non-empty ones, or a selection of many.

    Of many: all, some alone, and all but one; under a mask all, and each batched one; with many keys only all.
    """
    paths = list(lesson.expected)
    if words == MANY_KEYS:
        return [tuple(paths)]
    if len(paths) <= ALL_AT_MOST:
        return [tuple(p for i, p in enumerate(paths) if bits >> i & 1) for bits in range(1, 2 ** len(paths))]
    if words == RESTRICTED:
        return [tuple(paths), *((leaf.path,) for leaf, _ in lesson.arguments.batched if leaf.path in lesson.expected)]
    alone, spared = (rng.permutation(len(paths))[:SOME] for _ in range(2))
    found = [tuple(paths), *((paths[i],) for i in alone)]
    return found + [tuple(p for j, p in enumerate(paths) if j != i) for i in spared]


class Record(NamedTuple):
    """The result of a recorded call, and its backward pass."""

    result: Any
    backward: Callable[[Any], Mapping[str, Any]]


def recorded_call(
    subject: Subject, given: Arguments, wanted: Collection[str], inputs: Mapping[str, Any] | None = None
) -> Record:
    """A call recorded for ``wanted`` arguments; ``inputs`` are the arguments as backend arrays."""
    inputs = subject.converted(given) if inputs is None else inputs
    found = call_safely(lambda: Record(*subject.backend.pullback(subject.operation.name, inputs, wanted)))
    if isinstance(found, Raised):
        raise Violation(f"pullback raised {found.message}", reason=Reason.RAISED, arguments=given)
    return cast(Record, found)


def backward(
    subject: Subject, record: Record, given: Arguments, cotangents: Results, wanted: Collection[str]
) -> Results:
    """The gradients that a record gives; an exception is a violation."""
    cotangent = subject.like_result(cotangents, given)
    return subject.gradients_of(lambda: record.backward(cotangent), given, wanted)


def learning(subject: Subject, arguments: Arguments) -> list[tuple[str, Lesson]]:
    """The lessons with descriptions, if the backend can record."""
    return list(lessons_of(subject, arguments)) if getattr(subject.backend, "pullback", None) else []


class _Trial(NamedTuple):
    """A recorded call: its arguments, results before and after the backward pass, and gradients."""

    wanted: tuple[str, ...]
    before: Results
    gradients: Results
    after: Results


def _trials(subject: Subject, arguments: Arguments) -> list[tuple[str, Lesson, _Trial]]:
    """The lessons, recorded for subsets of arguments, with descriptions."""

    def trials() -> list[tuple[str, Lesson, _Trial]]:
        rng = rng_of(arguments)
        return [
            (words, lesson, _trial(subject, lesson, wanted))
            for words, lesson in learning(subject, arguments)
            for wanted in _subsets(lesson, words, rng)
        ]

    return arguments.once(f"trials {subject.sampled}", trials)


def _trial(subject: Subject, lesson: Lesson, wanted: tuple[str, ...]) -> _Trial:
    record = recorded_call(subject, lesson.arguments, wanted)
    before = subject.shaped(numbers_of(subject, record.result), lesson.arguments)
    found = backward(subject, record, lesson.arguments, lesson.cotangents, wanted)
    return _Trial(wanted, before, found, numbers_of(subject, record.result))


@checks(law.RECORDED, once=True, at_leading=True)
def recorded(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare recorded results with the oracle, before and after a backward pass."""
    trials = _trials(subject, arguments)
    for words, lesson, trial in trials:
        given = lesson.arguments
        expected, budgets = {p: x.value for p, x in subject.oracles(given).items()}, subject.budgets(given)
        what = f"{words}recorded for gradients of {', '.join(trial.wanted)},"
        subject.all_match(trial.before, expected, budgets, given, what)
        subject.all_match(trial.after, expected, budgets, given, f"{what} after the backward pass,")
    return bool(trials)


@checks(law.RECORDED, once=True, at_leading=True)
def subsets(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the gradients of calls recorded for some of their arguments."""
    trials = _trials(subject, arguments)
    for words, lesson, trial in trials:
        what = f"{words}recorded for {', '.join(trial.wanted)},"
        gradients_match(subject, trial.gradients, lesson.expected, lesson.arguments, what)
    return bool(trials)


@checks(law.NO_MEMORY, once=True, at_leading=True)
def second_backward(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Make three backward passes from one record, the second with half the cotangent."""
    lessons = learning(subject, arguments)
    for words, lesson in lessons:
        given, wanted = lesson.arguments, tuple(lesson.expected)
        record = recorded_call(subject, given, wanted)
        halves = {path: x * x.dtype.type(0.5) for path, x in lesson.cotangents.items()}
        for cotangents, scale, what in ((lesson.cotangents, 1.0, "first"), (halves, 0.5, "second"),
                                        (lesson.cotangents, 1.0, "third")):  # fmt: skip
            found = backward(subject, record, given, cotangents, wanted)
            gradients_match(subject, found, lesson.expected, given, f"{words}in the {what} backward pass,", scale)
    return bool(lessons)


@checks(law.NO_MEMORY, once=True, at_leading=True)
def repeatable(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Repeat a backward pass over several tiles of queries and keys; compare bits."""
    if subject.within_budget:
        return False
    long = not subject.operation.counts or subject.effort.slow
    given = sample(subject, rng, (2,), queries=MANY_ROWS if long else 5, keys=MANY_ROWS if long else 5, heads=2)
    cotangents = subject.cotangents(given, rng)
    first = subject.vjp(given, cotangents)
    for _ in range(TIMES):
        again = subject.vjp(given, cotangents)
        for path, g in first.items():
            same = np.array_equal(again[path], g, equal_nan=True)
            message = (
                f"the gradient of {path} has other bits in the same call made again; if that is meant, "
                'declare semantics = {"repeatability": "within-budget"}'
            )
            subject.holds(same, message, given, expected=g, got=again[path])
    return True
