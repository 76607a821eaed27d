"""Checks of memory layouts, and of state that a call leaves to the next. Options of ``@checks``: see ``Check``."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import mask_shape
from attnspec.conformance.inputs.combinations import HEAD_AXIS, in_layout
from attnspec.conformance.inputs.layouts import (
    LAYOUTS,
    VIEW_ERRORS,
    Layout,
    bytes_spread_out,
    every_second,
    last_exchanged,
    negated,
    packed,
    packed_heads,
    padded_rows,
    same_slices,
    spread_out,
    with_stride_0,
)
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.exclusive import alone
from attnspec.conformance.judging.foreign_calls import Raised
from attnspec.conformance.judging.left_out import demand_layouts
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws.common import doubled, sample, wide
from attnspec.conformance.laws.gradient_calls import accepted_masks
from attnspec.reference.budget import is_real
from attnspec.spec.contract.shapes import results
from attnspec.spec.contract.tree import map_tree
from attnspec.spec.laws import operation
from attnspec.spec.laws import storage as law

FEW = 8
"""Most arrays that are tried one at a time; models have many weights."""

STEP = 5
"""Step from one array's layout to the next array's. It is coprime to the number of layouts, so all of them occur."""

BATCH = (2, 3)

WIDE = 16
"""Number of positions and of features that fills a kernel's vectors."""

WIDE_LAYOUTS: tuple[Layout, ...] = (every_second, last_exchanged, packed, packed_heads, padded_rows)
"""Layouts for which kernels may change path if vectors are wide."""

VISIBLE = 2.0**-5
"""A difference, relative to the largest element, that rounding cannot explain here."""


def in_double(results: Results) -> Results:
    """Results with numbers in double precision, and booleans unchanged."""
    return {path: x if x.dtype == bool else wide(x) for path, x in results.items()}


def demand_same(subject: Subject, inputs: dict[str, Any], arguments: Arguments, prefix: str) -> None:
    """Demand that a call with these backend arrays equals a call with new arrays.

    They may differ by twice the budget, which is computed only if bits differ.
    """
    got, expected = subject.result_or_raised(inputs), subject.results(arguments)
    if isinstance(got, Raised):
        raise Violation(f"{prefix} the call raised {got.message}", reason=Reason.RAISED, arguments=arguments)
    right_shapes = all(isinstance(x, np.ndarray) and x.shape == expected[path].shape for path, x in got.items())
    subject.demand(right_shapes, f"{prefix} the result has another shape", arguments, reason=Reason.SHAPE)
    subject.all_match(got, in_double(expected), lambda: doubled(subject.budgets(arguments)), arguments, prefix)


def judge_layouts(subject: Subject, arguments: Arguments, layouts: Sequence[Layout]) -> bool:
    """Call with arrays in these layouts, in turn; False if none is available."""
    demand_layouts(subject.limits)
    layout_cycle = cycle(layouts)
    applied: list[Layout] = []

    def backend_array(_: str, x: Any) -> Any:
        if not isinstance(x, np.ndarray) or not x.ndim:
            return subject.convert(x)
        layout = next(layout_cycle)
        try:
            view = layout(x, subject.convert)
        except VIEW_ERRORS:
            return subject.convert(x)
        applied.append(layout)
        return view

    inputs = {name: map_tree(x, backend_array) for name, x in arguments.passed.items()}
    if not applied:
        return False
    layout_names = dict.fromkeys(layout.__name__.replace("_", " ") for layout in applied)
    prefix = f"of inputs laid out as {', '.join(layout_names)},"
    demand_same(subject, inputs, arguments, prefix)
    return True


def _sample(subject: Subject, rng: np.random.Generator) -> Arguments:
    """A small call with masks, all optional arrays and up to two batch dimensions."""
    batch = BATCH[: subject.limits.max_batch_dims]
    return sample(subject, rng, batch, queries=5, keys=7, heads=2, features=4, whole=True)


