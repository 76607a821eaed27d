"""Launch arguments of the additive Triton kernels: padding, tiles, warps, masks, buffers.

Nothing here synchronises with the device, so that every launch can be captured in a CUDA graph.
"""

import contextlib
import math
import os
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from triton.runtime import driver

from attnspec.backends.pytorch.kernels.additive.triton.factors import factors_kernel, weights_kernel
from attnspec.backends.pytorch.kernels.additive.triton.forward import combine_kernel

INTERPRET = os.environ.get("TRITON_INTERPRET") == "1"
BLOCK = 16
NARROWEST = 64  # keys of a tile: products take a quarter of a tile, and tl.dot needs an inner dimension of at least 16
WIDEST = 256
WIDEST_OF_GRADIENTS = 128  # keys of a tile that one warp computes
WIDEST_VALUE = 256
SHARED_BYTES_OF_WIDEST = 104_448
"""Shared memory of a block with `WIDEST_VALUE` features in three parts. Compute capabilities 8.6, 8.9 and 12.0 have
101,376 bytes."""


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least n; 1 for n = 0."""
    return 1 << max(n - 1, 0).bit_length()


def tile_width(m: int, blocks: int, processors: int) -> int:
    """Choose the number of keys of a tile.

    The rule is fixed: autotuning would synchronise and cost seconds for each new shape. Short sequences get a narrower
    tile instead of padding. So do `blocks` of queries with too few tiles of m keys to give each multiprocessor one.
    """
    wide = min(max(power_of_two(m), NARROWEST), WIDEST)
    while wide > NARROWEST and blocks * -(-m // wide) < processors:
        wide //= 2
    return wide


def tiles_per_program(tiles: int, blocks: int, processors: int) -> int:
    """Split the tiles of a block's keys over programs.

    Each multiprocessor gets a program if there are enough tiles. A split needs buffers for its sums, so there is none
    if there are as many blocks as multiprocessors.
    """
    return max(tiles // -(-processors // blocks), 1)


def tile_warps(wide: int, d_v: int, programs: int, processors: int) -> int:
    """Return the warps of a tile.

    16 x 256 with 2 warps is 64 scores a thread, 8 operations per number loaded; with a wide d_v more warps share the
    tile of values, which would not fit the registers of two. More warps also share a tile where the programs are too
    few to give each of a multiprocessor's four schedulers one warp, up to 8 scores a thread, which takes 5.6
    instructions a term instead of 3.5. `NARROWEST` keys suffice for 4 warps, so schedulers are idle only if there are
    fewer tiles of so many keys than multiprocessors.
    """
    warps = max(1, wide // 128, min(power_of_two(d_v) // 32, wide // 32))
    while warps < wide // 16 and programs * warps < 4 * processors:
        warps *= 2
    return warps


def most_score_parts(n: int, m: int, hidden: int) -> int:
    """Return the most parts of the hidden units over which programs may sum scores.

    There is at least one. Partial scores may take as much memory as the factors, so that adding them up takes less time
    than computing them.
    """
    return max(min(hidden * (n + m) // (n * m), hidden // 3), 1)


@lru_cache(maxsize=8)
def multiprocessors(device: torch.device) -> int:
    """Return the number of the device's multiprocessors."""
    return 1 if INTERPRET else int(torch.cuda.get_device_properties(device).multi_processor_count)


@dataclass(frozen=True)
class Splits:
    """Numbers of parts into which queries, keys and hidden units are split."""

    queries: int
    keys: int
    hidden: int


