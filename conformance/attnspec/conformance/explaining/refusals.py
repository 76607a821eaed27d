"""Search for the inputs that a backend reports as unsupported, to propose them as limits."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.corners import FEATURES, LENGTHS, corners
from attnspec.conformance.inputs.heads import divided_sizes
from attnspec.conformance.inputs.layouts import VIEW_ERRORS, last_exchanged
from attnspec.conformance.judging.attempt import stable_seed
from attnspec.conformance.judging.engine import Mark
from attnspec.conformance.judging.foreign_calls import Raised
from attnspec.conformance.judging.profiles import FORMULA
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import OutsideDeclaration, Reason, Violation
from attnspec.conformance.laws.common import in_full_batches, sample
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.semantics import QUESTIONS

REFUSED = "dtype"
"""Key of the proposal that the dtype is not supported at all."""

TRIED_INPUTS = 64
"""Number of varied inputs; they cover every pair of batches and options."""

TRIED_PER_OPTION = 8
"""Most calls that try one option."""

WORK = 2.0**14
"""Largest number of multiply-adds of one input."""

WORK_AT_LARGE_SIZES = 2.0**18
"""Largest number of multiply-adds where limits allow only large sizes."""

GRID = 2
"""Size of each axis of a grid in a plain call."""

MIN_REFUSED = 3
"""Fewest refused inputs that establish a limit of an option. No single call can."""

TRIED_LENGTHS = (16, 128, 1)
"""Lengths tried in plain calls; most kernels accept at least one."""

_UNSUPPORTED = re.compile(
    r"not ?implemented|unimplemented|unsupported|(not|n't|only|no)\b.{0,40}\bsupport|support\w*\b.{0,20}\bonly"
    r"|\b(divisible|multiples?) (by|of)\b|\bat most\b|\bexceed|\btoo (long|large|many)\b|\b\d-?D\b"
    r"|\bAssertionError\b",  # with or without a message, the author's check of the input
    re.IGNORECASE,
)

_EMPTY = re.compile(
    r"\b(zero[- ]size|non-?zero|non-?empty|empty|zero|positive|0 elements|size 0)\b"
    r"|\bat least \d|(>|>=|greater than) ?\d"
    r"|\binvalid (configuration )?argument\b",  # CUDA, of a grid without blocks
    re.IGNORECASE,
)
_MISMATCHED = re.compile(r"\b(shapes?|sizes?|dimensions?|broadcast\w*|reshape|expand\w*)\b", re.IGNORECASE)
_LAYOUT = re.compile(r"contiguous|\bstrides?\b|\bview size\b", re.IGNORECASE)

SMALL_SIZES = (1, 2, 3, 5, 8, 16)
"""Lengths and batch sizes tried for a minimum."""

BOOLEAN_LIMITS = ("broadcasting", "mask", "causal")
"""Limits that are set to False if calls of this kind are refused; others are features."""


def says_unsupported(message: str) -> bool:
    """Return True if an error message says that the input is not supported."""
    return bool(_UNSUPPORTED.search(message))


def says_lacking(message: str) -> bool:
    """Return True if a message says that an input or argument is not supported."""
    return says_unsupported(message) or "unexpected keyword argument" in message


def says_mismatched(message: str) -> bool:
    """Return True if :func:`says_lacking`, or if a message says that shapes do not fit."""
    return says_lacking(message) or bool(_MISMATCHED.search(message))


def says_small(message: str) -> bool:
    """Return True if :func:`says_lacking`, or if a message says that the input is too small."""
    # "cannot reshape array of size 0" is a mistake of the backend, and no check of its inputs.
    return says_lacking(message) or bool(_EMPTY.search(message) and "reshape" not in message)


def says_refused(message: str) -> bool:
    """Return True if a message complains about support, shapes, small sizes or memory layout."""
    return says_mismatched(message) or says_small(message) or bool(_LAYOUT.search(message))


@dataclass(frozen=True)
class Refusals:
    """Inputs that a backend refuses.

    ``everything`` is True if it refuses all plain calls, ``accepts_any`` if it accepts one. ``limits`` are those that
    exclude the refused inputs, ``exceptions`` holds the backend's own message for each of them.
    """

    everything: bool = False
    accepts_any: bool = False
    limits: Mapping[str, Any] = field(default_factory=dict)
    exceptions: Mapping[str, str] = field(default_factory=dict, compare=False)


Outcome = str | Literal[False] | None
"""Outcome of a call: the backend's message if it refuses the inputs, False if it answers, else None."""


