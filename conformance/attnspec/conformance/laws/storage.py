"""Checks of memory layouts, and of state kept from one call to the next."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import mask_shape
from attnspec.conformance.inputs.combinations import HEADS, placed
from attnspec.conformance.inputs.layouts import (
    CANNOT,
    LAYOUTS,
    Layout,
    distant,
    every_second,
    last_exchanged,
    negated,
    packed,
    packed_heads,
    padded_rows,
    repeated,
    same,
)
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.foreign_calls import Raised
from attnspec.conformance.judging.left_out import demand_layouts
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws.common import sample, twice, wide
from attnspec.conformance.laws.lessons import masks_of
from attnspec.reference.budget import is_real
from attnspec.spec.contract.shapes import results
from attnspec.spec.contract.tree import mapped
from attnspec.spec.laws import operation
from attnspec.spec.laws import storage as law

FEW = 8
"""Most arrays tried one at a time, in models with many weights."""

STEP = 5
"""Coprime to the number of layouts, so that all arrays have different layouts."""

BATCH = (2, 3)

WIDE = 16
"""Positions and features that fill vectors of a kernel."""

WIDE_LAYOUTS: tuple[Layout, ...] = (every_second, last_exchanged, packed, packed_heads, padded_rows)
"""Layouts for which kernels have other paths if vectors are wide."""

VISIBLE = 2.0**-5
"""A difference, relative to the largest element, that no rounding explains at these sizes."""


def comparable(results: Results) -> Results:
    """Results with numbers in double precision, and booleans unchanged."""
    return {path: x if x.dtype == bool else wide(x) for path, x in results.items()}


def alike(subject: Subject, inputs: dict[str, Any], arguments: Arguments, what: str) -> None:
    """Demand that a call with these backend arrays equals one with new arrays.

    Both may differ by twice the budget, which is computed only where bits differ.
    """
    got, expected = subject.outcome(inputs), subject.results(arguments)
    if isinstance(got, Raised):
        raise Violation(f"{what} the call raised {got.message}", reason=Reason.RAISED, arguments=arguments)
    same = all(isinstance(x, np.ndarray) and x.shape == expected[path].shape for path, x in got.items())
    subject.holds(same, f"{what} the result has another shape", arguments, reason=Reason.SHAPE)
    subject.all_match(got, comparable(expected), lambda: twice(subject.budgets(arguments)), arguments, what)


def laid_out(subject: Subject, arguments: Arguments, ways: Sequence[Layout]) -> bool:
    """Call with arrays in layouts from ``ways`` in turn; False if none is possible."""
    demand_layouts(subject.limits)
    turns = cycle(ways)
    found: list[Layout] = []

    def placed(_: str, x: Any) -> Any:
        if not isinstance(x, np.ndarray) or not x.ndim:
            return subject.convert(x)
        way = next(turns)
        try:
            moved = way(x, subject.convert)
        except CANNOT:
            return subject.convert(x)
        found.append(way)
        return moved

    inputs = {name: mapped(x, placed) for name, x in arguments.passed.items()}
    if not found:
        return False
    named = dict.fromkeys(way.__name__.replace("_", " ") for way in found)
    what = f"of inputs laid out as {', '.join(named)},"
    alike(subject, inputs, arguments, what)
    return True


def _sample(subject: Subject, rng: np.random.Generator) -> Arguments:
    """A small call with masks, all optional arrays and up to two batch dimensions."""
    batch = BATCH[: subject.limits.max_batch_dims]
    return sample(subject, rng, batch, queries=5, keys=7, heads=2, features=4, whole=True)


@checks(law.LAYOUTS, once=True)
def layouts(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Call with all arrays in one layout, each in another, and with stride 0.

    One layout for all is tried at the leading dtype only, lazy negation included.

    In the end the arrays are contiguous again, with the shapes of all calls before.
    """
    given = _sample(subject, rng)
    count, step = len(LAYOUTS), 3 if subject.leading or subject.effort.slow else 6
    tried = [laid_out(subject, given, (way,)) for way in LAYOUTS if subject.leading]
    tried += [laid_out(subject, given, (negated,)) for _ in range(subject.leading)]
    tried += [
        laid_out(subject, given, tuple(LAYOUTS[(first + STEP * i) % count] for i in range(len(given.given))))
        for first in range(0, count, step)
    ]
    for axis in (0, -2):
        tried.append(_repeats(subject, given, axis))
    again = subject.converted(given)
    alike(subject, again, given, "of contiguous inputs after views,")
    return any(tried)


