"""Inputs that a backend reports as unsupported: lengths, batches, features, a dtype."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.corners import FEATURES, LENGTHS, corners
from attnspec.conformance.inputs.heads import divided_sizes
from attnspec.conformance.inputs.layouts import CANNOT, last_exchanged
from attnspec.conformance.judging.attempt import stable_seed
from attnspec.conformance.judging.engine import Mark
from attnspec.conformance.judging.foreign_calls import Raised
from attnspec.conformance.judging.profiles import FORMULA
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import LeftOut, Reason, Violation
from attnspec.conformance.laws.common import in_full_batches, sample
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.semantics import QUESTIONS

REFUSED = "dtype"
"""The limit that means that a dtype is not supported at all."""

ROWS = 64
"""Number of inputs to try; they cover every pair of batches and options."""

WORK = 2.0**14
"""Largest number of multiply-adds of one input."""

GRID = 2
"""Places along each axis of a grid in a plain call; their product is the total."""

FEWEST = 3
"""Smallest number of refused inputs that establishes a limit which no single call shows."""

FIRST = (16, 128, 1)
"""Lengths of which most kernels accept at least one."""

_UNSUPPORTED = re.compile(
    r"not ?implemented|unimplemented|unsupported|(not|n't|only|no)\b.{0,40}\bsupport|support\w*\b.{0,20}\bonly"
    r"|\b(divisible|multiples?) (by|of)\b|\bat most\b|\bexceed|\btoo (long|large|many)\b|\b\d-?D\b",
    re.IGNORECASE,
)

_EMPTY = re.compile(
    r"\b(zero[- ]size|non-?zero|non-?empty|empty|zero|positive|0 elements|size 0)\b"
    r"|\bat least \d|(>|>=|greater than) ?\d",
    re.IGNORECASE,
)
_MISMATCHED = re.compile(r"\b(shapes?|sizes?|dimensions?|broadcast\w*|reshape|expand\w*)\b", re.IGNORECASE)
_SCATTERED = re.compile(r"contiguous|\bstrides?\b|\bview size\b", re.IGNORECASE)

SMALL = (1, 2, 3, 5, 8, 16)
"""Lengths and batches of which a backend with a minimum accepts at least one."""

WHETHER = ("broadcasting", "mask", "causal")
"""Limits set to False if such calls are refused."""


def says_unsupported(message: str) -> bool:
    """Return whether an error message says that the input is not supported."""
    return bool(_UNSUPPORTED.search(message))


def says_lacking(message: str) -> bool:
    """Return whether it says so, or that the argument does not exist."""
    return says_unsupported(message) or "unexpected keyword argument" in message


def says_mismatched(message: str) -> bool:
    """Return whether it says that the input is not supported, or that shapes do not fit."""
    return says_lacking(message) or bool(_MISMATCHED.search(message))


def says_small(message: str) -> bool:
    """Return whether it says that the input is not supported, or empty, or too small."""
    return says_lacking(message) or bool(_EMPTY.search(message))


def says_refused(message: str) -> bool:
    """Return whether it says any of these, or complains about memory layout."""
    return says_mismatched(message) or says_small(message) or bool(_SCATTERED.search(message))


@dataclass(frozen=True)
class Refusals:
    """True for ``everything`` if a backend refuses all calls; else the ``limits`` that exclude its refusals.

    ``taken`` is true if a plain call was accepted.
    """

    everything: bool = False
    taken: bool = False
    limits: Mapping[str, Any] = field(default_factory=dict)


def refusals(subject: Subject, mark: Mark) -> Refusals:
    """Return a backend's observed refusals within its limits."""
    probes = _Probes(subject, mark)
    if not probes.taken and divided_sizes(subject.operation).heads and not subject.limits.divided_heads:
        found = refusals(_narrowed(subject, divided_heads=True), mark)
        if found.taken:
            return replace(found, limits={"divided_heads": True, **found.limits})
    if not probes.taken:
        return Refusals(everything=probes.refused_all)
    limits = probes.lengths() | probes.features() | probes.batches() | _others(subject, mark)
    limits |= probes.least() | probes.layouts() | probes.gradients()
    dtypes = tuple(
        d for d in subject.limits.dtypes if d == subject.dtype or not _Probes(_at(subject, d), mark).refused_all
    )
    return Refusals(taken=True, limits=limits | ({"dtypes": dtypes} if dtypes != subject.limits.dtypes else {}))


def _narrowed(subject: Subject, **limits: Any) -> Subject:
    """Return the subject within narrower limits."""
    contract = replace(subject.contract, limits=replace(subject.limits, **limits))
    return Subject(subject.backend, contract, subject.operation, subject.dtype, subject.device)


def _at(subject: Subject, dtype: str) -> Subject:
    """Return the subject at another dtype."""
    return Subject(subject.backend, subject.contract, subject.operation, dtype, subject.device)


def _refused(subject: Subject, arguments: Arguments, says: Callable[[str], bool] = says_unsupported) -> bool | None:
    """Return whether a backend refuses a call as unsupported; None for other failures, or without a call."""
    try:
        found = subject.outcome(subject.converted(arguments))
    except (Violation, LeftOut):
        return None
    return (True if says(found.message) else None) if isinstance(found, Raised) else False


