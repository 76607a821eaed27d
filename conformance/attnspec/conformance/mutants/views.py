"""Mutants that misread one memory layout each.

Each function is one method of ``Library``, the correct backend, with a defect; ``replaces`` names it, and
``Library.method(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone. ``prepare``
converts the arguments.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from attnspec.conformance.mutants.correct import Library, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments, at, changed, key, mask_of, query
from attnspec.spec.attention import DotProductAttention, ScaledDotProductAttention
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import map_tree

DOT_PRODUCTS = (ScaledDotProductAttention, DotProductAttention)


def _prepare_contiguous(
    correct: Library, operation: Operation, arguments: Arguments, layout: Callable[[Numbers], bool]
) -> dict[str, Any]:
    """Prepared arguments, with arrays that satisfy ``layout`` read as if they were contiguous."""

    def read(x: Any) -> Any:
        if not isinstance(x, np.ndarray) or x.ndim < 2 or not x.size or x.strides[-1] != x.itemsize:
            return x
        if any(s <= 0 for s in x.strides) or not layout(x):
            return x
        dense = np.cumprod([x.itemsize, *reversed(x.shape[1:])])[::-1]
        return as_strided(x, x.shape, [int(s) for s in dense]).copy()

    return Library.prepare(correct, operation, map_tree(dict(arguments), lambda _, x: read(x)))


@mutant(
    "rows of packed projections read as contiguous",
    replaces="prepare",
    operations=DOT_PRODUCTS,
    breaks=("storage.views-equal-copies",),
    source="Dao-AILab/flash-attention#2541: slices of packed projections",
)
def packed_as_dense(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Arrays with a row stride of three row lengths are read as contiguous."""
    return _prepare_contiguous(
        correct, operation, arguments, lambda x: x.strides[-2] == 3 * x.shape[-1] * x.itemsize and x.shape[-2] > 1
    )


