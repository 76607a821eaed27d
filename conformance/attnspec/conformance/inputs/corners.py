"""Corner cases: a covering array of levels that are known to break kernels.

Independent random draws rarely combine two conditions, such as more than 128 keys and a mask that broadcasts.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import cycle, pairwise
from math import prod
from typing import Any

import numpy as np

from attnspec.conformance.inputs.examples import ABSENT, KINDS, MASKS, Example
from attnspec.conformance.inputs.heads import with_divided_heads
from attnspec.spec.contract.axes import Axis, Role
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Branch, Dim, Kind, Leaf, Option, dimension_value, without_indices

LENGTHS = (1, 2, 3, 0, 5, 7, 16, 17, 33, 63, 64, 65, 127, 128, 129, 130, 192, 255, 256, 257)
"""Numbers of queries, keys and filtered tokens: tile sizes of kernels, one less, one more."""

STEPS = (1, 2, 3, 0, 5, 7, 8, 16, 17, 33)
"""Numbers of time steps. Each step follows from the last, so long sequences show nothing new."""

CHUNKED = (*STEPS, 64, 65)
"""Numbers of steps that kernels compute in chunks: results are linear in an argument."""

FEATURES = (1, 2, 3, 4, 8, 16, 17, 24, 32, 33, 64, 65, 80, 128)
HEADS = (1, 2, 3, 4, 8)
KEY_HEADS = (1, 2, 3)
"""Heads of the keys, and query heads per key head."""
BEAMS = (1, 2, 3, 5)
INDICES = (0, 1, 3)
"""Values of an index option, each modulo its bound."""
SPARE = (0, 1, 3)  # rows of a table that a call does not use
DEPTHS = (2, 1, 3, 0)
TAPS = (3, 2, 1, 4, 5, 7, 16)
GRIDS = (2, 3, 1, 4, 5, 7, 8, 16, 17)
PAGES = (2, 1, 3, 4, 8, 16)
PAGE_ROWS = (*PAGES, 64, 128, 256)
POOLS = (*PAGES, 300)
"""Pages of a cache that table entries index; 300 need more than one byte."""
VOCABULARIES = (*FEATURES, 300)
SEQUENCES = (2, 1, 3, 5)
BATCHES: tuple[tuple[int, ...], ...] = ((), (2,), (3, 2), (1,), (4,), (2, 1, 3))

TILE = 128
"""The largest tile of common kernels, in queries or keys."""

LEAST_REPEATS, LEAST_STEPS, LEAST_SIZE = 2, 3, 8
"""Least sizes to which a work bound lowers: heads, layers and grids; steps; all others."""

LEAST_STEP_WORK = 2.0**7
"""Least multiply-adds of a time step per array, since overhead dominates small arrays."""

LARGEST_EXCESS = 256
"""An example whose work exceeds the bound by this factor loses its batch."""

LEAST_SHAPES, EXAMPLES_PER_SHAPE = 6, 10
"""Least number of shapes, and examples per shape, where new shapes are expensive."""

Row = dict[str, Any]
Levels = dict[str, Sequence[Any]]


def long_sizes(operation: Operation) -> tuple[tuple[str, ...], ...]:
    """Groups of sizes; each is longer than a tile in one of the first rows.

    The groups: keys; queries; both; steps that are computed in chunks; each table and page size; the last two feature
    sizes of the operation, usually those of scores and of values.
    """
    keys, queries = (operation.sizes_of(axis)[-1:] for axis in (Axis.KEY, Axis.QUERY))
    paged = [x for x in operation.sizes_of(Axis.PAGE) if any(x in leaf.sizes for leaf in operation.floats)]
    rows = [(name,) for name in dict.fromkeys((*tables(operation), *paged))]
    steps = [x for x in operation.sizes_of(Axis.TIME) if operation.linear and stepwise(x, operation)]
    groups = (keys, queries, queries + keys, tuple(steps), *rows, operation.sizes_of(Axis.FEATURE)[-2:])
    return tuple(dict.fromkeys(tuple(dict.fromkeys(group)) for group in groups if group))


def tables(operation: Operation) -> tuple[str, ...]:
    """Sizes that bound indices: vocabularies, and pages of a block table."""
    bounds = (without_indices(size) for size in operation.indices.values())
    return tuple(dict.fromkeys(x for x in bounds if operation.axis(x) & (Axis.VOCABULARY | Axis.PAGE)))


def stepwise(size: str, operation: Operation) -> bool:
    """Return whether a size counts steps of a recurrence; tokens of a convolution are not."""
    filters = operation.sizes_of(Axis.TAP) or operation.sizes_of(Axis.HISTORY)
    return operation.axis(size) is Axis.TIME and not filters


@lru_cache(maxsize=1024)
def size_levels(size: str, operation: Operation, limits: Limits) -> tuple[int, ...]:
    """The levels of a size, within the limits of the backend."""
    axis = operation.axis(size)
    if axis & Axis.POSITION:
        steps = CHUNKED if operation.linear else STEPS
        lengths = set(map(limits.length_from, steps if stepwise(size, operation) else LENGTHS))
        return tuple(sorted(x for x in lengths if limits.max_length is None or x <= limits.max_length))
    if axis & Axis.FEATURE and limits.head_sizes is not None:
        return limits.head_sizes
    depths = tuple(depth for depth in DEPTHS if depth >= operation.least(size))
    heads = KEY_HEADS if operation.sizes_of(Axis.GROUP) else HEADS
    axes = {Axis.LAYER: depths, Axis.HEAD: heads, Axis.SPARE: SPARE, Axis.TAP: TAPS, Axis.GRID: GRIDS, Axis.BEAM: BEAMS}
    axes |= {Axis.HISTORY: (*TAPS, 0)}
    axes |= {Axis.GROUP: KEY_HEADS, Axis.PAGE: PAGES, Axis.SEQUENCE: SEQUENCES, Axis.VOCABULARY: VOCABULARIES}
    axes[Axis.BLOCK] = PAGES
    # Arrays have pages of a pool, or rows of a page. Other page sizes count the entries of a block table.
    if axis is Axis.PAGE and any(size in leaf.sizes for leaf in operation.floats):
        axes[Axis.PAGE] = POOLS if size in tables(operation) else PAGE_ROWS
    return next((levels for kind, levels in axes.items() if kind in axis), FEATURES)


def option_levels(option: Option, operation: Operation, limits: Limits) -> tuple[Any, ...]:
    """The values to try for an option, within the backend's features."""
    default = operation.defaults.get(option.path)
    bound = operation.indices.get(option.path)
    defaults = [default] if option.path in operation.defaults else []
    values = [*defaults, *(option.choices or operation.trial_values.get(option.path, INDICES if bound else ()))]
    features = operation.features
    unsupported = option.path in features and not limits.has(option.path)
    if unsupported or option.path in operation.always_passed or (option.path == operation.flag and not limits.causal):
        values = [default]
    # Limits name a value that backends may lack as ``norm=pre``.
    accepted = (v for v in values if v == default or (f := f"{option.path}={v}") not in features or limits.has(f))
    return tuple(dict.fromkeys(accepted))


