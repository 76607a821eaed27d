"""Checks of the laws of the training path: results while gradients are recorded, and their gradients."""

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
"""Queries and keys that several threads share, and how often their gradients are computed again."""

ALL_AT_MOST, SOME = 3, 2
"""Arguments of which every subset is tried; of more, some alone and all but some."""


def _subsets(lesson: Lesson, words: str, rng: np.random.Generator) -> list[tuple[str, ...]]:
    """Every subset that is not empty; of many paths all, some alone, and all but some.

    Of many paths of a call under a mask, those that have a batch are tried alone, and of one with many keys only all.
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
    """A call, recorded for these arguments; ``inputs`` are the arguments as arrays of the backend."""
    inputs = subject.converted(given) if inputs is None else inputs
    found = call_safely(lambda: Record(*subject.backend.pullback(subject.operation.name, inputs, wanted)))
    if isinstance(found, Raised):
        raise Violation(f"pullback raised {found.message}", reason=Reason.RAISED, arguments=given)
    return cast(Record, found)


def backward(
    subject: Subject, record: Record, given: Arguments, cotangents: Results, wanted: Collection[str]
) -> Results:
    """The gradients that a record gives; what it raises is a violation."""
    cotangent = subject.like_result(cotangents, given)
    return subject.gradients_of(lambda: record.backward(cotangent), given, wanted)


def learning(subject: Subject, arguments: Arguments) -> list[tuple[str, Lesson]]:
    """The shared calls, if the backend can record."""
    return list(lessons_of(subject, arguments)) if getattr(subject.backend, "pullback", None) else []


class _Trial(NamedTuple):
    """A call that was recorded for some arguments: its results before and after the backward pass, and gradients."""

    wanted: tuple[str, ...]
    before: Results
    gradients: Results
    after: Results


def _trials(subject: Subject, arguments: Arguments) -> list[tuple[str, Lesson, _Trial]]:
    """Shared calls that were recorded for subsets of arguments, with words for them."""

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
    """Record calls for some of their arguments; compare the results before and after a backward pass."""
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
    """Record calls for some of their arguments; compare the gradients."""
    trials = _trials(subject, arguments)
    for words, lesson, trial in trials:
        what = f"{words}recorded for {', '.join(trial.wanted)},"
        gradients_match(subject, trial.gradients, lesson.expected, lesson.arguments, what)
    return bool(trials)


@checks(law.NO_MEMORY, once=True, at_leading=True)
def second_backward(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Go back twice, with half the cotangent in between."""
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
    """Go back several times from a call of several tiles of queries and keys; the oracle is not asked."""
    if subject.within_budget:
        return False
    long = not subject.operation.counts or subject.effort.dear
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
