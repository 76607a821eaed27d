"""Probes of the choices that a backend makes, compared with those it declares."""

import json
from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, take
from attnspec.conformance.inputs.attendance import live_rows as live
from attnspec.conformance.inputs.attendance import mask_shape
from attnspec.conformance.judging.checks import Function, checks
from attnspec.conformance.judging.comparison import number
from attnspec.conformance.judging.foreign_calls import Raised
from attnspec.conformance.judging.observations import NAMED, OTHER, Observation, Seen, choice_by_way, said_by_way
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws.common import before_features, live_rows, sample, wide
from attnspec.conformance.laws.rows_without_keys import evenly, near_even
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.registration import CAUSAL
from attnspec.spec.contract.semantics import QUESTIONS, WAYS, spelled
from attnspec.spec.contract.shapes import results
from attnspec.spec.contract.tree import Leaf, as_tuple
from attnspec.spec.laws.semantics import SEMANTICS

Probe = Callable[[Subject, np.random.Generator], Seen]

SIZES: tuple[tuple[tuple[int, ...], int, int, int], ...] = (
    ((2,), 3, 5, 4),
    ((2, 2), 17, 33, 16),
    ((2,), 3, 130, 8),
    ((), 2, 3, 4),
)
"""Batch, queries, keys, features: kernels, and their choices, may depend on rank and size."""

NARROW_GRID = 8
"""Most features beside a grid, and most places on each of its sides."""

FEW_ARRAYS = 12
"""Most arrays of operations probed at every size; larger ones consist of others."""


def _asked_once(subject: Subject) -> bool:
    """Return whether there is time for one call only: many arrays, not the leading dtype."""
    many = len(subject.operation.leaves) > FEW_ARRAYS
    return many and not subject.leading and not subject.effort.slow


def samples(subject: Subject, rng: np.random.Generator) -> Iterator[Arguments]:
    """Unmasked inputs of :data:`SIZES`, or of the first of them in short profiles.

    Short profiles try all sizes for operations of few arrays at the leading dtype, one for operations of many arrays at
    other dtypes, and two otherwise. Grids are narrow: an image has as many numbers as its places, features and the
    places of a patch multiplied.
    """
    few, leading = len(subject.operation.leaves) <= FEW_ARRAYS, subject.leading
    count = len(SIZES) if subject.effort.slow or (few and leading) else 1 if _asked_once(subject) else 2
    most = NARROW_GRID if subject.operation.sizes_of(Axis.GRID) else None
    for batch, queries, keys, features in SIZES[:count]:
        batch = batch if len(batch) <= subject.limits.max_batch_dims else ()
        narrow = features if most is None else min(features, most)
        yield sample(subject, rng, batch, queries=queries, keys=keys, heads=2, features=narrow)


