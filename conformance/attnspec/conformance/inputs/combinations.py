"""Calls as models make them: sizes, masks, places in memory and magnitudes, in combinations.

Kernels are chosen by several of these at once, and each has a path that no other combination takes.
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
"""Elements and heads."""

AS_MANY = "as many"
"""Keys as queries, features of values as of keys."""

LEVELS: Mapping[str, Sequence[Any]] = {
    "queries": (1, 8, 65),
    "keys": (AS_MANY, 33, 64, 129),
    "head size": (64, 128, 160, 256),
    "value size": (AS_MANY, 48),
    "masks": ("none", "triangle", "shared", "own"),
    "layout": ("contiguous", "heads behind positions", "one for all heads"),
    "numbers": ("normal", "outlier", "opposed"),
}
"""A triangle is the causal mask; other masks are shared by the heads, or each has its own."""

HEADS = -3
"""The axis of heads, where queries, keys and values have no weights."""

TRIES = 40


@lru_cache(maxsize=128)
def combinations(operation: Operation, limits: Limits, strength: int) -> tuple[Row, ...]:
    """Rows in which every combination of as many levels occurs."""
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
    """The arguments under a mask of this kind, which leaves every query a key and some only late ones."""
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
    """The arguments laid out in memory: with the numbers that this asks for, and as arrays of the backend."""
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