class _Probes:
    """Plain calls that differ in one size.

    If any is accepted, ``taken`` is true, and ``length`` and ``width`` are its length and features.
    """

    def __init__(self, subject: Subject, mark: Mark) -> None:
        self.subject, self.mark = subject, mark
        self.refused_all = True
        self.taken, self.length, self.width = False, 0, 0
        for length, features in ((length, features) for features in FEATURES for length in FIRST):
            found = self.refused(length, features)
            self.refused_all = self.refused_all and found is True
            if found is False:
                self.taken, self.length, self.width = True, length, features
                break

    def refused(
        self,
        length: int,
        features: int,
        batch: tuple[int, ...] = (),
        says: Callable[[str], bool] = says_unsupported,
    ) -> bool | None:
        """Return whether a call with as many queries as keys is refused."""
        return _refused(self.subject, self.plain(length, features, batch), says)

    def plain(self, length: int, features: int, batch: tuple[int, ...] = ()) -> Arguments:
        """Return inputs with as many queries as keys."""
        self.mark(FORMULA, f"a call with {length} queries and keys, {features} features and the batch {batch}")
        rng = np.random.default_rng(0)
        # The number of places is the product of all axes of a grid: few along each, and all grids alike.
        grids = dict.fromkeys(self.subject.operation.sizes_of(Axis.GRID), GRID)
        return sample(self.subject, rng, batch, queries=length, keys=length, features=features, sizes=grids)

    def least(self) -> dict[str, Any]:
        """Return the smallest length and batch, where all smaller ones are refused and no greater one is."""
        limits, result = self.subject.limits, {}
        if limits.multiple_of == 1:
            sizes = [n for n in (0, *SMALL) if limits.min_length <= n <= (limits.max_length or n)]
            least = _least({n: self.refused(n, self.width, says=says_small) for n in sizes})
            result["min_length"] = 0 if least == 1 and self._only_without_keys() else least
        if limits.max_batch_dims:
            sizes = [b for b in (0, *SMALL) if limits.min_batch <= b]
            result["min_batch"] = _least({b: self.refused(self.length, self.width, (b,), says_small) for b in sizes})
        return {name: size for name, size in result.items() if size}

    def _only_without_keys(self) -> bool:
        """Return whether the refusal concerns semantics: no keys refused, no queries accepted."""
        subject = self.subject
        if not QUESTIONS["no_keys"].concerns(subject.operation) or subject.operation.attends_to_itself:
            return False
        calls = [
            sample(subject, np.random.default_rng(0), (), queries=n, keys=m, features=self.width)
            for n, m in ((0, self.length), (self.length, 0))
        ]
        return [_refused(subject, given, says_small) for given in calls] == [False, True]

    def layouts(self) -> dict[str, Any]:
        """Return ``contiguous_only`` if arrays with exchanged axes in memory are refused."""
        given, subject = self.plain(max(self.length, 2), max(self.width, 2)), self.subject
        if subject.limits.contiguous_only:
            return {}

        def scattered(path: str) -> Any:
            x = given[path]
            return last_exchanged(x, subject.convert) if getattr(x, "ndim", 0) > 1 else subject.convert(x)

        try:
            found = subject.outcome(given.passed_as(scattered))
        except (Violation, *CANNOT):
            return {}
        refused = isinstance(found, Raised) and _SCATTERED.search(found.message)
        return {"contiguous_only": True} if refused and _refused(subject, given) is False else {}

    def gradients(self) -> dict[str, Any]:
        """Return the operations with gradients, if this one reports that it has none."""
        subject = self.subject
        name, contract = subject.operation.name, subject.contract
        asked = contract.differentiable and subject.operation.differentiable and subject.limits.gives_gradients(name)
        if not asked:
            return {}
        given = self.plain(max(self.length, 2), self.width)
        try:
            subject.vjp(given, subject.cotangents(given, np.random.default_rng(0)))
        except Violation as violation:
            if violation.reason is Reason.RAISED and says_unsupported(violation.message):
                others = (o for o in contract.operations if o != name and OPERATIONS[o].differentiable)
                return {"gradients": tuple(o for o in others if subject.limits.gives_gradients(o))}
        return {}

    def lengths(self) -> dict[str, Any]:
        """Return the greatest length, and the divisor of all accepted lengths."""
        limits = self.subject.limits
        found = {
            length: self.refused(length, self.width)
            for length in sorted(LENGTHS)
            if length and not length % limits.multiple_of and length <= (limits.max_length or length)
        }
        taken, refused = _divided(found)
        if not refused:
            return {}
        multiple, longest = math.gcd(*taken), max(taken)
        beyond = [length for length in refused if length > longest]
        between = [length for length in refused if length < longest]
        if any(length % multiple == 0 for length in between):
            return {}  # no limit describes it
        result = {"multiple_of": multiple} if between else {}
        beyond = [length for length in beyond if not between or length % multiple == 0]
        return result | (
            {"max_length": self._longest(longest, min(beyond), multiple if between else 1)} if beyond else {}
        )

    def _longest(self, taken: int, refused: int, multiple: int) -> int:
        """Return the greatest accepted length between an accepted and a refused one."""
        while refused - taken > multiple:
            middle = (taken + refused) // 2 // multiple * multiple
            middle = middle if middle > taken else taken + multiple
            if self.refused(middle, self.width) is False:
                taken = middle
            else:
                refused = middle
        return taken

    def features(self) -> dict[str, Any]:
        """Return the accepted feature sizes, if others are refused."""
        sizes = self.subject.limits.head_sizes or FEATURES
        taken, refused = _divided({size: self.refused(self.length, size) for size in sizes})
        return {"head_sizes": tuple(taken)} if refused else {}

    def batches(self) -> dict[str, Any]:
        """Return the largest number of batch dimensions, if more are refused."""
        depths = range(self.subject.limits.max_batch_dims + 1)
        taken, refused = _divided({depth: self.refused(self.length, self.width, (2,) * depth) for depth in depths})
        return {"max_batch_dims": max(taken)} if refused and max(taken) < min(refused) else {}


