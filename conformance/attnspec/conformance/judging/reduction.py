"""Reduction of counterexamples: fewer dimensions, smaller sizes and simpler numbers that still fail.

It cuts the arrays along the named sizes of the Protocol: cutting d cuts query and key alike. Hypothesis would instead
shrink the random draws that led to the arrays.
"""

import time
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Change, Numbers, keep, take
from attnspec.conformance.inputs.corners import multiply_adds
from attnspec.conformance.inputs.heads import (
    heads_and_features,
    heads_divide_width,
    with_first_heads,
)
from attnspec.conformance.judging.attempt import attempt
from attnspec.conformance.judging.checks import Check
from attnspec.conformance.judging.left_out import demand_declared
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import OutsideDeclaration, Reason, Violation
from attnspec.spec.contract.axes import Axis, Role
from attnspec.spec.contract.shapes import ShapeError
from attnspec.spec.contract.tree import Kind

MAX_COST = 1500.0
"""Cost limit of a reduction, in small calls. Unlike a time limit it is reproducible."""

CALL_COST = 2.0**16
"""Multiply-adds that take as long as a small call."""

MAX_SECONDS = 30.0
"""Time limit of a reduction, for backends that are slow on small inputs."""

MIN_DIFFERENCE = 0.1
"""Smallest relative error of a reduced counterexample, or half the original error. Smaller ones look like roundings."""


class Search:
    """The smallest arguments on which a law fails, and the cost of their search."""

    def __init__(
        self, subject: Subject, check: Check, arguments: Arguments, violation: Violation, seed: int, mark: Any
    ) -> None:
        self.subject, self.check, self.seed, self.mark = subject, check, seed, mark
        self.best, self.violation = arguments, violation
        self.min_difference = min(MIN_DIFFERENCE, violation.difference / 2)
        self.deadline = time.monotonic() + MAX_SECONDS
        self.cost = 0.0
        self.kept_within = self._ranges()

    def _ranges(self) -> dict[str, tuple[float, float]]:
        """Ranges of examples that the first arguments are in, such as decays below 0."""
        ranges = self.subject.operation.generated_within
        arrays = {leaf.path: x for leaf, x in self.best.floats}
        return {
            path: bounds
            for path, bounds in ranges.items()
            if isinstance(bounds, tuple) and path in arrays and _is_within(arrays[path], bounds)
        }

    @property
    def spent(self) -> bool:
        """True if the search has reached its cost or time limit."""
        return self.cost >= MAX_COST or time.monotonic() > self.deadline

    def accept(self, candidate: Arguments | None) -> bool:
        """Adopt the candidate if the law fails there for the same reason and visibly."""
        if candidate is None or self.spent or not heads_divide_width(candidate, self.subject.limits):
            return False
        try:
            demand_declared(self.subject.limits, self.subject.semantics, candidate)
            self.cost += 1 + multiply_adds(candidate.sizes, candidate.batch, candidate.operation) / CALL_COST
        except (ShapeError, OutsideDeclaration):
            return False  # the second layer of ``stacked_lstm`` cannot come first: it takes inputs of another width
        self.mark(self.check.law.id, "reducing the counterexample")
        violation = self.failure(candidate)
        if violation is None or violation.difference < self.min_difference:
            return False
        if (violation.reason, violation.lasting) != (self.violation.reason, self.violation.lasting):
            return False
        self.best, self.violation = candidate, violation
        return True

    def failure(self, candidate: Arguments) -> Violation | None:
        """The law's violation on the candidate; None if the law holds or does not apply."""
        if not self._in_domain(candidate):
            return None
        violation, *_ = attempt(self.subject, self.check, candidate, self.seed)
        return violation

    def _in_domain(self, candidate: Arguments) -> bool:
        """Return whether the backend must compute the candidate, and the oracle can."""
        arrays = {leaf.path: x for leaf, x in candidate.floats}
        within = all(_is_within(arrays[path], bounds) for path, bounds in self.kept_within.items() if path in arrays)
        if not within or self.subject.refuses(candidate):
            return False
        try:
            self.subject.oracle(candidate)
            # A ``once`` check makes its own inputs. If it failed by an exception, say, the candidate may even overflow.
            own_numbers = self.check.once and self.violation.reason != Reason.VALUE
            return own_numbers or self.subject.in_domain(candidate)
        except ValueError:
            return False  # after cutting sizes, an index is too large
        except Violation:
            return True


def _is_within(x: Numbers, bounds: tuple[float, float]) -> bool:
    low, high = bounds
    return bool(((x >= low) & (x <= high)).all())


