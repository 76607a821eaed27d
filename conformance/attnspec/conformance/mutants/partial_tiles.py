"""Mutants that lose the remainder beyond whole tiles, grids or buffers.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must
detect the defect alone. ``prepare`` converts the arguments, ``finish`` converts the result and ``differentiate``
computes the gradients. ``vars(self)`` holds what one backend remembers between calls.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments, Gradients, arrays, at, changed, key, mask_of, query, sizes
from attnspec.spec.attention import AdditiveAttention, DotProductAttention, ScaledDotProductAttention
from attnspec.spec.contract.axes import Axis, Role
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import map_tree
from attnspec.spec.multihead import ConcatHeadsAttention, MultiHeadAttention
from attnspec.spec.normalization import Softmax
from attnspec.spec.pooling import AttentionPooling
from attnspec.spec.scoring import DotScores
from attnspec.spec.transformer import FeedForward, LayerNorm, LayerNormParameters

BUFFER_ROWS, HALF_TILE = 512, 8
"""Rows that a buffer holds, and half the width of a tile."""


def _narrow(x: Numbers, width: int, limit: int) -> Numbers:
    """Set features from ``limit`` on to 0 if there are exactly ``width``."""
    return np.where(np.arange(width) < limit, x, x.dtype.type(0)) if x.shape[-1] == width else x


@mutant(
    "last 32 of 96 features ignored",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotScores),
    breaks=("sizes.model-sizes",),
    source="Dao-AILab/flash-attention#2541: head sizes between those that kernels are made for",
)
def half_a_tile(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """The last 32 of exactly 96 features are ignored."""
    prepared = Library.prepare(correct, operation, arguments)
    path = query(operation)
    return changed(prepared, {path: _narrow(at(prepared, path), 96, 64)})


@mutant(
    "last 32 of 160 value columns are 0",
    replaces="prepare",
    operations=(ScaledDotProductAttention, AttentionPooling, AdditiveAttention),
    breaks=("sizes.model-sizes",),
    source="pytorch/pytorch#169222: heads of 160 features and more",
)
def half_a_tile_of_values(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """The last 32 of exactly 160 columns of values are 0."""
    prepared = Library.prepare(correct, operation, arguments)
    path = operation.attended[-1].path
    return changed(prepared, {path: _narrow(at(prepared, path), 160, 128)})


@mutant(
    "last 4 features beyond whole vectors of 8 ignored",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotScores),
    breaks=("sizes.model-sizes",),
    source="vectors of eight numbers, the last one half full",
)
def half_a_vector(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """The last four of 84, 92, 100, … features are ignored."""
    prepared = Library.prepare(correct, operation, arguments)
    path = query(operation)
    width = at(prepared, path).shape[-1]
    return changed(prepared, {path: _narrow(at(prepared, path), width, width - 4 * (width > 80 and width % 8 == 4))})


@mutant(
    "last of an odd number of features ignored",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotScores),
    breaks=("sizes.model-sizes",),
    source="vectors of two numbers, the last one half full",
)
def odd_feature(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """The last of an odd number of features above 66 is ignored."""
    prepared = Library.prepare(correct, operation, arguments)
    path = query(operation)
    width = at(prepared, path).shape[-1]
    return changed(prepared, {path: _narrow(at(prepared, path), width, width - (width > 66 and width % 2))})


@mutant(
    "last 16 of 32 value columns are 0 beside 64 features",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("sizes.model-sizes",),
    source="a tile of values as wide as a tile of keys, half of it not written",
)
def narrow_values(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """The last 16 of 32 columns of values are 0 beside 64 features."""
    prepared = Library.prepare(correct, operation, arguments)
    path = operation.attended[-1].path
    halved = sizes(operation, arguments)[2:] == (64, 32)
    return changed(prepared, {path: _narrow(at(prepared, path), 32, 16)}) if halved else prepared


@mutant(
    "last 64 of 576 features ignored",
    replaces="prepare",
    operations=(ScaledDotProductAttention,),
    breaks=("sizes.large-sizes",),
    source="multi-head latent attention, whose last 64 features are those of positions",
    profile="full",
)
def without_positional_features(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """The last 64 of 576 features are ignored."""
    prepared = Library.prepare(correct, operation, arguments)
    path = query(operation)
    return changed(prepared, {path: _narrow(at(prepared, path), 576, BUFFER_ROWS)})


@mutant(
    "keys beyond the 65,536th masked",
    replaces="mask_scores",
    operations=(Softmax, ScaledDotProductAttention),
    breaks=("sizes.large-sizes",),
    source="an index of 16 bits",
    profile="full",
)
def keys_in_16_bits(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Keys from the 65,537th on are masked."""
    masked = Formulas.mask_scores(correct, scores, mask)
    keys = scores.shape[-1]
    return np.where(np.arange(keys) < 1 << 16, masked, scores.dtype.type(-np.inf)) if keys > 1 << 16 else masked


