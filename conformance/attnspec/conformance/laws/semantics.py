"""Probes: checks that a backend makes the choices that it declares.

A probe makes calls on which the choices of a question differ, and returns observations: each a choice, the call that
shows it, and text for a message. The ``way`` of an observation is the encoding of the mask, on which the result of a
row without attendable keys may depend.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, cast

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, take
from attnspec.conformance.inputs.attendance import live_rows as live
from attnspec.conformance.inputs.attendance import mask_encodings, mask_shape
from attnspec.conformance.judging.checks import Function, checks
from attnspec.conformance.judging.comparison import number_text
from attnspec.conformance.judging.foreign_calls import Raised
from attnspec.conformance.judging.left_open import always_causal_keys
from attnspec.conformance.judging.observations import (
    ADVICE,
    OTHER,
    WAY_BY_DESCRIPTION,
    Observation,
    Observations,
    choice_by_way,
    ways_text,
)
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws.common import live_rows, sample, wide, with_feature_axes
from attnspec.conformance.laws.rows_without_keys import oracle_of_averages
from attnspec.reference.budget import Judged
from attnspec.spec.contract.axes import Axis, ScoreEffect
from attnspec.spec.contract.registration import CAUSAL
from attnspec.spec.contract.semantics import ENCODINGS, QUESTIONS, choices_of_formula, spelled
from attnspec.spec.contract.tree import Kind, Leaf, as_tuple
from attnspec.spec.laws.semantics import SEMANTICS

Probe = Callable[[Subject, np.random.Generator], Observations]

Sizes = tuple[tuple[int, ...], int, int, int]
SIZES: tuple[Sizes, ...] = ((2,), 3, 5, 4), ((2, 2), 17, 33, 16), ((2,), 3, 130, 8), ((), 2, 3, 4)
"""Batch, queries, keys, features. Kernels, and so their choices, may differ by rank and size."""

MAX_GRID_SIZE = 8
"""Most features of operations with a grid, and the longest side of the grid."""

MAX_ARRAYS = 12
"""Most arrays of an operation that is probed at every size; larger ones contain smaller ones."""


def _probes_once(subject: Subject) -> bool:
    many = len(subject.operation.leaves) > MAX_ARRAYS
    return many and not subject.is_leading_dtype and not subject.effort.slow


def samples(subject: Subject, rng: np.random.Generator) -> Iterator[Arguments]:
    """Unmasked inputs of :data:`SIZES`; short profiles take fewer sizes.

    At the leading dtype, short profiles try all sizes of operations with few arrays. At other dtypes they try one size
    of operations with many arrays. Otherwise they try two. Grids are narrow, since an image has many numbers.
    """
    few_arrays, leading = len(subject.operation.leaves) <= MAX_ARRAYS, subject.is_leading_dtype
    all_sizes = subject.effort.slow or (few_arrays and leading)
    count = len(SIZES) if all_sizes else 1 if _probes_once(subject) else 2
    max_features = MAX_GRID_SIZE if subject.operation.sizes_of(Axis.GRID) else None
    for batch, queries, keys, features in SIZES[:count]:
        limited_features = features if max_features is None else min(features, max_features)
        yield sample(subject, rng, batch, queries=queries, keys=keys, heads=2, features=limited_features)


def probes(question: str) -> Callable[[Probe], Probe]:
    """Register a probe, which returns observed choices, as the check of a question."""

    def register(probe: Probe) -> Probe:
        def check(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
            declared = getattr(subject.semantics, question)
            seen = probe(subject, rng)
            by_way = isinstance(declared, tuple)  # ``fully_masked``: pairs of an encoding and its choice
            expected = dict(declared) if by_way else {}
            # Without observations, the declared choice stands.
            observed = " and ".join(dict.fromkeys(x.choice for x in seen)) or spelled(declared)
            subject.observed[question] = observed
            if by_way and all(x.choice == expected[WAY_BY_DESCRIPTION[x.way]] for x in seen):
                subject.observed[question] = spelled(declared)
                return True
            if by_way or observed != declared:
                choice = observed if observed in QUESTIONS[question].choices else choice_by_way(seen)
                declared_json = json.dumps(choice) if choice else ""
                advice = f'{ADVICE}{{"{question}": {declared_json}}}' if choice else ""
                subject.observed[question] = observed if isinstance(choice, str) or not choice else declared_json
                # The call to report: one with text about its numbers, else the first that differs from the declaration.
                contrary = next((x for x in seen if x.shown), None) or next(
                    x for x in seen if x.choice != (expected[WAY_BY_DESCRIPTION[x.way]] if by_way else declared)
                )
                raise Violation(
                    f"{question}: declared {spelled(declared)}, observed {observed}{ways_text(seen)}"
                    f"{contrary.shown and f': {contrary.shown}'}{advice}",
                    reason=Reason.DECLARED, arguments=contrary.arguments, expected=spelled(declared), got=observed,
                )  # fmt: skip
            return True

        check.__doc__, check.__module__ = probe.__doc__, probe.__module__
        function: Function = check
        checks(SEMANTICS[question], once=True)(function)
        return probe

    return register


@probes("fully_masked")
def fully_masked(subject: Subject, rng: np.random.Generator) -> Observations:
    """Mask all keys of some rows, then of all rows, with masks of every shape."""
    seen: Observations = []
    for (i, sampled), keys in product(enumerate(samples(subject, rng)), subject.operation.emptying_masks):
        # No declaration says which keys the average of an always causal row includes.
        average_open = subject.semantics.fully_masked == "uniform" and keys == always_causal_keys(subject.operation)
        for way, shape in _encodings(sampled, keys, subject, all_kinds=i == 0 and not _probes_once(subject)):
            some_rows = rng.random(shape) < 0.6
            # A row that all queries share is masked in the first batch element only.
            shared = len(shape) > 2 and shape[-2] == 1
            first_row = 0 if shared else (..., 0, slice(None)) if some_rows.ndim > 1 else ...
            some_rows[first_row] = False
            is_full = shape == mask_shape(sampled, keys)
            try_all_rows = is_full and (i == 0 or subject.effort.slow or subject.is_leading_dtype)
            for mask in (some_rows, np.zeros(shape, bool)) if try_all_rows else (some_rows,):
                masked = sampled.with_mask(mask, keys)
                try:
                    results = subject.fresh_results(masked, subject.converted(masked, allow_refusal=True))
                except Violation as violation:
                    if violation.reason is not Reason.RAISED:
                        raise
                    subject.call(sampled.with_mask(np.ones(shape, bool), keys))  # raising here too is no choice
                    seen.append(Observation("error", masked, violation.message, way))
                    continue
                got = wide(subject.demand_shapes(results, masked)[subject.operation.leading.path])
                empty = np.broadcast_to(~live_rows(subject, masked), got.shape)
                observation = _observe_empty_rows(got, empty, masked, subject, average_open=average_open)
                if observation is not None:
                    seen.append(observation._replace(way=way))
    return seen


def _encodings(
    arguments: Arguments, keys: str, subject: Subject, *, all_kinds: bool
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of mask encodings; unless ``all_kinds``, only the full mask."""
    for name, shape in mask_encodings(arguments, keys).items():
        if name == "full" or (all_kinds and (name != "no-batch" or subject.limits.broadcasting)):
            yield ENCODINGS[name], shape


