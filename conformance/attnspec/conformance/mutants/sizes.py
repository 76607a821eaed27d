"""Mutants that are wrong only beyond certain sizes.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must
detect the defect alone. ``check`` raises for wrong shapes, ``prepare`` converts the arguments, ``finish`` converts the
result and ``differentiate`` computes the gradients.
"""

from collections.abc import Collection
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments, Gradients, arrays, at, changed, key, mask_of, query, sizes
from attnspec.spec.attention import AdditiveAttention, DotProductAttention, ScaledDotProductAttention, SelfAttention
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import map_tree
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

LENGTH, WIDTH, BATCH = 512, 128, 65535
"""Largest numbers of keys, features and batch elements that are computed correctly."""


def _wrap_around(x: Numbers, axis: int, size: int) -> Numbers:
    """Read an array modulo ``size`` along an axis."""
    return x if x.shape[axis] <= size else np.take(x, np.arange(x.shape[axis]) % size, axis)


def _clear(x: Numbers, axis: int, size: int) -> Numbers:
    """Set an array to 0 from index ``size`` of an axis on."""
    return np.concatenate([np.take(x, range(size), axis), 0 * np.take(x, range(size, x.shape[axis]), axis)], axis)


def _exceeds(x: Numbers, axis: int, size: int) -> bool:
    return x.ndim >= abs(axis) and int(x.shape[axis]) > size


# Lengths --------------------------------------------------------------------------------------------------------------


