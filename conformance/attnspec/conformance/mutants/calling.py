"""Mutants of calls: dtypes, shapes, batches, memory, strides and checks of arguments.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must
detect the defect alone. ``check`` raises for wrong shapes, ``prepare`` converts the arguments, ``finish`` converts the
result and ``call`` runs all steps of a call. ``vars(self)`` holds what one backend remembers between calls.
"""

from math import fsum
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from attnspec.conformance.inputs.dtypes import is_float
from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments, arrays, at, changed, key, mask_of, query
from attnspec.spec.attention import DotProductAttention, ScaledDotProductAttention, SelfAttention
from attnspec.spec.contract.axes import Role
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.shapes import bind
from attnspec.spec.contract.tree import Kind, flatten, map_tree
from attnspec.spec.masking import CausalMask, PaddingMask
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.normalization import MeanNormalization, Softmax
from attnspec.spec.pooling import AttentionPooling, AveragePooling
from attnspec.spec.positional import SinusoidalPositionalEncoding
from attnspec.spec.scoring import AdditiveScores, DotScores, ScaledDotScores
from attnspec.spec.seq2seq import BahdanauContext


@mutant(
    "float32 in, float64 out",
    replaces="result_dtype",
    operations=(ScaledDotScores, ScaledDotProductAttention),
    breaks=("operation.dtype",),
    source="np.sqrt of an integer is a double; pytorch/pytorch#171191",
)
def results_in_float64(correct: Library, operation: Operation, arguments: Arguments) -> Any:
    """Results are float64 for inputs of any dtype."""
    return np.float64


@mutant(
    "bfloat16 in, float32 out",
    replaces="result_dtype",
    operations=(Softmax, ScaledDotProductAttention),
    dtype="bfloat16",
    breaks=("operation.dtype",),
    source="lucidrains/flash-attention-jax#13, tinygrad/tinygrad#5100",
)
def not_rounded_back(correct: Library, operation: Operation, arguments: Arguments) -> Any:
    """Results are float32, the dtype of the accumulator, for inputs of any dtype."""
    return np.float32


