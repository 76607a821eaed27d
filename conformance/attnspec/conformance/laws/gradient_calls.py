"""Small calls with cotangents and expected gradients, for the checks of backward passes."""

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
"""Prefixes of messages."""


class GradientCall(NamedTuple):
    """A call, cotangents of equal rows, which may have stride 0, and the expected gradients."""

    arguments: Arguments
    cotangents: Results
    expected: Gradients


def small_gradient_call(subject: Subject, arguments: Arguments) -> GradientCall | None:
    """A small unmasked call, cached per template for several laws.

    None if a gradient is close to the overflow of the dtype, as in all functions here.
    """
    return _cached(subject, arguments, "plain", lambda rng: sample(subject, rng, (2,), queries=3, keys=5, heads=2))


def restricted_gradient_call(subject: Subject, arguments: Arguments) -> GradientCall | None:
    """A call restricted by every accepted mask and the causal flag, with wide vectors; None if neither is accepted."""
    if not accepted_masks(subject) and not accepts_causal(subject):
        return None
    return _cached(subject, arguments, "restricted", lambda rng: restrict(subject, unmasked_call(subject, rng), rng))


def causal_gradient_call(subject: Subject, arguments: Arguments) -> GradientCall | None:
    """A causal, unmasked call with wide vectors; None unless masks are accepted too."""
    if not accepts_causal(subject) or not accepted_masks(subject):  # without masks this is the restricted call
        return None
    return _cached(subject, arguments, "in order", lambda rng: unmasked_call(subject, rng).under_causal())


def long_gradient_call(subject: Subject, arguments: Arguments) -> GradientCall | None:
    """A call with wide vectors, two queries and more keys than a tile; else None.

    Short profiles skip operations that do more than weigh keys, such as models.
    """
    operation = subject.operation
    if operation.key_size is None or subject.allowed_size(operation.key_size, TILE + 2) <= TILE:
        return None
    if not operation.only_weighs_keys and not subject.effort.slow:
        return None
    return _cached(subject, arguments, "long", lambda rng: unmasked_call(subject, rng, queries=2, keys=TILE + 2))


def gradient_calls(subject: Subject, arguments: Arguments) -> Iterator[tuple[str, GradientCall]]:
    """The small, the restricted and the long call, each with its prefix in messages."""
    makers = {"": small_gradient_call, RESTRICTED: restricted_gradient_call, MANY_KEYS: long_gradient_call}
    for prefix, make in makers.items():
        call = make(subject, arguments)
        if call is not None:
            yield prefix, call


def _cached(
    subject: Subject, arguments: Arguments, name: str, make_arguments: Callable[[np.random.Generator], Arguments]
) -> GradientCall | None:
    def make_call() -> GradientCall | None:
        rng = rng_from_numbers(arguments)
        call_arguments = make_arguments(rng)
        cotangents = {path: _with_equal_rows(x) for path, x in subject.cotangents(call_arguments, rng).items()}
        expected = subject.gradients(call_arguments, cotangents)
        return GradientCall(call_arguments, cotangents, expected) if fits_dtype(subject, expected) else None

    return arguments.once(f"training {name} {subject.sampled}", make_call)  # budgets from samples are cached apart


def unmasked_call(subject: Subject, rng: np.random.Generator, *, queries: int = 3, keys: int = 5) -> Arguments:
    """An unmasked call with 16 features and, where values enter linearly, 64 value columns."""
    operation = subject.operation
    columns = operation.sizes_of(Axis.FEATURE)[-1:] if operation.linear and operation.attended else ()
    sizes = {name: subject.allowed_size(name, COLUMNS) for name in columns}
    return sample(subject, rng, (2,), queries=queries, keys=keys, heads=2, features=FEATURES, sizes=sizes)


def accepted_masks(subject: Subject) -> list[str]:
    """The key axes with masks that the backend accepts."""
    return [size for size, mask in subject.operation.masks.items() if subject.limits.mask or not mask.optional]


def accepts_causal(subject: Subject) -> bool:
    """Return whether the backend accepts a causal flag."""
    return subject.operation.flag is not None and subject.limits.causal


def restrict(subject: Subject, arguments: Arguments, rng: np.random.Generator, *, causal: bool = True) -> Arguments:
    """The call under every accepted mask; if ``causal``, with the causal flag too.

    Masks allow the first, third and last key to all queries, the second to none, others at random. The causal flag
    leaves the first query key 1 only. The third query always has keys 1 and 3: a single key has weight 1 whatever its
    score, so gradients would be 0.
    """
    for keys in accepted_masks(subject):
        mask = rng.random(mask_shape(arguments, keys)) < 0.6
        mask[..., :1] = mask[..., 2:3] = mask[..., -1:] = True
        mask[..., 1:2] = False
        arguments = arguments.with_mask(mask, keys)
    return arguments.under_causal() if causal and accepts_causal(subject) else arguments


def rng_from_numbers(arguments: Arguments) -> np.random.Generator:
    """A generator seeded by the numbers of the arguments."""
    numbers = b"".join(np.ascontiguousarray(x).tobytes() for x in arguments.arrays.values())
    return np.random.Generator(np.random.PCG64(zlib.crc32(numbers)))


def _with_equal_rows(x: Numbers) -> Numbers:
    """The array with its last row in place of every row."""
    return np.array(np.broadcast_to(x[(-1,) * (x.ndim - 1)], x.shape)) if x.size and x.ndim else x


def fits_dtype(subject: Subject, expected: Gradients, scale: float = 1.0) -> bool:
    """Return whether ``scale`` times these gradients is 16 times below the dtype's maximum."""
    return all(np.abs(x).max(initial=0.0) * scale <= subject.precision.largest / 16 for x, _ in expected.values())


def copied_arrays(subject: Subject, raw: Any) -> Results:
    """Copies of the arrays of a backend's result."""
    outcome = call_safely(lambda: {path: np.array(x) for path, x in subject.numpy_arrays(raw).items()})
    arrays = subject.noted(outcome, "to_numpy raised")
    if isinstance(arrays, Raised):
        raise Violation(f"to_numpy raised {arrays.message}", reason=Reason.RAISED)
    return cast(Results, arrays)


def overwrite(raw: Any) -> bool:
    """Fill a backend's array with ones; False if it is read-only."""
    try:
        raw[...] = 1
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    return True