def _repeats(subject: Subject, given: Arguments, axis: int) -> bool:
    """Call with arrays that are equal along an axis, which has stride 0."""

    def place(x: Numbers) -> int:
        return axis if -x.ndim <= axis < x.ndim else -1

    free = {path: x for path, x in given.arrays.items() if x.ndim and x.size and path not in given.operation.cumulative}
    given = given.replaced({path: same(x, place(x)) for path, x in free.items()})

    def placed(path: str, x: Any) -> Any:
        if path not in free:
            return subject.convert(x)
        return repeated(x, place(x), subject.convert)

    try:
        inputs = {name: mapped(x, placed, name) for name, x in given.passed.items()}
    except CANNOT:
        return False
    what = f"of inputs with stride 0 along axis {axis},"
    alike(subject, inputs, given, what)
    return True


@checks(law.LAYOUTS, once=True, at_leading=True, governs=law.attends)
def wide_layouts(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Call with wide arrays in some layouts, and with keys and values shared by heads."""
    batch = BATCH[: subject.limits.max_batch_dims]
    given = sample(subject, rng, batch, queries=WIDE, keys=WIDE, heads=2, features=WIDE, whole=True)
    tried = [laid_out(subject, given, (way,)) for way in WIDE_LAYOUTS]
    one, inputs = placed(given, "one for all heads", subject.convert)
    alike(subject, inputs, one, "of keys and values with stride 0 along the heads,")
    tried.append(_one_mask(subject, rng, batch))
    return bool(given.batch) or any(tried)


def _one_mask(subject: Subject, rng: np.random.Generator, batch: tuple[int, ...]) -> bool:
    """Call with a mask per batch element, with stride 0 along the heads."""
    if not masks_of(subject) or len(batch) < len(BATCH):
        return False
    given = sample(subject, rng, batch, queries=4, keys=2 * WIDE + 1, heads=2)
    shape = mask_shape(given)
    mask = np.broadcast_to(rng.random((*shape[:HEADS], 1, *shape[HEADS + 1 :])) < 0.6, shape).copy()
    mask[..., 0] = True
    given = given.with_mask(mask)

    own = subject.operation.mask

    def at(path: str) -> Any:
        of_keys = own is not None and path == own.path
        return repeated(mask, HEADS, subject.convert) if of_keys else subject.convert(given[path])

    alike(subject, given.passed_as(at), given, "of a mask with stride 0 along the heads,")
    return True


@checks(law.LAYOUTS, once=True, slow=True)
def distance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Spread one array at a time over untouched memory, with offsets beyond 31 bits."""
    demand_layouts(subject.limits)
    given = _sample(subject, rng)
    tried = False
    for path, x in _some(given, rng):
        for axis in range(x.ndim - 1 if x.ndim > 1 else x.ndim):
            inputs, found = _far(subject, given, path, axis)
            if not found:
                continue
            tried = True
            what = f"of {path} with offsets beyond 31 bits along axis {axis},"
            alike(subject, inputs, given, what)
    return tried


def _far(subject: Subject, given: Arguments, path: str, axis: int) -> tuple[dict[str, Any], bool]:
    """The arguments with one array spread out, and whether that was possible."""
    found = False

    def placed(at: str, x: Any) -> Any:
        nonlocal found
        far = distant(x, axis, subject.convert) if at == path else None
        found = found or far is not None
        return subject.convert(x) if far is None else far

    return {name: mapped(x, placed, name) for name, x in given.passed.items()}, found


def _some(given: Arguments, rng: np.random.Generator) -> Iterator[tuple[str, Numbers]]:
    """Some arrays of a call, in random order."""
    paths = [path for path, x in given.arrays.items() if x.ndim and x.size]
    for i in rng.permutation(len(paths))[:FEW]:
        yield paths[i], given.array(paths[i])


@checks(operation.NO_MEMORY, once=True, at_leading=True, governs=operation.takes_arrays)
def rewritten_inputs(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Overwrite one input array after another; compare with calls on new arrays.

    A cache keyed by numbers would be wrong for new arrays too: where results are visibly off the formula, the oracle
    decides. In the end every array is another one, in memory that earlier ones have left.
    """
    given, other = _sample(subject, rng), _sample(subject, rng)
    kept: dict[str, Any] = {}

    def convert(path: str, x: Any) -> Any:
        moved = kept[path] = subject.convert(x)
        return moved

    inputs = {name: mapped(x, convert, name) for name, x in given.passed.items()}
    alike(subject, inputs, given, "of a first call,")
    now = given
    written = [path for path, _ in _some(given, rng) if path in kept and _writes(subject, kept[path], other, path)]
    for path in written:
        _put(subject, kept[path], now.array(path))
    for path in written:
        _put(subject, kept[path], other.array(path))
        now = now.replaced({path: other.array(path)})
        alike(subject, inputs, now, f"after other numbers were written into {path},")
        if _visibly_off(subject, now):
            subject.follows_formula(now, f"with another {path} beside the same numbers,")
    inputs, kept = {}, {}
    inputs = subject.converted(other)
    alike(subject, inputs, other, "of other arrays in the same memory,")
    if _visibly_off(subject, other):
        subject.follows_formula(other, "of other arrays,")
    return True


def _writes(subject: Subject, moved: Any, other: Arguments, path: str) -> bool:
    """Return whether arrays of the backend can be written to."""
    try:
        _put(subject, moved, other.array(path))
    except (RuntimeError, *CANNOT):
        return False
    return True


def _put(subject: Subject, moved: Any, x: Numbers) -> None:
    moved[...] = subject.convert(x)


def _visibly_off(subject: Subject, now: Arguments) -> bool:
    """Return whether a result is visibly off the formula, without budgets, which are slow."""
    values = mapped(now.values_by_name, lambda _, x: wide(x) if is_real(x) else x)
    with np.errstate(all="ignore"):
        formula = {leaf.path: x for leaf, x in results(subject.operation, subject.formula()(**values))}
        got = comparable(subject.results(now))
        pairs = [(got[path], x) for path, x in formula.items() if x.dtype.kind not in "biu"]
        return any(not bool((abs(x - y) <= VISIBLE * np.max(np.abs(y), initial=0.0)).all()) for x, y in pairs)


@checks(operation.NO_MEMORY, once=True, at_leading=True, governs=lambda operation: bool(operation.floats))
def other_dtype(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Call in this dtype, in the backend's next dtype, and in this one again."""
    dtypes = subject.contract.limits.dtypes_for(subject.operation.name)
    if len(dtypes) < 2 or subject.dtype not in dtypes:
        return False
    name = dtypes[(dtypes.index(subject.dtype) + 1) % len(dtypes)]
    next_one = Subject(subject.backend, subject.contract, subject.operation, name, subject.device)
    seed = int(rng.integers(2**32))
    own, others = (_sample(s, np.random.default_rng(seed)) for s in (subject, next_one))
    subject.follows_formula(own, "of a call before one in another dtype,")
    next_one.follows_formula(others, f"of the same call in {name} after one in {subject.dtype},")
    for leaf in subject.operation.outputs:
        got = next_one.results(others)[leaf.path].dtype
        fits = got.name == next_one.data_dtype or got.kind in "biu"
        message = f"after a call in {subject.dtype}, that in {name} gives {got.name}"
        subject.holds(fits, message, others, reason=Reason.DTYPE)
    what = f"of a call after one in {name},"
    alike(subject, subject.converted(own), own, what)
    return True
