"""Checks of calls that are large in one or two sizes, small in others.

Kernels change path with size, and so do their errors. Most calls are small in all other sizes: the oracle is slow.
Models, whose ``operation.counts`` names layers, are slowest and get fewer calls. Options of ``@checks``: see ``Check``.
"""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Change, Numbers, along, take
from attnspec.conformance.inputs.attendance import mask_options, with_explicit_mask, with_first_keys
from attnspec.conformance.inputs.combinations import AS_MANY, BATCH, combinations, in_layout, with_mask_level
from attnspec.conformance.inputs.corners import TILE, long_sizes, multiply_adds, stepwise, tables
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.sampled_rows import judge_rows, rows_to_judge
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import normal_like, sample
from attnspec.conformance.laws.gradient_calls import accepts_causal
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.conformance.laws.magnitudes import opposed, outlier
from attnspec.conformance.laws.options import with_least_bias
from attnspec.spec.contract.axes import Axis, Role, ScoreEffect
from attnspec.spec.contract.tree import Kind, without_indices
from attnspec.spec.laws import sizes as law
from attnspec.spec.laws.operation import batched

BATCHES = ((7,), (2, 6))
"""Batches larger than those of corner cases, in total or in one dimension."""

LARGE_BATCHES = ((65536,), (65535,), (33,))
"""65,536 exceeds CUDA's grid limit, 65,535 meets it; models try only the first."""

FEATURES = (192, 256, 96, 160)
"""Features of queries, keys and values; each other vector gets one of these sizes."""
HEAD_SIZES = (*(size for size in range(8, TILE + 8, 8) if size not in FEATURES), 100, 101, 224)
"""Sizes of heads with few queries and keys: multiples of 8 beside ``FEATURES``, and others."""
UNEQUAL_HEAD_SIZES = ((64, 32), (32, 64))
"""Features of queries and keys, and of values."""

HEADS = (12, 16, 33)
MANY_HEADS = 65
KEYS = (65600, 32800, 8193)
LENGTHS = (2049, 1024, 700, 513)
"""``KEYS``, ``LENGTHS``: the first level within the work bound is tried. 65,600 exceeds 16 bits, 32,800 exceeds 15."""
MANY_PAIRS = 1100
"""Number of queries and of keys, more than 1,024."""

MASKED_SIZES = (270, 290)
"""Queries and keys under a mask, whose indices need more than 8 bits."""

NARROW_WINDOW = (3, 0)
"""A window that hides most tiles of keys from all queries of a tile."""

STEPS = (129,)
GRIDS = (65, 33)
"""Levels of recurrent steps and of grids, tried like ``LENGTHS``."""
WIDEST = 512
TABLE = 32_806
"""Rows of a table; the last index exceeds 15 bits and is inexact in float16."""

TABLE_DRAWS = 3
"""Calls drawn until rounding cannot decide between two tokens. It can in 2 of 100 calls of four steps."""

FAR_WINDOW = (300, 20)
"""A window whose left end needs more than 8 bits."""

LATENT_HEAD_SIZES = (576, 512)
"""Features of queries and keys, and of values, in multi-head latent attention."""

SUMMED_ROWS = 300
"""Batch elements over which gradients of weights are summed."""

WIDE_ROWS = 1100
"""Features of rows, for operations such as normalization."""

MAX_LONG_DOUBLE_WIDTH = 128
"""Widest float64 vectors in combinations with weights, since long doubles have no BLAS."""

MAX_WIDE_CALLS = 8
"""Most wide calls of an operation; models have many sizes."""

OUTLIER_FACTOR = 16.0
"""Factor of the outlying feature. Larger factors make scores of thousands, whose roundings change weights visibly. A
backward kernel that recomputes weights rounds such scores differently, which is no defect."""

JUDGED_ROWS = 4
"""Rows judged per combination."""

MAX_WORK = 2.0**21
"""The most multiply-adds of a call."""

WORK_OF_TABLES = 2.0**23
"""Most multiply-adds of calls with large tables."""

WORK_OF_BOTH = 2.0**24
"""Most multiply-adds of calls with many queries and keys."""

