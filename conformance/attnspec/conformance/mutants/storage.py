"""Mutants that misread memory layouts or reuse data of earlier calls.

Each function is one method of ``Library``, the correct backend, with a defect; ``replaces`` names it, and
``Library.method(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone. ``prepare``
converts the arguments. ``vars(self)`` holds what one backend remembers between calls.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from attnspec.conformance.mutants.correct import Library, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments, arrays, at, changed, key, key_weight, query
from attnspec.spec.attention import AdditiveAttention, DotProductAttention, ScaledDotProductAttention
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import map_tree
from attnspec.spec.masking import PaddingMask
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.normalization import Softmax
from attnspec.spec.scoring import AdditiveScores, DotScores
from attnspec.spec.seq2seq import BahdanauContext

Read = Callable[[Numbers], Numbers]
FIRST_LOST_OFFSET = 2**31


def _misread(correct: Library, operation: Operation, arguments: Arguments, read: Read) -> dict[str, Any]:
    """Prepared arguments with every non-empty array passed through ``read``."""
    wrong = map_tree(dict(arguments), lambda _, x: read(x) if isinstance(x, np.ndarray) and x.size else x)
    return Library.prepare(correct, operation, wrong)


def _read_contiguously(x: Numbers) -> Numbers:
    """Read an array as if it were contiguous, from its first element on."""
    steps = np.cumprod([x.itemsize, *reversed(x.shape[1:])])[::-1]
    return as_strided(x, x.shape, [int(s) for s in steps]).copy()


def _has_positive_strides(x: Numbers) -> bool:
    """True if all strides are positive, so that a contiguous read stays inside its memory."""
    return all(s > 0 for s in x.strides)


def _address(x: Numbers) -> int:
    return int(x.__array_interface__["data"][0])


# Layouts --------------------------------------------------------------------------------------------------------------


@mutant(
    "arrays with last stride 1 read as contiguous",
    replaces="prepare",
    operations=(ScaledDotProductAttention, MultiHeadAttention, BahdanauContext),
    breaks=("storage.views-equal-copies",),
    source="Dao-AILab/flash-attention#2541: slices of packed projections; contiguous() only where stride(-1) != 1",
)
def dense_rows(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """An array with a last stride of 1 is read as if it were contiguous."""

    def read(x: Numbers) -> Numbers:
        dense = x.ndim > 1 and x.strides[-1] == x.itemsize and _has_positive_strides(x)
        return _read_contiguously(x) if dense and not x.flags.c_contiguous else x

    return _misread(correct, operation, arguments, read)


@mutant(
    "batch elements read as contiguous",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotScores, Softmax),
    breaks=("storage.views-equal-copies",),
    source="sgl-project/sgl-kernel-xpu#471: row stride times length as the stride of the batch",
)
def batch_stride_from_length(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """An array whose rows are contiguous is read as if its batch elements were, too."""

    def read(x: Numbers) -> Numbers:
        dense = x.ndim > 2 and x.strides[-2:] == (x.shape[-1] * x.itemsize, x.itemsize) and _has_positive_strides(x)
        return _read_contiguously(x) if dense and not x.flags.c_contiguous else x

    return _misread(correct, operation, arguments, read)


@mutant(
    "values reversed if their strides are not those of the keys",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("storage.views-equal-copies",),
    source="flagos-ai/FlagAttention#45",
)
def exchanged_strides(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """If the strides of keys and values differ, the values' rows are reversed."""
    prepared = Library.prepare(correct, operation, arguments)
    paths = [leaf.path for leaf in operation.attended]
    k, v = (at(arguments, path) for path in paths[:2])
    return prepared if k.strides == v.strides else changed(prepared, {paths[1]: np.flip(at(prepared, paths[1]), -2)})