def _observe_empty_rows(
    got: Numbers, empty: Numbers, masked: Arguments, subject: Subject, *, average_open: bool
) -> Observation | None:
    """The choice that rows without keys show; errors in other rows are a violation.

    With ``average_open``, anything but 0 and NaN may be the declared average; the result is then None.
    """
    rows = got[empty]
    zero = {"fully_masked": "zero"}
    if (rows == 0).all() and (subject.oracle_values(masked, **zero)[subject.operation.leading.path][empty] == 0).all():
        return Observation("zero", masked)
    normative = subject.normative_oracles(masked, choices={**subject.choices, **zero})[subject.operation.leading.path]
    expected, budget = normative.value[empty], normative.budget[empty]
    # Layers add their input and round, so budgets apply; attention alone is exactly 0.
    is_zero = (rows == 0).all() if (expected == 0).all() else (np.abs(rows - expected) <= budget).all()
    if is_zero:
        return Observation("zero", masked)
    if np.isnan(rows).all():
        return Observation("nan", masked)
    if average_open:
        return None
    oracle = oracle_of_averages(masked, subject)
    average = oracle.value[empty]
    if (np.abs(rows - average) <= oracle.budget[empty]).all():
        return Observation("uniform", masked)
    _demand_right_results(subject, masked.without_masks(), "fully_masked")
    title = "fully_masked cannot be determined: in rows with attendable keys, the result"
    subject.demand_match(got, normative.value, np.where(empty, np.inf, normative.budget), masked, title)
    i = int(np.argmax(~(np.abs(rows - expected) <= budget)))
    index = tuple(np.argwhere(empty)[i])
    text = f"without attendable keys, the result[{', '.join(map(str, index))}] is {number_text(got[index])}"
    choices = f"zero would be {number_text(expected[i])}, uniform {number_text(average[i])}"
    return Observation(OTHER, masked, f"{text}; {choices}")


