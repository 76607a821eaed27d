"""What a backend refuses by saying that it does not support it: lengths, batches, features, a dtype."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.corners import corners
from attnspec.conformance.judging.attempt import stable_seed
from attnspec.conformance.judging.engine import Mark
from attnspec.conformance.judging.foreign_calls import Raised
from attnspec.conformance.judging.profiles import FORMULA
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Violation
from attnspec.conformance.laws.common import data_dtype, sample
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.operation import OPERATIONS

REFUSED = "dtype"
"""The limit that says that nothing of a dtype is supported."""

ROWS = 64
"""Inputs that are tried, which cover every pair of sizes, batches and options."""

WORK = 2.0**14
"""The most multiply-adds of one."""

FEWEST = 3
"""So many inputs at least show a limit."""

_UNSUPPORTED = re.compile(
    r"not ?implemented|unimplemented|unsupported|(not|n't|only|no)\b.{0,40}\bsupport|support\w*\b.{0,20}\bonly"
    r"|\b(divisible|multiples?) (by|of)\b|\bat most\b|\bexceed|\btoo (long|large|many)\b",
    re.IGNORECASE,
)


def says_unsupported(message: str) -> bool:
    """Whether what a backend raised says that it does not support its input."""
    return bool(_UNSUPPORTED.search(message))


@dataclass(frozen=True)
class Refusals:
    """Whether a backend refuses ``everything``; if not, ``limits`` exclude what it refuses, and nothing that it takes."""

    everything: bool = False
    limits: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Tried:
    """Inputs, and whether the backend refused them."""

    arguments: Arguments
    refused: bool

    @property
    def longest(self) -> int:
        """The greatest number of queries, keys or time steps."""
        return max(self._sizes(Axis.POSITION), default=0)

    @property
    def lengths(self) -> list[int]:
        """The numbers of queries, keys and time steps."""
        return self._sizes(Axis.POSITION)

    @property
    def features(self) -> list[int]:
        """The sizes of features."""
        return self._sizes(Axis.FEATURE)

    def _sizes(self, kind: Axis) -> list[int]:
        sizes, operation = self.arguments.sizes, self.arguments.operation
        return [sizes[name] for name in operation.sizes if name in sizes and operation.axis(name) & kind]

    @property
    def broadcasts(self) -> bool:
        """Whether batch dimensions of different inputs differ."""
        batches = {x.shape[: x.ndim - len(leaf.core)] for leaf, x in self.arguments.batched}
        return len(batches) > 1

    def uses(self, feature: str) -> bool:
        """Whether the call makes use of an optional part of the operation."""
        path, _, choice = feature.partition("=")
        value = self.arguments.get(path)
        if choice:
            return value == choice
        return value is not None and value is not self.arguments.operation.defaults.get(path)


def refusals(subject: Subject, mark: Mark) -> Refusals:
    """What a backend was seen to refuse, within its limits."""
    tried = list(_tried(subject, mark))
    if tried and all(x.refused for x in tried):
        return Refusals(everything=True)
    limits: dict[str, Any] = {}
    left = [x for x in tried if x.refused]
    while len(left) >= FEWEST:
        fitting = []
        for name, value, excludes in _candidates(subject, tried):
            if name not in limits or name == "features":
                excluded = [x for x in tried if excludes(x)]
                if all(x.refused for x in excluded):
                    fitting.append((sum(excludes(x) for x in left), name, value, excludes))
        most, name, value, excludes = max(fitting, key=lambda f: f[0], default=(0, "", None, lambda x: False))
        if most < FEWEST:
            break
        limits[name] = [*limits.get(name, []), value] if name == "features" else value
        left = [x for x in left if not excludes(x)]
    if "max_length" in limits:
        limits["max_length"] = _longest(subject, limits["max_length"], tried)
    if "features" in limits:
        known = sorted({f for o in OPERATIONS.values() for f in o.features if subject.limits.has(f)})
        limits["features"] = tuple(f for f in known if f not in limits["features"])
    return Refusals(limits=limits)


def _tried(subject: Subject, mark: Mark) -> Iterator[_Tried]:
    seed = stable_seed("refusals", subject.operation.name, subject.dtype)
    for example in corners(subject.operation, subject.limits, seed=seed, most=ROWS, work=WORK):
        arguments = example.arguments(subject.operation, data_dtype(subject))
        try:
            if not subject.in_domain(arguments):
                continue
            mark(FORMULA, example)
            found = subject.outcome(subject.converted(arguments))
        except Violation:
            continue
        refused = isinstance(found, Raised) and says_unsupported(found.message)
        if refused or not isinstance(found, Raised):
            yield _Tried(arguments, refused)


Candidate = tuple[str, Any, Callable[[_Tried], bool]]
"""A limit, its value, and what it excludes."""


def _candidates(subject: Subject, tried: list[_Tried]) -> Iterator[Candidate]:
    """The limits that exclude none of the inputs that the backend takes, those that exclude least first."""
    taken = [x for x in tried if not x.refused]
    for feature in subject.operation.features:
        if subject.limits.has(feature):
            yield "features", feature, lambda x, feature=feature: x.uses(feature)
    if subject.limits.broadcasting:
        yield "broadcasting", False, lambda x: x.broadcasts
    deepest = max((len(x.arguments.batch) for x in taken), default=0)
    if deepest < subject.limits.max_batch_dims:
        yield "max_batch_dims", deepest, lambda x: len(x.arguments.batch) > deepest
    if subject.limits.head_sizes is None:
        sizes = tuple(sorted({size for x in taken for size in x.features}))
        yield "head_sizes", sizes, lambda x: not set(x.features) <= set(sizes)
    multiple = math.gcd(*(length for x in taken for length in x.lengths))
    if multiple > subject.limits.multiple_of:
        yield "multiple_of", multiple, lambda x: any(length % multiple for length in x.lengths)
    longest = max((x.longest for x in taken), default=0)
    if longest:
        yield "max_length", longest, lambda x: x.longest > longest


def _longest(subject: Subject, taken: int, tried: list[_Tried]) -> int:
    """The greatest length that the backend takes, between one that it takes and one that it refuses."""
    refused = min(x.longest for x in tried if x.refused and x.longest > taken)
    rng = np.random.default_rng(0)
    while refused - taken > 1:
        middle = (taken + refused) // 2
        given = sample(subject, rng, queries=middle, keys=middle)
        found = subject.outcome(subject.converted(given))
        if isinstance(found, Raised):
            refused = middle
        else:
            taken = middle
    return taken
