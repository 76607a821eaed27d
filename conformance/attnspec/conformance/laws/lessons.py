"""Small calls, their cotangents and their gradients, shared by the laws of training."""

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
"""Widths of queries and values that fill vectors and tiles of kernels."""

TILE = 64
"""Keys after which many kernels begin another tile."""

RESTRICTED, MANY_KEYS = "under a mask, ", "with many keys, "
"""Descriptions of lessons in messages."""


class Lesson(NamedTuple):
    """A call, cotangents that are equal in every row, and the expected gradients."""

    arguments: Arguments
    cotangents: Results
    expected: Gradients


def lesson_of(subject: Subject, arguments: Arguments) -> Lesson | None:
    """A small call without masks, made once per template for all its laws.

    None where a gradient comes close to the overflow of the dtype.
    """
    return _shared(subject, arguments, "plain", lambda rng: sample(subject, rng, (2,), queries=3, keys=5, heads=2))


def restricted_lesson_of(subject: Subject, arguments: Arguments) -> Lesson | None:
    """A call with wide vectors under masks or the causal flag; None if both lack."""
    if not masks_of(subject) and not causal_in(subject):
        return None
    return _shared(subject, arguments, "restricted", lambda rng: restricted(subject, broad(subject, rng), rng))


def causal_lesson_of(subject: Subject, arguments: Arguments) -> Lesson | None:
    """A causal, unmasked call with wide vectors; None unless the backend has both restrictions."""
    if not causal_in(subject) or not masks_of(subject):
        return None
    return _shared(subject, arguments, "in order", lambda rng: broad(subject, rng).under_causal())


def long_lesson_of(subject: Subject, arguments: Arguments) -> Lesson | None:
    """A wide call with few queries and more keys than a tile, or None.

    Operations that do more than weigh keys, such as models, are tried only in long profiles.
    """
    operation = subject.operation
    if operation.asked is None or subject.fitting(operation.asked, TILE + 2) <= TILE:
        return None
    if not operation.only_weighs_keys and not subject.effort.slow:
        return None
    return _shared(subject, arguments, "long", lambda rng: broad(subject, rng, queries=2, keys=TILE + 2))


def lessons_of(subject: Subject, arguments: Arguments) -> Iterator[tuple[str, Lesson]]:
    """All lessons of an operation, with descriptions."""
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
    """An unmasked call with 16 features and, where values enter linearly, 64 value columns."""
    operation = subject.operation
    columns = operation.sizes_of(Axis.FEATURE)[-1:] if operation.linear and operation.attended else ()
    sizes = {name: subject.fitting(name, COLUMNS) for name in columns}
    return sample(subject, rng, (2,), queries=queries, keys=keys, heads=2, features=FEATURES, sizes=sizes)


def masks_of(subject: Subject) -> list[str]:
    """The key axes whose masks the backend accepts."""
    return [size for size, mask in subject.operation.masks.items() if subject.limits.mask or not mask.optional]


def causal_in(subject: Subject) -> bool:
    """Return whether the operation has a causal flag that the backend accepts."""
    return subject.operation.flag is not None and subject.limits.causal


def restricted(subject: Subject, given: Arguments, rng: np.random.Generator, *, causal: bool = True) -> Arguments:
    """The call under every mask and, if ``causal``, the causal flag that it accepts.

    Every query may attend to the first key, by a causal mask too, and none to the second. By its mask alone the first
    query may attend to the last key, which a causal mask forbids. The last of three queries always has a third key: the
    weight of a single key is 1 whatever the scores, so gradients would be 0.
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
    """The array with its last row in place of every row."""
    return np.array(np.broadcast_to(x[(-1,) * (x.ndim - 1)], x.shape)) if x.size and x.ndim else x


def fits(subject: Subject, expected: Gradients, scale: float = 1.0) -> bool:
    """Return whether the dtype holds these gradients, times ``scale``, with a margin of 16."""
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