def _demand_right_results(subject: Subject, arguments: Arguments, question: str) -> None:
    """Demand right results of a call that does not raise the question; else no choice can be recognised."""
    got, oracle = subject.call(arguments), subject.normative_oracle(arguments)
    title = f"{question} cannot be determined: where it plays no part, the result"
    subject.demand_match(got, oracle.value, oracle.budget, arguments, title)


@probes("no_keys")
def no_keys(subject: Subject, rng: np.random.Generator) -> Observations:
    """Call without keys."""
    seen: Observations = []
    size = subject.operation.key_size
    assert size is not None
    if subject.operation.attends_to_itself:
        return []  # no keys means no queries either: there is nothing to observe
    for sampled in samples(subject, rng):
        empty = sampled.along(size, take([]))
        outcome = subject.result_or_raised(subject.converted(empty))
        if isinstance(outcome, Raised):
            seen.append(Observation("error", empty, f"raised {outcome.message}"))
            continue
        got = np.asarray(next(iter(outcome.values())))
        expected = empty.binding.result
        if got.shape != expected:
            message = f"with no keys the result has shape {got.shape}, expected {expected}"
            raise Violation(message, reason=Reason.SHAPE, arguments=empty)
        if (got == 0).all() or np.isnan(wide(got)).all():
            seen.append(Observation("zero" if (got == 0).all() else "nan", empty))
        else:
            seen.append(Observation(OTHER, empty, f"with no keys, an element is {number_text(got[got != 0][0])}"))
    return seen


@probes("causal_alignment")
def causal_alignment(subject: Subject, rng: np.random.Generator) -> Observations:
    """Pass unequal numbers of queries and keys with `causal`, or with a window."""
    seen: Observations = []
    sizes = (((), 2, 5, 4), ((2,), 5, 3, 4), ((2, 2), 17, 40, 16))  # batch, queries, keys, features
    for batch, queries, keys, features in sizes[: 1 if _probes_once(subject) else None]:
        plain = _in_two_sequences(sample(subject, rng, batch, queries=queries, keys=keys, features=features))
        restricted = None if plain.queries == plain.keys_count else _with_causal_or_window(subject, plain)
        if restricted is None:
            continue
        got, matching = subject.call(restricted), []
        for name in QUESTIONS["causal_alignment"].choices:
            oracle = subject.normative_oracles(restricted, choices={**subject.choices, "causal_alignment": name})
            expected = oracle[subject.operation.leading.path]
            within_budget = np.abs(wide(got) - expected.value) <= expected.budget
            if subject.operation.mask is not None:
                semantics = replace(subject.semantics, causal_alignment=cast(Any, name))
                rows = with_feature_axes(subject, live(restricted, semantics=semantics))
                within_budget = within_budget[np.broadcast_to(rows, got.shape)]
            if within_budget.all():
                matching.append(name)
        if not matching:
            _demand_right_results(subject, plain, "causal_alignment")
        message = "" if matching else "the result is right without `causal`, but with it fits neither alignment"
        seen.append(Observation(matching[0] if matching else OTHER, restricted, message))
    return seen


