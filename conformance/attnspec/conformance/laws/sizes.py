"""Checks of the laws of large sizes: calls long in one size, narrow in others."""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Change, Numbers, along, take
from attnspec.conformance.inputs.attendance import bounds, spelled_out, with_first_keys
from attnspec.conformance.inputs.combinations import AS_MANY, BATCH, combinations, masked, placed
from attnspec.conformance.inputs.corners import TILE, long_sizes, multiply_adds, stepwise, tables
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.rows import judge, rows_to_judge
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import normal_like, sample
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.conformance.laws.lessons import causal_in
from attnspec.conformance.laws.magnitudes import opposed, outlier
from attnspec.conformance.laws.options import with_least_bias
from attnspec.spec.contract.axes import Axis, Part, Role
from attnspec.spec.contract.tree import Kind, without_indices
from attnspec.spec.laws import sizes as law
from attnspec.spec.laws.operation import batched

MANY = ((7,), (2, 6))
"""Batches with more elements, or more along one dimension, than corner cases have."""

CROWDS = ((65536,), (65535,), (33,))
"""65,536 exceeds CUDA's grid limit, 65,535 meets it; models try only the first."""

FEATURES = (192, 256, 96, 160)
HEAD_SIZES = (*(size for size in range(8, TILE + 8, 8) if size not in FEATURES), 100, 101, 224)
UNEQUAL = ((64, 32), (32, 64))
"""Features of queries and keys, and of values."""

HEADS = (12, 16, 33)
MANY_HEADS = 65
KEYS = (65600, 32800, 8193)
LENGTHS = (2049, 1024, 700, 513)
BOTH = 1100
"""The number of queries and of keys: more than 1,024 each."""

MASKED = (270, 290)
"""Queries and keys under a mask: their indices need more than 8 bits."""

NARROW_WINDOW = (3, 0)
"""A window that hides most tiles of keys from all queries of a tile."""

STEPS = (129,)
GRIDS = (65, 33)
WIDEST = 512
TABLE = 32_806
"""Rows of a table: the last index exceeds 15 bits and is inexact in float16."""

FAR = (300, 20)
"""A window whose left end needs more than 8 bits."""

LATENT = (576, 512)
"""Features of queries and keys, and of values, in multi-head latent attention."""

ROWS = 300
"""Rows over which gradients of weights are summed."""

WIDE_ROWS = 1100
"""Features of rows that are normalized, or added."""

WIDE_LONG_DOUBLES = 128
"""The widest float64 vectors in combinations with weights: the oracle has no BLAS there."""

MOST = 8
"""Most wide calls of models, which have many sizes."""

OUTSTANDING = 16.0
"""Factor of the outlying feature: beyond it, scores of thousands round visibly, and
kernels that compute weights again for their gradients may round them otherwise."""

FEW = 4
"""Rows judged per combination."""

WORK = 2.0**21
"""The most multiply-adds of a call."""

WORK_OF_TABLES = 2.0**23
"""Most multiply-adds of calls with large tables, by which few rows are multiplied."""

WORK_OF_BOTH = 2.0**24
"""Most multiply-adds of calls with many queries and keys, of few judged rows."""

Sizes = Mapping[str, int]

NUMBERS: Mapping[str, Callable[[Subject, Arguments, np.random.Generator], Arguments]] = {
    "normal": lambda subject, given, rng: given,
    "outlier": lambda subject, given, rng: outlier(subject, given, rng, OUTSTANDING),
    "opposed": opposed,
}
"""Functions that set the numbers of a combination."""


