"""The judged numbers arranged in independent groups, to find errors far below single roundings.

Averages over many rows reveal such errors, as in the laws on ensembles (``docs/ensembles.md``), but only if errors of
different rows are independent, and as often positive as negative. Therefore rows that round alike count once, and
nothing is tested if too few rows remain. *Honest* results, exact ones with weights and sums rounded as the precision
class allows, show what errors are not yet evidence (``filters``).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from math import prod

import numpy as np

from attnspec.conformance.harness.dependence import (
    SIGN_SUMS,
    independent,
    probed,
    step_of_results,
    step_of_weights,
    value_paths,
)
from attnspec.conformance.harness.parts import Part, leading_head_sizes
from attnspec.conformance.harness.rounding import WeightsRounded, rounded, weight_roundings
from attnspec.conformance.harness.score_changes import ADDED, is_weight, rescaled, without
from attnspec.conformance.inputs.arguments import Arguments, Change, Numbers, take
from attnspec.conformance.inputs.dtypes import exact_in
from attnspec.conformance.judging.sampled_rows import sample_indices
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import wide
from attnspec.conformance.laws.ensembles import log_derivative, unrounded
from attnspec.reference.budget import WIDTH
from attnspec.reference.budget.error_array import UNKNOWN
from attnspec.spec.contract.axes import Axis, ScoreEffect

MIN_GROUPS = int(WIDTH**2) + 1
"""Smallest number B of groups: an average over fewer cannot exceed ``WIDTH`` standard errors, which are at most √B."""

TESTED_KEYS = 24
"""Number of keys tested one by one: the first, the last, those at borders of tiles, and a random sample."""

EXPONENTIALS = 2.0**-13
"""Relative error of exponentials in precision classes that store weights in fewer bits.