Sizes = Mapping[str, int]

NUMBERS: Mapping[str, Callable[[Subject, Arguments, np.random.Generator], Arguments]] = {
    "normal": lambda subject, arguments, rng: arguments,
    "outlier": lambda subject, arguments, rng: outlier(subject, arguments, rng, OUTLIER_FACTOR),
    "opposed": opposed,
}
"""Functions that change the numbers of a combination, by level."""


def _call_of(
    subject: Subject, rng: np.random.Generator, sizes: Sizes, batch: tuple[int, ...] = (), work: float = MAX_WORK
) -> Arguments | None:
    """A call with these sizes, others small; None beyond limits or the work bound.

    In models, whose layers attend to all pairs of positions, the work includes these pairs. Batches above 128 elements
    are unmasked, since masked rows are judged in smaller batches.
    """
    fitting = {name: subject.allowed_size(name, size) for name, size in sizes.items()}
    if len(batch) > subject.limits.max_batch_dims or any(fitting[name] < size for name, size in sizes.items()):
        return None
    operation = subject.operation
    is_model, large_batch = bool(operation.counts), prod(batch) > TILE
    features = 2 if large_batch else 8 if is_model else 4
    fitting = {name: 2 for name in operation.sizes if operation.axis(name) & Axis.GRID} | fitting
    fitting = dict.fromkeys(operation.counts, 1) | fitting  # one layer
    heads = 1 if batch else 2
    sampled = sample(subject, rng, batch, queries=2, keys=3, heads=heads, features=features, whole=True, sizes=fitting)
    sampled = sampled.replaced({path: _full_lengths(sampled, path, size) for path, size in operation.lengths.items()})
    sampled = sampled.without_masks() if large_batch else sampled
    longest = max([sizes[name] for name in sizes if operation.axis(name) & Axis.POSITION], default=0)
    pair_work = 5 * longest**2 if is_model else 0
    return sampled if max(multiply_adds(dict(sampled.sizes), batch, operation), pair_work) <= work else None


def _full_lengths(arguments: Arguments, path: str, size: str) -> Numbers | None:
    """Lengths without padding, so that every position counts."""
    lengths = arguments[path]
    return None if lengths is None else np.full_like(lengths, arguments.size(size))


def _widths(subject: Subject) -> list[str]:
    """The sizes that count components of vectors."""
    return [name for axis in law.WIDE for name in subject.operation.sizes_of(axis)]


def _judge_calls(subject: Subject, calls: Iterator[tuple[str, Arguments | None]], rng: np.random.Generator) -> bool:
    tried = False
    for label, arguments in calls:
        tried = (arguments is not None and judge_rows(subject, arguments, rng, f"with {label},")) or tried
    return tried


def _text(sizes: Sizes) -> str:
    return " and ".join(f"{name} = {size}" for name, size in sizes.items())