def _narrow(
    subject: Subject, rng: np.random.Generator, sizes: Sizes, batch: tuple[int, ...] = (), work: float = WORK
) -> Arguments | None:
    """A call of these sizes, others small; None outside limits or the work bound.

    In the layers of a model positions attend to each other. The largest batches are not masked: tens of thousands of
    rows with one key each are judged elsewhere, in smaller batches.
    """
    wanted = {name: subject.fitting(name, size) for name, size in sizes.items()}
    if len(batch) > subject.limits.max_batch_dims or any(wanted[name] < size for name, size in sizes.items()):
        return None
    operation = subject.operation
    few = 2 if prod(batch) > TILE else 8 if operation.counts else 4
    wanted = {name: 2 for name in operation.sizes if operation.axis(name) & Axis.GRID} | wanted
    wanted = dict.fromkeys(operation.counts, 1) | wanted
    heads = 1 if batch else 2
    given = sample(subject, rng, batch, queries=2, keys=3, heads=heads, features=few, whole=True, sizes=wanted)
    given = given.replaced({path: _all(given, path, size) for path, size in operation.lengths.items()})
    given = given.without_masks() if prod(batch) > TILE else given
    longest = max([sizes[name] for name in sizes if operation.axis(name) & Axis.POSITION], default=0)
    within = 5 * longest**2 if operation.counts else 0
    return given if max(multiply_adds(dict(given.sizes), batch, operation), within) <= work else None


def _all(given: Arguments, path: str, size: str) -> Numbers | None:
    """Full lengths, which leave nothing out."""
    lengths = given[path]
    return None if lengths is None else np.full_like(lengths, given.size(size))


def _wide(subject: Subject) -> list[str]:
    """The sizes that count features of vectors."""
    return [name for axis in law.WIDE for name in subject.operation.sizes_of(axis)]


def _tried(subject: Subject, calls: Iterator[tuple[str, Arguments | None]], rng: np.random.Generator) -> bool:
    tried = False
    for what, given in calls:
        tried = (given is not None and judge(subject, given, rng, f"with {what},")) or tried
    return tried


def _shown(sizes: Sizes) -> str:
    return " and ".join(f"{name} = {size}" for name, size in sizes.items())