@probes("length_alignment")
def length_alignment(subject: Subject, rng: np.random.Generator) -> Observations:
    """Pass fewer lengths than keys, and more than queries, with `causal` or with a window."""
    seen: Observations = []
    leaf = subject.operation.hiding_argument(subject.operation.key_size)
    if leaf is None or leaf.kind is not Kind.INT or not subject.limits.has(leaf.path):
        return seen
    for batch, queries, keys, features in (((), 2, 5, 4), ((2,), 5, 9, 4), ((2, 2), 17, 40, 16)):
        plain = sample(subject, rng, batch, queries=queries, keys=keys, features=features)
        n, m = plain.queries or 0, plain.keys_count or 0
        if m < n + 2:
            continue  # under either causal alignment, only lengths between n and m tell the choices apart
        lengths = np.full(plain.batch, n + 1)
        lengths.flat[1:] = m - 1
        restricted = _with_causal_or_window(subject, plain.replaced({leaf.path: lengths}))
        if restricted is not None:
            seen += _observed(subject, [restricted], "length_alignment", [subject.operation.leading.path])
    return seen


@probes("window_left")
def window_left(subject: Subject, rng: np.random.Generator) -> Observations:
    """Pass windows to calls with as many queries as keys, so that no alignment matters."""
    seen: Observations = []
    operation, limits = subject.operation, subject.limits
    if operation.window is None or not limits.has(operation.window):
        return seen
    for batch, count, window in (((), 4, (1, 0)), ((2,), 9, (3, 1)), ((2, 2), 40, (16, 0))):
        plain = sample(subject, rng, batch, queries=count, keys=count)
        full = {p: np.full_like(plain[p], plain.size(n)) for p, n in operation.lengths.items() if plain[p] is not None}
        windowed = _in_two_sequences(plain).replaced({**full, operation.window: window})
        seen += _observed(subject, [windowed], "window_left", [operation.leading.path])
    return seen


@probes("logarithms")
def logarithms(subject: Subject, rng: np.random.Generator) -> Observations:
    """Compare log-sum-exps with the formula under each choice.

    In a merge also the outputs are compared, which the log-sum-exps weight.
    """
    operation = subject.operation
    if len(operation.outputs) == 1:
        return []
    merges = operation.query_size is None
    compared = [x.path for x in operation.outputs if merges or x is not operation.leading]
    return _observed(subject, map(_in_two_sequences, samples(subject, rng)), "logarithms", compared)


@probes("sink_alone")
def sink_alone(subject: Subject, rng: np.random.Generator) -> Observations:
    """Hide all keys of some rows that have a sink: by a mask, by ends of sequences, or by lengths."""
    seen: Observations = []
    operation, limits = subject.operation, subject.limits
    path = operation.part(ScoreEffect.SINK)
    log_sum_exps = [x.path for x in operation.outputs if x is not operation.leading]
    if not path or not log_sum_exps or not limits.has(path) or (operation.mask is not None and not limits.mask):
        return seen
    for sampled in samples(subject, rng):
        heads = sampled.binding.shape(operation.leading)[-3]
        emptied = sampled.replaced({path: subject.exact(rng.standard_normal(heads))})
        if operation.mask is not None:
            mask = rng.random(mask_shape(sampled)) < 0.6
            mask[..., 0, :] = False
            emptied = emptied.with_mask(mask)
        elif operation.cumulative:
            emptied = _in_two_sequences(emptied)
            _, keys = operation.cumulative
            ends = emptied.array(keys)
            emptied = emptied.replaced({keys: np.where(np.arange(ends.size) == ends.size - 1, ends, 0)})
        else:
            emptied = emptied.replaced({name: np.zeros_like(emptied.array(name)) for name in operation.lengths})
        seen += _observed(subject, [emptied], "sink_alone", log_sum_exps)
    return seen