def probes(question: str) -> Callable[[Probe], Probe]:
    """Register a probe, which returns the choices it observed, as a check of a question."""

    def register(probe: Probe) -> Probe:
        def check(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
            declared = getattr(subject.semantics, question)
            seen = probe(subject, rng)
            by_way = isinstance(declared, tuple)
            expected = dict(declared) if by_way else {}
            observed = " and ".join(dict.fromkeys(found.choice for found in seen)) or spelled(declared)
            subject.observed[question] = observed
            if by_way and all(found.choice == expected[NAMED[found.way]] for found in seen):
                subject.observed[question] = spelled(declared)
                return True
            if by_way or observed != declared:
                choice = observed if observed in QUESTIONS[question].choices else choice_by_way(seen)
                shown = json.dumps(choice) if choice else ""
                meant = f'; if that is meant, declare semantics = {{"{question}": {shown}}}' if choice else ""
                subject.observed[question] = observed if isinstance(choice, str) or not choice else shown
                odd = next((found for found in seen if found.shown), None) or next(
                    found for found in seen if found.choice != (expected[NAMED[found.way]] if by_way else declared)
                )
                raise Violation(
                    f"{question}: declared {spelled(declared)}, observed {observed}{said_by_way(seen)}"
                    f"{odd.shown and f': {odd.shown}'}{meant}",
                    reason=Reason.DECLARED, arguments=odd.arguments, expected=spelled(declared), got=observed,
                )  # fmt: skip
            return True

        check.__doc__, check.__module__ = probe.__doc__, probe.__module__
        function: Function = check
        checks(SEMANTICS[question], once=True)(function)
        return probe

    return register


@probes("fully_masked")
def fully_masked(subject: Subject, rng: np.random.Generator) -> Seen:
    """Mask all keys of some rows, and of all rows, in every mask encoding."""
    seen: Seen = []
    for (i, given), keys in product(enumerate(samples(subject, rng)), subject.operation.masks):
        for way, shape in _encodings(given, keys, subject, every=i == 0 and not _asked_once(subject)):
            some = rng.random(shape) < 0.6
            # If all queries share a row, it is masked in the first element of the batch.
            alike = len(shape) > 2 and shape[-2] == 1
            some[0 if alike else (..., 0, slice(None)) if some.ndim > 1 else ...] = False
            alone = shape == mask_shape(given, keys) and (i == 0 or subject.effort.slow or subject.leading)
            for mask in (some, np.zeros(shape, bool)) if alone else (some,):
                masked = given.with_mask(mask, keys)
                try:
                    found = subject.call_anew(masked, subject.converted(masked, refused=True))
                except Violation as violation:
                    if violation.reason is not Reason.RAISED:
                        raise
                    subject.call(given.with_mask(np.ones(shape, bool), keys))  # raising here too is no choice
                    seen.append(Observation("error", masked, violation.message, way))
                    continue
                got = wide(subject.shaped(found, masked)[subject.operation.leading.path])
                dead = np.broadcast_to(~live_rows(subject, masked), got.shape)
                seen.append(_classified(got, dead, masked, subject)._replace(way=way))
    return seen


def _encodings(given: Arguments, keys: str, subject: Subject, *, every: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The mask encodings with their shapes; only the full mask unless ``every``."""
    shape, core = mask_shape(given, keys), subject.operation.masks[keys].core
    batch = shape[: len(shape) - len(core)]
    yield WAYS["full"], shape
    if not every:
        return
    if len(core) > 1 and core[-2].broadcast:
        yield WAYS["queries-alike"], (*shape[:-2], 1, shape[-1])
    if core[-1].broadcast:
        yield WAYS["keys-alike"], (*shape[:-1], 1)
    if batch and subject.limits.broadcasting:
        yield WAYS["no-batch"], shape[len(batch) :]


def _classified(got: Numbers, dead: Numbers, masked: Arguments, subject: Subject) -> Observation:
    """The choice that rows without keys show; wrong numbers in other rows are a violation."""
    rows = got[dead]
    if (rows == 0).all() and (_plain(masked, subject)[dead] == 0).all():
        return Observation("zero", masked)
    normative = subject.normative_oracle(masked)
    expected, budget = normative.value[dead], normative.budget[dead]
    # Layers add their input to the attention and round; attention alone is exactly 0.
    zero = (rows == 0).all() if (expected == 0).all() else (np.abs(rows - expected) <= budget).all()
    if zero:
        return Observation("zero", masked)
    if np.isnan(rows).all():
        return Observation("nan", masked)
    even = evenly(masked, got.shape, subject)[dead]
    if near_even(rows, even, subject).all():
        return Observation("uniform", masked)
    _right_numbers(subject, masked.without_masks(), "fully_masked")
    title = "fully_masked cannot be told: of the rows with attendable keys, the result"
    subject.matches(got, normative.value, np.where(dead, np.inf, normative.budget), masked, title)
    at = int(np.argmax(~(np.abs(rows - expected) <= budget)))
    index = tuple(np.argwhere(dead)[at])
    seen = f"without attendable keys, the result[{', '.join(map(str, index))}] is {number(got[index])}"
    return Observation(OTHER, masked, f"{seen}; zero would be {number(expected[at])}, uniform {number(even[at])}")


def _right_numbers(subject: Subject, given: Arguments, question: str) -> None:
    """Demand right results where the choice has no effect; otherwise it cannot be determined."""
    got, oracle = subject.call(given), subject.normative_oracle(given)
    title = f"{question} cannot be told: where it is not asked, the result"
    subject.matches(got, oracle.value, oracle.budget, given, title)


def _plain(masked: Arguments, subject: Subject) -> Numbers:
    """The leading result of the formula, without budgets."""
    found = results(masked.operation, subject.formula()(**masked.values_by_name))
    return np.asarray(next(x for leaf, x in found if leaf.path == masked.operation.leading.path))


@probes("no_keys")
def no_keys(subject: Subject, rng: np.random.Generator) -> Seen:
    """Call with no keys at all."""
    seen: Seen = []
    size = subject.operation.asked
    assert size is not None
    if subject.operation.attends_to_itself:
        return []  # no keys means no queries either: there is nothing to observe
    for given in samples(subject, rng):
        empty = given.along(size, take([]))
        found = subject.outcome(subject.converted(empty))
        if isinstance(found, Raised):
            seen.append(Observation("error", empty))
            continue
        got = np.asarray(next(iter(found.values())))
        expected = empty.binding.result
        if got.shape != expected:
            raise Violation(
                f"with no keys the result has shape {got.shape}, expected {expected}",
                reason=Reason.SHAPE,
                arguments=empty,
            )
        if (got == 0).all() or np.isnan(wide(got)).all():
            seen.append(Observation("zero" if (got == 0).all() else "nan", empty))
        else:
            seen.append(Observation(OTHER, empty, f"with no keys, an element is {number(got[got != 0][0])}"))
    return seen


@probes("causal_alignment")
def causal_alignment(subject: Subject, rng: np.random.Generator) -> Seen:
    """Pass unequal numbers of queries and keys with `causal`, or else with a window."""
    seen: Seen = []
    sizes = (((), 2, 5, 4), ((2,), 5, 3, 4), ((2, 2), 17, 40, 16))
    for batch, queries, keys, features in sizes[: 1 if _asked_once(subject) else None]:
        fits = len(batch) <= subject.limits.max_batch_dims
        plain = _apart(sample(subject, rng, batch if fits else (), queries=queries, keys=keys, features=features))
        given = None if plain.queries == plain.keys_count else _bounded(subject, plain)
        if given is None:
            continue
        got, matching = subject.call(given), []
        for name in QUESTIONS["causal_alignment"].choices:
            oracle = subject.normative_oracles(given, choices={**subject.choices, "causal_alignment": name})
            expected = oracle[subject.operation.leading.path]
            right = np.abs(wide(got) - expected.value) <= expected.budget
            if subject.operation.mask is not None:
                rows = before_features(subject, live(given, bottom_right=name == "bottom-right"))
                right = right[np.broadcast_to(rows, got.shape)]
            if right.all():
                matching.append(name)
        if not matching:
            _right_numbers(subject, plain, "causal_alignment")
        shown = "" if matching else "the result is right without `causal`, and under it fits neither alignment"
        seen.append(Observation(matching[0] if matching else OTHER, given, shown))
    return seen


def _apart(given: Arguments) -> Arguments:
    """Arguments in which no packed sequence has as many queries as keys."""
    ends = {}
    for path, size in given.operation.cumulative.items():
        count = given.size(size)
        ends[path] = np.array([0, *[min(1, count)] * (given.array(path).size - 2), count])
    return given.plain().replaced(ends)


def _bounded(subject: Subject, plain: Arguments) -> Arguments | None:
    """The arguments with the causal flag or a window; None if the backend lacks both."""
    operation, limits = subject.operation, subject.limits
    causal = CAUSAL in operation.defaults
    has_causal = causal and limits.causal and (CAUSAL not in operation.features or limits.has(CAUSAL))
    if not has_causal and operation.window is not None and limits.has(operation.window):
        return plain.replaced({operation.window: (1, 0)})
    # If the limits exclude the flag, the later call raises ``LeftOut``.
    return plain.replaced({CAUSAL: True}) if causal else None


@probes("masked_nonfinite")
def masked_nonfinite(subject: Subject, rng: np.random.Generator) -> Seen:
    """Store NaN and infinities at keys hidden from all queries, and from some."""
    seen: Seen = []
    for given, (keys, of) in product(samples(subject, rng), subject.operation.masks.items()):
        shape = mask_shape(given, keys)
        if not shape[-1]:
            continue
        for everybody in (True, False):
            mask = np.ones(shape, bool)
            mask[..., -1] = False
            if not everybody and len(of.core) > 1:
                mask[..., -1, -1] = True
            masked = given.plain().with_mask(mask, keys)
            clean = subject.call(masked)
            for i, leaf in enumerate(x for x in of_keys(subject, keys) if masked[x.path] is not None):
                poison = np.nan if (i + everybody) % 2 else np.inf
                seen.append(_leak(subject, masked, keys, mask, clean, leaf, poison))
    return [found for found in seen if found.choice == "propagates"] or seen


def of_keys(subject: Subject, keys: str | None) -> list[Leaf]:
    """The arrays with a row or a column for every key along an axis."""
    return [leaf for leaf in subject.operation.floats if leaf.batched and keys is not None and keys in leaf.sizes]


def _leak(
    subject: Subject, masked: Arguments, keys: str, mask: Numbers, clean: Numbers, leaf: Leaf, poison: float,
) -> Observation:  # fmt: skip
    """The choice that NaN or infinity at the last key shows in rows without it."""
    x = masked.array(leaf.path).copy()
    if leaf in subject.operation.rows(keys):
        x[..., -1, :] = poison
    else:
        x = np.array(np.broadcast_to(x, masked.binding.shape(leaf)))
        x[..., -1] = poison
    poisoned = masked.replaced({leaf.path: x})
    got = np.asarray(subject.call(poisoned))
    rows = before_features(subject, ~mask[..., -1])
    if keys == subject.operation.asking:
        rows = rows & (np.arange(mask.shape[-2])[:, None] < mask.shape[-2] - 1)
    rows = np.broadcast_to(rows, got.shape)
    if np.array_equal(got[rows], clean[rows]):
        return Observation("excluded", poisoned)
    with np.errstate(invalid="ignore"):
        budget = np.broadcast_to(subject.budget(masked), got.shape)[rows]
        kept = np.abs(wide(got)[rows] - wide(clean)[rows]) <= 2 * budget
    return Observation("excluded" if kept.all() else "propagates", poisoned)


@probes("odd_encoding")
def odd_encoding(subject: Subject, rng: np.random.Generator) -> Seen:
    """Ask for encodings of odd width."""
    seen: Seen = []
    for n, d in ((3, 5), (4, 1), (2, 7)):
        ((rows,), (columns,)) = (subject.operation.sizes_of(kind) for kind in (Axis.QUERY, Axis.FEATURE))
        given = Arguments(subject.operation, {rows: n, columns: d})
        found = subject.outcome(subject.converted(given))
        if isinstance(found, Raised):
            seen.append(Observation("error", given))
            continue
        got = np.asarray(next(iter(found.values())))
        if got.shape != (n, d):
            seen.append(Observation(OTHER, given, f"the result has shape {as_tuple(got.shape)}"))
            continue
        oracle = subject.oracle(given)
        near = np.abs(wide(got) - oracle.value) <= oracle.budget
        if near.all():
            seen.append(Observation("unpaired-sine", given))
            continue
        _right_numbers(subject, Arguments(subject.operation, {rows: n, columns: d + 1}), "odd_encoding")
        index = tuple(np.argwhere(~near)[0])
        shown = f"the result[{', '.join(map(str, index))}] is {number(got[index])}"
        seen.append(Observation(OTHER, given, f"{shown}; unpaired-sine would be {number(oracle.value[index])}"))
    return seen


@probes("gru_reset")
def gru_reset(subject: Subject, rng: np.random.Generator) -> Seen:
    """Compare the result with the formula under each choice."""
    tried = samples(subject, rng)
    return [Observation(word, given) for given in tried for word in _matching(subject, given, "gru_reset")]


@probes("rotary_pairs")
def rotary_pairs(subject: Subject, rng: np.random.Generator) -> Seen:
    """Compare the result with the formula under each choice."""
    return [Observation(word, x) for x in samples(subject, rng) for word in _matching(subject, x, "rotary_pairs")]


def _matching(subject: Subject, given: Arguments, question: str) -> list[str]:
    """The choice whose formula fits; empty if all fit, a violation if none does."""
    got, choices = subject.results(given), QUESTIONS[question].choices
    fitting = []
    for word in choices:
        oracles = subject.normative_oracles(given, choices={**subject.choices, question: word})
        if all((np.abs(wide(got[path]) - x.value) <= x.budget).all() for path, x in oracles.items()):
            fitting.append(word)
    if not fitting:
        oracles = subject.normative_oracles(given)
        expected, budgets = ({p: x.value for p, x in oracles.items()}, {p: x.budget for p, x in oracles.items()})
        subject.all_match(got, expected, budgets, given, f"{question} cannot be told: under no choice")
    return [] if len(fitting) == len(choices) else fitting[:1]


@probes("repeatability")
def repeatability(subject: Subject, rng: np.random.Generator) -> Seen:
    """Repeat a call several times; equal bits do not refute a declared `within-budget`."""
    times = 4 if subject.effort.slow or subject.leading else 2
    for arguments in list(_repeated(subject, rng)):
        first = subject.results(arguments)
        for _ in range(times):
            again = subject.call_anew(arguments)
            if not all(np.array_equal(again[p], x, equal_nan=x.dtype.kind not in "biu") for p, x in first.items()):
                return [Observation("within-budget", arguments)]
    return []


def _repeated(subject: Subject, rng: np.random.Generator) -> Iterator[Arguments]:
    if subject.operation.floats:
        yield from samples(subject, rng)
    else:
        yield sample(subject, rng, queries=33, keys=33, features=16)