def reduce_arguments(
    subject: Subject, check: Check, arguments: Arguments, violation: Violation, seed: int, mark: Any
) -> tuple[Arguments, Violation]:
    """Smaller arguments on which the law still fails, and its violation there."""
    return reduce_search(Search(subject, check, arguments, violation, seed, mark))


def reduce_search(search: Search) -> tuple[Arguments, Violation]:
    """Repeat all steps until none helps; return the smallest arguments and their violation."""
    steps: tuple[Callable[[Search], bool], ...] = (
        _reset_options, _drop_batch, _reduce_heads, _reduce_sizes, _simplify_numbers, _fill_masks, _reduce_equal_sizes,
    )  # fmt: skip
    changed = True
    while changed and not search.spent:
        changed = False
        for reduce in steps:
            changed |= reduce(search)
    return search.best, search.violation


def reduce_to_zeros(
    subject: Subject, check: Check, arguments: Arguments, violation: Violation, seed: int, mark: Any
) -> tuple[Arguments, Violation]:
    """Tiny zeros for a law that makes its own inputs, and its violation there."""
    return reduce_search_to_zeros(Search(subject, check, arguments, violation, seed, mark))


def reduce_search_to_zeros(search: Search) -> tuple[Arguments, Violation]:
    """Try zeros of size 1, then 2; return the smallest arguments and their violation."""
    for size in (1, 2):  # a backend may refuse odd sizes
        if search.accept(search.subject.zeros(size)):
            break
    return search.best, search.violation


def _reset_options(search: Search) -> bool:
    """Reset options to their defaults and drop optional arrays."""
    changed = False
    operation = search.best.operation
    for option in operation.options:
        default = operation.defaults.get(option.path, search.best[option.path])
        if option.kind is not Kind.SIZE and search.best[option.path] != default:
            changed |= search.accept(search.best.replaced({option.path: default}))
    for leaf, _ in search.best.leaf_arrays:
        if leaf.optional and leaf.path in search.best:
            changed |= search.accept(search.best.replaced({leaf.path: None}))
    return changed


def _drop_batch(search: Search) -> bool:
    changed = False
    while any(map(search.accept, _without_batch_axis(search.best))):
        changed = True
    return changed


def _without_batch_axis(arguments: Arguments) -> Iterator[Arguments]:
    """Copies without each batch dimension in turn, at its first and last element."""
    for axis in range(1, len(arguments.batch) + 1):
        size = arguments.batch[-axis]
        for element in dict.fromkeys((0, size - 1)) if size else ():
            changes = {}
            for leaf, x in arguments.batched:
                place = x.ndim - len(leaf.core) - axis
                if place >= 0:
                    changes[leaf.path] = np.asarray(np.take(x, element if x.shape[place] > 1 else 0, axis=place))
            if changes:
                yield arguments.replaced(changes)


