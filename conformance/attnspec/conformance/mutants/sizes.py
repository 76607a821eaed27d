"""Mutants that are wrong only beyond certain sizes."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import arrays, at, changed, key, mask_of, query, sizes
from attnspec.spec.attention import (
    AdditiveAttention,
    DotProductAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import mapped
from attnspec.spec.masking import PaddingMask
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.normalization import Softmax
from attnspec.spec.pooling import AttentionPooling
from attnspec.spec.positional import SinusoidalPositionalEncoding
from attnspec.spec.recurrent import GRU, LSTM
from attnspec.spec.scoring import DotScores, GeneralScores
from attnspec.spec.seq2seq import BahdanauContext
from attnspec.spec.transformer import FeedForward
from attnspec.spec.vision import PatchEmbedding

TILE, WARP, GRID = 512, 128, 65535


def _read_again(x: Numbers, axis: int, size: int) -> Numbers:
    """The array with indices along ``axis`` taken modulo ``size``."""
    return x if x.shape[axis] <= size else np.take(x, np.arange(x.shape[axis]) % size, axis)


def _zeroed(x: Numbers, axis: int, size: int) -> Numbers:
    """The array with 0 from index ``size`` of ``axis`` on."""
    return np.concatenate([np.take(x, range(size), axis), 0 * np.take(x, range(size, x.shape[axis]), axis)], axis)


def _beyond(x: Numbers, axis: int, size: int) -> bool:
    return x.ndim >= abs(axis) and int(x.shape[axis]) > size


# Lengths --------------------------------------------------------------------------------------------------------------


@mutant(
    "rows of a buffer for 512 keys",
    replaces="prepared",
    operations=(ScaledDotProductAttention, AdditiveAttention, BahdanauContext, SelfAttention),
    breaks=("sizes.beyond",),
    source="pytorch/pytorch#162588, NVIDIA/apex#916: lengths that an index or a register does not hold",
    profile="full",
)
def keys_beyond_a_buffer(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Keys and values are read modulo 512: the 513th is the first."""
    prepared = Library.prepared(correct, operation, arguments)
    paths = [leaf.path for leaf in operation.attended]
    return changed(prepared, {path: _read_again(at(prepared, path), -2, TILE) for path in paths})