@mutant(
    "float64 computed in float32",
    replaces="prepare",
    operations=(ScaledDotProductAttention, Softmax, AdditiveScores),
    dtype="float64",
    breaks=("operation.oracle",),
    source="a framework whose default is single precision",
)
def single_inside(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """float64 inputs are rounded to float32 and computed in float32."""
    single: dict[str, Any] = map_tree(dict(arguments), lambda _, x: x.astype(np.float32) if is_float(x) else x)
    return single


@mutant(
    "mask returned as numbers",
    replaces="finish",
    operations=(CausalMask, PaddingMask),
    breaks=("operation.dtype",),
    source="tril of ones",
)
def numeric_mask(correct: Library, operation: Operation, result: Numbers, arguments: Arguments) -> Numbers:
    """Masks are float32 arrays with 1 for True and 0 for False."""
    return np.array(result, dtype=np.float32)


@mutant(
    "axes of size 1 removed from the result",
    replaces="finish",
    operations=(ScaledDotProductAttention, DotScores, MultiHeadAttention),
    breaks=("operation.shape",),
    source="squeeze without an axis; OpenNMT/OpenNMT-py#110",
)
def squeezed_result(correct: Library, operation: Operation, result: Numbers, arguments: Arguments) -> Numbers:
    """Dimensions of size 1 are removed from the result."""
    return np.squeeze(Library.finish(correct, operation, result, arguments))


@mutant(
    "last two axes of the result exchanged",
    replaces="finish",
    operations=(DotScores, ScaledDotProductAttention),
    breaks=("operation.shape",),
    source="sequence first or features first",
)
def transposed_result(correct: Library, operation: Operation, result: Numbers, arguments: Arguments) -> Numbers:
    """The last two axes of the result are exchanged."""
    return np.swapaxes(Library.finish(correct, operation, result, arguments), -1, -2)


@mutant(
    "batch element 0 for all",
    replaces="prepare",
    operations=(DotScores, ScaledDotProductAttention, Softmax, PaddingMask),
    breaks=("operation.batch-invariance",),
    source="BobMcDear/attorch#14: the batch term lost in an offset",
)
def first_of_batch(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Element 0 of the first argument is used for the whole batch."""
    prepared = Library.prepare(correct, operation, arguments)
    first, x = arrays(operation, prepared)[0]
    if x.ndim > len(first.core) and x.shape[0]:
        return changed(prepared, {first.path: np.repeat(x[:1], x.shape[0], axis=0)})
    return prepared


@mutant(
    "maximum of the whole batch subtracted",
    replaces="shift",
    operations=(Softmax, DotProductAttention),
    breaks=("operation.oracle",),
    source="a reduction over too many axes",
)
def shared_maximum(correct: Formulas, scores: Numbers) -> Numbers:
    """The whole batch's maximum is subtracted from each row: rows far below underflow to 0."""
    highest = Formulas.shift(correct, scores)
    return np.broadcast_to(np.max(highest, initial=-np.inf), highest.shape).astype(scores.dtype)


@mutant(
    "broadcast batches refused",
    replaces="check",
    operations=(DotScores, ScaledDotProductAttention),
    breaks=("operation.broadcast-equals-repeat",),
    source="keras-team/keras#21483",
)
def equal_batches_only(correct: Library, operation: Operation, arguments: Arguments) -> None:
    """Arguments with different batch shapes raise although they broadcast."""
    Library.check(correct, operation, arguments)
    batches = {x.shape[: x.ndim - len(leaf.core)] for leaf, x in arrays(operation, arguments) if leaf.batched}
    if len(batches) > 1:
        raise ValueError(f"{operation.name}: expected equal batches; got {sorted(batches)}")


@mutant(
    "broadcast keys reversed after the first element",
    replaces="prepare",
    operations=(DotScores, ScaledDotProductAttention),
    breaks=("operation.oracle", "operation.gradient"),
    source="ekzhang/jax-js#180, onnx/onnx#7274: tile for repeat",
)
def broadcast_keys_reversed(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Keys that broadcast over the batch are reversed for all elements but the first."""
    prepared = Library.prepare(correct, operation, arguments)
    queries, keys = (at(prepared, path(operation)) for path in (query, key))
    if queries.ndim > 2 and queries.shape[0] > 1 and (keys.ndim < queries.ndim or keys.shape[0] == 1):
        keys = np.broadcast_to(keys, (*queries.shape[:-2], *keys.shape[-2:])).copy()
        keys[1:] = np.flip(keys[1:], axis=-2)
    return changed(prepared, {key(operation): keys})


@mutant(
    "empty batches refused",
    replaces="check",
    operations=(ScaledDotProductAttention, DotScores, Softmax, BahdanauContext),
    breaks=("operation.empty-batch",),
    source="pytorch/pytorch#12013: kernels launched with a grid of 0",
)
def empty_batch_refused(correct: Library, operation: Operation, arguments: Arguments) -> None:
    """A batch without elements raises."""
    Library.check(correct, operation, arguments)
    for leaf, x in arrays(operation, arguments):
        if leaf.batched and 0 in x.shape[: x.ndim - len(leaf.core)]:
            raise ValueError(f"{operation.name}: expected a batch with elements; got {x.shape}")


@mutant(
    "keys with fewer batch dimensions reversed",
    replaces="prepare",
    operations=(DotScores, ScaledDotProductAttention),
    breaks=("operation.broadcast-equals-repeat",),
    source="unsqueeze behind the batch instead of in front of it",
)
def short_batch_keys_reversed(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Keys with fewer batch dimensions than the queries are read in reverse order."""
    prepared = Library.prepare(correct, operation, arguments)
    q, k = (at(prepared, path(operation)) for path in (query, key))
    return changed(prepared, {key(operation): np.flip(k, axis=-2) if k.ndim < q.ndim else k})


@mutant(
    "strides ignored",
    replaces="prepare",
    operations=(DotScores, ScaledDotProductAttention, Softmax, PaddingMask),
    breaks=("storage.views-equal-copies",),
    source="flagos-ai/FlagGems#5896, ROCm/aiter#5292",
)
def contiguous_only(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Strided arrays are read as if they were contiguous."""
    misread: dict[str, Any] = map_tree(Library.prepare(correct, operation, arguments), lambda _, x: _as_contiguous(x))
    return misread


def _as_contiguous(x: Any) -> Any:
    # A contiguous read stays inside the buffer unless a stride is 0 or negative.
    if not isinstance(x, np.ndarray) or x.flags.c_contiguous or any(s <= 0 for s in x.strides):
        return x
    strides = [int(s) for s in np.cumprod([x.itemsize, *reversed(x.shape[1:])])[::-1]]
    return as_strided(x, x.shape, strides).copy()


@mutant(
    "queries scaled in place",
    replaces="prepare",
    operations=(ScaledDotScores, ScaledDotProductAttention),
    breaks=("operation.no-mutation",),
    source="pytorch/pytorch#73249",
)
def scaled_in_place(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """The caller's queries are halved in place; the result is correct."""
    prepared, queries = _prepared_copies(correct, operation, arguments), at(arguments, query(operation))
    queries[...] *= queries.dtype.type(0.5)
    return prepared


def _prepared_copies(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    prepared = Library.prepare(correct, operation, arguments)
    copies: dict[str, Any] = map_tree(prepared, lambda _, x: x.copy() if isinstance(x, np.ndarray) else x)
    return copies


@mutant(
    "scores overwritten in place",
    replaces="prepare",
    operations=(Softmax, MeanNormalization),
    breaks=("operation.no-mutation",),
    source="masked_fill_ on an argument",
)
def masked_in_place(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """The caller's masked scores become 0; without a mask, the maximum is subtracted from all."""
    prepared = _prepared_copies(correct, operation, arguments)
    scores, mask = at(arguments, query(operation)), mask_of(operation, arguments)
    if mask is None:
        scores[...] = scores - scores.max(initial=0)
    elif np.broadcast_shapes(scores.shape, mask.shape) == scores.shape:
        scores[...] = np.where(mask, scores, scores.dtype.type(0))
    return prepared


@mutant(
    "lengths clipped to 1 in place",
    replaces="prepare",
    operations=(PaddingMask,),
    breaks=("operation.no-mutation",),
    source="facebookresearch/InferSent#51",
)
def clipped_in_place(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """The caller's lengths above 1 are set to 1."""
    prepared = _prepared_copies(correct, operation, arguments)
    for leaf, lengths in arrays(operation, arguments):
        if operation.role(leaf) & Role.LENGTHS:
            lengths[...] = np.minimum(lengths, 1)
    return prepared


@mutant(
    "keys doubled in memory shared with the values",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("attention.same-array-passed-twice",),
    source="one array packed once for two uses",
)
class SharedBuffer(Library):
    """If keys and values are one array, the values are doubled along with the keys."""

    def prepare(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Double the keys and halve the queries: right unless keys and values share memory."""
        copies: dict[int, Any] = {}

        def copy_once(path: str, x: Any) -> Any:
            return copies.setdefault(id(x), x.copy()) if isinstance(x, np.ndarray) else x

        prepared: dict[str, Any] = map_tree(dict(arguments), copy_once)
        keys = at(prepared, key(operation))
        keys *= 2
        return changed(prepared, {query(operation): 0.5 * at(prepared, query(operation))})


@mutant(
    "results cached by shape",
    operations=(ScaledDotProductAttention, Softmax),
    breaks=("operation.independent-of-other-calls",),
    source="facebookresearch/xformers#66: a buffer made for the first call",
)
class CachedByShape(Library):
    """A later call with the same shapes returns the result of the first one."""

    def call(self, operation: Operation, *args: Any, **kwargs: Any) -> Numbers:
        """Look up the result by the shapes of the arguments."""
        results: dict[Any, Numbers] = vars(self).setdefault("results", {})
        arguments = self.bind_arguments(operation, args, kwargs)
        shapes = (operation.name, *((path, np.shape(x), x is None) for path, x in flatten(arguments).items()))
        if shapes not in results:
            results[shapes] = super().call(operation, *args, **kwargs)
        return results[shapes]


@mutant(
    "results cached by sums",
    operations=(ScaledDotProductAttention, Softmax),
    breaks=("operation.independent-of-other-calls",),
    source="a checksum of the inputs as the key of a cache",
)
class CachedBySums(Library):
    """Arrays with the shapes and sums of an earlier call get its result."""

    def call(self, operation: Operation, *args: Any, **kwargs: Any) -> Numbers:
        """Look up the result by the shapes and exact sums of the arguments."""
        results: dict[Any, Numbers] = vars(self).setdefault("results", {})
        arguments = flatten(self.bind_arguments(operation, args, kwargs))
        sums = {path: fsum(np.ravel(x).tolist()) if x is not None else x for path, x in arguments.items()}
        call = (operation.name, *((path, np.shape(x), sums[path]) for path, x in arguments.items()))
        if call not in results:
            results[call] = super().call(operation, *args, **kwargs)
        return results[call].copy()


@mutant(
    "results in one buffer",
    operations=(ScaledDotProductAttention, DotScores, CausalMask, SinusoidalPositionalEncoding),
    breaks=("operation.independent-of-other-calls",),
    source="a workspace that is handed out",
)
class OneBuffer(Library):
    """Results of the same shape share memory: the next call overwrites the last result."""

    def finish(self, operation: Operation, result: Numbers, arguments: Arguments) -> Numbers:
        """Write into the buffer of that shape; results without float inputs are computed once."""
        buffers: dict[Any, Numbers] = vars(self).setdefault("buffers", {})
        fresh = super().finish(operation, result, arguments)
        signature = (operation.name, fresh.shape, tuple(v for v in arguments.values() if isinstance(v, int)))
        if signature not in buffers:
            buffers[signature] = fresh
        elif operation.floats:
            buffers[signature][...] = fresh
        return buffers[signature]


@mutant(
    "previous result returned",
    operations=(ScaledDotProductAttention, Softmax),
    breaks=("operation.independent-of-other-calls",),
    source="asynchronous copies that are not waited for",
)
class PreviousResult(Library):
    """A call returns the result that the previous call of the same shape computed."""

    def finish(self, operation: Operation, result: Numbers, arguments: Arguments) -> Numbers:
        """Keep this result and return the previous one."""
        last: dict[Any, Numbers] = vars(self).setdefault("last", {})
        fresh = super().finish(operation, result, arguments)
        previous = last.get((operation.name, fresh.shape), fresh)
        last[operation.name, fresh.shape] = fresh
        return np.array(previous)


@mutant(
    "an eighth of the previous result added",
    operations=(DotScores, AttentionPooling),
    breaks=("operation.independent-of-other-calls",),
    source="an accumulator that is not zeroed",
)
class AddsPreviousResult(Library):
    """An eighth of the previously returned result of the same shape is added."""

    def finish(self, operation: Operation, result: Numbers, arguments: Arguments) -> Numbers:
        """Add an eighth of the previous result."""
        last: dict[Any, Numbers] = vars(self).setdefault("last", {})
        fresh = super().finish(operation, result, arguments)
        total = fresh + fresh.dtype.type(0.125) * last.get((operation.name, fresh.shape), np.zeros_like(fresh))
        last[operation.name, fresh.shape] = total
        return total.copy()


@mutant(
    "contradictory sizes cut or padded",
    replaces="call",
    operations=(DotScores, ScaledDotProductAttention, AttentionPooling),
    breaks=("operation.rejection",),
    source="kernels that take sizes from one argument and trust the others",
)
def sizes_cut_to_fit(correct: Library, operation: Operation, *args: Any, **kwargs: Any) -> Numbers:
    """Contradictory sizes do not raise: longer arrays are cut, shorter ones padded with zeros."""
    arguments = correct.bind_arguments(operation, args, kwargs)
    sizes: dict[str, int] = {}
    fitted: dict[str, Any] = {}
    for leaf, x in arrays(operation, arguments):
        if leaf.kind is Kind.BOOL or x.ndim < len(leaf.core):
            continue
        for axis, d in enumerate(leaf.core, x.ndim - len(leaf.core)):
            size = sizes.setdefault(d.written, x.shape[axis])
            x = np.take(x, np.arange(min(size, x.shape[axis])), axis=axis)
            missing = [(0, size - x.shape[i] if i == axis else 0) for i in range(x.ndim)]
            x = np.pad(x, missing)
        fitted[leaf.path] = x
    return Library.call(correct, operation, **changed(arguments, fitted))


@mutant(
    "masks of a wrong shape accepted",
    replaces="call",
    operations=(ScaledDotProductAttention, Softmax, AveragePooling),
    breaks=("operation.rejection",),
    source="openai/gpt-2#270: a mask that broadcasts somehow",
)
def wrong_mask_accepted(correct: Library, operation: Operation, *args: Any, **kwargs: Any) -> Numbers:
    """A mask of a wrong shape does not raise: it is cut or repeated cyclically to fit."""
    arguments = correct.bind_arguments(operation, args, kwargs)
    leaf, mask = operation.mask, mask_of(operation, arguments)
    if leaf is None or mask is None:
        return Library.call(correct, operation, **arguments)
    try:
        return Library.call(correct, operation, **arguments)
    except ValueError:
        sizes = bind(operation, changed(arguments, {leaf.path: None})).sizes
        shape = [sizes[factor] for d in leaf.core for factor in d.factors]
        return Library.call(correct, operation, **changed(arguments, {leaf.path: np.resize(mask, shape)}))


@mutant(
    "too small sizes raised to the minimum",
    replaces="call",
    operations=(CausalMask, SinusoidalPositionalEncoding),
    breaks=("operation.rejection",),
    source="arange of a negative number is empty",
)
def sizes_raised_to_minimum(correct: Library, operation: Operation, *args: Any, **kwargs: Any) -> Numbers:
    """Sizes below the minimum count as the minimum and do not raise."""
    arguments = correct.bind_arguments(operation, args, kwargs)
    for option in operation.numbers:
        arguments[option.path] = max(arguments[option.path], operation.least(option.path))
    return Library.call(correct, operation, **arguments)


@mutant(
    "empty arrays refused",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotScores),
    breaks=("operation.oracle", "operation.shape"),
    source="grids of size 0 cannot be launched",
)
def empty_refused(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Empty arrays raise an error."""
    if any(not x.size for _, x in arrays(operation, arguments)):
        raise RuntimeError("invalid configuration argument")
    return Library.prepare(correct, operation, arguments)


@mutant(
    "rows of a batch shifted by one",
    replaces="prepare",
    operations=(ScaledDotProductAttention, SelfAttention),
    breaks=("operation.batch-invariance", "operation.oracle"),
    source="aipixel/AEMatter#3: batch first or sequence first",
)
def rows_shifted(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Rows are shifted by one: each sequence begins with the last row of its predecessor."""
    prepared = Library.prepare(correct, operation, arguments)
    floats = {leaf.path: x for leaf, x in arrays(operation, prepared) if leaf.kind is Kind.FLOAT}
    lengths = {x.shape[:-1] for x in floats.values()}
    if len(lengths) > 1 or any(x.ndim != 3 or x.shape[0] < 2 for x in floats.values()):
        return prepared
    rolled = {path: np.roll(x.reshape(-1, x.shape[-1]), 1, axis=0).reshape(x.shape) for path, x in floats.items()}
    return changed(prepared, rolled)