def _least(found: Mapping[int, bool | None]) -> int:
    """Return the smallest accepted size, if all smaller ones are refused and all greater accepted; else 0."""
    taken = [size for size, refused in found.items() if refused is False]
    least = min(taken, default=0)
    return least if all(refused is (size < least) for size, refused in found.items()) else 0


def _divided(found: Mapping[int, bool | None]) -> tuple[list[int], list[int]]:
    """Return the accepted sizes, and the refused ones."""
    return [x for x, refused in found.items() if refused is False], [x for x, refused in found.items() if refused]


def _others(subject: Subject, mark: Mark) -> dict[str, Any]:
    """Return limits of broadcasting, masks, the causal flag and features, from calls of many kinds.

    A limit must exclude none of the accepted inputs, and some refused ones. Broadcasting is blamed only if one of these
    inputs is accepted once its batches are repeated in full.
    """
    tried = list(_tried(subject, mark))
    lacking: list[str] = []
    limits: dict[str, Any] = {}
    left = [x for x, refused in tried if refused]
    candidates = dict(_candidates(subject))
    while len(left) >= FEWEST:
        fitting = {
            name: sum(map(excludes, left))
            for name, excludes in candidates.items()
            if all(refused for x, refused in tried if excludes(x))
        }
        name = max(fitting, key=lambda name: fitting[name], default="")
        if not name or fitting[name] < FEWEST:
            break
        excluded = [x for x in left if candidates[name](x)]
        if name == "broadcasting" and not any(_refused(subject, in_full_batches(x)) is False for x in excluded):
            del candidates[name]
            continue
        if name in WHETHER:
            limits[name] = False
        else:
            lacking.append(name)
        left = [x for x in left if not candidates[name](x)]
    if lacking:
        known = sorted({f for o in OPERATIONS.values() for f in o.features if subject.limits.has(f)})
        limits["features"] = tuple(f for f in known if f not in lacking)
    return limits


def _tried(subject: Subject, mark: Mark) -> Iterator[tuple[Arguments, bool]]:
    """Yield varied inputs, and whether they are refused; empty inputs, which may be accepted anyway, are skipped."""
    seed = stable_seed("refusals", subject.operation.name, subject.dtype)
    for example in corners(subject.operation, subject.limits, seed=seed, most=ROWS, work=WORK):
        arguments = subject.arguments(example)
        if all(x.size for x in arguments.arrays.values()) and subject.in_domain(arguments):
            mark(FORMULA, example)
            refused = _refused(subject, arguments, says_mismatched if _broadcasts(arguments) else says_lacking)
            if refused is not None:
                yield arguments, refused


def _candidates(subject: Subject) -> Iterable[tuple[str, Callable[[Arguments], bool]]]:
    """Yield the candidate limits, each with a test of what it excludes."""
    operation, limits = subject.operation, subject.limits
    if limits.broadcasting:
        yield "broadcasting", _broadcasts
    masks = [leaf.path for leaf in operation.masks.values() if leaf.optional]
    if limits.mask and masks:
        yield "mask", lambda given: any(given[path] is not None for path in masks)
    flag = operation.flag
    if limits.causal and flag is not None:
        yield "causal", lambda given: bool(given[flag])
    for feature in subject.operation.features:
        if subject.limits.has(feature):
            yield feature, partial(_uses, feature)


def _broadcasts(arguments: Arguments) -> bool:
    """Return whether batch dimensions of different inputs differ."""
    return len({x.shape[: x.ndim - len(leaf.core)] for leaf, x in arguments.batched}) > 1


def _uses(feature: str, arguments: Arguments) -> bool:
    """Return whether a call uses an optional part of the operation."""
    path, _, choice = feature.partition("=")
    value = arguments.get(path)
    if choice:
        return bool(value == choice)
    return value is not None and value is not arguments.operation.defaults.get(path)
