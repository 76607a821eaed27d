"""Checks of the laws of packed sequences, of caches and of their positions. Options of ``@checks``: see ``Check``."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, take
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import doubled, doubles, key_heads, sample, wide
from attnspec.conformance.laws.kernels import accepts_parts, accepts_window, grouped_head_sizes, operands
from attnspec.spec.contract.axes import Axis, ScoreEffect
from attnspec.spec.contract.documentation import operation_of
from attnspec.spec.contract.operation import Operation
from attnspec.spec.kernels import GroupedQueryAttention
from attnspec.spec.laws import kernels as law


def grouped_query_attention_of(subject: Subject) -> Subject | None:
    """The backend's grouped-query attention; None if it has none."""
    operation = operation_of(GroupedQueryAttention)
    return None if operation is None else subject.for_operation(operation)


@checks(law.WEIGHTS_POOL_VALUES)
def weights_pool_values(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Pool random values by the weights, in double precision."""
    other = grouped_query_attention_of(subject)
    if other is None or other.semantics != subject.semantics:
        return False
    if not all(other.limits.has(path) for path in subject.operation.features if arguments[path] is not None):
        return False
    query, key = operands(subject.operation)
    head = key_heads(subject, arguments.array(query.path).shape[-3], arguments.array(key.path).shape[-3])
    value = other.exact(rng.standard_normal(arguments.array(key.path).shape))
    pooled = Arguments(other.operation, {**arguments, operands(other.operation)[2].path: value})
    if not (subject.in_domain(arguments) and other.in_domain(pooled)):
        return False
    output = other.operation.leading.path
    of_heads = wide(value)[..., head, :, :]
    expected = wide(other.results(pooled)[output])
    budget = other.budgets(pooled)[output] + subject.budget(arguments) @ np.abs(of_heads)
    got = wide(subject.call(arguments)) @ of_heads
    subject.demand_match(got, expected, budget, arguments, "pooling values, the weights give another output:")
    return True


def _position_options(subject: Subject, sampled: Arguments) -> Iterator[dict[str, Any]]:
    """Options that depend on positions: none; ``causal``, the only option with choices; a window; slopes."""
    yield {}
    flags = (o.path for o in subject.operation.options if o.choices)
    yield from ({flag: True} for flag in flags if subject.limits.has(flag))
    if subject.operation.window is not None and accepts_window(subject):
        yield {subject.operation.window: (1, 0)}
    if accepts_parts(subject, ScoreEffect.SLOPES):
        heads = sampled.array(operands(subject.operation)[0].path).shape[-3]
        # Distances are integers below 2⁸, so that their products with powers of two are exact in every dtype.
        yield {subject.operation.part(ScoreEffect.SLOPES): subject.exact(2.0 ** -(1.0 + np.arange(heads)))}


class PackedCall(NamedTuple):
    """A call with three packed sequences, the second without queries; the rows of each."""

    arguments: Arguments
    queries: list[slice]
    keys: list[slice]


def _sample_packed(subject: Subject, rng: np.random.Generator) -> PackedCall:
    (sequences,) = subject.operation.sizes_of(Axis.SEQUENCE)
    sampled = sample(subject, rng, queries=7, keys=9, sizes={sequences: 3})
    n, m = sampled.queries or 0, sampled.keys_count or 0
    ends = (np.array([0, n // 2, n // 2, n]), np.array([0, m // 3, m - 2, m]))
    sampled = sampled.replaced(dict(zip(subject.operation.cumulative, ends, strict=True)))
    of_queries, of_keys = ([slice(a, b) for a, b in pairwise(e)] for e in ends)
    return PackedCall(sampled, of_queries, of_keys)


def _index_of_rows(operation: Operation, path: str, rows: slice) -> Any:
    leaf = next(x for x in operation.outputs if x.path == path)
    (axis,) = leaf.axes(operation.query_size or "")
    return (..., rows, *[slice(None)] * (-axis - 1))


@checks(law.PACKED_EQUALS_SEPARATE, once=True)
def packed_equals_separate(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare each packed sequence with the same sequence computed alone."""
    operation = subject.operation
    sampled, of_queries, of_keys = _sample_packed(subject, rng)
    for options in _position_options(subject, sampled):
        packed_call = sampled.replaced(options)
        expected, budgets = doubles(subject.results(packed_call)), subject.budgets(packed_call)
        for i, j in zip(of_queries, of_keys, strict=True):
            alone = packed_call
            for size, rows in ((operation.query_size or "", i), (operation.key_size or "", j)):
                alone = alone.along(size, take(np.arange(packed_call.size(size))[rows]))
            ends = [np.array([0, rows.stop - rows.start]) for rows in (i, j)]
            alone = alone.replaced(dict(zip(operation.cumulative, ends, strict=True)))
            for path, x in subject.results(alone).items():
                at = _index_of_rows(operation, path, i)
                subject.demand_match(x, expected[path][at], 2 * budgets[path][at], alone, f"of one sequence, {path}")
    return True


@checks(law.PACKED_EQUALS_SEPARATE, once=True)
def unused_keys(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Store NaN, infinity and 1e4 behind the keys that sequences use; compare with a call without these keys."""
    operation = subject.operation
    lengths = next(x.path for x in operation.leaves if x.path in operation.generated_below)
    if not subject.limits.has(lengths):
        return False
    sampled, _, of_keys = _sample_packed(subject, rng)
    used = [min(x.stop - x.start, most) for x, most in zip(of_keys, (2, 9, 1), strict=True)]
    kept = np.concatenate([x.start + np.arange(n) for x, n in zip(of_keys, used, strict=True)])
    hidden = np.setdiff1d(np.arange(sampled.keys_count or 0), kept)
    _, key_ends = operation.cumulative
    for options in _position_options(subject, sampled):
        packed_call = sampled.replaced(options)
        short = packed_call.along(operation.key_size or "", take(kept))
        short = short.replaced({key_ends: np.cumsum([0, *used])})
        expected, budgets = doubles(subject.results(short)), doubled(subject.budgets(short))
        for poison in (np.nan, np.inf, 1e4):
            changes: dict[str, Any] = {lengths: np.array(used)}
            for leaf in operands(operation)[1:]:
                changes[leaf.path] = packed_call.array(leaf.path).copy()
                changes[leaf.path][..., hidden, :] = poison
            changed = packed_call.replaced(changes)
            subject.all_match(subject.results(changed), expected, budgets, changed, f"with {poison} in unused keys,")
    return True


def sample_paged(
    subject: Subject, rng: np.random.Generator, *, queries: int = 3, rows_of_page: int = 64, features: int = 4
) -> Arguments:
    """Two batch elements with three of six pages each; they share one page.

    One uses 2½ pages, one a page and a row. Pages of 64 rows give positions that a signed byte cannot hold.
    """
    operation = subject.operation
    ((table, pages),), ((lengths, rows),) = operation.indices.items(), operation.lengths.items()
    blocks, page = rows.split("*")  # the largest length is "blocks*page": pages per element, rows per page
    height = subject.allowed_size(page, rows_of_page)
    sizes = {pages: 6, blocks: 3, page: height, **grouped_head_sizes(2, 2, operation)}
    sampled = sample(subject, rng, (2,), queries=queries, features=features, sizes=sizes)
    order = rng.permutation(6)
    return sampled.replaced({table: order[[[0, 1, 2], [1, 3, 4]]], lengths: np.array([5 * height // 2, height + 1])})


def _table_and_lengths(arguments: Arguments) -> tuple[str, str, Numbers, Numbers]:
    """The paths of the block table and of the lengths, then both arrays."""
    (table,), (lengths,) = arguments.operation.indices, arguments.operation.lengths
    return table, lengths, arguments.array(table), arguments.array(lengths)


@checks(law.PAGED_EQUALS_CONTIGUOUS, once=True)
def unused_pages(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Store NaN, infinity and 1e4 in cache rows that no batch element uses."""
    paged = sample_paged(subject, rng)
    _, _, tables, lengths = _table_and_lengths(paged)
    caches = operands(subject.operation)[1:]
    used = np.zeros((*paged.array(caches[0].path).shape[:1], paged.array(caches[0].path).shape[-2]), bool)
    for table, length in zip(tables, lengths, strict=True):
        for j in range(int(length)):
            used[table[j // used.shape[1]], j % used.shape[1]] = True
    expected, budgets = doubles(subject.results(paged)), doubled(subject.budgets(paged))
    for poison in (np.nan, np.inf, 1e4):
        changes = {}
        for leaf in caches:
            cache = paged.array(leaf.path)
            changes[leaf.path] = np.where(used[:, None, :, None], cache, cache.dtype.type(poison))
        changed = paged.replaced(changes)
        subject.all_match(subject.results(changed), expected, budgets, changed, f"with {poison} in unused rows,")
    return True


@checks(law.PAGED_EQUALS_CONTIGUOUS, once=True)
def paged_equals_contiguous(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare with attention to the gathered rows; queries have the last positions."""
    other = grouped_query_attention_of(subject)
    if other is None or other.operation.mask is None or other.semantics.head_groups != subject.semantics.head_groups:
        return False
    if other.semantics.logarithms != subject.semantics.logarithms:
        return False
    sampled = sample_paged(subject, rng)
    _, _, table, used_rows = _table_and_lengths(sampled)
    lengths = used_rows[:, None, None]
    query, *caches = operands(subject.operation)
    other_query, *other_caches = operands(other.operation)
    values: dict[str, Any] = {other_query.path: sampled.array(query.path)}
    for cache, other_cache in zip(caches, other_caches, strict=True):
        # From (element, page, head, row, feature) to (element, head, page, row, feature).
        rows = np.moveaxis(sampled.array(cache.path)[table], -4, -3)
        values[other_cache.path] = np.ascontiguousarray(rows.reshape(*rows.shape[:-3], -1, rows.shape[-1]))
    n, keys = sampled.queries or 0, np.arange(values[other_caches[0].path].shape[-2])
    offset = keys - (lengths - n + np.arange(n)[:, None])
    for options in _position_options(subject, sampled):
        paged = sampled.replaced(options)
        window = paged[subject.operation.window or ""]
        left, right = (None, None) if window is None else window
        causal = any(paged[o.path] for o in subject.operation.options if o.choices)
        first = subject.semantics.own_in_window - (keys.size + n if left is None else left)
        near = (offset >= first) & (offset <= (keys.size if right is None else right))
        mask = near & (keys < lengths) & (~np.bool_(causal) | (offset <= 0))
        gathered = Arguments(other.operation, {**values, other.operation.mask.path: mask})
        slopes = paged[subject.operation.part(ScoreEffect.SLOPES)]
        if slopes is not None and not accepts_parts(other, ScoreEffect.BIAS):
            continue
        if slopes is not None:
            distance = -offset if subject.semantics.alibi_distances == "signed" else np.abs(offset)
            bias = other.exact(-wide(slopes)[:, None, None] * distance[:, None])
            gathered = gathered.replaced({other.operation.part(ScoreEffect.BIAS): bias})
        expected, budgets = other.results(gathered), doubled(subject.budgets(paged))
        outputs = zip(subject.operation.outputs, other.operation.outputs, strict=True)
        by_path = {x.path: wide(expected[y.path]) for x, y in outputs}
        subject.all_match(subject.results(paged), by_path, budgets, paged, "unlike unpaged keys,")
    return True


@checks(law.ROLLING_BUFFER_KEEPS_LAST, once=True)
def rolling_buffer_keeps_last(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Store the positions one by one, from none to three rounds and more."""
    operation = subject.operation
    ((lengths,), (slots,)) = operation.generated_below, operation.sizes_of(Axis.LENGTH)
    for count in (1, 2, 7, 64):
        count = subject.allowed_size(slots, count)
        for total in (0, 1, count - 1, count, count + 1, 2 * count, 3 * count + 2):
            stored = np.full(count, -1)
            for position in range(total):
                stored[position % count] = position
            call = arguments.replaced({lengths: np.array(total), slots: count})
            got = subject.results(call)[operation.leading.path]
            message = f"after {total} positions, {count} slots have {got}, not {stored}"
            subject.demand(np.array_equal(got, stored), message, call, got=got)
    return True


@checks(law.PADDING_TAKES_NO_POSITION)
def padding_takes_no_position(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Number the tokens of every sequence; then pad on the left, on the right and between."""
    (mask,) = (x.path for x in arguments.operation.leaves)
    shape = arguments.array(mask).shape
    place = np.arange(shape[-1])
    for tokens in (arguments.array(mask), place >= shape[-1] // 3, place < shape[-1] // 2, place % 2 == 1):
        call = arguments.replaced({mask: np.broadcast_to(tokens, shape).copy()})
        got = subject.results(call)[arguments.operation.leading.path]
        for row in np.ndindex(shape[:-1]):
            own = call.array(mask)[row]
            message = f"tokens of {own.astype(int)} have the positions {got[row][own]}"
            subject.demand(np.array_equal(got[row][own], np.arange(own.sum())), message, call, got=got)
    return bool(shape[-1])