def batches(limits: Limits) -> list[tuple[int, ...]]:
    """The batches within the limits."""
    return [b for b in BATCHES if len(b) <= limits.max_batch_dims and all(size >= limits.min_batch for size in b)]


def factors(operation: Operation, limits: Limits) -> Levels:
    """The levels of every factor of the covering array."""
    result: Levels = {f"size:{name}": size_levels(name, operation, limits) for name in operation.sizes}
    batched = [leaf for leaf in operation.leaves if leaf.batched]
    if batched:
        result["batch"] = batches(limits)
    for name, node in zip(operation.call.names, operation.call.nodes, strict=True):
        if isinstance(node, Option):
            if node.kind is not Kind.SIZE:
                result[f"option:{name}"] = option_levels(node, operation, limits)
            continue
        for leaf in (x for x in operation.leaves if _belongs_to(x, name)):
            result |= _leaf_factors(leaf, operation, limits, len(batched) > 1)
        if isinstance(node, Branch) or node.kind is Kind.FLOAT:
            result[f"kind:{name}"] = KINDS
    return result


def _belongs_to(leaf: Leaf, name: str) -> bool:
    return leaf.path == name or leaf.path.startswith((f"{name}.", f"{name}["))


def _leaf_factors(leaf: Leaf, operation: Operation, limits: Limits, broadcasts: bool) -> Levels:
    result: Levels = {}
    unsupported = leaf.path in operation.features and not limits.has(leaf.path)
    if operation.role(leaf) is Role.MASK:
        unsupported = unsupported or (leaf.optional and not limits.mask)
        result[f"masked:{leaf.path}"] = (ABSENT,) if unsupported else MASKS if leaf.optional else MASKS[1:]
    elif leaf.optional:
        result[f"present:{leaf.path}"] = (False,) if unsupported else (True, False)
    broadcast_sizes = [d.factors[0] for d in leaf.core if d.broadcast]
    if broadcast_sizes:
        # Levels that are listed twice, here and below, are drawn twice as often.
        result[f"collapsed:{leaf.path}"] = ((), (), *((name,) for name in broadcast_sizes))
    if leaf.batched and leaf.dims[0].broadcast and broadcasts and limits.broadcasting:
        result[f"kept:{leaf.path}"] = ("all", "all", "none", "first")
    return result