def _in_two_sequences(arguments: Arguments) -> Arguments:
    """A copy with two packed sequences; their numbers of queries and keys differ if those of the call do."""
    ends = {}
    for path, size in arguments.operation.cumulative.items():
        count = arguments.size(size)
        ends[path] = np.array([0, *[min(1, count)] * (arguments.array(path).size - 2), count])
    return arguments.unordered().replaced(ends)


def _with_causal_or_window(subject: Subject, arguments: Arguments) -> Arguments | None:
    """A copy with the causal flag or a window; None if the backend lacks both."""
    operation, limits = subject.operation, subject.limits
    causal = CAUSAL in operation.defaults
    has_causal = causal and limits.causal and (CAUSAL not in operation.features or limits.has(CAUSAL))
    if not has_causal and operation.window is not None and limits.has(operation.window):
        return arguments.replaced({operation.window: (1, 0)})
    # If the limits exclude the flag, the later call raises ``OutsideDeclaration``.
    return arguments.replaced({CAUSAL: True}) if causal else None


@probes("masked_nonfinite")
def masked_nonfinite(subject: Subject, rng: np.random.Generator) -> Observations:
    """Store NaN or infinity at a key hidden from all queries or all but one."""
    seen: Observations = []
    for sampled, (keys, mask_leaf) in product(samples(subject, rng), subject.operation.masks.items()):
        shape = mask_shape(sampled, keys)
        if not shape[-1]:
            continue
        for hidden_from_all in (True, False):
            mask = np.ones(shape, bool)
            mask[..., -1] = False
            if not hidden_from_all and len(mask_leaf.core) > 1:
                mask[..., -1, -1] = True
            masked = sampled.unordered().with_mask(mask, keys)
            clean = subject.call(masked)
            for i, leaf in enumerate(x for x in arrays_with_keys(subject, keys) if masked[x.path] is not None):
                poison = np.nan if (i + hidden_from_all) % 2 else np.inf
                seen.append(_observe_poison(subject, masked, keys, mask, clean, leaf, poison))
    return [observation for observation in seen if observation.choice == "propagates"] or seen


def arrays_with_keys(subject: Subject, keys: str | None) -> list[Leaf]:
    """The float arrays with a row or column per key of an axis."""
    return [leaf for leaf in subject.operation.floats if leaf.batched and keys is not None and keys in leaf.sizes]


def _observe_poison(
    subject: Subject, masked: Arguments, keys: str, mask: Numbers, expected: Numbers, leaf: Leaf, poison: float,
) -> Observation:  # fmt: skip
    """The choice that rows without the last key show, if that key holds ``poison``."""
    array = masked.array(leaf.path).copy()
    if leaf in subject.operation.rows(keys):
        array[..., -1, :] = poison
    else:
        array = np.array(np.broadcast_to(array, masked.binding.shape(leaf)))
        array[..., -1] = poison
    poisoned = masked.replaced({leaf.path: array})
    got = np.asarray(subject.call(poisoned))
    rows = with_feature_axes(subject, ~mask[..., -1])
    if keys == subject.operation.query_size:
        rows = rows & (np.arange(mask.shape[-2])[:, None] < mask.shape[-2] - 1)
    rows = np.broadcast_to(rows, got.shape)
    if np.array_equal(got[rows], expected[rows]):
        return Observation("excluded", poisoned)
    with np.errstate(invalid="ignore"):
        budget = np.broadcast_to(subject.budget(masked), got.shape)[rows]
        unchanged = np.abs(wide(got)[rows] - wide(expected)[rows]) <= 2 * budget
    return Observation("excluded" if unchanged.all() else "propagates", poisoned)


