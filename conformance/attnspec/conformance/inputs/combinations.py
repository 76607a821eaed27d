"""Combinations of sizes, masks, memory layouts and magnitudes, as models call attention.

Kernels are chosen by several of these together, so some run for a single combination only.
"""

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.attendance import mask_shape
from attnspec.conformance.inputs.corners import Row, covering_rows
from attnspec.conformance.inputs.layouts import Convert, heads_behind, same_slices, with_stride_0
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import Operation

BATCH = (2, 2)
"""Batch elements and heads."""

AS_MANY = "as many"
"""Level: keys equal queries in number, or value features equal key features."""

LEVELS: Mapping[str, Sequence[Any]] = {
    "queries": (1, 8, 65),
    "keys": (AS_MANY, 33, 64, 129),
    "head size": (64, 128, 160, 256),
    "value size": (AS_MANY, 48),
    "masks": ("none", "triangle", "shared", "own"),
    "layout": ("contiguous", "heads behind positions", "one for all heads"),
    "numbers": ("normal", "outlier", "opposed"),
}
"""Levels by factor. Masks: ``triangle`` is causal, ``shared`` by all heads, ``own`` per head. Numbers: ``outlier`` has
one large feature, ``opposed`` has queries opposite to keys (``laws.sizes`` makes both)."""

HEAD_AXIS = -3
"""The axis of heads in operations without projection weights."""

TRIES = 40
"""Candidates for each row; to combine three levels, 40 need about 5 % fewer rows than 12."""


@lru_cache(maxsize=128)
def combinations(operation: Operation, limits: Limits, strength: int) -> tuple[Row, ...]:
    """Rows in which every combination of ``strength`` levels occurs."""
    levels = dict(LEVELS)
    rejected = [leaf.path for leaf in operation.masks.values() if not limits.mask or not limits.has(leaf.path)]
    broadcasts = limits.broadcasting and limits.max_batch_dims > 1
    available = {
        "none": True,
        "triangle": operation.flag is not None and limits.causal and limits.has(operation.flag),
        "shared": not rejected and broadcasts,
        "own": not rejected,
    }
    levels["masks"] = [level for level in LEVELS["masks"] if available[level]]
    if limits.contiguous_only:
        levels["layout"] = LEVELS["layout"][:1]
    # The bound of 1000 is never reached: combinations of three levels fill fewer than 100 rows.
    return tuple(covering_rows(levels, random.Random(0), 1000, TRIES, strength))


def with_mask_level(arguments: Arguments, kind: str, rng: np.random.Generator) -> Arguments:
    """A copy under a mask of this level; every query keeps the last key."""
    if kind == "none":
        return arguments
    if kind == "triangle":
        return arguments.under_causal()
    shape = mask_shape(arguments)
    mask = rng.random(shape if kind == "own" else (*shape[:-3], 1, *shape[-2:])) < 0.7
    # Every second query attends to the second half of the keys only, so that its first tiles are empty.
    mask[..., 1::2, : shape[-1] // 2] = False
    mask[..., -1:] = True
    return arguments.with_mask(mask)


def in_layout(arguments: Arguments, layout: str, convert: Convert) -> tuple[Arguments, dict[str, Any]]:
    """Arguments with numbers that fit a memory layout, and their backend arrays in it."""
    if layout == "one for all heads":
        shared = {path: same_slices(arguments.array(path), HEAD_AXIS) for path in _attended(arguments)}
        arguments = arguments.replaced(shared)

    def backend_array(path: str) -> Any:
        x = arguments[path]
        if not isinstance(x, np.ndarray) or layout == "contiguous":
            return convert(x)
        if layout == "heads behind positions":
            return heads_behind(x, convert)
        return with_stride_0(x, HEAD_AXIS, convert) if path in _attended(arguments) else convert(x)

    return arguments, arguments.passed_as(backend_array)


def _attended(arguments: Arguments) -> list[str]:
    return [leaf.path for leaf in arguments.operation.attended if arguments.array(leaf.path).ndim >= -HEAD_AXIS]