def covering_rows(levels: Levels, rng: random.Random, most: int, tries: int = 12, strength: int = 2) -> Iterator[Row]:
    """At most ``most`` rows that cover every combination of ``strength`` levels.

    Each row is the best of ``tries`` random candidates.
    """
    names = list(levels)
    options = [list(dict.fromkeys(levels[n])) for n in names]
    weights = [list(levels[n]) for n in names]
    first_levels = np.cumsum([0, *map(len, options)])
    factor_of = np.repeat(np.arange(len(names)), [len(o) for o in options])
    # ``uncovered`` has one axis per level of a combination, with the levels of all factors numbered through. It is True
    # for combinations of levels of different factors that no row has yet.
    factors = np.meshgrid(*[factor_of] * strength, indexing="ij")
    uncovered = np.logical_and.reduce([a < b for a, b in pairwise(factors)])
    for _ in range(most):
        if len(names) >= strength and not uncovered.any():
            return
        rows = np.array([[options[i].index(rng.choice(weights[i])) for i in range(len(names))] for _ in range(tries)])
        rows += first_levels[:-1]
        still_uncovered = np.argwhere(uncovered)
        if len(still_uncovered):
            combination = still_uncovered[rng.randrange(len(still_uncovered))]
            rows[:, factor_of[combination]] = combination
        gains = [uncovered[np.ix_(*[row] * strength)].sum() for row in rows]
        best = rows[int(np.argmax(gains))]
        uncovered[np.ix_(*[best] * strength)] = False
        yield {n: options[i][best[i] - first_levels[i]] for i, n in enumerate(names)}


def corners(operation: Operation, limits: Limits, *, seed: int, most: int, work: float) -> list[Example]:
    """Examples that cover all pairs of levels, each within ``work`` multiply-adds.

    However small ``most`` is, the first examples are long in keys, in queries, in both under a causal mask alone, and
    in features.
    """
    rng = random.Random(seed)
    levels = factors(operation, limits)
    # Sizes that the work bound does not lower: one group per row; later rows have none.
    spared: list[tuple[str, ...]] = [*long_sizes(operation), *[()] * most]
    examples = []
    for row, names in zip(covering_rows(levels, rng, most), spared, strict=False):
        long_row = _with_long_sizes(row, names, operation, levels, rng)
        own_seed = rng.getrandbits(32)
        examples.append(example_from(long_row, operation, limits, seed=own_seed, work=work, spared=names))
    return examples if limits.new_shapes == "cheap" else _with_few_shapes(examples)


