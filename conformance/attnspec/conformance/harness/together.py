"""Filters over all judged rows, which reveal errors far below the rounding of single numbers.

The filters are those of the laws on ensembles (``docs/ensembles.md``), on any inputs. They assume that errors of
different rows are independent, and as often positive as negative. Rows that round alike count once; with too few left,
no filter applies. Before a filter reports an error it is tried on honest results, with weights and sums rounded as the
class allows. Twice their estimate is added to its limit. If it would reject them, as it may where every row has a
weight of almost 1, its assumptions do not hold, and it reports nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from math import prod

import numpy as np

from attnspec.conformance.harness.dependence import (
    NUMBERS,
    independent,
    probed,
    step_of_results,
    step_of_weights,
    valued,
)
from attnspec.conformance.harness.parts import Part, own_heads
from attnspec.conformance.harness.rounding import WeightsRounded, rounded, ways
from attnspec.conformance.harness.scores import ADDED, is_weight, rescaled, without
from attnspec.conformance.inputs.arguments import Arguments, Change, Numbers, take
from attnspec.conformance.inputs.dtypes import exact_in
from attnspec.conformance.judging.rows import sampled
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import wide
from attnspec.conformance.laws.ensembles import exact, slope
from attnspec.reference.budget import WIDTH
from attnspec.reference.budget.error_array import UNKNOWN
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.axes import Part as Option
from attnspec.spec.contract.operation import Operation

FEWEST = int(WIDTH**2) + 1
"""Smallest number B of independent groups: no error exceeds √B of its standard errors."""

KEYS = 24
"""Keys that are tried one by one: the first, the last, those at borders of tiles, others."""

EXPONENTIALS = 2.0**-13
"""Relative error of exponentials where weights are stored in few bits.