@checks(law.VIEWS_EQUAL_COPIES, once=True)
def views_equal_copies(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Call with arrays in one layout, in different layouts, with stride 0, and contiguous.

    One layout for all arrays, lazy negation included, is tried at the leading dtype only. Other dtypes also try fewer
    combinations of different layouts.
    """
    sampled = _sample(subject, rng)
    shared_layouts = (*LAYOUTS, negated) if subject.is_leading_dtype else ()
    tried = [judge_layouts(subject, sampled, (layout,)) for layout in shared_layouts]
    count, arrays = len(LAYOUTS), range(len(sampled.leaf_arrays))
    # Layout of the first array; the others follow by ``STEP``.
    for first in range(0, count, 3 if subject.is_leading_dtype or subject.effort.slow else 6):
        layouts = tuple(LAYOUTS[(first + STEP * i) % count] for i in arrays)
        tried.append(judge_layouts(subject, sampled, layouts))
    for axis in (0, -2):
        tried.append(_call_with_stride_0(subject, sampled, axis))
    contiguous = subject.converted(sampled)
    demand_same(subject, contiguous, sampled, "of contiguous inputs after views,")
    return any(tried)


def _call_with_stride_0(subject: Subject, call: Arguments, axis: int) -> bool:
    """Call with every array constant along an axis, which then takes no memory; False if the backend lacks strides."""

    def axis_of(x: Numbers) -> int:
        return axis if -x.ndim <= axis < x.ndim else -1

    # The offsets of packed sequences cannot be constant.
    free = {path: x for path, x in call.arrays.items() if x.ndim and x.size and path not in call.operation.cumulative}
    call = call.replaced({path: same_slices(x, axis_of(x)) for path, x in free.items()})

    def backend_array(path: str, x: Any) -> Any:
        if path not in free:
            return subject.convert(x)
        return with_stride_0(x, axis_of(x), subject.convert)

    try:
        inputs = {name: map_tree(x, backend_array, name) for name, x in call.passed.items()}
    except VIEW_ERRORS:
        return False
    prefix = f"of inputs with stride 0 along axis {axis},"
    demand_same(subject, inputs, call, prefix)
    return True


@checks(law.VIEWS_EQUAL_COPIES, once=True, leading_dtype_only=True, governs=law.has_queries_and_keys)
def wide_layouts(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Call with wide arrays in some layouts; then share arrays among heads."""
    batch = BATCH[: subject.limits.max_batch_dims]
    sampled = sample(subject, rng, batch, queries=WIDE, keys=WIDE, heads=2, features=WIDE, whole=True)
    tried = [judge_layouts(subject, sampled, (layout,)) for layout in WIDE_LAYOUTS]
    shared, inputs = in_layout(sampled, "one for all heads", subject.convert)
    demand_same(subject, inputs, shared, "of keys and values with stride 0 along the heads,")
    tried.append(_call_with_shared_mask(subject, rng, batch))
    # True if anything was tried: with a batch, at least keys and values with stride 0, above.
    return bool(sampled.batch) or any(tried)


def _call_with_shared_mask(subject: Subject, rng: np.random.Generator, batch: tuple[int, ...]) -> bool:
    """Call with a mask per batch element, with stride 0 along the heads."""
    if not accepted_masks(subject) or len(batch) < len(BATCH):
        return False
    sampled = sample(subject, rng, batch, queries=4, keys=2 * WIDE + 1, heads=2)
    shape = mask_shape(sampled)
    mask = np.broadcast_to(rng.random((*shape[:HEAD_AXIS], 1, *shape[HEAD_AXIS + 1 :])) < 0.6, shape).copy()
    mask[..., 0] = True
    sampled = sampled.with_mask(mask)

    mask_leaf = subject.operation.mask

    def backend_array(path: str) -> Any:
        is_mask = mask_leaf is not None and path == mask_leaf.path
        return with_stride_0(mask, HEAD_AXIS, subject.convert) if is_mask else subject.convert(sampled[path])

    demand_same(subject, sampled.passed_as(backend_array), sampled, "of a mask with stride 0 along the heads,")
    return True


@checks(law.VIEWS_EQUAL_COPIES, once=True, slow=True)
def distance(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Spread one array at a time over unused memory, with offsets beyond 31 bits."""
    demand_layouts(subject.limits)
    if subject.device == "cpu":
        return _all_spread_out(subject, rng)
    with alone():
        try:
            return _all_spread_out(subject, rng)
        finally:
            subject.free_memory()  # returns what the framework keeps of its arrays


def _all_spread_out(subject: Subject, rng: np.random.Generator) -> bool:
    sampled = _sample(subject, rng)
    tried = False
    for path, x in _some_arrays(sampled, rng):
        for axis in range(x.ndim - 1 if x.ndim > 1 else x.ndim):
            if not _has_room(subject, bytes_spread_out(x, axis)):
                continue
            inputs, spread = _with_array_spread_out(subject, sampled, path, axis)
            if not spread:
                continue
            tried = True
            prefix = f"of {path} with offsets beyond 31 bits along axis {axis},"
            demand_same(subject, inputs, sampled, prefix)
            del inputs  # before the next array is spread out: the device has room for one
    return tried


def _has_room(subject: Subject, needed: int) -> bool:
    """Return whether the device has ``needed`` bytes free; if not, store that the law left this out.

    The CPU always has: unlike a GPU it provides memory only where it is touched, and most of this is not.
    """
    if subject.device == "cpu":
        return True
    free = subject.free_memory()
    if free is not None and needed <= free:
        return True
    known = "the backend has no free_memory" if free is None else f"{free / 1e9:.1f} GB are free"
    subject.not_tried[law.VIEWS_EQUAL_COPIES.id] = (
        f"offsets beyond 31 bits: {needed / 1e9:.1f} GB are needed on {subject.device}, and {known}"
    )
    return False


def _with_array_spread_out(subject: Subject, arguments: Arguments, path: str, axis: int) -> tuple[dict[str, Any], bool]:
    """Backend arrays with one of them spread out, and True if that was possible."""
    spread = False

    def backend_array(argument_path: str, x: Any) -> Any:
        nonlocal spread
        spread_array = spread_out(x, axis, subject.convert) if argument_path == path else None
        spread = spread or spread_array is not None
        return subject.convert(x) if spread_array is None else spread_array

    return {name: map_tree(x, backend_array, name) for name, x in arguments.passed.items()}, spread


def _some_arrays(arguments: Arguments, rng: np.random.Generator) -> Iterator[tuple[str, Numbers]]:
    """At most eight arrays of a call, in random order, with their paths."""
    paths = [path for path, x in arguments.arrays.items() if x.ndim and x.size]
    for i in rng.permutation(len(paths))[:FEW]:
        yield paths[i], arguments.array(paths[i])


@checks(operation.INDEPENDENT_OF_OTHER_CALLS, once=True, leading_dtype_only=True, governs=operation.takes_arrays)
def rewritten_inputs(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Overwrite one input array after another; compare with calls with new arrays.

    A backend that caches by only some of the numbers gives the same wrong result for new arrays. So results that are
    visibly wrong are also compared with the oracle. The last call has new arrays, in memory that the earlier ones have
    left.
    """
    sampled, other = _sample(subject, rng), _sample(subject, rng)
    memory: dict[str, Any] = {}

    def convert(path: str, x: Any) -> Any:
        array = memory[path] = subject.convert(x)
        return array

    inputs = {name: map_tree(x, convert, name) for name, x in sampled.passed.items()}
    demand_same(subject, inputs, sampled, "of a first call,")
    current = sampled
    paths = [path for path, _ in _some_arrays(sampled, rng) if path in memory]
    written = [path for path in paths if _is_writable(subject, memory[path], other, path)]
    for path in written:  # restore the numbers that the test of writability replaced
        _write(subject, memory[path], current.array(path))
    for path in written:
        _write(subject, memory[path], other.array(path))
        current = current.replaced({path: other.array(path)})
        demand_same(subject, inputs, current, f"after other numbers were written into {path},")
        if _visibly_off(subject, current):
            subject.follows_formula(current, f"with another {path} and all other arrays the same,")
    inputs, memory = {}, {}  # free the arrays, so that the next ones may get their memory
    inputs = subject.converted(other)
    demand_same(subject, inputs, other, "of other arrays in the same memory,")
    if _visibly_off(subject, other):
        subject.follows_formula(other, "of other arrays,")
    return True


def _is_writable(subject: Subject, array: Any, other: Arguments, path: str) -> bool:
    """Write other numbers into an array; return False if its library forbids that."""
    try:
        _write(subject, array, other.array(path))
    except (RuntimeError, *VIEW_ERRORS):
        return False
    return True


def _write(subject: Subject, array: Any, x: Numbers) -> None:
    array[...] = subject.convert(x)


def _visibly_off(subject: Subject, arguments: Arguments) -> bool:
    """Return whether a result is visibly wrong. Budgets would be slow."""
    values = map_tree(arguments.values_by_name, lambda _, x: wide(x) if is_real(x) else x)
    with np.errstate(all="ignore"):
        formula = {leaf.path: x for leaf, x in results(subject.operation, subject.formula()(**values))}
        got = in_double(subject.results(arguments))
        pairs = [(got[path], x) for path, x in formula.items() if x.dtype.kind not in "biu"]
        return any(not bool((abs(x - y) <= VISIBLE * np.max(np.abs(y), initial=0.0)).all()) for x, y in pairs)


@checks(
    operation.INDEPENDENT_OF_OTHER_CALLS,
    once=True,
    leading_dtype_only=True,
    governs=lambda operation: bool(operation.floats),
)
def other_dtype(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Call in this dtype, in the backend's next dtype, and in this one again."""
    dtypes = subject.contract.limits.dtypes_for(subject.operation.name)
    if len(dtypes) < 2 or subject.dtype not in dtypes:
        return False
    name = dtypes[(dtypes.index(subject.dtype) + 1) % len(dtypes)]
    other_subject = Subject(subject.backend, subject.contract, subject.operation, name, subject.device)
    seed = int(rng.integers(2**32))
    sampled, sampled_of_other = (_sample(each, np.random.default_rng(seed)) for each in (subject, other_subject))
    subject.follows_formula(sampled, "of a call before one in another dtype,")
    other_subject.follows_formula(sampled_of_other, f"of the same call in {name} after one in {subject.dtype},")
    for leaf in subject.operation.outputs:
        got = other_subject.results(sampled_of_other)[leaf.path].dtype
        fits = got.name == other_subject.data_dtype or got.kind in "biu"
        message = f"after a call in {subject.dtype}, a call in {name} returns {got.name}"
        subject.demand(fits, message, sampled_of_other, reason=Reason.DTYPE)
    prefix = f"of a call after one in {name},"
    demand_same(subject, subject.converted(sampled), sampled, prefix)
    return True