@mutant(
    "mean and variance of the first 1,024 features",
    replaces="layer_norm",
    operations=(LayerNorm,),
    breaks=("sizes.model-sizes",),
    source="one block of 1,024 threads for every row, without a loop",
)
def moments_of_a_block(
    correct: Formulas, x: Numbers, parameters: LayerNormParameters[Numbers], *, epsilon: float = 1e-5
) -> Numbers:
    """Mean and variance are those of the first 1,024 features."""
    centred = x - np.mean(x[..., :1024], axis=-1, keepdims=True)
    deviation = np.sqrt(correct.variance(centred[..., :1024]) + x.dtype.type(correct.epsilon(epsilon)))
    return parameters.gain * centred / deviation + parameters.bias


@mutant(
    "gradients of weights from the first 256 rows only",
    replaces="differentiate",
    operations=(LayerNorm, FeedForward),
    breaks=("sizes.large-size-gradients",),
    source="one block of 256 threads for the sums over rows, without a loop",
    profile="full",
)
def gradients_of_a_block(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """Only the first 256 rows contribute to the gradients of weights."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    rows = cotangent.reshape(-1, cotangent.shape[-1])
    if len(rows) <= 256:
        return gradients
    first = np.where(np.arange(len(rows))[:, None] < 256, rows, rows.dtype.type(0)).reshape(cotangent.shape)
    of_first_rows = Library.differentiate(correct, operation, arguments, first)
    unbatched = {leaf.path for leaf in operation.floats if not leaf.batched}
    return {path: of_first_rows[path] if path in unbatched else g for path, g in gradients.items()}


def _is_half_full(width: int) -> bool:
    """True for 40, 56, …, 120 features, whose last tile of 16 is half full."""
    return 40 <= width <= 120 and width % 16 == HALF_TILE


def _without_half_a_tile(prepared: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Set the last eight features at ``path`` to 0 if their tile is half full."""
    width = at(prepared, path).shape[-1]
    limit = width - HALF_TILE if _is_half_full(width) else width
    return changed(prepared, {path: _narrow(at(prepared, path), width, limit)})


@mutant(
    "last 8 features of a half-full tile ignored",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotProductAttention, DotScores),
    breaks=("sizes.model-sizes",),
    source="heads of 40 and 72 features, as of Stable Diffusion and SigLIP, in matrix products of 16 by 16",
)
def half_a_product(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """The last eight of 40, 56, 72, 88, 104 or 120 features are ignored."""
    return _without_half_a_tile(Library.prepare(correct, operation, arguments), query(operation))


@mutant(
    "last 8 value columns of a half-full tile are 0",
    replaces="prepare",
    operations=(ScaledDotProductAttention, AttentionPooling, AdditiveAttention),
    breaks=("sizes.model-sizes",),
    source="values of 40 and 72 features, as of Stable Diffusion and SigLIP, in matrix products of 16 by 16",
)
def half_a_product_of_values(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """The last eight value columns of 40, 56, 72, 88, 104 or 120 are 0."""
    return _without_half_a_tile(Library.prepare(correct, operation, arguments), operation.attended[-1].path)


@mutant(
    "columns of a mask read modulo 256",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotProductAttention, Softmax),
    breaks=("sizes.model-sizes",),
    source="the column of a mask as an unsigned char, in the kernel for more than 16 queries",
)
def columns_in_a_byte(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Columns of a mask are read modulo 256 if it has more than 16 rows."""
    prepared = Library.prepare(correct, operation, arguments)
    mask = mask_of(operation, prepared)
    if operation.mask is None or mask is None or mask.ndim < 2 or mask.shape[-2] <= 16:
        return prepared
    return changed(prepared, {operation.mask.path: mask[..., np.arange(mask.shape[-1]) % 256]})


@mutant(
    "keys beyond the 1,024th lost for queries beyond it",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("sizes.large-sizes",),
    source="a grid of 1,024 tiles, each of some queries and some keys",
    profile="full",
)
def late_tiles(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Queries beyond the 1,024th do not see keys beyond the 1,024th."""
    prepared = Library.prepare(correct, operation, arguments)
    n, m, *_ = sizes(operation, prepared)
    if operation.mask is None or n <= 2 * BUFFER_ROWS or m <= 2 * BUFFER_ROWS:
        return prepared
    early = (np.arange(n)[:, None] < 2 * BUFFER_ROWS) | (np.arange(m) < 2 * BUFFER_ROWS)
    mask = mask_of(operation, prepared)
    return {**prepared, operation.mask.path: early if mask is None else early & mask}


@mutant(
    "heads beyond the eighth use its weights",
    replaces="prepare",
    operations=(MultiHeadAttention, ConcatHeadsAttention),
    breaks=("sizes.model-sizes",),
    source="pointers to the weights of at most eight heads",
)
def eight_heads(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Heads beyond the eighth use the weights of the eighth."""
    prepared = Library.prepare(correct, operation, arguments)
    heads = operation.sizes_of(Axis.HEAD)
    weights = {
        leaf.path: x
        for leaf, x in arrays(operation, prepared)
        if operation.role(leaf) & Role.WEIGHT and any(-3 in leaf.axes(name) for name in heads)
    }
    return changed(prepared, {path: x[np.minimum(np.arange(len(x)), 7)] for path, x in weights.items()})


def _keep_elements(operation: Operation, result: Any, count: int) -> Any:
    """Set all but the first ``count`` batch elements of a result to 0."""
    core = len(operation.leading.core)

    def zero_others(x: Numbers) -> Numbers:
        flat = x.reshape(-1, *x.shape[x.ndim - core :])
        computed = (np.arange(len(flat)) < count).reshape(-1, *(1,) * core)
        return np.where(computed, flat, x.dtype.type(0)).reshape(x.shape)

    return map_tree(result, lambda _, x: zero_others(x))


def _batch_size(operation: Operation, result: Any) -> int:
    return int(np.prod(result.shape[: result.ndim - len(operation.leading.core)]))


@mutant(
    "batch of exactly 65,535 elements not computed",
    replaces="finish",
    operations=(ScaledDotProductAttention, DotScores),
    breaks=("sizes.large-sizes",),
    source="facebookresearch/xformers#845: the remainder of a batch cut into grids of 65,535",
    profile="full",
)
def full_grid(correct: Library, operation: Operation, result: Any, arguments: Arguments) -> Any:
    """All results are 0 for a batch of exactly 65,535 elements."""
    whole = Library.finish(correct, operation, result, arguments)
    count = _batch_size(operation, whole)
    return _keep_elements(operation, whole, 0) if count == 65535 else whole


@mutant(
    "batch elements counted modulo 65,536",
    replaces="finish",
    operations=(ScaledDotProductAttention, DotScores),
    breaks=("sizes.large-sizes",),
    source="flashinfer-ai/flashinfer#3125, pytorch/pytorch#177985: 65,536 elements, and nothing is raised",
    profile="full",
)
def counted_in_sixteen_bits(correct: Library, operation: Operation, result: Any, arguments: Arguments) -> Any:
    """Beyond 65,535 batch elements, only the first (count mod 65,536) are computed; other results are 0."""
    whole = Library.finish(correct, operation, result, arguments)
    count = _batch_size(operation, whole)
    return _keep_elements(operation, whole, count % 65536) if count > 65535 else whole


@mutant(
    "rows beyond the 512th kept from the first call",
    operations=(ScaledDotProductAttention, DotProductAttention, DotScores),
    breaks=("sizes.large-sizes",),
    source="pytorch/pytorch#142228: a buffer filled in part by too small a grid",
    profile="full",
)
class StaleRows(Library):
    """Rows beyond the 512th are those of the first call of the same shape."""

    def finish(self, operation: Operation, result: Any, arguments: Arguments) -> Any:
        """Write the first rows into the buffer of this shape."""
        buffers: dict[Any, Numbers] = vars(self).setdefault("buffers", {})
        fresh = super().finish(operation, result, arguments)
        if fresh.shape[-2] <= BUFFER_ROWS:
            return fresh
        buffer = buffers.setdefault((operation.name, fresh.shape, fresh.dtype), fresh.copy())
        buffer[..., :BUFFER_ROWS, :] = fresh[..., :BUFFER_ROWS, :]
        return buffer.copy()


@mutant(
    "keys beyond the 512th kept from the first call",
    operations=(ScaledDotProductAttention, AdditiveAttention, MultiHeadAttention),
    breaks=("sizes.large-sizes",),
    source="pytorch/pytorch#162588: positions beyond the recorded length of a cache",
    profile="full",
)
class StaleKeys(Library):
    """Keys beyond the 512th are those of the first call of the same shape."""

    def prepare(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Write the first keys into the cache of this shape."""
        caches: dict[Any, Numbers] = vars(self).setdefault("caches", {})
        prepared = super().prepare(operation, arguments)
        path = key(operation)
        x = at(prepared, path)
        if x.shape[-2] <= BUFFER_ROWS:
            return prepared
        cache = caches.setdefault((operation.name, x.shape, x.dtype), x.copy())
        cache[..., :BUFFER_ROWS, :] = x[..., :BUFFER_ROWS, :]
        return changed(prepared, {path: cache.copy()})