def refusals(subject: Subject, mark: Mark) -> Refusals:
    """Call a backend within its limits, and return what it refuses."""
    probes = _Probes(subject, mark)
    for limit in () if probes.accepts_any else _limits_of_every_call(subject):
        contract = replace(subject.contract, limits=replace(subject.limits, **limit))
        limited = Subject(subject.backend, contract, subject.operation, subject.dtype, subject.device)
        narrower = refusals(limited, mark)
        if narrower.accepts_any:
            raised = dict.fromkeys(limit, probes.message) | dict(narrower.exceptions)
            return replace(narrower, limits={**limit, **narrower.limits}, exceptions=raised)
    if not probes.accepts_any:
        return Refusals(everything=probes.refused_all, exceptions={REFUSED: probes.message})
    limits: dict[str, Any] = {}
    exceptions: dict[str, str] = {}
    for limits_of_kind in (
        probes.lengths, probes.features, probes.batches, probes.min_length, probes.min_batch, probes.layouts,
        probes.gradients,
    ):  # fmt: skip
        probes.message, probes.messages = "", {}
        observed = limits_of_kind()
        limits |= observed
        exceptions |= {name: probes.messages.get(name, probes.message) for name in observed}
    # Options are tried within these limits, since a refused size would hide what becomes of them.
    contract = replace(subject.contract, limits=replace(subject.limits, **limits))
    within = Subject(subject.backend, contract, subject.operation, subject.dtype, subject.device)
    option_limits, messages = _option_limits(within, mark)
    limits, exceptions = {**option_limits, **limits}, {**messages, **exceptions}
    others = {d: _Probes(_with_dtype(subject, d), mark) for d in subject.limits.dtypes if d != subject.dtype}
    refused = {d: dtype_probes.message for d, dtype_probes in others.items() if dtype_probes.refused_all}
    if refused:
        limits["dtypes"] = tuple(d for d in subject.limits.dtypes if d not in refused)
        exceptions["dtypes"] = next(iter(refused.values()))
    return Refusals(accepts_any=True, limits=limits, exceptions=exceptions)


def _limits_of_every_call(subject: Subject) -> Iterator[dict[str, Any]]:
    """Yield limits that change every call of the operation, each alone."""
    if not subject.operation.always_passed:
        yield from ({"always": (feature,)} for feature in subject.operation.features if "=" in feature)
    # ``torch.nn.MultiheadAttention``, for one, takes only heads that divide the width.
    if divided_sizes(subject.operation).heads and not subject.limits.divided_heads:
        yield {"divided_heads": True}


def _with_dtype(subject: Subject, dtype: str) -> Subject:
    return Subject(subject.backend, subject.contract, subject.operation, dtype, subject.device)


def _refused(subject: Subject, arguments: Arguments, matches: Callable[[str], bool] = says_unsupported) -> Outcome:
    """Return the outcome of a call; ``matches`` tells which messages refuse its inputs."""
    try:
        outcome = subject.result_or_raised(subject.converted(arguments))
    except (Violation, OutsideDeclaration):
        return None
    if not isinstance(outcome, Raised):
        return False
    return outcome.message if matches(outcome.message) else None