@probes("odd_encoding")
def odd_encoding(subject: Subject, rng: np.random.Generator) -> Observations:
    """Request encodings of odd width."""
    seen: Observations = []
    for n, d in ((3, 5), (4, 1), (2, 7)):
        ((rows,), (columns,)) = (subject.operation.sizes_of(kind) for kind in (Axis.QUERY, Axis.FEATURE))
        odd_width = Arguments(subject.operation, {rows: n, columns: d})
        outcome = subject.result_or_raised(subject.converted(odd_width))
        if isinstance(outcome, Raised):
            seen.append(Observation("error", odd_width, f"raised {outcome.message}"))
            continue
        got = np.asarray(next(iter(outcome.values())))
        if got.shape != (n, d):
            seen.append(Observation(OTHER, odd_width, f"the result has shape {as_tuple(got.shape)}"))
            continue
        oracle = subject.oracle(odd_width)
        near = np.abs(wide(got) - oracle.value) <= oracle.budget
        if near.all():
            seen.append(Observation("unpaired-sine", odd_width))
            continue
        _demand_right_results(subject, Arguments(subject.operation, {rows: n, columns: d + 1}), "odd_encoding")
        index = tuple(np.argwhere(~near)[0])
        element = f"the result[{', '.join(map(str, index))}] is {number_text(got[index])}"
        expected = number_text(oracle.value[index])
        seen.append(Observation(OTHER, odd_width, f"{element}; unpaired-sine would be {expected}"))
    return seen


def _probe_by_formulas(question: str) -> None:
    """Register the probe of a question whose choices differ on all inputs."""

    @probes(question)
    def probe(subject: Subject, rng: np.random.Generator) -> Observations:
        """Compare the result with the formula under each choice."""
        return _observed(subject, samples(subject, rng), question)


for _question in (
    "gelu_form",
    "gru_reset",
    "gru_update",
    "lstm_forget_bias",
    "rms_weight",
    "rotary_pairs",
    "rotary_ramp",
    "padding_positions",
):
    _probe_by_formulas(_question)


@probes("padding_positions")
def padding_positions(subject: Subject, rng: np.random.Generator) -> Observations:
    """Pad sequences in front, behind two tokens, and at random."""
    seen: Observations = []
    (mask,) = (x.path for x in subject.operation.leaves)
    for sampled in samples(subject, rng):
        tokens = np.asarray(rng.random(sampled.array(mask).shape) < 0.6)
        tokens[..., 0], tokens[..., 1:3], tokens[..., 3:4] = False, True, False
        seen += _observed(subject, [sampled.replaced({mask: tokens})], "padding_positions")
    return seen


@probes("head_groups")
def head_groups(subject: Subject, rng: np.random.Generator) -> Observations:
    """Compare two key heads of three query heads each with the formula under each choice."""
    (of_keys,), (of_group,) = subject.operation.sizes_of(Axis.HEAD), subject.operation.sizes_of(Axis.GROUP)
    seen: Observations = []
    for batch, queries, keys, features in SIZES[: 1 if _probes_once(subject) else 3]:
        sizes = {of_keys: 2, of_group: 3}
        sampled = sample(subject, rng, batch, queries=queries, keys=keys, features=features, sizes=sizes)
        seen += _observed(subject, [sampled], "head_groups")
    return seen