@checks(law.FEATURES, once=True, at_leading=True, governs=law.has_features)
def features(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Try feature sizes: queries and values at every level, others at one; rows; tables."""
    calls = [*_featured(subject, rng, FEATURES), *_rows(subject, rng), *_tables(subject, rng)]
    return _tried(subject, iter(calls), rng)


def _rows(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[str, Arguments | None]]:
    """Wide rows, for operations with one vector size and no keys, steps or layers."""
    operation, names = subject.operation, _wide(subject)
    if len(names) == 1 and not (operation.asked or operation.counts or operation.lengths):
        yield _shown({names[0]: WIDE_ROWS}), _narrow(subject, rng, {names[0]: WIDE_ROWS})


def _tables(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[str, Arguments | None]]:
    """Large tables and vocabularies with few features, whose last row one query reads."""
    operation = subject.operation
    narrow = dict.fromkeys(_wide(subject), 4) | dict.fromkeys([operation.asking] if operation.asking else [], 1)
    names = dict.fromkeys((*tables(operation), *operation.sizes_of(Axis.VOCABULARY)))
    if operation.sizes_of(Axis.BEAM) and not subject.effort.slow:
        return  # every hypothesis has a score for every token, at every step
    for name in names:
        given = _narrow(subject, rng, narrow | {name: TABLE}, work=WORK_OF_TABLES)
        yield _shown({name: TABLE}), None if given is None else given.replaced(_last_rows(given))


def _last_rows(given: Arguments) -> dict[str, Numbers]:
    """Indices by path, the last of which is the greatest."""
    bounds = {path: without_indices(size) for path, size in given.operation.indices.items() if path in given.arrays}
    found = {path: np.array(given[path]) for path in bounds}
    for path, x in found.items():
        x.reshape(-1)[-1:] = given.size(bounds[path]) - 1
    return found


def _featured(
    subject: Subject, rng: np.random.Generator, levels: tuple[int, ...]
) -> Iterator[tuple[str, Arguments | None]]:
    operation = subject.operation
    together = [name for name in (long_sizes(operation) or ((),))[-1] if operation.axis(name) & Axis.FEATURE]
    groups = [dict.fromkeys(together, level) for level in levels] if together else []
    if len(together) > 1:
        groups.append(dict(zip(together, (max(levels), TILE), strict=True)))
    others = [name for name in _wide(subject) if name not in together]
    groups += [{name: levels[i % len(levels)]} for i, name in enumerate(others)]
    if len(groups) > MOST:
        groups = [groups[i] for i in sorted(rng.permutation(len(groups))[:MOST])]
    for sizes in groups:
        yield _shown(sizes), _narrow(subject, rng, sizes)


@checks(law.FEATURES, once=True, at_leading=True, governs=law.heads_compare)
def head_sizes(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Try head sizes with few unmasked queries and keys, so that every feature counts."""
    names = long_sizes(subject.operation)[-1]
    wanted = [dict.fromkeys(names, size) for size in HEAD_SIZES]
    wanted += [dict(zip(names, pair, strict=True)) for pair in UNEQUAL if len(pair) == len(names)]
    calls = ((sizes, _narrow(subject, rng, sizes)) for sizes in wanted)
    fitted = ((sizes, x) for sizes, x in calls if x is not None and all(x.size(n) == s for n, s in sizes.items()))
    return _tried(subject, ((_shown(sizes), x.without_masks()) for sizes, x in fitted), rng)


@checks(law.FEATURES, once=True, at_leading=True, governs=law.in_heads)
def heads(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Try several numbers of heads, one in models; long profiles add 65, also batched."""
    names = subject.operation.sizes_of(Axis.HEAD)
    in_model = any("." in name for name in names)
    counts: list[tuple[int, tuple[int, ...]]] = [(count, ()) for count in (HEADS[-1:] if in_model else HEADS)]
    if subject.effort.slow and subject.leading:
        counts += [(MANY_HEADS, ()), *([] if in_model else [(MANY_HEADS, (3,))])]
    calls = ((_shown(dict.fromkeys(names, n)), _narrow(subject, rng, dict.fromkeys(names, n), b)) for n, b in counts)
    return _tried(subject, calls, rng)


@checks(law.FEATURES, once=True, at_leading=True, governs=law.masked_by_query)
def long_masks(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Try a mask whose columns differ from those 256 earlier, and tiles without weight."""
    operation = subject.operation
    sizes = {operation.asking or "": MASKED[0]} | {operation.asked or "": MASKED[1]}
    given = _narrow(subject, rng, sizes)
    if given is None or given.mask is None:
        return False
    # Biases that depend on positions would force judging every row.
    placed = {path: operation.defaults[path] for path in operation.ordered if path not in bounds(operation)}
    given = given.replaced(placed)
    calls = [(f"{_shown(sizes)}, masked", given)]
    if operation.window is not None and subject.limits.has(operation.window):
        inside = given.without_masks().replaced({operation.window: NARROW_WINDOW})
        calls.append((f"{_shown(sizes)}, in a window {NARROW_WINDOW}", inside))
    tried = _tried(subject, iter(calls), rng)
    biased = with_least_bias(given.along(operation.asking or "", take(np.arange(FEW))), TILE)
    if biased is not None:
        subject.follows_formula(biased, f"with {operation.part(Part.BIAS)} of the least number in the first tile,")
    return tried


@checks(law.FEATURES, once=True, at_leading=True, governs=batched)
def batches(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Try batches of seven elements, and of six along the second dimension."""
    calls = ((f"a batch of {batch}", _narrow(subject, rng, {}, batch)) for batch in MANY)
    return _tried(subject, calls, rng)


MORE_THAN_FLOAT16 = 70_000
"""More keys than the largest number of float16."""


@checks(law.FEATURES, once=True, governs=law.counts_keys)
def many_keys(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pass ones at more keys than float16 can count."""
    if subject.dtype not in NARROW:
        return False
    given = sample(subject, rng, queries=1, keys=MORE_THAN_FLOAT16, features=1)
    if (given.keys_count or 0) < MORE_THAN_FLOAT16:
        return False
    ones = given.replaced({leaf.path: np.ones_like(x) for leaf, x in given.floats})
    subject.follows_formula(ones, f"of {ones.keys_count} ones,")
    return True


@checks(law.BEYOND, once=True, slow=True)
def beyond(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Try long lengths (at the leading dtype after another call), widest vectors, large batches."""
    long = [*_lengths(subject, rng), *_crowded(subject, rng), *_both(subject, rng)]
    others = _after_others(subject, rng, long) if subject.leading else long
    calls = [*others, *_featured(subject, rng, (WIDEST,)), *_latent(subject, rng)]
    if subject.leading and any(leaf.batched for leaf in subject.operation.leaves):
        crowds = [*(CROWDS[:1] if subject.operation.counts else CROWDS)]
        crowds += [(3, MANY_HEADS)] if law.compares(subject.operation) else []
        calls += [(f"a batch of {batch}", _in_order(subject, _narrow(subject, rng, {}, batch))) for batch in crowds]
    return _tried(subject, iter(calls), rng)


def _in_order(subject: Subject, given: Arguments | None) -> Arguments | None:
    """The call, causal if its number of batch elements is odd."""
    causal = given is not None and causal_in(subject) and prod(given.batch) % 2
    return given.under_causal() if given is not None and causal else given


def _latent(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[str, Arguments | None]]:
    """The widths of multi-head latent attention, without a mask."""
    names = long_sizes(subject.operation)[-1] if law.compares(subject.operation) else ()
    if len(names) == len(LATENT) and all(subject.operation.axis(name) & Axis.FEATURE for name in names):
        sizes = dict(zip(names, LATENT, strict=True))
        given = _narrow(subject, rng, sizes)
        yield _shown(sizes), None if given is None else given.without_masks()


def _after_others(
    subject: Subject, rng: np.random.Generator, calls: list[tuple[str, Arguments | None]]
) -> Iterator[tuple[str, Arguments | None]]:
    """The calls, each after a call of its shapes whose numbers must leave no trace."""
    for what, given in calls:
        other = None if given is None else normal_like(subject, given, rng)
        if other is not None:
            subject.outcome(subject.converted(other))
        yield what, given


def _lengths(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[str, Arguments | None]]:
    """For each size of positions, the greatest length that the bound on work allows."""
    operation = subject.operation
    counted = {
        name: STEPS if stepwise(name, operation) else GRIDS if operation.axis(name) & Axis.GRID else LENGTHS
        for name in operation.sizes
        if operation.axis(name) & (Axis.POSITION | Axis.GRID | Axis.VOCABULARY | Axis.LENGTH)
    }
    for name, levels in counted.items():
        yield from _longest(subject, rng, name, levels)
    if operation.flag and operation.asking and operation.asked and not operation.attends_to_itself:
        both = dict.fromkeys((operation.asking, operation.asked), LENGTHS[-1])
        given = _narrow(subject, rng, both)
        if given is not None:
            yield f"{_shown(both)}, causal", given.under_causal()


def _longest(
    subject: Subject, rng: np.random.Generator, name: str, levels: tuple[int, ...]
) -> Iterator[tuple[str, Arguments]]:
    """The call at the first of these levels that the bound on work allows."""
    for size in levels:
        given = _narrow(subject, rng, {name: size})
        if given is not None:
            yield _shown({name: size}), given
            return


def _crowded(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[str, Arguments]]:
    """Few queries and, at the leading dtype, more keys than 16 or 15 bits count.

    Not in self-attention, where so many positions would be too many pairs.
    """
    operation = subject.operation
    if operation.asking and operation.asked and not operation.attends_to_itself:
        yield from _longest(subject, rng, operation.asked, KEYS if subject.leading else KEYS[-1:])


def _both(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[str, Arguments]]:
    """Many queries and keys at the leading dtype: unmasked, causal, and in a window."""
    operation = subject.operation
    if not (subject.leading and operation.asking and operation.asked) or operation.attends_to_itself:
        return
    both = dict.fromkeys((operation.asking, operation.asked), BOTH)
    given = _narrow(subject, rng, both, work=WORK_OF_BOTH)
    if given is None:
        return
    # Biases that depend on positions would force judging every row.
    placed_by = [path for path in operation.ordered if path not in bounds(operation)]
    given = given.without_masks().replaced({path: operation.defaults[path] for path in placed_by})
    yield _shown(both), given
    if operation.flag and subject.limits.has(operation.flag):
        yield f"{_shown(both)}, causal", given.under_causal()
    if operation.window and subject.limits.has(operation.window):
        yield f"{_shown(both)} and a window {FAR}", given.replaced({operation.window: FAR})


@checks(law.GRADIENTS, once=True, slow=True)
def gradients(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare gradients of long calls, of wide queries and values, and of batches."""
    if not subject.leading:
        return False
    calls = [
        *_lengths(subject, rng),
        *_featured(subject, rng, (256, 192, 160, 101)),
        *((f"a batch of {size}", _narrow(subject, rng, {}, (size,))) for size in (7, ROWS)),
    ]
    tried = False
    for what, given in calls:
        if given is not None and "nan" in subject.semantics.without_keys.values():
            given = with_first_keys(given)
        if given is None or not subject.in_domain(given):
            continue
        cotangents = subject.cotangents(given, rng)
        expected, found = subject.gradients(given, cotangents), subject.vjp(given, cotangents)
        gradients_match(subject, found, expected, given, f"with {what},")
        tried = True
    return tried


@checks(law.TOGETHER, once=True, slow=True)
def together(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Judge some rows of every combination, after a contiguous call of the same shapes."""
    tried = False
    for what, given, inputs in _combined(subject, rng):
        subject.outcome(subject.converted(given))
        given.memo["results"] = subject.call_anew(given, inputs)
        tried = judge(subject, given, rng, what, FEW) or tried
    return tried


@checks(law.GRADIENTS, once=True, slow=True, governs=law.attends)
def gradients_together(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare gradients for cotangents of some rows, all others being 0."""
    operation, asking = subject.operation, subject.operation.asking or ""
    tried = False
    for what, given, inputs in _combined(subject, rng):
        rows = rows_to_judge(subject, given, FEW, rng)
        chosen = np.arange(given.queries or 0) if rows is None else rows
        part = spelled_out(given, chosen, bottom_right=subject.semantics.bottom_right)
        if not subject.in_domain(part):
            continue
        outputs = [leaf for leaf in operation.outputs if leaf.kind is Kind.FLOAT]
        some = {leaf.path: subject.exact(rng.standard_normal(part.binding.shape(leaf))) for leaf in outputs}
        among_all = _among(chosen, given.queries or 0)
        everywhere = {leaf.path: along(some[leaf.path], leaf, asking, part.binding, among_all) for leaf in outputs}
        expected = {}
        for path, pair in subject.gradients(part, some).items():
            value, budget = (along(x, part.leaves[path], asking, part.binding, among_all) for x in pair)
            expected[path] = value, budget
        gradients_match(subject, subject.vjp(given, everywhere, inputs), expected, given, what)
        tried = True
    return tried


def _among(chosen: Numbers, count: int) -> Change:
    """A change that puts rows at ``chosen`` places among ``count``, zeros elsewhere."""

    def change(x: Numbers, axis: int) -> Numbers:
        full: Numbers = np.zeros((*x.shape[:axis], count, *x.shape[axis + 1 :]), x.dtype)
        np.moveaxis(full, axis, 0)[chosen] = np.moveaxis(x, axis, 0)
        return full

    return change


def _combined(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[str, Arguments, dict[str, Any]]]:
    """The calls of all combinations: descriptions, arguments, and these as backend arrays."""
    operation = subject.operation
    batch = BATCH[: subject.limits.max_batch_dims]
    together = operation.sizes_of(Axis.FEATURE)[-2:]
    hidden = operation.sizes_of(Axis.HIDDEN)
    weighted = any(operation.role(leaf) & Role.WEIGHT for leaf in operation.leaves)
    for row in combinations(operation, subject.limits, 2 if weighted or subject.dtype == "float64" else 3):
        queries: int = row["queries"]
        features: int = row["head size"]
        keys = queries if row["keys"] == AS_MANY else row["keys"]
        columns = features if row["value size"] == AS_MANY else row["value size"]
        sizes = dict.fromkeys((*together[:1], *hidden), features) | {together[-1]: columns}
        if weighted and subject.dtype == "float64" and max(sizes.values()) > WIDE_LONG_DOUBLES:
            continue
        sizes = {name: subject.fitting(name, size) for name, size in sizes.items()}
        given = sample(subject, rng, batch, queries=queries, keys=keys, heads=2, features=8, sizes=sizes)
        given = masked(NUMBERS[row["numbers"]](subject, given, rng), row["masks"], rng)
        what = "with " + ", ".join(f"{name} {level}" for name, level in row.items()) + ","
        yield (what, *placed(given, row["layout"], subject.convert))
