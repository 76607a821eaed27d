"""What the laws of the training path share: small calls, their cotangents and their gradients."""

import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import mask_shape
from attnspec.conformance.judging.foreign_calls import Raised, call_safely
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws.common import sample
from attnspec.conformance.laws.gradients import Gradients
from attnspec.spec.contract.axes import Axis

FEATURES, COLUMNS = 16, 64
"""Sizes of queries and of values that kernels take in vectors and tiles."""

TILE = 64
"""Keys after which many kernels begin another tile."""

RESTRICTED, MANY_KEYS = "under a mask, ", "with many keys, "
"""Words for lessons."""


class Lesson(NamedTuple):
    """A call, cotangents that are the same for every row, and the gradients to expect."""

    arguments: Arguments
    cotangents: Results
    expected: Gradients


def lesson_of(subject: Subject, arguments: Arguments) -> Lesson | None:
    """A small call without masks: its numbers follow from those of the template, and the laws of a template share it.

    None where a gradient comes close to what the dtype cannot hold.
    """
    return _shared(subject, arguments, "plain", lambda rng: sample(subject, rng, (2,), queries=3, keys=5, heads=2))


def restricted_lesson_of(subject: Subject, arguments: Arguments) -> Lesson | None:
    """A call in which not every query attends to every key, with wide vectors; None where nothing restricts that."""
    if not masks_of(subject) and not causal_in(subject):
        return None
    return _shared(subject, arguments, "restricted", lambda rng: restricted(subject, broad(subject, rng), rng))


def causal_lesson_of(subject: Subject, arguments: Arguments) -> Lesson | None:
    """A causal call without a mask, with wide vectors; None where there is none, or none with a mask beside it."""
    if not causal_in(subject) or not masks_of(subject):
        return None
    return _shared(subject, arguments, "in order", lambda rng: broad(subject, rng).under_causal())


def long_lesson_of(subject: Subject, arguments: Arguments) -> Lesson | None:
    """A call of few queries with more keys than a tile has, with wide vectors; None where there are no such calls.

    Of operations that do more than weigh keys, such as models, there is time for them in longer profiles.
    """
    operation = subject.operation
    if operation.asked is None or subject.fitting(operation.asked, TILE + 2) <= TILE:
        return None
    if not operation.only_weighs_keys and not subject.effort.dear:
        return None
    return _shared(subject, arguments, "long", lambda rng: broad(subject, rng, queries=2, keys=TILE + 2))


def lessons_of(subject: Subject, arguments: Arguments) -> Iterator[tuple[str, Lesson]]:
    """All of them that there are, with words for them."""
    for words, make in (("", lesson_of), (RESTRICTED, restricted_lesson_of), (MANY_KEYS, long_lesson_of)):
        lesson = make(subject, arguments)
        if lesson is not None:
            yield words, lesson


def _shared(
    subject: Subject, arguments: Arguments, name: str, make: Callable[[np.random.Generator], Arguments]
) -> Lesson | None:
    def lesson() -> Lesson | None:
        rng = rng_of(arguments)
        given = make(rng)
        cotangents = {path: _alike(x) for path, x in subject.cotangents(given, rng).items()}
        expected = subject.gradients(given, cotangents)
        return Lesson(given, cotangents, expected) if fits(subject, expected) else None

    return arguments.once(f"training {name} {subject.sampled}", lesson)


def broad(subject: Subject, rng: np.random.Generator, *, queries: int = 3, keys: int = 5) -> Arguments:
    """An unmasked call with queries of 16 features and, where only keys are weighed, values of 64."""
    operation = subject.operation
    columns = operation.sizes_of(Axis.FEATURE)[-1:] if operation.linear and operation.attended else ()
    sizes = {name: subject.fitting(name, COLUMNS) for name in columns}
    return sample(subject, rng, (2,), queries=queries, keys=keys, heads=2, features=FEATURES, sizes=sizes)


def masks_of(subject: Subject) -> list[str]:
    """The sizes of the masks that the backend takes."""
    return [size for size, mask in subject.operation.masks.items() if subject.limits.mask or not mask.optional]


def causal_in(subject: Subject) -> bool:
    """Whether the operation has a causal flag that the backend takes."""
    return subject.operation.flag is not None and subject.limits.causal


def restricted(subject: Subject, given: Arguments, rng: np.random.Generator, *, causal: bool = True) -> Arguments:
    """The same call with a mask of every kind of keys and, unless not wanted, the causal flag, where it takes these.

    Every query may attend to the first key, by a causal mask too, and none to the second. By its mask alone the first
    query may attend to the last key, which a causal mask forbids. The last of three queries has a third key in any
    case: weights of single keys are 1 whatever the scores, which would have gradients of 0.
    """
    for keys in masks_of(subject):
        allowed = rng.random(mask_shape(given, keys)) < 0.6
        allowed[..., :1] = allowed[..., 2:3] = allowed[..., -1:] = True
        allowed[..., 1:2] = False
        given = given.with_mask(allowed, keys)
    return given.under_causal() if causal and causal_in(subject) else given


def rng_of(arguments: Arguments) -> np.random.Generator:
    """A generator that depends on the numbers of the arguments alone."""
    numbers = b"".join(np.ascontiguousarray(x).tobytes() for x in arguments.arrays.values())
    return np.random.Generator(np.random.PCG64(zlib.crc32(numbers)))


def _alike(x: Numbers) -> Numbers:
    """The last row in the place of all."""
    return np.array(np.broadcast_to(x[(-1,) * (x.ndim - 1)], x.shape)) if x.size and x.ndim else x


def fits(subject: Subject, expected: Gradients, scale: float = 1.0) -> bool:
    """Whether the dtype holds these gradients, times a scale, and what they are computed from."""
    return all(np.abs(x).max(initial=0.0) * scale <= subject.precision.largest / 16 for x, _ in expected.values())


def numbers_of(subject: Subject, raw: Any) -> Results:
    """The arrays of a backend's result, copied."""
    found = call_safely(lambda: {path: np.array(x) for path, x in subject.unfolded(raw).items()})
    if isinstance(found, Raised):
        raise Violation(f"to_numpy raised {found.message}", reason=Reason.RAISED)
    return cast(Results, found)


def overwritten(raw: Any) -> bool:
    """Fill an array of a backend with ones; False where it cannot be written to."""
    try:
        raw[...] = 1
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    return True
