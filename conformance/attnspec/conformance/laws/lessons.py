"""What the laws of the training path share: one small call, its cotangents and its gradients."""

import zlib
from typing import Any, NamedTuple, cast

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.foreign_calls import Raised, call_safely
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws.common import sample
from attnspec.conformance.laws.gradients import Gradients


class Lesson(NamedTuple):
    """A small call without masks, cotangents that are the same for every row, and the gradients to expect."""

    arguments: Arguments
    cotangents: Results
    expected: Gradients


def lesson_of(subject: Subject, arguments: Arguments) -> Lesson | None:
    """The call that the laws of a template share: its numbers follow from those of the template.

    None where a gradient comes close to what the dtype cannot hold.
    """
    place = f"training {subject.sampled}"
    if place not in arguments.memo:
        rng = rng_of(arguments)
        given = sample(subject, rng, (2,), queries=3, keys=5)
        cotangents = {path: _alike(x) for path, x in subject.cotangents(given, rng).items()}
        expected = subject.gradients(given, cotangents)
        arguments.memo[place] = Lesson(given, cotangents, expected) if fits(subject, expected) else None
    return cast("Lesson | None", arguments.memo[place])


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