@mutant(
    "repetitions by stride 0 read as 0",
    replaces="prepare",
    operations=(ScaledDotProductAttention, Softmax, PaddingMask),
    breaks=("storage.views-equal-copies",),
    source="pytorch/pytorch#191937: keys and values with stride 0",
)
def repeated_as_dense(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Along axes of stride 0, all elements but the first count as 0."""

    def first_only(x: Numbers) -> Numbers:
        cleared = x.copy()
        for axis in [i for i, s in enumerate(x.strides) if not s]:
            np.moveaxis(cleared, axis, 0)[1:] = 0
        return cleared

    return _misread(correct, operation, arguments, first_only)


@mutant(
    "offset of a view ignored",
    replaces="prepare",
    operations=(ScaledDotProductAttention, AdditiveScores, DotScores),
    breaks=("storage.views-equal-copies",),
    source="pytorch/pytorch#187117, pytorch/pytorch#91071: the storage offset of a view",
)
def without_offset(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Views are read from the start of the whole array: their offset is ignored."""

    def read(x: Numbers) -> Numbers:
        whole: Any = x
        while getattr(whole, "base", None) is not None:
            whole = whole.base
        return as_strided(whole.view(x.dtype), x.shape, x.strides).copy() if _has_positive_strides(x) else x

    return _misread(correct, operation, arguments, read)


@mutant(
    "axes of negative stride read forwards",
    replaces="prepare",
    operations=(ScaledDotProductAttention, Softmax),
    breaks=("storage.views-equal-copies",),
    source="strides as unsigned integers; NumPy's are signed",
)
def forwards_only(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Axes with a negative stride are read in reverse, in the order of memory."""

    def read(x: Numbers) -> Numbers:
        return np.asarray(np.flip(x, tuple(i for i, s in enumerate(x.strides) if s < 0)))

    return _misread(correct, operation, arguments, read)


@mutant(
    "queries written to in place",
    replaces="prepare",
    operations=(ScaledDotProductAttention, MultiHeadAttention),
    breaks=("storage.views-equal-copies",),
    source="arrays of NumPy that map a file, or are views of strings of bytes, are read-only",
)
def scaled_and_back(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """The caller's queries are written to in place, which raises if they are read-only."""
    queries = at(arguments, query(operation))
    queries *= queries.dtype.type(1)
    return Library.prepare(correct, operation, arguments)


@mutant(
    "arrays reversed if their strides change",
    operations=(ScaledDotProductAttention, Softmax, BahdanauContext),
    breaks=("storage.views-equal-copies",),
    source="flashinfer-ai/flashinfer#4601: launches kept with the strides of an earlier call",
)
class FirstStrides(Library):
    """Arrays are reversed if their strides differ from the first array of their shape."""

    def prepare(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Reverse the elements of arrays whose strides have changed."""
        known: dict[Any, tuple[int, ...]] = vars(self).setdefault("known", {})
        prepared = super().prepare(operation, arguments)
        other = [
            leaf.path
            for leaf, x in arrays(operation, arguments)
            if known.setdefault((operation.name, leaf.path, x.shape), x.strides) != x.strides
        ]
        return changed(prepared, {path: np.flip(at(prepared, path)) for path in other})


@mutant(
    "elements from offset 2³¹ on read as 0",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotScores, BahdanauContext),
    breaks=("storage.views-equal-copies",),
    source="thu-ml/SageAttention#387, fla-org/flash-linear-attention#1080, pytorch/pytorch#190857",
    profile="full",
)
def narrow_offsets(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Elements 2³¹ or more behind the first are read as 0."""

    def read(x: Numbers) -> Numbers:
        places = zip(np.indices(x.shape), x.strides, strict=True)
        offsets = sum((i * (s // x.itemsize) for i, s in places), np.zeros((), np.int64))
        return np.where(offsets >= FIRST_LOST_OFFSET, x.dtype.type(0), x)

    return _misread(correct, operation, arguments, read)


# Data of earlier calls ------------------------------------------------------------------------------------------------


class CachesFirstArray(Library):
    """A library that caches one array by ``cache_key`` and always uses the first one."""

    def prepare(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Replace the array by the first one with its key."""
        seen: dict[Any, Any] = vars(self).setdefault("seen", {})
        prepared = super().prepare(operation, arguments)
        path, own_key = self.cached_path(operation), self.cache_key(operation, arguments)
        return changed(prepared, {path: seen.setdefault((operation.name, own_key), np.array(at(prepared, path)))})

    def cached_path(self, operation: Operation) -> str:
        """Path of the cached array."""
        return key(operation)

    def cache_key(self, operation: Operation, arguments: Arguments) -> Any:
        """Key by which the cached array is looked up."""
        raise NotImplementedError


@mutant(
    "keys cached by their address",
    operations=(AdditiveAttention, BahdanauContext, ScaledDotProductAttention),
    breaks=("operation.independent-of-other-calls",),
    source="flashinfer-ai/flashinfer#4069: a cache keyed by data_ptr()",
)
class CachedByAddress(CachesFirstArray):
    """Keys are looked up by address and shape: new keys at a known address are ignored."""

    def cache_key(self, operation: Operation, arguments: Arguments) -> Any:
        """Address and shape of the keys."""
        x = at(arguments, key(operation))
        return _address(x), x.shape


@mutant(
    "keys cached by the identity of their array",
    operations=(AdditiveAttention, BahdanauContext, ScaledDotProductAttention),
    breaks=("operation.independent-of-other-calls",),
    source="ooples/AiDotNet.Tensors#583: packed once for each array",
)
class CachedByIdentity(CachesFirstArray):
    """Keys are looked up by the identity of their array: changes in place are ignored."""

    def prepare(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Keep the arrays alive, so that no other array gets their identity."""
        vars(self).setdefault("alive", []).append(at(arguments, key(operation)))
        return super().prepare(operation, arguments)

    def cache_key(self, operation: Operation, arguments: Arguments) -> Any:
        """Identity of the array of keys."""
        return id(at(arguments, key(operation)))


@mutant(
    "new projection of the same keys ignored",
    operations=(AdditiveAttention, BahdanauContext, MultiHeadAttention),
    breaks=("operation.independent-of-other-calls",),
    source="sgl-project/sglang#29916, InternLM/lmdeploy#4917: projected keys outlive an update of weights",
)
class CachedByKeys(CachesFirstArray):
    """While the keys stay the same, a changed weight that projects them is ignored."""

    def cached_path(self, operation: Operation) -> str:
        """Path of the weight that projects the keys."""
        return key_weight(operation)

    def cache_key(self, operation: Operation, arguments: Arguments) -> Any:
        """Contents of the keys and shape of the weight."""
        return at(arguments, key(operation)).tobytes(), np.shape(at(arguments, key_weight(operation)))


@mutant(
    "keys cached by their shape",
    operations=(AdditiveAttention, BahdanauContext, ScaledDotProductAttention),
    breaks=("operation.independent-of-other-calls",),
    source="facebookresearch/xformers#66: a buffer made for the first call",
)
class KeysCachedByShape(CachesFirstArray):
    """Keys are looked up by shape and dtype: later keys of the same shape are ignored."""

    def cache_key(self, operation: Operation, arguments: Arguments) -> Any:
        """Shape and dtype of the keys."""
        x = at(arguments, key(operation))
        return x.shape, x.dtype.name


class TwoDtypes(Library):
    """A backend for float64 and float32."""

    def __init__(self, name: str, **more: Any) -> None:
        super().__init__(name, **more)
        self.limits = Limits(dtypes=("float64", "float32"))


@mutant(
    "results in the dtype of the first call",
    operations=(ScaledDotProductAttention, Softmax),
    breaks=("operation.independent-of-other-calls",),
    source="a workspace kept by shape; flashinfer-ai/flashinfer#4601",
)
class FirstDtype(TwoDtypes):
    """Results have the dtype of the first call with these shapes."""

    def result_dtype(self, operation: Operation, arguments: Arguments) -> Any:
        """The dtype of the first call with these shapes."""
        known: dict[Any, Any] = vars(self).setdefault("known", {})
        shapes = tuple(x.shape for _, x in arrays(operation, arguments))
        return known.setdefault((operation.name, shapes), super().result_dtype(operation, arguments))


@mutant(
    "keys rounded to the dtype of the first call",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("operation.independent-of-other-calls",),
    source="packed operands kept by shape, in the dtype of the call that made the buffer",
)
class FirstPrecision(TwoDtypes):
    """Keys are rounded to the dtype of the first call with their shape."""

    def prepare(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Round the keys to the dtype of the buffer."""
        known: dict[Any, Any] = vars(self).setdefault("known", {})
        x = at(arguments, key(operation))
        buffer = known.setdefault((operation.name, x.shape), x.dtype)
        return super().prepare(operation, changed(arguments, {key(operation): x.astype(buffer).astype(x.dtype)}))