@checks(law.MODEL_SIZES, once=True, leading_dtype_only=True, governs=law.has_features)
def model_sizes(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Try feature sizes of queries and values at all levels, others at one; then tables."""
    calls = [*_wide_calls(subject, rng, FEATURES), *_wide_row_calls(subject, rng), *_table_calls(subject, rng)]
    return _judge_calls(subject, iter(calls), rng)


def _wide_row_calls(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[str, Arguments | None]]:
    """A call with wide rows, for operations such as normalization."""
    operation, names = subject.operation, _widths(subject)
    if len(names) == 1 and not (operation.key_size or operation.counts or operation.lengths):
        yield _text({names[0]: WIDE_ROWS}), _call_of(subject, rng, {names[0]: WIDE_ROWS})


def _table_calls(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[str, Arguments | None]]:
    """Calls with large tables and few features; one query reads the last row."""
    operation = subject.operation
    narrow = dict.fromkeys(_widths(subject), 4) | ({operation.query_size: 1} if operation.query_size else {})
    names = dict.fromkeys((*tables(operation), *operation.sizes_of(Axis.VOCABULARY)))
    if operation.sizes_of(Axis.BEAM) and not subject.effort.slow:
        return  # every hypothesis has a score for every token, at every step
    for name in names:
        draws = (_call_of(subject, rng, narrow | {name: TABLE}, work=WORK_OF_TABLES) for _ in range(TABLE_DRAWS))
        calls = (None if sampled is None else sampled.replaced(_last_rows(sampled)) for sampled in draws)
        yield _text({name: TABLE}), next((x for x in calls if x is None or _is_decided(subject, x)), None)


def _is_decided(subject: Subject, call: Arguments) -> bool:
    """Return whether every token is chosen by more than rounding; otherwise scores have no budget."""
    return all(bool(np.isfinite(oracle.budget).all()) for oracle in subject.oracles(call).values())


def _last_rows(call: Arguments) -> dict[str, Numbers]:
    """Indices by path; the last index of each array is the greatest."""
    bounds = {path: without_indices(size) for path, size in call.operation.indices.items() if path in call.arrays}
    indices = {path: np.array(call[path]) for path in bounds}
    for path, array in indices.items():
        array.reshape(-1)[-1:] = call.size(bounds[path]) - 1
    return indices


def _wide_calls(
    subject: Subject, rng: np.random.Generator, levels: tuple[int, ...]
) -> Iterator[tuple[str, Arguments | None]]:
    operation = subject.operation
    # The last group of long sizes has the features of queries and of values, if there are any: they grow together.
    last_group = (long_sizes(operation) or ((),))[-1]
    paired_names = [name for name in last_group if operation.axis(name) & Axis.FEATURE]
    groups = [dict.fromkeys(paired_names, level) for level in levels] if paired_names else []
    if len(paired_names) > 1:
        groups.append(dict(zip(paired_names, (max(levels), TILE), strict=True)))
    others = [name for name in _widths(subject) if name not in paired_names]
    groups += [{name: levels[i % len(levels)]} for i, name in enumerate(others)]
    if len(groups) > MAX_WIDE_CALLS:
        groups = [groups[i] for i in sorted(rng.permutation(len(groups))[:MAX_WIDE_CALLS])]
    for sizes in groups:
        yield _text(sizes), _call_of(subject, rng, sizes)


@checks(law.MODEL_SIZES, once=True, leading_dtype_only=True, governs=law.heads_compare)
def head_sizes(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Try head sizes with few unmasked queries and keys, so that every feature counts."""
    names = long_sizes(subject.operation)[-1]
    requested = [dict.fromkeys(names, size) for size in HEAD_SIZES]
    requested += [dict(zip(names, pair, strict=True)) for pair in UNEQUAL_HEAD_SIZES if len(pair) == len(names)]
    calls = ((sizes, _call_of(subject, rng, sizes)) for sizes in requested)
    exact_calls = ((sizes, x) for sizes, x in calls if x is not None and all(x.size(n) == s for n, s in sizes.items()))
    return _judge_calls(subject, ((_text(sizes), x.without_masks()) for sizes, x in exact_calls), rng)


@checks(law.MODEL_SIZES, once=True, leading_dtype_only=True, governs=law.in_heads)
def heads(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Try several numbers of heads, in models one; long profiles add 65 heads."""
    names = subject.operation.sizes_of(Axis.HEAD)
    in_model = any("." in name for name in names)
    counts: list[tuple[int, tuple[int, ...]]] = [(count, ()) for count in (HEADS[-1:] if in_model else HEADS)]
    if subject.effort.slow and subject.is_leading_dtype:
        counts += [(MANY_HEADS, ()), *([] if in_model else [(MANY_HEADS, (3,))])]
    calls = ((_text(dict.fromkeys(names, n)), _call_of(subject, rng, dict.fromkeys(names, n), b)) for n, b in counts)
    return _judge_calls(subject, calls, rng)


@checks(law.MODEL_SIZES, once=True, leading_dtype_only=True, governs=law.masked_by_query)
def long_masks(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Try a mask with columns unlike those 256 earlier, and tiles without weight."""
    operation = subject.operation
    sizes = {operation.query_size or "": MASKED_SIZES[0]} | {operation.key_size or "": MASKED_SIZES[1]}
    sampled = _call_of(subject, rng, sizes)
    if sampled is None or sampled.mask is None:
        return False
    # Biases that depend on positions would force judging every row.
    defaults = {path: operation.defaults[path] for path in operation.ordered if path not in mask_options(operation)}
    sampled = sampled.replaced(defaults)
    calls = [(f"{_text(sizes)}, masked", sampled)]
    if operation.window is not None and subject.limits.has(operation.window):
        inside = sampled.without_masks().replaced({operation.window: NARROW_WINDOW})
        calls.append((f"{_text(sizes)}, in a window {NARROW_WINDOW}", inside))
    tried = _judge_calls(subject, iter(calls), rng)
    biased = with_least_bias(sampled.along(operation.query_size or "", take(np.arange(JUDGED_ROWS))), TILE)
    if biased is not None:
        bias = operation.part(ScoreEffect.BIAS)
        subject.follows_formula(biased, f"with the most negative finite {bias} in the first tile,")
    return tried


@checks(law.MODEL_SIZES, once=True, leading_dtype_only=True, governs=batched)
def batches(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Try batches of seven elements, and of six along the second dimension."""
    calls = ((f"a batch of {batch}", _call_of(subject, rng, {}, batch)) for batch in BATCHES)
    return _judge_calls(subject, calls, rng)


MORE_THAN_FLOAT16 = 70_000
"""More keys than float16's largest number, 65,504."""


@checks(law.MODEL_SIZES, once=True, governs=law.counts_keys)
def many_keys(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Attend to 70,000 equal keys, more than float16 can count."""
    if subject.dtype not in NARROW:
        return False
    sampled = sample(subject, rng, queries=1, keys=MORE_THAN_FLOAT16, features=1)
    if (sampled.keys_count or 0) < MORE_THAN_FLOAT16:
        return False
    ones = sampled.replaced({leaf.path: np.ones_like(x) for leaf, x in sampled.floats})
    subject.follows_formula(ones, f"of {ones.keys_count} ones,")
    return True


@checks(law.LARGE_SIZES, once=True, slow=True)
def large_sizes(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Try the greatest lengths, widest vectors and largest batches."""
    long_calls = [*_long_calls(subject, rng), *_many_key_calls(subject, rng), *_many_pair_calls(subject, rng)]
    repeated_calls = _after_other_calls(subject, rng, long_calls) if subject.is_leading_dtype else long_calls
    calls = [*repeated_calls, *_wide_calls(subject, rng, (WIDEST,)), *_latent_calls(subject, rng)]
    if subject.is_leading_dtype and any(leaf.batched for leaf in subject.operation.leaves):
        large = [*(LARGE_BATCHES[:1] if subject.operation.counts else LARGE_BATCHES)]
        large += [(3, MANY_HEADS)] if law.has_query_and_key_rows(subject.operation) else []
        calls += [(f"a batch of {batch}", _odd_causal(subject, _call_of(subject, rng, {}, batch))) for batch in large]
    return _judge_calls(subject, iter(calls), rng)


def _odd_causal(subject: Subject, arguments: Arguments | None) -> Arguments | None:
    """The call, causal if batch elements are odd in number, so that both kinds occur."""
    causal = arguments is not None and accepts_causal(subject) and prod(arguments.batch) % 2
    return arguments.under_causal() if arguments is not None and causal else arguments


def _latent_calls(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[str, Arguments | None]]:
    """An unmasked call with the head sizes of multi-head latent attention."""
    names = long_sizes(subject.operation)[-1] if law.has_query_and_key_rows(subject.operation) else ()
    if len(names) == len(LATENT_HEAD_SIZES) and all(subject.operation.axis(name) & Axis.FEATURE for name in names):
        sizes = dict(zip(names, LATENT_HEAD_SIZES, strict=True))
        sampled = _call_of(subject, rng, sizes)
        yield _text(sizes), None if sampled is None else sampled.without_masks()


def _after_other_calls(
    subject: Subject, rng: np.random.Generator, calls: list[tuple[str, Arguments | None]]
) -> Iterator[tuple[str, Arguments | None]]:
    """The calls; before each, a call with the same shapes and other numbers, whose results must not be reused."""
    for label, arguments in calls:
        other = None if arguments is None else normal_like(subject, arguments, rng)
        if other is not None:
            subject.result_or_raised(subject.converted(other))
        yield label, arguments


def _long_calls(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[str, Arguments | None]]:
    """A call per position size, with the greatest length within the work bound."""
    operation = subject.operation
    counted = {
        name: STEPS if stepwise(name, operation) else GRIDS if operation.axis(name) & Axis.GRID else LENGTHS
        for name in operation.sizes
        if operation.axis(name) & (Axis.POSITION | Axis.GRID | Axis.VOCABULARY | Axis.LENGTH)
    }
    for name, levels in counted.items():
        yield from _longest_call(subject, rng, name, levels)
    if operation.flag and operation.query_size and operation.key_size and not operation.attends_to_itself:
        both = dict.fromkeys((operation.query_size, operation.key_size), LENGTHS[-1])
        sampled = _call_of(subject, rng, both)
        if sampled is not None:
            yield f"{_text(both)}, causal", sampled.under_causal()


def _longest_call(
    subject: Subject, rng: np.random.Generator, name: str, levels: tuple[int, ...]
) -> Iterator[tuple[str, Arguments]]:
    """The call at the first of these levels within the work bound."""
    for size in levels:
        sampled = _call_of(subject, rng, {name: size})
        if sampled is not None:
            yield _text({name: size}), sampled
            return


def _many_key_calls(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[str, Arguments]]:
    """Few queries and, at the leading dtype, more keys than 15 or 16 bits count.

    Self-attention is skipped, since so many positions make too many pairs.
    """
    operation = subject.operation
    if operation.query_size and operation.key_size and not operation.attends_to_itself:
        yield from _longest_call(subject, rng, operation.key_size, KEYS if subject.is_leading_dtype else KEYS[-1:])


def _many_pair_calls(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[str, Arguments]]:
    """Calls with many queries and keys at the leading dtype: unmasked, causal, in a window."""
    operation = subject.operation
    if not (subject.is_leading_dtype and operation.query_size and operation.key_size) or operation.attends_to_itself:
        return
    both = dict.fromkeys((operation.query_size, operation.key_size), MANY_PAIRS)
    sampled = _call_of(subject, rng, both, work=WORK_OF_BOTH)
    if sampled is None:
        return
    # Biases that depend on positions would force judging every row.
    position_options = [path for path in operation.ordered if path not in mask_options(operation)]
    sampled = sampled.without_masks().replaced({path: operation.defaults[path] for path in position_options})
    yield _text(both), sampled
    if operation.flag and subject.limits.has(operation.flag):
        yield f"{_text(both)}, causal", sampled.under_causal()
    if operation.window and subject.limits.has(operation.window):
        yield f"{_text(both)} and a window {FAR_WINDOW}", sampled.replaced({operation.window: FAR_WINDOW})


@checks(law.LARGE_SIZE_GRADIENTS, once=True, slow=True)
def large_size_gradients(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare gradients of long calls, wide vectors and batches."""
    if not subject.is_leading_dtype:
        return False
    calls = [
        *_long_calls(subject, rng),
        *_wide_calls(subject, rng, (256, 192, 160, 101)),
        *((f"a batch of {size}", _call_of(subject, rng, {}, (size,))) for size in (7, SUMMED_ROWS)),
    ]
    tried = False
    for label, sampled in calls:
        if sampled is not None and "nan" in subject.semantics.without_keys.values():
            sampled = with_first_keys(sampled)
        if sampled is None or not subject.in_domain(sampled):
            continue
        cotangents = subject.cotangents(sampled, rng)
        expected, gradients = (subject.gradients(sampled, cotangents), subject.vjp(sampled, cotangents))
        gradients_match(subject, gradients, expected, sampled, f"with {label},")
        tried = True
    return tried


@checks(law.COMBINED_SIZES, once=True, slow=True)
def combined_sizes(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Judge some rows of every combination, after a contiguous call with these shapes.

    The contiguous call makes the backend plan for these shapes. The plan must not be reused for the other layout.
    """
    tried = False
    for prefix, combined, inputs in _combined_calls(subject, rng):
        subject.result_or_raised(subject.converted(combined))
        # ``judge_rows`` reads cached results; they must be those of the arrays in this layout.
        combined.memo["results"] = subject.fresh_results(combined, inputs)
        tried = judge_rows(subject, combined, rng, prefix, JUDGED_ROWS) or tried
    return tried


@checks(law.LARGE_SIZE_GRADIENTS, once=True, slow=True, governs=law.attends_under_mask)
def gradients_together(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare gradients of every combination; only a few rows have cotangents."""
    operation, queries = subject.operation, subject.operation.query_size or ""
    tried = False
    for prefix, combined, inputs in _combined_calls(subject, rng):
        rows = rows_to_judge(subject, combined, JUDGED_ROWS, rng)
        chosen = np.arange(combined.queries or 0) if rows is None else rows
        part = with_explicit_mask(combined, chosen, semantics=subject.semantics)
        if not subject.in_domain(part):
            continue
        outputs = [leaf for leaf in operation.outputs if leaf.kind is Kind.FLOAT]
        cotangents = {leaf.path: subject.exact(rng.standard_normal(part.binding.shape(leaf))) for leaf in outputs}
        # The oracle computes the chosen rows only; in the full call, all other rows have cotangents of 0.
        among_all = _rows_among(chosen, combined.queries or 0)
        padded = {leaf.path: along(cotangents[leaf.path], leaf, queries, part.binding, among_all) for leaf in outputs}
        expected = {}
        for path, pair in subject.gradients(part, cotangents).items():
            value, budget = (along(x, part.leaves[path], queries, part.binding, among_all) for x in pair)
            expected[path] = value, budget
        gradients_match(subject, subject.vjp(combined, padded, inputs), expected, combined, prefix)
        tried = True
    return tried


def _rows_among(rows: Numbers, count: int) -> Change:
    """A change that puts rows at the places ``rows`` among ``count``, zeros elsewhere."""

    def change(x: Numbers, axis: int) -> Numbers:
        full: Numbers = np.zeros((*x.shape[:axis], count, *x.shape[axis + 1 :]), x.dtype)
        np.moveaxis(full, axis, 0)[rows] = np.moveaxis(x, axis, 0)
        return full

    return change


def _combined_calls(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[str, Arguments, dict[str, Any]]]:
    """The calls of all combinations: prefix, arguments, and backend arrays."""
    operation = subject.operation
    batch = BATCH[: subject.limits.max_batch_dims]
    paired_names = operation.sizes_of(Axis.FEATURE)[-2:]
    hidden = operation.sizes_of(Axis.HIDDEN)
    weighted = any(operation.role(leaf) & Role.WEIGHT for leaf in operation.leaves)
    # Rows cover all pairs of levels, or all triples where the oracle is fast.
    for row in combinations(operation, subject.limits, 2 if weighted or subject.dtype == "float64" else 3):
        queries: int = row["queries"]
        features: int = row["head size"]
        keys = queries if row["keys"] == AS_MANY else row["keys"]
        columns = features if row["value size"] == AS_MANY else row["value size"]
        sizes = dict.fromkeys((*paired_names[:1], *hidden), features) | {paired_names[-1]: columns}
        if weighted and subject.dtype == "float64" and max(sizes.values()) > MAX_LONG_DOUBLE_WIDTH:
            continue
        sizes = {name: subject.allowed_size(name, size) for name, size in sizes.items()}
        sampled = sample(subject, rng, batch, queries=queries, keys=keys, heads=2, features=8, sizes=sizes)
        sampled = with_mask_level(NUMBERS[row["numbers"]](subject, sampled, rng), row["masks"], rng)
        prefix = "with " + ", ".join(f"{name} {level}" for name, level in row.items()) + ","
        yield (prefix, *in_layout(sampled, row["layout"], subject.convert))