def _reduce_heads(search: Search) -> bool:
    """Reduce heads and features per head together, if limits tie their product to the width."""
    if not search.subject.limits.divided_heads:
        return False
    changed = False
    while (counts := heads_and_features(search.best)) is not None:
        heads, d = counts
        smaller = [(1, d), (heads // 2, d), (heads - 1, d), (heads, 1), (heads, d // 2), (heads, d - 1)]
        fewer = (pair for pair in dict.fromkeys(smaller) if min(pair) and pair != counts)
        if not any(search.accept(with_first_heads(search.best, *pair)) for pair in fewer):
            break
        changed = True
    return changed


def _reduce_sizes(search: Search) -> bool:
    changed = False
    for name in tuple(search.best.sizes):
        if name in search.best.sizes:  # cutting a layer removes its sizes
            changed |= _shrink_size(search, (name,))
    return changed


def _reduce_equal_sizes(search: Search) -> bool:
    """Shrink equal sizes together, all or in pairs: a defect may need n = m."""
    changed = False
    for size in sorted({size for size in search.best.sizes.values() if size > 1}, reverse=True):
        equal = tuple(name for name, x in search.best.sizes.items() if x == size)
        for names in dict.fromkeys((equal, *combinations(equal, 2))):
            if len(names) > 1 and all(search.best.sizes.get(name) == size for name in names):
                changed |= _shrink_size(search, names)
    return changed


def _shrink_size(search: Search, names: tuple[str, ...]) -> bool:
    """Shrink a size by bisection, cutting its end or its beginning; then drop single indices.

    Several ``names`` are sizes that are equal and stay equal.
    """
    first = names[0]
    start = search.best.size(first)
    low = 0
    while low + 1 < search.best.size(first) and not search.spent:
        size = search.best.size(first)
        middle = (low + size) // 2
        allowed = _allowed(search, names, middle)
        if allowed is None or allowed >= size:
            break
        head = _cut(search.best, names, keep(allowed))
        tail = _cut(search.best, names, take(np.arange(size - allowed, size)))
        if not (search.accept(head) or search.accept(tail)):
            low = middle
    size = search.best.size(first)
    for index in range(size if size <= 8 else 0):
        kept = [i for i in range(search.best.size(first)) if i != index]
        if kept and _allowed(search, names, len(kept)) == len(kept):
            search.accept(_cut(search.best, names, take(np.array(kept))))
    return search.best.size(first) < start


def _cut(arguments: Arguments, names: tuple[str, ...], change: Change) -> Arguments | None:
    """A copy changed along all these sizes; None if its shapes no longer fit."""
    try:
        for name in names:
            arguments = arguments.along(name, change)
    except (ShapeError, KeyError):
        return None  # cutting the first layer leaves one with inputs of another width, or no layer
    return arguments


def _allowed(search: Search, names: tuple[str, ...], size: int) -> int | None:
    """The next allowed size, from ``size`` on, for all names; None if there is none."""
    limits = search.subject.limits
    axes = [search.subject.operation.axis(name) for name in names]
    size = max(size, 1)
    if any(axis & Axis.POSITION for axis in axes):
        size = limits.length_from(size)
    if limits.head_sizes is None or not any(axis & Axis.FEATURE for axis in axes):
        return size
    fitting = (s for s in sorted(limits.head_sizes) if s >= size)
    if any(axis & Axis.POSITION for axis in axes):
        fitting = (s for s in fitting if s % limits.multiple_of == 0)
    return next(fitting, None)


def _fill_masks(search: Search) -> bool:
    changed = False
    for leaf, mask in search.best.leaf_arrays:
        if search.subject.operation.role(leaf) is Role.MASK and not mask.all():
            changed |= _simplify_elements(search, leaf.path, np.ones_like(mask))
    return changed


def _simplify_numbers(search: Search) -> bool:
    changed = False
    for leaf, x in search.best.floats:
        path = leaf.path
        if not x.size:
            continue
        # Adding 0 turns −0 into 0.
        with np.errstate(over="ignore"):
            quarters = np.round(x * 4) / 4 + 0
        quarters = np.where(np.isfinite(quarters), quarters, x)
        for simpler in (np.zeros_like(x), np.ones_like(x), np.sign(x), np.round(x) + 0, quarters):
            if _is_as_simple(search.best.array(path), simpler):
                continue
            if search.accept(search.best.replaced({path: simpler})):
                changed = True
                break
        changed |= _simplify_elements(search, path, np.zeros_like(x))
        changed |= _simplify_nonzeros(search, path)
    return changed


def _is_as_simple(x: Numbers, simpler: Numbers) -> bool:
    """Return whether ``x`` equals ``simpler``, or has only zeros and ones, none of them larger."""
    return bool(np.array_equal(x, simpler)) or bool((np.abs(x) <= np.abs(simpler)).all() and np.isin(x, (0, 1)).all())


def _simplify_elements(search: Search, path: str, target: Numbers) -> bool:
    """Replace elements by the target's in halving blocks (delta debugging)."""
    changed = False
    size = search.best.array(path).size
    step = size
    while step >= 1 and not search.spent:
        for start in range(0, size, step):
            flat = search.best.array(path).reshape(-1)
            part, wanted = flat[start : start + step], target.reshape(-1)[start : start + step]
            if part.tobytes() == wanted.tobytes():  # −0 is not as simple as 0
                continue
            new = flat.copy()
            new[start : start + step] = wanted
            changed |= search.accept(search.best.replaced({path: new.reshape(target.shape)}))
        step //= 2
    return changed


def _simplify_nonzeros(search: Search, path: str) -> bool:
    """Replace single nonzero numbers by ±1 or a power of 2, exact in every dtype."""
    changed = False
    x = search.best.array(path)
    if np.count_nonzero(x) > 64:  # up to five calls for each number
        return False
    for i in np.flatnonzero(x.reshape(-1)):
        for simple in (1.0, -1.0, 2.0, 8.0, 64.0):
            flat = search.best.array(path).reshape(-1)
            if flat[i] == simple or search.spent:
                break
            new = flat.copy()
            new[i] = simple
            if search.accept(search.best.replaced({path: new.reshape(x.shape)})):
                changed = True
                break
    return changed
