"""Mutants that lose the remainder beyond whole tiles, grids or buffers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import arrays, at, changed, key, mask_of, query, sizes
from attnspec.spec.attention import AdditiveAttention, DotProductAttention, ScaledDotProductAttention
from attnspec.spec.contract.axes import Axis, Role
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import mapped
from attnspec.spec.multihead import ConcatHeadsAttention, MultiHeadAttention
from attnspec.spec.normalization import Softmax
from attnspec.spec.pooling import AttentionPooling
from attnspec.spec.scoring import DotScores
from attnspec.spec.transformer import FeedForward, LayerNorm, LayerNormParameters

BUFFER, HALF_TILE = 512, 8


def _narrowed(x: Numbers, width: int, kept: int) -> Numbers:
    """The array with features from ``kept`` on set to 0, if it has exactly ``width`` features."""
    return np.where(np.arange(width) < kept, x, x.dtype.type(0)) if x.shape[-1] == width else x


@mutant(
    "96 features in tiles of 64",
    replaces="prepared",
    operations=(ScaledDotProductAttention, DotScores),
    breaks=("sizes.features",),
    source="Dao-AILab/flash-attention#2541: sizes of heads between those that kernels are made for",
)
def half_a_tile(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The last 32 of exactly 96 features are ignored."""
    prepared = Library.prepared(correct, operation, arguments)
    path = query(operation)
    return changed(prepared, {path: _narrowed(at(prepared, path), 96, 64)})


