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
from attnspec.conformance.inputs.layouts import Convert, heads_behind, repeated, same
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import Operation

BATCH = (2, 2)
"""Batch elements and heads."""

AS_MANY = "as many"
"""Level: as many keys as queries, or as many value features as key features."""

LEVELS: Mapping[str, Sequence[Any]] = {
    "queries": (1, 8, 65),
    "keys": (AS_MANY, 33, 64, 129),
    "head size": (64, 128, 160, 256),
    "value size": (AS_MANY, 48),
    "masks": ("none", "triangle", "shared", "own"),
    "layout": ("contiguous", "heads behind positions", "one for all heads"),
    "numbers": ("normal", "outlier", "opposed"),
}
"""Levels by factor: ``triangle`` is causal, other masks are per batch element or head."""

HEADS = -3
"""The axis of heads in operations without projection weights."""

TRIES = 40


@lru_cache(maxsize=128)
def combinations(operation: Operation, limits: Limits, strength: int) -> tuple[Row, ...]:
    """Rows in which every combination of ``strength`` levels occurs."""
    levels = dict(LEVELS)
    lacking = [leaf.path for leaf in operation.masks.values() if not limits.mask or not limits.has(leaf.path)]
    shared = limits.broadcasting and limits.max_batch_dims > 1
    levels["masks"] = [
        level
        for level, there in (
            ("none", True),
            ("triangle", operation.flag is not None and limits.causal and limits.has(operation.flag)),
            ("shared", not lacking and shared),
            ("own", not lacking),
        )
        if there
    ]
    if limits.contiguous_only:
        levels["layout"] = LEVELS["layout"][:1]
    return tuple(covering_rows(levels, random.Random(0), 1000, TRIES, strength))


def masked(given: Arguments, kind: str, rng: np.random.Generator) -> Arguments:
    """The arguments under a mask that leaves every query keys, some only late ones."""
    if kind == "none":
        return given
    if kind == "triangle":
        return given.under_causal()
    shape = mask_shape(given)
    mask = rng.random(shape if kind == "own" else (*shape[:-3], 1, *shape[-2:])) < 0.7
    mask[..., 1::2, : shape[-1] // 2] = False
    mask[..., -1:] = True
    return given.with_mask(mask)


def placed(given: Arguments, layout: str, convert: Convert) -> tuple[Arguments, dict[str, Any]]:
    """The arguments in a memory layout: with the numbers it requires, and as backend arrays."""
    if layout == "one for all heads":
        given = given.replaced({path: same(given.array(path), HEADS) for path in _attended(given)})

    def at(path: str) -> Any:
        x = given[path]
        if not isinstance(x, np.ndarray) or layout == "contiguous":
            return convert(x)
        if layout == "heads behind positions":
            return heads_behind(x, convert)
        return repeated(x, HEADS, convert) if path in _attended(given) else convert(x)

    return given, given.passed_as(at)


def _attended(given: Arguments) -> list[str]:
    return [leaf.path for leaf in given.operation.attended if given.array(leaf.path).ndim >= -HEADS]