@mutant(
    "heads stored after positions read as before them",
    replaces="prepare",
    operations=DOT_PRODUCTS,
    breaks=("storage.views-equal-copies",),
    source="pytorch/pytorch#181133: (batch, positions, heads, features) seen as (batch, heads, positions, features)",
)
def heads_first(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Arrays with heads behind positions in memory are read as contiguous, heads first."""
    return _prepare_contiguous(correct, operation, arguments, lambda x: x.ndim > 2 and x.strides[-3] < x.strides[-2])


@mutant(
    "padded rows read as contiguous",
    replaces="prepare",
    operations=DOT_PRODUCTS,
    breaks=("storage.views-equal-copies",),
    source="flagos-ai/FlagGems#5896: the length of a row for its stride",
)
def padding_read(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Arrays with a row stride between one and two row lengths are read as contiguous."""
    return _prepare_contiguous(
        correct, operation, arguments,
        lambda x: x.shape[-1] * x.itemsize < x.strides[-2] < 2 * x.shape[-1] * x.itemsize,
    )  # fmt: skip


class _FirstOfExpanded(Library):
    """A library that reads one array's repetitions by stride 0 as 0."""

    def path(self, operation: Operation) -> str:
        """Path of the misread array."""
        raise NotImplementedError

    def prepare(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Set all but the first element along axes of stride 0 to 0."""
        prepared = super().prepare(operation, arguments)
        x = at(arguments, self.path(operation))
        if x is None or not x.size:
            return prepared
        read = np.array(at(prepared, self.path(operation)))
        for axis in [i for i, s in enumerate(x.strides) if not s]:
            np.moveaxis(read, axis, 0)[1:] = 0
        return changed(prepared, {self.path(operation): read})


@mutant(
    "queries repeated by stride 0 read as 0",
    operations=DOT_PRODUCTS,
    breaks=("storage.views-equal-copies",),
    source="pytorch/pytorch#191937: arrays with stride 0",
)
class ExpandedQueries(_FirstOfExpanded):
    """Queries with stride 0 are 0 in all but the first row or batch element."""

    def path(self, operation: Operation) -> str:
        """Path of the queries."""
        return query(operation)


@mutant(
    "keys repeated by stride 0 read as 0",
    operations=DOT_PRODUCTS,
    breaks=("storage.views-equal-copies",),
    source="pytorch/pytorch#191937: keys that heads share, with stride 0",
)
class ExpandedKeys(_FirstOfExpanded):
    """Keys with stride 0 are 0 in all but the first row or batch element."""

    def path(self, operation: Operation) -> str:
        """Path of the keys."""
        return key(operation)


@mutant(
    "values repeated by stride 0 read as 0",
    operations=DOT_PRODUCTS,
    breaks=("storage.views-equal-copies",),
    source="pytorch/pytorch#191937: values that heads share, with stride 0",
)
class ExpandedValues(_FirstOfExpanded):
    """Values with stride 0 are 0 in all but the first row or batch element."""

    def path(self, operation: Operation) -> str:
        """Path of the values."""
        return operation.attended[-1].path


@mutant(
    "masks repeated by stride 0 read as False",
    operations=DOT_PRODUCTS,
    breaks=("storage.views-equal-copies",),
    source="pytorch/pytorch#184180: masks that heads share",
)
class ExpandedMasks(_FirstOfExpanded):
    """A mask with stride 0 masks every key beyond the first row or batch element."""

    def prepare(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Misread the mask if there is one."""
        masked = mask_of(operation, arguments) is not None
        return super().prepare(operation, arguments) if masked else Library.prepare(self, operation, arguments)

    def path(self, operation: Operation) -> str:
        """Path of the mask."""
        return operation.mask.path if operation.mask is not None else ""


# Wide vectors ---------------------------------------------------------------------------------------------------------

WIDE = 16
"""Number of features that a kernel loads as one vector."""


@mutant(
    "packed rows of 16 or more features read as contiguous",
    replaces="prepare",
    operations=DOT_PRODUCTS,
    breaks=("storage.views-equal-copies",),
    source="Dao-AILab/flash-attention#2541: slices of packed projections, in the path that loads whole vectors",
)
def wide_packed(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Rows of 16 or more features, three row lengths apart, are read as contiguous."""
    return _prepare_contiguous(
        correct, operation, arguments,
        lambda x: x.shape[-1] >= WIDE and x.strides[-2] == 3 * x.shape[-1] * x.itemsize and x.shape[-2] > 1,
    )  # fmt: skip


@mutant(
    "padded rows of 16, 24, … elements read as contiguous",
    replaces="prepare",
    operations=DOT_PRODUCTS,
    breaks=("storage.views-equal-copies",),
    source="flagos-ai/FlagGems#5896: the length of a row for its stride, where vectors of eight fill it",
)
def wide_padded(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Rows of 16, 24, … elements, under two row lengths apart, are read as contiguous."""
    return _prepare_contiguous(
        correct, operation, arguments,
        lambda x: x.shape[-1] >= WIDE and x.shape[-1] % 8 == 0
        and x.shape[-1] * x.itemsize < x.strides[-2] < 2 * x.shape[-1] * x.itemsize,
    )  # fmt: skip


@mutant(
    "strided keys of 16 or more features read as contiguous",
    replaces="prepare",
    operations=DOT_PRODUCTS,
    breaks=("storage.views-equal-copies",),
    source="pytorch/pytorch#181133: keys whose last stride is not 1, in the path that loads whole vectors",
)
def wide_strided(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Keys of 16 or more features with last stride ≠ 1 are read as contiguous."""
    prepared = Library.prepare(correct, operation, arguments)
    k = at(arguments, key(operation))
    if k.shape[-1] < WIDE or not k.size or k.strides[-1] == k.itemsize or any(s <= 0 for s in k.strides):
        return prepared
    dense = np.cumprod([k.itemsize, *reversed(k.shape[1:])])[::-1]
    read = as_strided(k, k.shape, [int(s) for s in dense]).astype(at(prepared, key(operation)).dtype)
    return changed(prepared, {key(operation): read})


@mutant(
    "repeated keys of 16 or more features read as 0",
    operations=DOT_PRODUCTS,
    breaks=("storage.views-equal-copies",),
    source="pytorch/pytorch#191937: keys that heads share, with stride 0, in the path that loads whole vectors",
)
class WideExpandedKeys(_FirstOfExpanded):
    """Repetitions, by stride 0, of keys of 16 or more features are read as 0."""

    def path(self, operation: Operation) -> str:
        """Path of the keys."""
        return key(operation)

    def prepare(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Misread keys of 16 or more features."""
        wide = at(arguments, key(operation)).shape[-1] >= WIDE
        return super().prepare(operation, arguments) if wide else Library.prepare(self, operation, arguments)


@mutant(
    "first element's mask used where heads share masks",
    replaces="prepare",
    operations=DOT_PRODUCTS,
    breaks=("storage.views-equal-copies",),
    source="pytorch/pytorch#184180: masks that heads share",
)
def first_of_shared_masks(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """For 32 or more keys, a mask expanded over heads is the first batch element's."""
    prepared, mask = Library.prepare(correct, operation, arguments), mask_of(operation, arguments)
    if operation.mask is None or mask is None or mask.ndim != 4 or mask.shape[-1] < 32 or mask.shape[1] < 2:
        return prepared
    return prepared if mask.strides[1] else changed(prepared, {operation.mask.path: np.repeat(mask[:1], len(mask), 0)})