There, kernels approximate exponentials, more coarsely in sums than in products with values. PyTorch's on the CPU are
off by up to 9e-5.
"""


class Ensemble:
    """Judged numbers of an operation's leading result, one row per independent group.

    A group is one row of one head if rows share no rounded number, else all rows of a batch element.
    """

    def __init__(self, subject: Subject, whole: Arguments, parts: Sequence[Part]) -> None:
        self.subject, self.whole, self.parts = subject, whole, parts
        self.leaf = subject.operation.leading
        self.map_parts: Callable[..., Iterable[Numbers]] = map
        """``map``, or a replacement that computes the parts on threads."""

    @property
    def arguments(self) -> Arguments:
        """The arguments of one part."""
        return self.parts[0].arguments

    @cached_property
    def by_row(self) -> bool:
        """True if a group is a row, since rows share no projected or rounded keys."""
        operation = self.subject.operation
        share_roundings = self.subject.precision.inputs or self._has_weights or operation.attends_to_itself
        return bool(self.leaf.axes(operation.query_size or "")) and not share_roundings

    @property
    def _has_weights(self) -> bool:
        return any(is_weight(self.subject.operation, leaf) for leaf in self.subject.operation.floats)

    @cached_property
    def reason_not_tested(self) -> str:
        """Reason why groups are dependent or too few for a test; empty if they can be tested."""
        whole, operation = self.whole, self.subject.operation
        if self.subject.precision.inputs and self._has_weights:
            return "because the precision class rounds weight matrices, which all rows share"
        if self.subject.precision.inputs and leading_head_sizes(operation):
            return "because the precision class rounds keys, which heads share"
        caps = [path for path, part in operation.parts.items() if part is ScoreEffect.CAP]
        if self.subject.precision.tanh and any(whole[path] is not None for path in caps):
            return "because the precision class approximates the cap's tanh, which all rows share"
        if not self.by_row and any(x.shape[: x.ndim - len(leaf.core)] != whole.batch for leaf, x in whole.batched):
            return "because elements of the batch share arguments"
        if len(self.independent_groups) < MIN_GROUPS:
            count = len(self.independent_groups)
            return f"because this takes {MIN_GROUPS} {self.groups} that round differently, and there are {count}"
        return ""

    @property
    def groups(self) -> str:
        """Plural name of the groups in messages."""
        return "rows" if self.by_row else "elements of the batch"

    @cached_property
    def independent_groups(self) -> Numbers:
        """Indices of the tested groups: the first of those that round alike, all with known errors."""
        oracles = [self.subject.oracle(part.arguments) for part in self.parts]
        value, sigma = self._concatenated([x.value for x in oracles]), self._concatenated([x.sigma for x in oracles])
        groups = np.flatnonzero(np.asarray(np.isfinite(value) & (sigma < UNKNOWN / 2)).all(-1))
        groups = groups[independent(value[groups], step_of_results(self.subject.precision))]
        if len(groups) < MIN_GROUPS or not self.by_row or not value_paths(self.subject.operation):
            return groups
        return groups[independent(self._probes[groups], step_of_weights(self.subject.precision, self.keys))]

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
        """Random-sign sums of every group's unmasked weights."""
        sums: list[Numbers] = []
        while not sums or sum(x.shape[-1] for x in sums) < SIGN_SUMS:
            sums.append(self._exactly(partial(probed, seed=len(sums))))
        return np.concatenate(sums, -1)

    def stacked(self, arrays: Sequence[Numbers]) -> Numbers:
        """Return one row per tested group, from an array per part."""
        return self._concatenated(arrays)[self.independent_groups]

    def _concatenated(self, arrays: Sequence[Numbers]) -> Numbers:
        return np.concatenate([self._grouped(x, part) for x, part in zip(arrays, self.parts, strict=True)])

    def _grouped(self, x: Numbers, part: Part) -> Numbers:
        """Return one row per group of a part, tested or not."""
        depth = len(part.arguments.batch)
        if self.by_row:
            (axis,) = self.leaf.axes(self.subject.operation.query_size or "")
            depth += bool(leading_head_sizes(self.subject.operation))
            x = np.moveaxis(x, x.ndim + axis, depth)
            depth += 1
        return wide(x).reshape(prod(x.shape[:depth]), prod(x.shape[depth:]))

    @cached_property
    def judged_results(self) -> Numbers:
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
    def ordered_sigma(self) -> Numbers:
        """Standard deviations that follow the partial sums of terms with a pattern; several times slower to compute."""
        subject = self.subject.by_partial_sums()
        return self.stacked([subject.oracle(part.arguments).sigma for part in self.parts])

    @cached_property
    def scale_derivative(self) -> Numbers:
        """Derivative of the results with respect to the logarithm of the scale."""
        return log_derivative(lambda factor: self.exactly(partial(rescaled, factor=factor)))

    def exactly(self, change: Callable[[Arguments], Arguments]) -> Numbers:
        """Return the exact results of changed arguments, in the shape of the judged results."""
        return self._exactly(change)[self.independent_groups]

    def _exactly(self, change: Callable[[Arguments], Arguments]) -> Numbers:
        def of(part: Part) -> Numbers:
            results = unrounded(self.subject, change(part.arguments))
            return np.broadcast_to(results, part.results[self.leaf.path].shape)

        return self._concatenated(list(self.map_parts(of, self.parts)))

    @cached_property
    def rounded(self) -> list[Numbers]:
        """Results exact but for rounded weights, one per rounding that the precision class allows."""
        return [self._rounded(rounding) for rounding in weight_roundings(self.subject.precision)]

    @cached_property
    def honest_results(self) -> list[Numbers]:
        """Results of simulated correct implementations.

        Besides :attr:`rounded`, these are results of exponentials that are all too large, or too small, by as much as
        is allowed.
        """
        factors = [1 + self.exponentials, 1 - self.exponentials] if self.exponentials else []
        return [*self.rounded, *(wide(exact_in(share * self.expected, self.subject.dtype)) for share in factors)]

    def _rounded(self, kind: type[WeightsRounded]) -> Numbers:
        return self.stacked(list(self.map_parts(lambda part: rounded(self.subject, part.arguments, kind), self.parts)))

    @property
    def exponentials(self) -> float:
        """Largest relative error that all exponentials of a row may have in common."""
        return EXPONENTIALS if self.subject.precision.weights else 0.0

    def results_of_single_keys(self) -> Iterator[tuple[str, Numbers]]:
        """Yield names and results of attending to a single key: sampled keys, and a key of zeros."""
        for j in sample_indices(self.keys, TESTED_KEYS, np.random.default_rng(0)):
            yield f"key {j}", self.exactly(partial(_attending_only_to, keys=take([j])))
        yield "a key of zeros", self.exactly(partial(_attending_only_to, keys=zeros))


def _attending_only_to(arguments: Arguments, keys: Change) -> Arguments:
    return without(arguments.without_masks(), *ADDED).unordered().along(arguments.operation.key_size or "", keys)


def zeros(x: Numbers, axis: int) -> Numbers:
    """Return a single row of zeros along an axis, instead of all rows."""
    return np.zeros((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype)