class _Probes:
    """Plain calls that differ from an accepted one in a single size.

    ``accepts_any`` is True if there is an accepted one; ``length`` and ``width`` are its length and features.
    ``message`` is that of the last refusal, ``messages`` those of several limits that are found together.
    """

    def __init__(self, subject: Subject, mark: Mark) -> None:
        self.subject, self.mark = subject, mark
        self.refused_all, self.message = True, ""
        self.messages: dict[str, str] = {}
        self.accepts_any, self.length, self.width = False, 0, 0
        for length, features in ((length, features) for features in FEATURES for length in TRIED_LENGTHS):
            refused = self.refused(length, features)
            self.refused_all = self.refused_all and bool(refused)
            if refused is False:
                self.accepts_any, self.length, self.width = True, length, features
                break

    def refused(
        self, length: int, features: int, batch: tuple[int, ...] = (), says: Callable[[str], bool] = says_unsupported
    ) -> Outcome:
        """Return the outcome of :func:`_refused` for a call with as many queries as keys."""
        refused = _refused(self.subject, self.plain(length, features, batch), says)
        self.message = refused or self.message
        return refused

    def plain(self, length: int, features: int, batch: tuple[int, ...] = ()) -> Arguments:
        """Return inputs without options, with as many queries as keys."""
        self.mark(FORMULA, f"a call with {length} queries and keys, {features} features and the batch {batch}")
        rng = np.random.default_rng(0)
        # All grids have the same small axes, since the number of their places is the product of the axes.
        grids = dict.fromkeys(self.subject.operation.sizes_of(Axis.GRID), GRID)
        return sample(self.subject, rng, batch, queries=length, keys=length, features=features, sizes=grids)

    def min_length(self) -> dict[str, Any]:
        """Return the smallest accepted length, if exactly the smaller ones are refused."""
        limits = self.subject.limits
        if limits.multiple_of > 1:
            return {}
        sizes = [n for n in (0, *SMALL_SIZES) if limits.min_length <= n <= (limits.max_length or n)]
        smallest = _minimum({n: self.refused(n, self.width, says=says_small) for n in sizes})
        return {"min_length": smallest} if smallest and not (smallest == 1 and self._only_without_keys()) else {}

    def min_batch(self) -> dict[str, Any]:
        """Return the smallest accepted batch size, if exactly the smaller ones are refused."""
        limits = self.subject.limits
        if not limits.max_batch_dims:
            return {}
        sizes = [b for b in (0, *SMALL_SIZES) if limits.min_batch <= b]
        smallest = _minimum({b: self.refused(self.length, self.width, (b,), says_small) for b in sizes})
        return {"min_batch": smallest} if smallest else {}

    def _only_without_keys(self) -> bool:
        """Return True if inputs without queries are accepted, but inputs without keys refused.

        That is a choice of semantics (``no_keys``), not a minimum length.
        """
        subject = self.subject
        if not QUESTIONS["no_keys"].concerns(subject.operation) or subject.operation.attends_to_itself:
            return False
        pairs = ((0, self.length), (self.length, 0))
        both = [sample(subject, np.random.default_rng(0), (), queries=n, keys=m, features=self.width) for n, m in pairs]
        without_queries, without_keys = (_refused(subject, arguments, says_small) for arguments in both)
        return without_queries is False and bool(without_keys)

    def layouts(self) -> dict[str, Any]:
        """Return ``contiguous_only`` if arrays with exchanged axes in memory are refused because of their layout."""
        arguments, subject = self.plain(max(self.length, 2), max(self.width, 2)), self.subject
        if subject.limits.contiguous_only:
            return {}

        def scattered(path: str) -> Any:
            x = arguments[path]
            return last_exchanged(x, subject.convert) if getattr(x, "ndim", 0) > 1 else subject.convert(x)

        try:
            outcome = subject.result_or_raised(arguments.passed_as(scattered))
        except (Violation, *VIEW_ERRORS):
            return {}
        if not isinstance(outcome, Raised) or not _LAYOUT.search(outcome.message):
            return {}
        self.message = outcome.message
        return {"contiguous_only": True} if _refused(subject, arguments) is False else {}

    def gradients(self) -> dict[str, Any]:
        """Return the other operations with gradients, if this one reports that it has none."""
        subject = self.subject
        if not subject.has_gradients:
            return {}
        arguments = self.plain(max(self.length, 2), self.width)
        try:
            subject.vjp(arguments, subject.cotangents(arguments, np.random.default_rng(0)))
        except Violation as violation:
            if violation.reason is Reason.RAISED and says_unsupported(violation.message):
                self.message = violation.message.removeprefix("vjp raised ")
                name, operations = subject.operation.name, subject.contract.operations
                others = (o for o in operations if o != name and OPERATIONS[o].differentiable)
                return {"gradients": tuple(o for o in others if subject.limits.gives_gradients(o))}
        return {}

    def lengths(self) -> dict[str, Any]:
        """Return the largest length and the common divisor of accepted lengths, if others are refused."""
        limits = self.subject.limits
        allowed = [n for n in sorted(LENGTHS) if n and not n % limits.multiple_of and n <= (limits.max_length or n)]
        outcomes = {length: self.refused(length, self.width) for length in allowed}
        accepted, refused = _partition(outcomes)
        if not refused:
            return {}
        multiple, longest = math.gcd(*accepted), max(accepted)
        between = [length for length in refused if length < longest]
        if any(length % multiple == 0 for length in between):
            return {}  # no limit describes these refusals
        result, step = ({"multiple_of": multiple}, multiple) if between else ({}, 1)
        beyond = [length for length in refused if length > longest and length % step == 0]
        shown = {"multiple_of": between[:1], "max_length": beyond[:1]}
        self.messages = {name: str(outcomes[n]) for name, lengths in shown.items() for n in lengths}
        return result | ({"max_length": self._longest(longest, min(beyond), step)} if beyond else {})

    def _longest(self, accepted: int, refused: int, multiple: int) -> int:
        """Return the largest accepted length between an accepted and a refused one, by bisection."""
        while refused - accepted > multiple:
            middle = (accepted + refused) // 2 // multiple * multiple
            middle = middle if middle > accepted else accepted + multiple
            if self.refused(middle, self.width) is False:
                accepted = middle
            else:
                refused = middle
        return accepted

    def features(self) -> dict[str, Any]:
        """Return the accepted feature sizes, if others are refused."""
        sizes = self.subject.limits.head_sizes or FEATURES
        accepted, refused = _partition({size: self.refused(self.length, size) for size in sizes})
        return {"head_sizes": tuple(accepted)} if refused else {}

    def batches(self) -> dict[str, Any]:
        """Return the largest number of batch dimensions, if more are refused."""
        depths = range(self.subject.limits.max_batch_dims + 1)
        accepted, refused = _partition({depth: self.refused(self.length, self.width, (2,) * depth) for depth in depths})
        return {"max_batch_dims": max(accepted)} if refused and max(accepted) < min(refused) else {}