@probes("alibi_distances")
def alibi_distances(subject: Subject, rng: np.random.Generator) -> Observations:
    """Pass slopes without a causal mask: the choices differ at later keys."""
    path = subject.operation.part(ScoreEffect.SLOPES)
    seen: Observations = []
    if not subject.limits.has(path):
        return seen
    for sampled in samples(subject, rng):
        heads = sampled.array(subject.operation.queries[0].path).shape[-3]
        with_slopes = sampled.replaced({path: subject.exact(2.0 ** -(1.0 + np.arange(heads)))})
        seen += _observed(subject, [with_slopes], "alibi_distances")
    return seen


def _observed(
    subject: Subject, calls: Iterable[Arguments], question: str, compared: Collection[str] | None = None
) -> Observations:
    """The choices that fit the results of calls; see :func:`_fitting`."""
    return [Observation(choice, x) for x in calls for choice in _fitting(subject, x, question, compared)]


def _fitting(
    subject: Subject, arguments: Arguments, question: str, compared: Collection[str] | None = None
) -> list[str]:
    """The first choice whose formula fits; empty if all fit, a violation if none does.

    ``compared`` are the paths of the results that the question is about, by default all. If no choice fits under the
    declared choices of the other questions, these are varied too, since several declarations may be wrong.
    """
    compared = [x.path for x in subject.operation.outputs] if compared is None else compared
    choices = QUESTIONS[question].choices

    def fits(choices: Mapping[str, str]) -> bool:
        got, oracles = subject.results(arguments), subject.normative_oracles(arguments, choices=choices)
        return all(_fits(got[path], x) for path, x in oracles.items() if path in compared)

    fitting = [x for x in choices if fits({**subject.choices, question: x})]
    if not fitting:
        others = list(_combinations(subject, question))
        fitting = [x for x in choices if any(fits({**o, question: x}) for o in others)]
    if not fitting:
        oracles = subject.normative_oracles(arguments)
        expected = {p: x.value for p, x in oracles.items()}
        budgets = {p: x.budget if p in compared else np.full(x.budget.shape, np.inf) for p, x in oracles.items()}
        prefix = f"{question} cannot be determined: no choice fits; under the normative one"
        subject.all_match(subject.results(arguments), expected, budgets, arguments, prefix)
    return [] if len(fitting) == len(choices) else fitting[:1]


def _fits(got: Numbers, oracle: Judged) -> bool:
    """True if numbers are within their budgets, and infinities are equal."""
    near = np.isinf(oracle.value) & (wide(got) == oracle.value)
    with np.errstate(invalid="ignore"):
        near |= np.isfinite(oracle.value) & (np.abs(wide(got) - oracle.value) <= oracle.budget)
    return bool(near.all())


def _combinations(subject: Subject, question: str) -> Iterator[dict[str, str]]:
    """All choices of the other questions that the formula reads, except of ``fully_masked``: there the declared one."""
    choices = choices_of_formula(subject.operation)
    others = {name: x for name, x in choices.items() if name not in (question, "fully_masked")}
    for combination in product(*others.values()):
        yield {**subject.choices, **dict(zip(others, combination, strict=True))}


@probes("repeatability")
def repeatability(subject: Subject, rng: np.random.Generator) -> Observations:
    """Repeat a call several times; equal bits do not refute a declared `within-budget`."""
    times = 4 if subject.effort.slow or subject.is_leading_dtype else 2
    for arguments in list(_calls_to_repeat(subject, rng)):
        first = subject.results(arguments)
        for _ in range(times):
            again = subject.fresh_results(arguments)
            if not all(np.array_equal(again[p], x, equal_nan=x.dtype.kind not in "biu") for p, x in first.items()):
                return [Observation("within-budget", arguments)]
    return []


def _calls_to_repeat(subject: Subject, rng: np.random.Generator) -> Iterator[Arguments]:
    if subject.operation.floats:
        yield from samples(subject, rng)
    else:
        yield sample(subject, rng, queries=33, keys=33, features=16)