@mutant(
    "queries beyond the 512th not computed",
    replaces="finished",
    operations=(ScaledDotProductAttention, DotScores, MultiHeadAttention),
    breaks=("sizes.beyond",),
    source="a grid for 4 tiles of 128 queries",
    profile="full",
)
def queries_beyond_a_grid(correct: Library, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
    """Rows of queries from the 513th on are 0."""
    found = Library.finished(correct, operation, result, arguments)
    return _zeroed(found, -2, TILE) if found.shape[-2] > TILE else found


@mutant(
    "a table of 512 positions",
    replaces="positions",
    operations=(SinusoidalPositionalEncoding,),
    breaks=("sizes.beyond",),
    source="tables of the lengths that a model was trained with",
    profile="full",
)
def table_of_positions(correct: Formulas, n: int) -> Numbers:
    """Positions are taken modulo 512."""
    return np.asarray(Formulas.positions(correct, n) % TILE)


@mutant(
    "the mask of the first 512 keys",
    replaces="prepared",
    operations=(ScaledDotProductAttention, Softmax),
    breaks=("sizes.beyond",),
    source="a mask of bits in 16 words of 32",
    profile="full",
)
def mask_beyond_its_words(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of the mask are read modulo 512: the 513th repeats the first."""
    prepared = Library.prepared(correct, operation, arguments)
    masks = {leaf.path: at(prepared, leaf.path) for leaf in operation.masks.values()}
    again = {path: _read_again(mask, -1, TILE) for path, mask in masks.items() if mask is not None}
    return changed(prepared, again)


@mutant(
    "a hundred time steps",
    replaces="prepared",
    operations=(GRU, LSTM),
    breaks=("sizes.beyond",),
    source="a loop that is unrolled for the longest sequence of the training data",
    profile="full",
)
def steps_beyond_the_loop(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Steps from the 101st on read the inputs of the first 100 again."""
    prepared = Library.prepared(correct, operation, arguments)
    times = operation.sizes_of(Axis.TIME)
    found = [(leaf, x) for leaf, x in arrays(operation, prepared) if any(-2 in leaf.axes(size) for size in times)]
    return changed(prepared, {leaf.path: _read_again(x, -2, 100) for leaf, x in found})


# Features -------------------------------------------------------------------------------------------------------------


def _widest(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], widths: Collection[int], path: str
) -> dict[str, Any]:
    """Prepared arguments with features beyond the 128th at ``path`` set to 0 if its width is in ``widths``."""
    prepared = Library.prepared(correct, operation, arguments)
    x = at(prepared, path)
    return changed(prepared, {path: _zeroed(x, -1, WARP)}) if x.shape[-1] in widths else prepared


@mutant(
    "queries of 128 features",
    replaces="prepared",
    operations=(ScaledDotProductAttention, DotScores, GeneralScores),
    breaks=("sizes.features",),
    source="Dao-AILab/flash-attention#28: kernels for up to 128 features of a head",
)
def features_beyond_a_warp(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Features of queries beyond the 128th are ignored."""
    return _widest(correct, operation, arguments, range(WARP + 1, 1 << 20), query(operation))


@mutant(
    "192 features rounded down",
    replaces="prepared",
    operations=(ScaledDotProductAttention, DotScores),
    breaks=("sizes.features",),
    source="NVIDIA/FasterTransformer#89: sizes of heads between the powers of two",
)
def between_powers(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Only the first 128 of exactly 192 features are used."""
    return _widest(correct, operation, arguments, (192,), query(operation))


@mutant(
    "values of 256 features in halves",
    replaces="prepared",
    operations=(ScaledDotProductAttention, AttentionPooling, AdditiveAttention),
    breaks=("sizes.features",),
    source="Dao-AILab/flash-attention#2541: kernels of their own for 256 features",
)
def halves_of_values(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The second half of exactly 256 value features repeats the first."""
    prepared = Library.prepared(correct, operation, arguments)
    path = operation.attended[-1].path
    x = at(prepared, path)
    return changed(prepared, {path: _read_again(x, -1, WARP)}) if x.shape[-1] == 2 * WARP else prepared


@mutant(
    "hidden layers of 128 units",
    replaces="prepared",
    operations=(FeedForward, AdditiveAttention),
    breaks=("sizes.features",),
    source="a tile that is not repeated along the inner dimension",
)
def units_beyond_a_tile(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Hidden units beyond the 128th are 0."""
    prepared = Library.prepared(correct, operation, arguments)
    hidden = operation.sizes_of(Axis.HIDDEN)
    weights = {leaf.path: x for leaf, x in arrays(operation, prepared) if any(-2 in leaf.axes(s) for s in hidden)}
    return changed(prepared, {path: _zeroed(x, -2, WARP) for path, x in weights.items() if _beyond(x, -2, WARP)})


@mutant(
    "patches embedded in 128 features",
    replaces="finished",
    operations=(PatchEmbedding,),
    breaks=("sizes.features",),
    source="a tile that is not repeated along the features",
)
def embedded_in_a_tile(correct: Library, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
    """Features of embedded patches beyond the 128th are 0."""
    found = Library.finished(correct, operation, result, arguments)
    return _zeroed(found, -1, WARP) if found.shape[-1] > WARP else found


@mutant(
    "512 features overflow a buffer",
    replaces="prepared",
    operations=(ScaledDotProductAttention, DotScores, MultiHeadAttention),
    breaks=("sizes.beyond",),
    source="Dao-AILab/flash-attention#801: heads of 512 features",
    profile="full",
)
def features_beyond_a_buffer(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Features of queries are read modulo 256: the 257th repeats the first."""
    prepared = Library.prepared(correct, operation, arguments)
    path = query(operation)
    return changed(prepared, {path: _read_again(at(prepared, path), -1, 2 * WARP)})


# Batches --------------------------------------------------------------------------------------------------------------


@mutant(
    "keys of the first element from the fifth on",
    replaces="prepared",
    operations=(ScaledDotProductAttention, DotScores, MultiHeadAttention, BahdanauContext),
    breaks=("sizes.features",),
    source="google-deepmind/gemma#765: the index of element 0 for the whole batch",
)
def fifth_element(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Batch elements from the fifth on use the keys of the first."""
    return _first_from(correct, operation, arguments, 0)


@mutant(
    "keys of the first head from the fifth on",
    replaces="prepared",
    operations=(ScaledDotProductAttention, DotScores),
    breaks=("sizes.features",),
    source="four warps, each with a head",
)
def fifth_of_second(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Along the second batch dimension, elements from the fifth on use the keys of the first."""
    return _first_from(correct, operation, arguments, 1)


def _first_from(correct: Library, operation: Operation, arguments: Mapping[str, Any], axis: int) -> dict[str, Any]:
    prepared = Library.prepared(correct, operation, arguments)
    path = key(operation)
    x = at(prepared, path)
    if x.ndim < axis + 3 or x.shape[axis] < 5:
        return prepared
    order = np.where(np.arange(x.shape[axis]) < 4, np.arange(x.shape[axis]), 0)
    return changed(prepared, {path: np.take(x, order, axis)})


@mutant(
    "at most 65,535 elements of a batch",
    replaces="check",
    operations=(ScaledDotProductAttention, Softmax, PaddingMask),
    breaks=("sizes.beyond",),
    source="facebookresearch/xformers#845, pytorch/pytorch#142228: the batch along the last dimension of a grid",
    profile="full",
)
def grid_too_small(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> None:
    """A batch of more than 65,535 elements raises."""
    Library.check(correct, operation, arguments)
    if any(_crowd(leaf.batched, x, len(leaf.core)) for leaf, x in arrays(operation, arguments)):
        raise RuntimeError("CUDA error: invalid configuration argument")


def _crowd(batched: bool, x: Numbers, core: int) -> bool:
    return batched and int(np.prod(x.shape[: x.ndim - core])) > GRID


@mutant(
    "elements beyond the 65,535th not computed",
    replaces="finished",
    operations=(ScaledDotProductAttention, DotScores, BahdanauContext),
    breaks=("sizes.beyond",),
    source="pytorch/pytorch#142228: a grid that was cut to what can be launched",
    profile="full",
)
def grid_cut(correct: Library, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
    """Results of batch elements beyond the 65,535th are 0."""
    found = Library.finished(correct, operation, result, arguments)
    first = operation.leading

    def cut(x: Numbers) -> Numbers:
        flat = x.reshape(-1, *x.shape[x.ndim - len(first.core) :])
        return _zeroed(flat, 0, GRID).reshape(x.shape) if len(flat) > GRID else x

    return mapped(found, lambda _, x: cut(x))


# Gradients ------------------------------------------------------------------------------------------------------------


@mutant(
    "gradient of the keys in 128 features",
    replaces="differentiated",
    operations=(ScaledDotProductAttention, DotScores),
    breaks=("sizes.gradients",),
    source="Dao-AILab/flash-attention#1306, #2541: gradients for 256 features",
    profile="full",
)
def narrow_gradient(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """The gradient of key features beyond the 128th is 0."""
    found = Library.differentiated(correct, operation, arguments, cotangent)
    path = key(operation)
    return {**found, path: _zeroed(found[path], -1, WARP)} if found[path].shape[-1] > WARP else found


@mutant(
    "gradient of the first 512 keys",
    replaces="differentiated",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("sizes.gradients",),
    source="Dao-AILab/flash-attention#1500: offsets of an accumulator",
    profile="full",
)
def short_gradient(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """The gradient of keys beyond the 512th is 0."""
    found = Library.differentiated(correct, operation, arguments, cotangent)
    path = key(operation)
    return {**found, path: _zeroed(found[path], -2, TILE)} if found[path].shape[-2] > TILE else found


@mutant(
    "gradient of the values twice, beyond 64 queries",
    replaces="differentiated",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("training.strides",),
    source="a tile of queries that is added up twice in a backward kernel",
)
def doubled_tile(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """The gradient of the values is doubled for more than 64 queries."""
    found = Library.differentiated(correct, operation, arguments, cotangent)
    path, times = operation.pooled, 1 + int(arguments[query(operation)].shape[-2] > 64)
    return {**found, path: found[path] * found[path].dtype.type(times)}


# Combinations ---------------------------------------------------------------------------------------------------------


@mutant(
    "the last key of a decoding kernel for wide heads",
    replaces="prepared",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("sizes.together",),
    source="pytorch/pytorch#169222: the kernel for few queries, where the keys do not fill its last tile",
    profile="full",
)
def last_key_of_few(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """For up to 8 queries of 160 or more features, a single key in the last tile of 32 is read as 0."""
    prepared = Library.prepared(correct, operation, arguments)
    n, m, d, _ = sizes(operation, prepared)
    if n > 8 or d < 160 or m % 32 != 1:
        return prepared
    path = key(operation)
    return changed(prepared, {path: _zeroed(at(prepared, path), -2, m - 1)})


@mutant(
    "the mask of the first head, of heads of 256 features",
    replaces="prepared",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("sizes.together",),
    source="pytorch/pytorch#184180: masks that heads share and masks of each head",
    profile="full",
)
def mask_of_the_first_head(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """For heads of 256 or more features, every head uses the mask of the first."""
    prepared = Library.prepared(correct, operation, arguments)
    mask = mask_of(operation, prepared)
    if operation.mask is None or mask is None or mask.ndim < 3 or sizes(operation, prepared)[2] < 2 * WARP:
        return prepared
    return changed(prepared, {operation.mask.path: _read_again(mask, -3, 1)})


@mutant(
    "gradient of wide values in the steps of the queries",
    replaces="differentiated",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("sizes.gradients",),
    source="Dao-AILab/flash-attention#2552: values of another width than that of keys",
    profile="full",
)
def columns_exchanged(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """The gradient of values has its columns reversed for more than 128 features and another number of columns."""
    found = Library.differentiated(correct, operation, arguments, cotangent)
    *_, d, columns = sizes(operation, arguments)
    path = operation.attended[-1].path
    return {**found, path: found[path][..., ::-1]} if d > WARP and columns != d else found


@mutant(
    "gradient of the last of 64 keys under a mask",
    replaces="differentiated",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("sizes.gradients",),
    source="pytorch/pytorch#196678: the backward pass pads keys under a mask",
    profile="full",
)
def padded_under_a_mask(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """Under a mask, the last of exactly 64 keys of 128 or more features gets the gradient 0."""
    found = Library.differentiated(correct, operation, arguments, cotangent)
    _, m, d, _ = sizes(operation, arguments)
    path = key(operation)
    wrong = m == 64 and d >= WARP and mask_of(operation, arguments) is not None
    return {**found, path: _zeroed(found[path], -2, m - 1)} if wrong else found