def _minimum(refused_by_size: Mapping[int, Outcome]) -> int:
    """Return the smallest accepted size if exactly all smaller ones are refused; else 0."""
    accepted, refused = _partition(refused_by_size)
    all_known = len(accepted) + len(refused) == len(refused_by_size)
    smallest = min(accepted, default=0)
    return smallest if all_known and all(size < smallest for size in refused) else 0


def _partition(outcomes: Mapping[int, Outcome]) -> tuple[list[int], list[int]]:
    return [x for x, refused in outcomes.items() if refused is False], [x for x, refused in outcomes.items() if refused]


def _option_limits(subject: Subject, mark: Mark) -> tuple[dict[str, Any], dict[str, str]]:
    """Return limits of optional parts of calls, and the backend's message for each.

    The parts are masks, the causal flag, features, and broadcasting, without which batches are repeated in full. A
    limit is established by varied calls that use its part and no other, and are accepted without it: at least
    ``MIN_REFUSED`` of them are refused, and none is accepted.
    """
    inputs = list(_varied_inputs(subject, mark))
    limits: dict[str, Any] = {}
    exceptions: dict[str, str] = {}
    missing = []
    for name, uses in _candidates(subject):
        reduced = (_without_others(name, x) for x in inputs if uses(x))
        alone = [x for x in reduced if uses(x) and subject.in_domain(x)][:TRIED_PER_OPTION]
        mark(FORMULA, f"calls with {name} alone")
        says = says_mismatched if name == "broadcasting" else says_lacking
        outcomes = [_refused(subject, x, says) for x in alone]
        messages = [message for message in outcomes if message]
        if False in outcomes or len(messages) < MIN_REFUSED:
            continue
        exceptions.setdefault(name if name in BOOLEAN_LIMITS else "features", messages[0])
        if name in BOOLEAN_LIMITS:
            limits[name] = False
        else:
            missing.append(name)
    if missing:
        features = sorted({f for o in OPERATIONS.values() for f in o.features if subject.limits.has(f)})
        limits["features"] = tuple(f for f in features if f not in missing)
    return limits, exceptions


def _varied_inputs(subject: Subject, mark: Mark) -> Iterator[Arguments]:
    """Yield varied inputs that are accepted without any option; not empty ones, which libraries may not look at."""
    seed = stable_seed("refusals", subject.operation.name, subject.dtype)
    limits = subject.limits
    work = WORK_AT_LARGE_SIZES if limits.head_sizes or max(limits.multiple_of, limits.min_length) > 1 else WORK
    for example in corners(subject.operation, limits, seed=seed, most=TRIED_INPUTS, work=work):
        arguments = subject.arguments(example)
        plain = _without_others("", arguments)
        mark(FORMULA, example)
        if all(x.size for x in plain.arrays.values()) and _refused(subject, plain) is False:
            yield arguments


def _without_others(name: str, arguments: Arguments) -> Arguments:
    """Return the call with defaults of all options but ``name``; ``broadcasting`` keeps only its batches."""
    kept = name.partition("=")[0]
    flag, masks = arguments.operation.flag, [leaf.path for leaf in arguments.operation.masks.values()]
    own = [flag] if kept == "causal" else masks if kept == "mask" else [kept]
    others = {path: x for path, x in arguments.operation.defaults.items() if path not in own}
    reduced = arguments.replaced(others)
    return reduced if name == "broadcasting" else in_full_batches(reduced)


def _candidates(subject: Subject) -> Iterable[tuple[str, Callable[[Arguments], bool]]]:
    """Yield the candidate limits, each with a predicate of the inputs that it excludes."""
    operation, limits = subject.operation, subject.limits
    if limits.broadcasting:
        yield "broadcasting", _broadcasts
    masks = [leaf.path for leaf in operation.masks.values() if leaf.optional]
    if limits.mask and masks:
        yield "mask", lambda arguments: any(arguments[path] is not None for path in masks)
    flag = operation.flag
    if limits.causal and flag is not None:
        yield "causal", lambda arguments: bool(arguments[flag])
    for feature in subject.operation.features:
        if subject.limits.has(feature):
            yield feature, partial(_uses, feature)


def _broadcasts(arguments: Arguments) -> bool:
    return len({x.shape[: x.ndim - len(leaf.core)] for leaf, x in arguments.batched}) > 1


def _uses(feature: str, arguments: Arguments) -> bool:
    """Return True if a call uses a feature, an optional part of the operation."""
    path, _, choice = feature.partition("=")
    value = arguments.get(path)
    if choice:
        return bool(value == choice)
    return value is not None and value is not arguments.operation.defaults.get(path)