@mutant(
    "160 columns of values in tiles of 64",
    replaces="prepared",
    operations=(ScaledDotProductAttention, AttentionPooling, AdditiveAttention),
    breaks=("sizes.features",),
    source="pytorch/pytorch#169222: heads of 160 features and more",
)
def half_a_tile_of_values(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The last 32 of exactly 160 columns of values are 0."""
    prepared = Library.prepared(correct, operation, arguments)
    path = operation.attended[-1].path
    return changed(prepared, {path: _narrowed(at(prepared, path), 160, 128)})


@mutant(
    "the last four of 100 features",
    replaces="prepared",
    operations=(ScaledDotProductAttention, DotScores),
    breaks=("sizes.features",),
    source="vectors of eight numbers, of which the last one is half full",
)
def half_a_vector(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The last four features are ignored if there are more than 80 and their number mod 8 is 4."""
    prepared = Library.prepared(correct, operation, arguments)
    path = query(operation)
    width = at(prepared, path).shape[-1]
    return changed(prepared, {path: _narrowed(at(prepared, path), width, width - 4 * (width > 80 and width % 8 == 4))})


@mutant(
    "the last of 101 features",
    replaces="prepared",
    operations=(ScaledDotProductAttention, DotScores),
    breaks=("sizes.features",),
    source="vectors of two numbers, of which the last one is half full",
)
def odd_feature(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The last of an odd number of features above 66 is ignored."""
    prepared = Library.prepared(correct, operation, arguments)
    path = query(operation)
    width = at(prepared, path).shape[-1]
    return changed(prepared, {path: _narrowed(at(prepared, path), width, width - (width > 66 and width % 2))})


@mutant(
    "values of 32 columns beside 64 features",
    replaces="prepared",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("sizes.features",),
    source="a tile of values that is as wide as one of keys, of which half is not written",
)
def narrow_values(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The last 16 of 32 columns of values are 0 beside 64 features."""
    prepared = Library.prepared(correct, operation, arguments)
    path = operation.attended[-1].path
    halved = sizes(operation, arguments)[2:] == (64, 32)
    return changed(prepared, {path: _narrowed(at(prepared, path), 32, 16)}) if halved else prepared


@mutant(
    "576 features beside values of 512",
    replaces="prepared",
    operations=(ScaledDotProductAttention,),
    breaks=("sizes.beyond",),
    source="multi-head latent attention, whose last 64 features are those of positions",
    profile="full",
)
def without_positional_features(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The last 64 of 576 features are ignored."""
    prepared = Library.prepared(correct, operation, arguments)
    path = query(operation)
    return changed(prepared, {path: _narrowed(at(prepared, path), 576, BUFFER)})


@mutant(
    "keys counted in 16 bits",
    replaces="excluded",
    operations=(Softmax, ScaledDotProductAttention),
    breaks=("sizes.beyond",),
    source="an index of 16 bits",
    profile="full",
)
def keys_in_16_bits(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Keys from the 65,537th on are masked."""
    found = Formulas.excluded(correct, scores, mask)
    keys = scores.shape[-1]
    return np.where(np.arange(keys) < 1 << 16, found, scores.dtype.type(-np.inf)) if keys > 1 << 16 else found


@mutant(
    "mean and variance of the first 1,024 features",
    replaces="layer_norm",
    operations=(LayerNorm,),
    breaks=("sizes.features",),
    source="one block of 1,024 threads for every row, without a loop",
)
def moments_of_a_block(correct: Formulas, x: Numbers, parameters: LayerNormParameters[Numbers]) -> Numbers:
    """Mean and variance are those of the first 1,024 features."""
    centred = x - np.mean(x[..., :1024], axis=-1, keepdims=True)
    deviation = np.sqrt(correct.variance(centred[..., :1024]) + x.dtype.type(correct.epsilon()))
    return parameters.gain * centred / deviation + parameters.bias


@mutant(
    "weights learn from the first 256 rows",
    replaces="differentiated",
    operations=(LayerNorm, FeedForward),
    breaks=("sizes.gradients",),
    source="one block of 256 threads for the sums over rows, without a loop",
    profile="full",
)
def gradients_of_a_block(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """Only the first 256 rows contribute to the gradients of weights."""
    found = Library.differentiated(correct, operation, arguments, cotangent)
    rows = cotangent.reshape(-1, cotangent.shape[-1])
    if len(rows) <= 256:
        return found
    first = np.where(np.arange(len(rows))[:, None] < 256, rows, rows.dtype.type(0)).reshape(cotangent.shape)
    some = Library.differentiated(correct, operation, arguments, first)
    shared = {leaf.path for leaf in operation.floats if not leaf.batched}
    return {path: some[path] if path in shared else g for path, g in found.items()}


def _odd(width: int) -> bool:
    """Return whether the last tile of 16 is half full: for 40, 56, 72, 88, 104 and 120 features."""
    return 40 <= width <= 120 and width % 16 == HALF_TILE


def _without_half_a_tile(prepared: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Arguments with the last eight features at ``path`` set to 0 if its last tile is half full."""
    width = at(prepared, path).shape[-1]
    kept = width - HALF_TILE if _odd(width) else width
    return changed(prepared, {path: _narrowed(at(prepared, path), width, kept)})


@mutant(
    "the last eight of 72 features",
    replaces="prepared",
    operations=(ScaledDotProductAttention, DotProductAttention, DotScores),
    breaks=("sizes.features",),
    source="heads of 40 and 72 features, as of Stable Diffusion and SigLIP, in matrix products of 16 by 16",
)
def half_a_product(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The last eight of 40, 56, 72, 88, 104 or 120 features are ignored."""
    return _without_half_a_tile(Library.prepared(correct, operation, arguments), query(operation))


@mutant(
    "the last eight of 72 columns of values",
    replaces="prepared",
    operations=(ScaledDotProductAttention, AttentionPooling, AdditiveAttention),
    breaks=("sizes.features",),
    source="values of 40 and 72 features, as of Stable Diffusion and SigLIP, in matrix products of 16 by 16",
)
def half_a_product_of_values(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The last eight of 40, 56, 72, 88, 104 or 120 columns of values are 0."""
    return _without_half_a_tile(Library.prepared(correct, operation, arguments), operation.attended[-1].path)


@mutant(
    "columns of a mask counted in eight bits",
    replaces="prepared",
    operations=(ScaledDotProductAttention, DotProductAttention, Softmax),
    breaks=("sizes.features",),
    source="a column of a mask as an unsigned char, in the kernel for more queries than 16",
)
def columns_in_a_byte(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a mask are read modulo 256 if it has more than 16 rows."""
    prepared = Library.prepared(correct, operation, arguments)
    mask = mask_of(operation, prepared)
    if operation.mask is None or mask is None or mask.ndim < 2 or mask.shape[-2] <= 16:
        return prepared
    return changed(prepared, {operation.mask.path: mask[..., np.arange(mask.shape[-1]) % 256]})


@mutant(
    "late keys lost for late queries",
    replaces="prepared",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("sizes.beyond",),
    source="a grid of 1,024 tiles, each of some queries and some keys",
    profile="full",
)
def late_tiles(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Queries beyond the 1,024th do not see keys beyond the 1,024th."""
    prepared = Library.prepared(correct, operation, arguments)
    n, m, *_ = sizes(operation, prepared)
    if operation.mask is None or n <= 2 * BUFFER or m <= 2 * BUFFER:
        return prepared
    early = (np.arange(n)[:, None] < 2 * BUFFER) | (np.arange(m) < 2 * BUFFER)
    mask = mask_of(operation, prepared)
    return {**prepared, operation.mask.path: early if mask is None else early & mask}


@mutant(
    "weights of eight heads",
    replaces="prepared",
    operations=(MultiHeadAttention, ConcatHeadsAttention),
    breaks=("sizes.features",),
    source="pointers to the weights of at most eight heads",
)
def eight_heads(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Heads beyond the eighth use the weights of the eighth."""
    prepared = Library.prepared(correct, operation, arguments)
    heads = operation.sizes_of(Axis.HEAD)
    weights = {
        leaf.path: x
        for leaf, x in arrays(operation, prepared)
        if operation.role(leaf) & Role.WEIGHT and any(-3 in leaf.axes(name) for name in heads)
    }
    return changed(prepared, {path: x[np.minimum(np.arange(len(x)), 7)] for path, x in weights.items()})


def _first(operation: Operation, result: Any, count: int) -> Any:
    """Results with all but the first ``count`` batch elements set to 0."""
    core = len(operation.leading.core)

    def kept(x: Numbers) -> Numbers:
        flat = x.reshape(-1, *x.shape[x.ndim - core :])
        there = (np.arange(len(flat)) < count).reshape(-1, *(1,) * core)
        return np.where(there, flat, x.dtype.type(0)).reshape(x.shape)

    return mapped(result, lambda _, x: kept(x))


def _elements(operation: Operation, result: Any) -> int:
    return int(np.prod(result.shape[: result.ndim - len(operation.leading.core)]))


@mutant(
    "elements of a batch counted modulo 65,535",
    replaces="finished",
    operations=(ScaledDotProductAttention, DotScores),
    breaks=("sizes.beyond",),
    source="facebookresearch/xformers#845: what is left over by grids of 65,535",
    profile="full",
)
def full_grid(correct: Library, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
    """Nothing is computed for a batch of exactly 65,535 elements: all results are 0."""
    found = Library.finished(correct, operation, result, arguments)
    count = _elements(operation, found)
    return _first(operation, found, 0) if count == 65535 else found


@mutant(
    "elements of a batch counted in 16 bits",
    replaces="finished",
    operations=(ScaledDotProductAttention, DotScores),
    breaks=("sizes.beyond",),
    source="flashinfer-ai/flashinfer#3125, pytorch/pytorch#177985: 65,536 elements, and nothing is raised",
    profile="full",
)
def counted_in_sixteen_bits(correct: Library, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
    """Batch elements are counted modulo 65,536; the results of all others are 0."""
    found = Library.finished(correct, operation, result, arguments)
    count = _elements(operation, found)
    return _first(operation, found, count % 65536) if count > 65535 else found


@mutant(
    "rows beyond the 512th of the call before",
    operations=(ScaledDotProductAttention, DotProductAttention, DotScores),
    breaks=("sizes.beyond",),
    source="pytorch/pytorch#142228: a buffer that a grid which is too small fills in part",
    profile="full",
)
class StaleRows(Library):
    """Results go into a buffer per shape, of which later calls renew only the first 512 rows."""

    def finished(self, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
        """Write the first rows into the buffer of this shape."""
        buffers: dict[Any, Numbers] = vars(self).setdefault("buffers", {})
        found = super().finished(operation, result, arguments)
        if found.shape[-2] <= BUFFER:
            return found
        buffer = buffers.setdefault((operation.name, found.shape, found.dtype), found.copy())
        buffer[..., :BUFFER, :] = found[..., :BUFFER, :]
        return buffer.copy()


@mutant(
    "keys beyond the 512th of the call before",
    operations=(ScaledDotProductAttention, AdditiveAttention, MultiHeadAttention),
    breaks=("sizes.beyond",),
    source="pytorch/pytorch#162588: positions that a cache has not been told of",
    profile="full",
)
class StaleKeys(Library):
    """Keys go into a cache per shape, of which later calls renew only the first 512."""

    def prepared(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Write the first keys into the cache of this shape."""
        caches: dict[Any, Numbers] = vars(self).setdefault("caches", {})
        prepared = super().prepared(operation, arguments)
        path = key(operation)
        x = at(prepared, path)
        if x.shape[-2] <= BUFFER:
            return prepared
        cache = caches.setdefault((operation.name, x.shape, x.dtype), x.copy())
        cache[..., :BUFFER, :] = x[..., :BUFFER, :]
        return changed(prepared, {path: cache.copy()})