Implementations approximate them there, more coarsely in sums than in products with values. PyTorch's on the CPU are off
by up to 9e-5.
"""


class Ensemble:
    """Judged numbers of a leading result in independent groups, one row each.

    A group is a row of the result, of every head, if rows share no rounded number; else all rows of a batch element.
    """

    def __init__(self, subject: Subject, whole: Arguments, parts: Sequence[Part]) -> None:
        self.subject, self.whole, self.parts = subject, whole, parts
        self.leaf = subject.operation.leading
        self.each: Callable[..., Iterable[Numbers]] = map
        """Maps a function over the parts, for example on threads."""

    @property
    def arguments(self) -> Arguments:
        """The arguments of one part."""
        return self.parts[0].arguments

    @cached_property
    def by_row(self) -> bool:
        """True if an element's rows are independent: without projected or commonly rounded keys."""
        operation = self.subject.operation
        shared = self.subject.precision.inputs or self._has_weights or operation.attends_to_itself
        return bool(self.leaf.axes(operation.asking or "")) and not shared

    @property
    def _has_weights(self) -> bool:
        return any(is_weight(self.subject.operation, leaf) for leaf in self.subject.operation.floats)

    @cached_property
    def untold(self) -> str:
        """Why errors of groups are dependent or too few, as text; empty if filters apply."""
        whole, operation = self.whole, self.subject.operation
        if self.subject.precision.inputs and self._has_weights:
            return "for the class rounds given weights, which all rows share"
        if self.subject.precision.inputs and own_heads(operation):
            return "for the class rounds keys, which heads share"
        if self.subject.precision.tanh and any(whole[path] is not None for path in _caps(operation)):
            return "for the class approximates the cap, which all rows share"
        if not self.by_row and any(x.shape[: x.ndim - len(leaf.core)] != whole.batch for leaf, x in whole.batched):
            return "for elements of the batch share arguments"
        if len(self.kept) < FEWEST:
            return f"for it takes {FEWEST} {self.groups} that round differently, and these are {len(self.kept)}"
        return ""

    @property
    def groups(self) -> str:
        """Name of the groups in messages."""
        return "rows" if self.by_row else "elements of the batch"

    @cached_property
    def kept(self) -> Numbers:
        """Indices of the groups that count: the first of those that round alike, without unknown numbers."""
        oracles = [self.subject.oracle(part.arguments) for part in self.parts]
        value, sigma = self._all([x.value for x in oracles]), self._all([x.sigma for x in oracles])
        kept = np.flatnonzero(np.asarray(np.isfinite(value) & (sigma < UNKNOWN / 2)).all(-1))
        kept = kept[independent(value[kept], step_of_results(self.subject.precision))]
        if len(kept) < FEWEST or not self.by_row or not valued(self.subject.operation):
            return kept
        return kept[independent(self._probes[kept], step_of_weights(self.subject.precision, self.keys))]

    @property
    def keys(self) -> int:
        """Number of keys of every row."""
        return self.arguments.keys_count or 0

    @property
    def terms(self) -> int:
        """Largest number of terms in the sum of a score."""
        names = self.subject.operation.sizes_of(Axis.FEATURE)
        return max((self.arguments.size(name) for name in names), default=1)

    @property
    def _probes(self) -> Numbers:
        """Random-sign sums of every group's weights, ignoring masks."""
        found: list[Numbers] = []
        while not found or sum(x.shape[-1] for x in found) < NUMBERS:

            def of(part: Part, seed: int = len(found)) -> Numbers:
                return exact(self.subject, probed(part.arguments.without_masks().plain(), seed))

            wide_as = [part.results[self.leaf.path].shape for part in self.parts]
            found.append(self._all([np.broadcast_to(*x) for x in zip(self.each(of, self.parts), wide_as, strict=True)]))
        return np.concatenate(found, -1)

    def stacked(self, arrays: Sequence[Numbers]) -> Numbers:
        """Return one row per group that counts, from an array per part."""
        return self._all(arrays)[self.kept]

    def _all(self, arrays: Sequence[Numbers]) -> Numbers:
        return np.concatenate([self._grouped(x, part) for x, part in zip(arrays, self.parts, strict=True)])

    def _grouped(self, x: Numbers, part: Part) -> Numbers:
        depth = len(part.arguments.batch)
        if self.by_row:
            (axis,) = self.leaf.axes(self.subject.operation.asking or "")
            depth += bool(own_heads(self.subject.operation))
            x = np.moveaxis(x, x.ndim + axis, depth)
            depth += 1
        return wide(x).reshape(prod(x.shape[:depth]), prod(x.shape[depth:]))

    @cached_property
    def given(self) -> Numbers:
        """The judged results."""
        return self.stacked([part.results[self.leaf.path] for part in self.parts])

    @cached_property
    def expected(self) -> Numbers:
        """The exact results."""
        return self.stacked([self.subject.oracle(part.arguments).value for part in self.parts])

    @cached_property
    def sigma(self) -> Numbers:
        """Standard deviations of the errors that roundings cause."""
        return self.stacked([self.subject.oracle(part.arguments).sigma for part in self.parts])

    @cached_property
    def steepness(self) -> Numbers:
        """The derivative of the results with respect to the logarithm of the scale."""
        return slope(lambda factor: self.exactly(partial(rescaled, factor=factor)))

    def exactly(self, change: Callable[[Arguments], Arguments]) -> Numbers:
        """Return the exact results of changed arguments; results that all rows share are repeated."""

        def of(part: Part) -> Numbers:
            found = exact(self.subject, change(part.arguments))
            return np.broadcast_to(found, part.results[self.leaf.path].shape)

        return self.stacked(list(self.each(of, self.parts)))

    @cached_property
    def rounded(self) -> list[Numbers]:
        """Results with weights rounded as the class allows, one per kind of rounding."""
        return [self._rounded(way) for way in ways(self.subject.precision)]

    @cached_property
    def honest(self) -> list[Numbers]:
        """The rounded results, and exact ones times the error that all exponentials may share, rounded."""
        shares = [1 + self.exponentials, 1 - self.exponentials] if self.exponentials else []
        return [*self.rounded, *(wide(exact_in(share * self.expected, self.subject.dtype)) for share in shares)]

    def _rounded(self, way: type[WeightsRounded]) -> Numbers:
        return self.stacked(list(self.each(lambda part: rounded(self.subject, part.arguments, way), self.parts)))

    @property
    def exponentials(self) -> float:
        """The relative error that all exponentials of a row may share."""
        return EXPONENTIALS if self.subject.precision.weights else 0.0

    def single_keys(self) -> Iterator[tuple[str, Numbers]]:
        """Yield the results of attending only to one key, for some keys and a key of zeros, with names."""
        for j in sampled(self.keys, KEYS, np.random.default_rng(0)):
            yield f"key {j}", self.exactly(partial(_alone, keys=take([j])))
        yield "a key of zeros", self.exactly(partial(_alone, keys=zeros))


def _caps(operation: Operation) -> list[str]:
    """Return the options that cap scores."""
    return [path for path, part in operation.parts.items() if part is Option.CAP]


def _alone(given: Arguments, keys: Change) -> Arguments:
    """Return arguments in which every query attends only to these keys."""
    return without(given.without_masks(), *ADDED).plain().along(given.operation.asked or "", keys)


def zeros(x: Numbers, axis: int) -> Numbers:
    """Return a single row of zeros along an axis, instead of all rows."""
    return np.zeros((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype)