def _with_few_shapes(examples: list[Example]) -> list[Example]:
    """The examples, of which only the first have shapes of their own; later ones reuse them in turn."""
    count = max(LEAST_SHAPES, len(examples) // EXAMPLES_PER_SHAPE)
    shapes = cycle(examples[:count])
    reused = ((x, next(shapes)) for x in examples)
    return [replace(x, sizes=s.sizes, batch=s.batch, kept=s.kept, collapsed=s.collapsed) for x, s in reused]


def _with_long_sizes(row: Row, names: tuple[str, ...], operation: Operation, levels: Levels, rng: random.Random) -> Row:
    """The row with these sizes beyond a tile and normal numbers, so that errors show."""
    if not names:
        return row
    tile = TILE if len(names) == 1 else TILE // 2
    changed: Row = {f"size:{name}": _length_beyond(tile, levels[f"size:{name}"], rng) for name in names}
    if len(names) > 1 and any(operation.axis(name) & Axis.QUERY for name in names):
        changed |= {"batch": ()} if "batch" in levels else {}
        flag = f"option:{operation.flag}"
        if True in levels.get(flag, ()):
            # Another mask could hide the very key that a kernel wrongly drops at the border of a tile.
            changed |= {flag: True} | {name: ABSENT for name in levels if name.startswith("masked:")}
    return {**row, **changed, **{name: KINDS[0] for name in levels if name.startswith("kind:")}}


def _length_beyond(tile: int, lengths: Sequence[int], rng: random.Random) -> int:
    """A length above one tile, at most two tiles plus 2; else the greatest."""
    return rng.choice([x for x in lengths if tile < x <= 2 * tile + 2] or [max(lengths)])


def example_from(
    row: Row, operation: Operation, limits: Limits, *, seed: int, work: float, spared: tuple[str, ...] = ()
) -> Example:
    """The example of a row, with sizes lowered to the work bound unless ``spared``."""

    def levels_of(prefix: str) -> dict[str, Any]:
        return {name.partition(":")[2]: level for name, level in row.items() if name.startswith(f"{prefix}:")}

    batch = tuple(row.get("batch", ()))
    sizes = within_work(levels_of("size"), batch, operation, limits, work, random.Random(seed), spared)
    sizes = with_divided_heads(sizes, operation, limits)
    if multiply_adds(sizes, batch, operation) > LARGEST_EXCESS * work:
        batch = ()  # a large limit ``multiple_of`` leaves lengths that cannot be lowered
    kept = levels_of("kept")
    return Example(
        sizes=sizes,
        batch=batch,
        kept={leaf.path: _kept_dims(kept.get(leaf.path, "all"), batch) for leaf in operation.leaves if leaf.batched},
        kinds=levels_of("kind"),
        options=levels_of("option"),
        masks=levels_of("masked"),
        collapsed=levels_of("collapsed"),
        absent=frozenset(path for path, present in levels_of("present").items() if not present),
        seed=seed,
    )


def _kept_dims(pattern: str, batch: tuple[int, ...]) -> tuple[bool, ...]:
    if pattern == "first":
        return tuple(i == 0 for i in range(len(batch)))
    return (pattern == "all",) * len(batch)


def within_work(
    sizes: dict[str, int],
    batch: tuple[int, ...],
    operation: Operation,
    limits: Limits,
    work: float,
    rng: random.Random,
    spared: tuple[str, ...] = (),
) -> dict[str, int]:
    """Sizes lowered at random, one level at a time, until within the work bound.

    A kernel that fails beyond some size needs only that size to be large. So ``spared`` sizes keep their values, and
    one random size is lowered last.
    """
    sizes = dict(sizes)
    least = {name: _least_size(name, operation) for name in sizes}
    large = [name for name, size in sizes.items() if size > least[name]]
    longest = rng.choice(large) if large else ""
    while multiply_adds(with_divided_heads(sizes, operation, limits), batch, operation) > work:
        smaller = {
            name: [x for x in size_levels(name, operation, limits) if x < size]
            for name, size in sizes.items()
            if size > least[name] and name not in spared
        }
        names = [name for name, options in smaller.items() if options]
        if not names:
            break
        name = rng.choice([n for n in names if n != longest] or names)
        sizes[name] = max(smaller[name])
    return sizes


@lru_cache(maxsize=4096)
def _least_size(size: str, operation: Operation) -> int:
    if stepwise(size, operation):
        return LEAST_STEPS
    return LEAST_REPEATS if operation.axis(size) & Axis.GRID or size in _repeating_sizes(operation) else LEAST_SIZE


@lru_cache(maxsize=1024)
def _repeating_sizes(operation: Operation) -> frozenset[str]:
    """The sizes that count heads, layers and time steps."""
    counts = (name for name in operation.sizes if operation.axis(name) & (Axis.LAYER | Axis.HEAD | Axis.GROUP))
    return frozenset([*counts, *(name for name in operation.sizes if stepwise(name, operation))])


def multiply_adds(sizes: dict[str, int], batch: tuple[int, ...], operation: Operation) -> float:
    """Estimated multiply-adds: the three largest sizes multiplied, per head, layer and step."""
    repeats = _repeating_sizes(operation)
    attending = [sizes[operation.query_size]] if operation.attends_to_itself and operation.query_size else []
    repeated = [size for name, size in sizes.items() if name in repeats]
    others = [size for name, size in sizes.items() if name not in repeats]
    product = 1.0
    for size in (*sorted([*others, *attending])[-3:], *batch):
        product *= max(size, 1)
    least = LEAST_STEP_WORK * len(operation.floats) if any(stepwise(name, operation) for name in sizes) else 1.0
    return max(max(product, least) * prod(max(size, 1) for size in repeated), _grid_work(sizes, batch, operation))


@lru_cache(maxsize=1024)
def _grids(operation: Operation) -> tuple[tuple[Dim, ...], ...]:
    """Core dimensions of every array with grid axes, such as an image."""
    arrays = [leaf for leaf in (*operation.leaves, *operation.outputs) if leaf.batched]
    return tuple(x.core for x in arrays if any(operation.axis(size) & Axis.GRID for size in x.sizes))


def _grid_work(sizes: dict[str, int], batch: tuple[int, ...], operation: Operation) -> float:
    """Multiply-adds of a linear map at every place of the largest grid; else 0."""
    grids = _grids(operation)
    if not grids:
        return 0.0
    elements = max(prod(dimension_value(d.factors, sizes) or 1 for d in core) for core in grids)
    wide = Axis.WIDTH | Axis.HIDDEN
    widths = [size for name, size in sizes.items() if operation.axis(without_indices(name)) & wide]
    return float(elements) * max(widths, default=1) * prod(batch)
