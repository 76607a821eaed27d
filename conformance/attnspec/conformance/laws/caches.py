"""Checks of the laws of packed sequences and of paged caches."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, take
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import doubles, sample, twice, wide
from attnspec.conformance.laws.kernels import has_window, operands, with_heads
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.documentation import operation_of
from attnspec.spec.contract.operation import Operation
from attnspec.spec.kernels import GroupedQueryAttention
from attnspec.spec.laws import kernels as law


def in_one_piece(subject: Subject) -> Subject | None:
    """The grouped-query attention of the same backend; None if not provided."""
    operation = operation_of(GroupedQueryAttention)
    return None if operation is None else subject.beside(operation)


def _options(subject: Subject) -> Iterator[dict[str, Any]]:
    """Options that depend on positions: none, each flag, a window."""
    yield {}
    yield from ({o.path: True} for o in subject.operation.options if o.choices and subject.limits.has(o.path))
    if subject.operation.window is not None and has_window(subject):
        yield {subject.operation.window: (1, 0)}


# Packed ---------------------------------------------------------------------------------------------------------------


class Packed(NamedTuple):
    """A call of three sequences, one without queries, and the slices of each."""

    given: Arguments
    queries: list[slice]
    keys: list[slice]


def _packed(subject: Subject, rng: np.random.Generator) -> Packed:
    (sequences,) = subject.operation.sizes_of(Axis.SEQUENCE)
    given = sample(subject, rng, queries=7, keys=9, sizes={sequences: 3})
    n, m = given.queries or 0, given.keys_count or 0
    ends = (np.array([0, n // 2, n // 2, n]), np.array([0, m // 3, m - 2, m]))
    given = given.replaced(dict(zip(subject.operation.cumulative, ends, strict=True)))
    of_queries, of_keys = ([slice(a, b) for a, b in pairwise(e)] for e in ends)
    return Packed(given, of_queries, of_keys)


def _rows_of(operation: Operation, path: str, rows: slice) -> Any:
    """The index of some query rows in an array of the result."""
    leaf = next(x for x in operation.outputs if x.path == path)
    (axis,) = leaf.axes(operation.asking or "")
    return (..., rows, *[slice(None)] * (-axis - 1))


@checks(law.PACKED, once=True)
def packed(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare each packed sequence with the same sequence computed alone."""
    operation = subject.operation
    base, of_queries, of_keys = _packed(subject, rng)
    for options in _options(subject):
        given = base.replaced(options)
        whole, budgets = doubles(subject.results(given)), subject.budgets(given)
        for i, j in zip(of_queries, of_keys, strict=True):
            alone = given
            for size, rows in ((operation.asking or "", i), (operation.asked or "", j)):
                alone = alone.along(size, take(np.arange(given.size(size))[rows]))
            ends = [np.array([0, rows.stop - rows.start]) for rows in (i, j)]
            alone = alone.replaced(dict(zip(operation.cumulative, ends, strict=True)))
            for path, x in subject.results(alone).items():
                at = _rows_of(operation, path, i)
                subject.matches(x, whole[path][at], 2 * budgets[path][at], alone, f"of one sequence, the {path}")
    return True


# Paged ----------------------------------------------------------------------------------------------------------------


def _paged(subject: Subject, rng: np.random.Generator) -> Arguments:
    """Two batch elements with three of six pages each, one shared, not all rows used.

    Pages of 64 rows give positions that a signed byte does not hold.
    """
    operation = subject.operation
    ((table, pages),), ((lengths, rows),) = operation.indices.items(), operation.lengths.items()
    blocks, page = rows.split("*")
    height = subject.fitting(page, 64)
    sizes = {pages: 6, blocks: 3, page: height, **with_heads(2, 2, operation)}
    given = sample(subject, rng, (2,), queries=3, sizes=sizes)
    order = rng.permutation(6)
    return given.replaced({table: order[[[0, 1, 2], [1, 3, 4]]], lengths: np.array([5 * height // 2, height + 1])})


def _table(given: Arguments) -> tuple[str, str, Numbers, Numbers]:
    """The paths of the table and of the lengths, and both arrays."""
    (table,), (lengths,) = given.operation.indices, given.operation.lengths
    return table, lengths, given.array(table), given.array(lengths)


@checks(law.CONTIGUOUS, once=True)
def unused_pages(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Store NaN, infinity and 1e4 in cache rows that no batch element uses."""
    given = _paged(subject, rng)
    _, _, tables, lengths = _table(given)
    caches = operands(subject.operation)[1:]
    used = np.zeros((*given.array(caches[0].path).shape[:1], given.array(caches[0].path).shape[-2]), bool)
    for table, length in zip(tables, lengths, strict=True):
        for j in range(int(length)):
            used[table[j // used.shape[1]], j % used.shape[1]] = True
    expected, budgets = doubles(subject.results(given)), twice(subject.budgets(given))
    for poison in (np.nan, np.inf, 1e4):
        changes = {}
        for leaf in caches:
            x = given.array(leaf.path)
            changes[leaf.path] = np.where(used[:, None, :, None], x, x.dtype.type(poison))
        changed = given.replaced(changes)
        subject.all_match(subject.results(changed), expected, budgets, changed, f"with {poison} in unused rows,")
    return True


@checks(law.CONTIGUOUS, once=True)
def contiguous(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare with attention to the gathered rows, masked so that queries come last."""
    other = in_one_piece(subject)
    if other is None or other.operation.mask is None:
        return False
    base = _paged(subject, rng)
    _, _, table, given_lengths = _table(base)
    lengths = given_lengths[:, None, None]
    query, *caches = operands(subject.operation)
    its_query, *rest = operands(other.operation)
    values: dict[str, Any] = {its_query.path: base.array(query.path)}
    for mine, its in zip(caches, rest, strict=True):
        rows = np.moveaxis(base.array(mine.path)[table], -4, -3)
        values[its.path] = np.ascontiguousarray(rows.reshape(*rows.shape[:-3], -1, rows.shape[-1]))
    n, keys = base.queries or 0, np.arange(values[rest[0].path].shape[-2])
    behind = keys - (lengths - n + np.arange(n)[:, None])
    for options in _options(subject):
        given = base.replaced(options)
        window = given[subject.operation.window or ""]
        left, right = (None, None) if window is None else window
        causal = any(given[o.path] for o in subject.operation.options if o.choices)
        near = (behind >= -(keys.size if left is None else left)) & (behind <= (keys.size if right is None else right))
        mask = near & (keys < lengths) & (~np.bool_(causal) | (behind <= 0))
        whole = Arguments(other.operation, {**values, other.operation.mask.path: mask})
        expected, budgets = other.results(whole), twice(subject.budgets(given))
        named = {
            x.path: wide(expected[y.path])
            for x, y in zip(subject.operation.outputs, other.operation.outputs, strict=True)
        }
        subject.all_match(subject.results(given), named, budgets, given, "against the rows in one piece,")
    return True