def gradient_splits(batch: int, blocks: int, tiles: int, hidden: int, processors: int) -> Splits:
    """Split the gradients of a batch between programs of one warp.

    An entry has `blocks` of queries, `tiles` of keys and `hidden` units. A multiprocessor's registers hold 8 warps of
    255 registers a thread, two for each scheduler, and there are at most as many programs unless the batch is larger.
    Each split of the queries has buffers for the gradients of all keys and values, each split of the keys for those of
    all queries. The two numbers are near each other, or limited by the blocks and tiles: for equally many queries and
    keys, buffers take about sqrt(8 processors / batch) times the memory of the gradients, whatever the length. Splits
    of hidden units take no memory, but each computes the scores again, so they only use what would be idle.
    """
    programs = max(8 * processors // max(batch, 1), 1)
    keys = max(min(tiles, math.isqrt(programs)), 1)
    queries = max(min(blocks, programs // keys), 1)
    keys = max(min(tiles, programs // queries), 1)
    return Splits(queries, keys, max(min(hidden, programs // (queries * keys)), 1))


@lru_cache(maxsize=8)
def shared_bytes(device: torch.device) -> int:
    """Return the most shared memory that a block may have on this device, in bytes."""
    if INTERPRET:
        return SHARED_BYTES_OF_WIDEST
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(driver.active.utils.get_device_properties(index)["max_shared_mem"])


def widest_value(value: Tensor) -> int:
    """Return the most value features of a program: `WIDEST_VALUE`, or half where shared memory is too small."""
    fits = number_of_parts(value) == 1 or shared_bytes(value.device) >= SHARED_BYTES_OF_WIDEST
    return WIDEST_VALUE if fits else WIDEST_VALUE // 2


def padded(length: int, wide: int) -> int:
    """Return the smallest multiple of `wide` that is at least the length."""
    return -(-length // wide) * wide


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Run the kernel, without NumPy's warnings: the interpreter would warn of every intended infinity and NaN."""
    if 0 in grid:
        return
    with contextlib.ExitStack() as context:
        if INTERPRET:
            context.enter_context(np.errstate(all="ignore"))
            context.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", RuntimeWarning)
        else:
            context.enter_context(torch.cuda.device_of(arguments[0]))  # type: ignore[no-untyped-call]
        kernel[grid](*arguments, **options)


@dataclass(frozen=True)
class Weights:
    """Outputs of `weights_kernel`, and the number of stored columns: hidden units, padded to groups of three."""

    ratio: Tensor
    flip: Tensor
    constants: Tensor
    stored: int


def scaled_weights(w_v: Tensor) -> Weights:
    """Launch `weights_kernel` on w_v."""
    hidden = w_v.shape[0]
    stored = padded(hidden, 3)
    ratio = w_v.new_empty(stored, dtype=torch.float32)
    flip = torch.empty_like(ratio)
    constants = w_v.new_empty(2, dtype=torch.float32)
    block = min(max(power_of_two(stored), 16), 1024)
    launch(weights_kernel, (1,), w_v, ratio, flip, constants, hidden, stored, BH=block)
    return Weights(ratio, flip, constants, stored)


@dataclass(frozen=True)
class Factors:
    """exp(2x) of queries or keys as (B, hidden, rows), scaled by max|w|/w, unscaled, or both; and their ranges.

    The other fields are outputs of `factors_kernel`; those that a launch does not write are empty.
    """

    scaled: Tensor
    unscaled: Tensor
    ranges: Tensor
    nonfinite: Tensor
    parts: Tensor
    rows_padded: int


@dataclass(frozen=True)
class Partials:
    """Attention of rows to each split of their keys: largest scores, denominators, and weighted sums of values.

    Their shapes are (rows, splits), (rows, splits) and (rows, splits, d_v).
    """

    largest: Tensor
    denominator: Tensor
    total: Tensor


def empty_partials(like: Tensor, rows: int, splits: int, d_v: int) -> Partials:
    """Empty buffers for `combine`."""
    largest = like.new_empty((rows, splits), dtype=torch.float32)
    return Partials(largest, torch.empty_like(largest), largest.new_empty(rows, splits, d_v))


def combine(partials: Partials, out: Tensor, lse: Tensor | None = None) -> None:
    """Launch `combine_kernel`: write the attention of each row to out and, if wanted, its logarithm to lse."""
    rows, splits, d_v = partials.total.shape
    block = min(max(power_of_two(d_v), 16), 256)
    launch(
        combine_kernel, (rows, -(-d_v // block)), partials.largest, partials.denominator, partials.total, out,
        partials.largest if lse is None else lse, splits, d_v, BD=block, LSE=lse is not None, num_warps=1,
    )  # fmt: skip


def number_of_parts(value: Tensor) -> int:
    """Return 3 for float32, which tensor cores multiply as three bfloat16 parts; else 1."""
    return 3 if value.dtype == torch.float32 and not INTERPRET else 1


def value_parts(value: Tensor, rows_padded: int) -> Tensor:
    """Empty buffer for padded values: (parts, B, rows, d)."""
    parts = number_of_parts(value)
    width = max(power_of_two(value.shape[-1]), 16)
    width = width if width <= WIDEST_VALUE else padded(value.shape[-1], WIDEST_VALUE)
    return value.new_empty(
        (parts, value.shape[0], rows_padded, width), dtype=torch.bfloat16 if parts > 1 else value.dtype
    )


def factors(
    x: Tensor, weights: Weights, wide: int, *, scaled: bool, unscaled: bool, value: Tensor | None = None
) -> Factors:
    """Launch `factors_kernel` on x (B, rows, hidden), contiguous; rows are padded to tiles of `wide`."""
    batch, rows, hidden = x.shape
    size = padded(rows, wide)
    blocks = size // BLOCK
    empty = x.new_empty(0, dtype=torch.float32)
    shape = (batch, weights.stored, size)
    result = Factors(
        scaled=x.new_empty(shape, dtype=torch.float32) if scaled else empty,
        unscaled=x.new_empty(shape, dtype=torch.float32) if unscaled else empty,
        ranges=x.new_empty((batch, size), dtype=torch.float32),
        nonfinite=x.new_empty((batch, blocks), dtype=torch.float32) if value is not None else empty,
        parts=empty if value is None else value_parts(value, size),
        rows_padded=size,
    )
    d_v = 1 if value is None else value.shape[-1]
    launch(
        factors_kernel, (batch * blocks,), x, weights.ratio, weights.flip, result.scaled, result.unscaled,
        result.ranges, x if value is None else value, result.parts, result.nonfinite, rows, size,
        hidden, weights.stored, d_v, result.parts.shape[-1], result.parts[:1].numel(),
        GROUPS=min(power_of_two(weights.stored // 3), 32), BV=min(max(power_of_two(d_v), 16), 64), SCALED=scaled,
        UNSCALED=unscaled, PARTS=0 if value is None else result.parts.shape[0], num_warps=4,
    )  # fmt: skip
    return result


def compact_mask(mask: Tensor, batch: tuple[int, ...], n: int, m: int) -> tuple[Tensor, int]:
    """Return the mask as (outer, inner, n, m), 1 where broadcast, and the inner size.

    Broadcast axes are not copied, even if the caller expanded them. Only a mask whose broadcast and own batch
    dimensions alternate in three or more groups is copied over the batch, never over n or m.
    """
    mask = mask.reshape((1,) * (len(batch) + 2 - mask.dim()) + tuple(mask.shape))
    for axis in range(mask.dim()):
        if mask.shape[axis] > 1 and mask.stride(axis) == 0:
            mask = mask.narrow(axis, 0, 1)
    mask_batch = tuple(mask.shape[:-2])
    for cut in range(len(batch), -1, -1):
        outer, inner = mask_batch[:cut], mask_batch[cut:]
        if all(part in ((1,) * len(part), full) for part, full in ((outer, batch[:cut]), (inner, batch[cut:]))):
            sizes = (math.prod(outer), math.prod(inner))
            return mask.reshape(*sizes, *mask.shape[-2:]), math.prod(batch[cut:])
    size = math.prod(batch)
    return mask.expand(*batch, *mask.shape[-2:]).reshape(size, 1, *mask.shape[-2:]), 1


def mask_arguments(mask: Tensor | None, stand_in: Tensor) -> tuple[Tensor, list[int]]:
    """Return the mask as bytes and its four strides, 0 where it broadcasts; `stand_in` if there is no mask."""
    if mask is None:
        return stand_in, [0, 0, 0, 0]
    return mask.view(torch.uint8), [mask.stride(axis) if mask.shape[axis] > 1 else 0 for axis in range(4)]