@mutant(
    "keys and values read modulo 512",
    replaces="prepare",
    operations=(ScaledDotProductAttention, AdditiveAttention, BahdanauContext, SelfAttention),
    breaks=("sizes.large-sizes",),
    source="pytorch/pytorch#162588, NVIDIA/apex#916: lengths that an index or a register does not hold",
    profile="full",
)
def keys_beyond_a_buffer(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Keys and values are read modulo 512: the 513th key is the first."""
    prepared = Library.prepare(correct, operation, arguments)
    paths = [leaf.path for leaf in operation.attended]
    return changed(prepared, {path: _wrap_around(at(prepared, path), -2, LENGTH) for path in paths})


@mutant(
    "queries beyond the 512th not computed",
    replaces="finish",
    operations=(ScaledDotProductAttention, DotScores, MultiHeadAttention),
    breaks=("sizes.large-sizes",),
    source="a grid for 4 tiles of 128 queries",
    profile="full",
)
def queries_beyond_a_grid(correct: Library, operation: Operation, result: Any, arguments: Arguments) -> Any:
    """Rows of queries from the 513th on are 0."""
    whole = Library.finish(correct, operation, result, arguments)
    return _clear(whole, -2, LENGTH) if whole.shape[-2] > LENGTH else whole


@mutant(
    "positions modulo 512",
    replaces="positions",
    operations=(SinusoidalPositionalEncoding,),
    breaks=("sizes.large-sizes",),
    source="tables of the lengths that a model was trained with",
    profile="full",
)
def table_of_positions(correct: Formulas, n: int) -> Numbers:
    """Position t is encoded as t mod 512."""
    return np.asarray(Formulas.positions(correct, n) % LENGTH)


@mutant(
    "columns of a mask read modulo 512",
    replaces="prepare",
    operations=(ScaledDotProductAttention, Softmax),
    breaks=("sizes.large-sizes",),
    source="a bit mask in 16 words of 32 bits",
    profile="full",
)
def mask_beyond_its_words(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Columns of the mask are read modulo 512: the 513th repeats the first."""
    prepared = Library.prepare(correct, operation, arguments)
    masks = {leaf.path: at(prepared, leaf.path) for leaf in operation.masks.values()}
    wrapped = {path: _wrap_around(mask, -1, LENGTH) for path, mask in masks.items() if mask is not None}
    return changed(prepared, wrapped)


@mutant(
    "inputs read modulo 100 steps",
    replaces="prepare",
    operations=(GRU, LSTM),
    breaks=("sizes.large-sizes",),
    source="a loop that is unrolled for the longest sequence of the training data",
    profile="full",
)
def steps_beyond_the_loop(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Steps from the 101st on read the inputs of the first 100 again."""
    prepared = Library.prepare(correct, operation, arguments)
    times = operation.sizes_of(Axis.TIME)
    by_time = [(leaf, x) for leaf, x in arrays(operation, prepared) if any(-2 in leaf.axes(size) for size in times)]
    return changed(prepared, {leaf.path: _wrap_around(x, -2, 100) for leaf, x in by_time})


# Features -------------------------------------------------------------------------------------------------------------


def _ignore_features(
    correct: Library, operation: Operation, arguments: Arguments, widths: Collection[int], path: str
) -> dict[str, Any]:
    """Prepared arguments without features beyond the 128th at ``path``, for widths in ``widths``."""
    prepared = Library.prepare(correct, operation, arguments)
    x = at(prepared, path)
    return changed(prepared, {path: _clear(x, -1, WIDTH)}) if x.shape[-1] in widths else prepared


@mutant(
    "features of queries beyond the 128th ignored",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotScores, GeneralScores),
    breaks=("sizes.model-sizes",),
    source="Dao-AILab/flash-attention#28: kernels for up to 128 features of a head",
)
def features_beyond_a_warp(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Features of queries beyond the 128th are ignored."""
    return _ignore_features(correct, operation, arguments, range(WIDTH + 1, 1 << 20), query(operation))


@mutant(
    "last 64 of 192 features ignored",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotScores),
    breaks=("sizes.model-sizes",),
    source="NVIDIA/FasterTransformer#89: head sizes between powers of two",
)
def between_powers(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Only the first 128 of exactly 192 features are used."""
    return _ignore_features(correct, operation, arguments, (192,), query(operation))


@mutant(
    "second half of 256 value columns repeats the first",
    replaces="prepare",
    operations=(ScaledDotProductAttention, AttentionPooling, AdditiveAttention),
    breaks=("sizes.model-sizes",),
    source="Dao-AILab/flash-attention#2541: separate kernels for 256 features",
)
def halves_of_values(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """The second half of exactly 256 value features repeats the first."""
    prepared = Library.prepare(correct, operation, arguments)
    path = operation.attended[-1].path
    x = at(prepared, path)
    return changed(prepared, {path: _wrap_around(x, -1, WIDTH)}) if x.shape[-1] == 2 * WIDTH else prepared


@mutant(
    "hidden units beyond the 128th are 0",
    replaces="prepare",
    operations=(FeedForward, AdditiveAttention),
    breaks=("sizes.model-sizes",),
    source="a tile that is not repeated along the inner dimension",
)
def units_beyond_a_tile(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Input weights of hidden units beyond the 128th count as 0."""
    prepared = Library.prepare(correct, operation, arguments)
    hidden = operation.sizes_of(Axis.HIDDEN)
    weights = {leaf.path: x for leaf, x in arrays(operation, prepared) if any(-2 in leaf.axes(s) for s in hidden)}
    return changed(prepared, {path: _clear(x, -2, WIDTH) for path, x in weights.items() if _exceeds(x, -2, WIDTH)})


@mutant(
    "features of patches beyond the 128th are 0",
    replaces="finish",
    operations=(PatchEmbedding,),
    breaks=("sizes.model-sizes",),
    source="a tile that is not repeated along the features",
)
def embedded_in_a_tile(correct: Library, operation: Operation, result: Any, arguments: Arguments) -> Any:
    """Features of embedded patches beyond the 128th are 0."""
    embedded = Library.finish(correct, operation, result, arguments)
    return _clear(embedded, -1, WIDTH) if embedded.shape[-1] > WIDTH else embedded


@mutant(
    "features of queries read modulo 256",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotScores, MultiHeadAttention),
    breaks=("sizes.large-sizes",),
    source="Dao-AILab/flash-attention#801: heads of 512 features",
    profile="full",
)
def features_beyond_a_buffer(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Features of queries are read modulo 256: the 257th repeats the first."""
    prepared = Library.prepare(correct, operation, arguments)
    path = query(operation)
    return changed(prepared, {path: _wrap_around(at(prepared, path), -1, 2 * WIDTH)})


# Batches --------------------------------------------------------------------------------------------------------------


@mutant(
    "first element's keys used from the fifth on",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotScores, MultiHeadAttention, BahdanauContext),
    breaks=("sizes.model-sizes",),
    source="google-deepmind/gemma#765: the index of element 0 for the whole batch",
)
def fifth_element(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Batch elements from the fifth on use the keys of the first."""
    return _first_repeated(correct, operation, arguments, 0)


@mutant(
    "first head's keys used from the fifth on",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotScores),
    breaks=("sizes.model-sizes",),
    source="four warps, each with a head",
)
def fifth_of_second(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Along the second batch dimension, elements from the fifth on use the first's keys."""
    return _first_repeated(correct, operation, arguments, 1)


def _first_repeated(correct: Library, operation: Operation, arguments: Arguments, axis: int) -> dict[str, Any]:
    """Prepared arguments; along a batch axis, keys from the fifth element on are those of the first."""
    prepared = Library.prepare(correct, operation, arguments)
    path = key(operation)
    x = at(prepared, path)
    if x.ndim < axis + 3 or x.shape[axis] < 5:
        return prepared
    order = np.where(np.arange(x.shape[axis]) < 4, np.arange(x.shape[axis]), 0)
    return changed(prepared, {path: np.take(x, order, axis)})


@mutant(
    "batches of more than 65,535 elements raise",
    replaces="check",
    operations=(ScaledDotProductAttention, Softmax, PaddingMask),
    breaks=("sizes.large-sizes",),
    source="facebookresearch/xformers#845, pytorch/pytorch#142228: the batch along the last dimension of a grid",
    profile="full",
)
def grid_too_small(correct: Library, operation: Operation, arguments: Arguments) -> None:
    """A batch of more than 65,535 elements raises."""
    Library.check(correct, operation, arguments)
    if any(_exceeds_grid(leaf.batched, x, len(leaf.core)) for leaf, x in arrays(operation, arguments)):
        raise RuntimeError("CUDA error: invalid configuration argument")


def _exceeds_grid(batched: bool, x: Numbers, core_dims: int) -> bool:
    return batched and int(np.prod(x.shape[: x.ndim - core_dims])) > BATCH


@mutant(
    "batch elements beyond the 65,535th not computed",
    replaces="finish",
    operations=(ScaledDotProductAttention, DotScores, BahdanauContext),
    breaks=("sizes.large-sizes",),
    source="pytorch/pytorch#142228: a grid that was cut to what can be launched",
    profile="full",
)
def grid_cut(correct: Library, operation: Operation, result: Any, arguments: Arguments) -> Any:
    """Results of batch elements beyond the 65,535th are 0."""
    whole = Library.finish(correct, operation, result, arguments)
    first = operation.leading

    def cut(x: Numbers) -> Numbers:
        flat = x.reshape(-1, *x.shape[x.ndim - len(first.core) :])
        return _clear(flat, 0, BATCH).reshape(x.shape) if len(flat) > BATCH else x

    return map_tree(whole, lambda _, x: cut(x))


# Gradients ------------------------------------------------------------------------------------------------------------


@mutant(
    "no gradient of key features beyond the 128th",
    replaces="differentiate",
    operations=(ScaledDotProductAttention, DotScores),
    breaks=("sizes.large-size-gradients",),
    source="Dao-AILab/flash-attention#1306, #2541: gradients for 256 features",
    profile="full",
)
def narrow_gradient(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of key features beyond the 128th is 0."""
    grads = Library.differentiate(correct, operation, arguments, cotangent)
    path = key(operation)
    return {**grads, path: _clear(grads[path], -1, WIDTH)} if grads[path].shape[-1] > WIDTH else grads


@mutant(
    "no gradient of keys beyond the 512th",
    replaces="differentiate",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("sizes.large-size-gradients",),
    source="Dao-AILab/flash-attention#1500: offsets of an accumulator",
    profile="full",
)
def short_gradient(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of keys beyond the 512th is 0."""
    grads = Library.differentiate(correct, operation, arguments, cotangent)
    path = key(operation)
    return {**grads, path: _clear(grads[path], -2, LENGTH)} if grads[path].shape[-2] > LENGTH else grads


@mutant(
    "gradient of the values doubled beyond 64 queries",
    replaces="differentiate",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("training.strides-do-not-matter",),
    source="a tile of queries that is added up twice in a backward kernel",
)
def doubled_tile(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of the values is doubled for more than 64 queries."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    path, times = operation.pooled, 1 + int(arguments[query(operation)].shape[-2] > 64)
    return {**gradients, path: gradients[path] * gradients[path].dtype.type(times)}


# Combinations ---------------------------------------------------------------------------------------------------------


@mutant(
    "single key of a last tile read as 0 for wide heads",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("sizes.combined-sizes",),
    source="pytorch/pytorch#169222: the kernel for few queries, where the keys do not fill its last tile",
    profile="full",
)
def last_key_of_few(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """The last of 32k + 1 keys is read as 0: for up to 8 queries of 160 or more features."""
    prepared = Library.prepare(correct, operation, arguments)
    n, m, d, _ = sizes(operation, prepared)
    if n > 8 or d < 160 or m % 32 != 1:
        return prepared
    path = key(operation)
    return changed(prepared, {path: _clear(at(prepared, path), -2, m - 1)})


@mutant(
    "first head's mask used for heads of 256 or more features",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("sizes.combined-sizes",),
    source="pytorch/pytorch#184180: masks that heads share and masks of each head",
    profile="full",
)
def mask_of_the_first_head(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """For heads of 256 or more features, every head uses the mask of the first."""
    prepared = Library.prepare(correct, operation, arguments)
    mask, (_, _, d, _) = mask_of(operation, prepared), sizes(operation, prepared)
    if operation.mask is None or mask is None or mask.ndim < 3 or d < 2 * WIDTH:
        return prepared
    return changed(prepared, {operation.mask.path: _wrap_around(mask, -3, 1)})


@mutant(
    "gradient of the values with reversed columns for wide heads",
    replaces="differentiate",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("sizes.large-size-gradients",),
    source="Dao-AILab/flash-attention#2552: values whose width differs from that of the keys",
    profile="full",
)
def columns_exchanged(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """If d > 128 differs from the values' width, their gradient has reversed columns."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    *_, d, columns = sizes(operation, arguments)
    path = operation.attended[-1].path
    return {**gradients, path: gradients[path][..., ::-1]} if d > WIDTH and columns != d else gradients


@mutant(
    "no gradient of the last of 64 keys under a mask",
    replaces="differentiate",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("sizes.large-size-gradients",),
    source="pytorch/pytorch#196678: the backward pass pads keys under a mask",
    profile="full",
)
def padded_under_a_mask(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """Under a mask, the last of 64 keys of ≥ 128 features gets gradient 0."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    _, m, d, _ = sizes(operation, arguments)
    path = key(operation)
    wrong = m == 64 and d >= WIDTH and mask_of(operation, arguments) is not None
    return {**gradients, path: _clear(gradients[path], -2, m - 1)} if wrong else gradients
