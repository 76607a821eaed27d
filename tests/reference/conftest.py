"""Arguments for every operation, drawn from its Protocol."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
import pytest

from attnspec.spec import OPERATIONS, Kind, Leaf, Operation, Option
from attnspec.spec.contract.axes import ScoreEffect
from attnspec.spec.contract.tree import Branch, build_tree

_SIZES = (
    "n=3 m=4 d=2 d_q=5 d_k=6 d_v=7 h=2 heads=2 p_q=3 p_k=7 p_v=4 p_o=5 d_x=5 d_m=3 d_s=5 d_h=6 f=4 q=3 d_p=4"
    " vocabulary=6 p=3 spare=2 cached=4 source_vocabulary=7 d_y=3 t=4 depth=3 steps=3 beams=2"
    " slices=6 rows=2 columns=3 slices_from=2 rows_from=3 columns_from=5 patch=3 channels=4 d_g=7"
    " taps=3 past=2 slots=5 s=3 heads_k=2 group=3 pages=5 blocks=2 page=3 sequences=2 parts=3 pairs=2 rest=1 axes=4"
    " d_c=5 d_r=3"
    " entries=3 query_blocks=2 key_blocks=1"
    " quarters=2"
)
SIZES: Mapping[str, int] = {name: int(size) for name, size in (pair.split("=") for pair in _SIZES.split())}
"""Sizes of random arguments; all sizes of one argument differ, so that axes cannot be confused."""
ITEMS = 3
"""Number of layers and of other repeated trees."""

Draw = Callable[..., dict[str, Any]]


def draw_arguments(
    name: str,
    rng: np.random.Generator,
    dtype: Any = np.float64,
    *,
    batch: tuple[int, ...] = (),
    causal: bool = False,
    **sizes: int,
) -> dict[str, Any]:
    """Random arguments: floats in [−1, 1] that float32 holds exactly, masks that allow about two keys in three.

    Sizes that need not be given are left out, and so are flags, but for `causal`. The mean of the moments is a vector.
    """
    operation, chosen = OPERATIONS[name], {**SIZES, **sizes}

    def number(factor: str) -> int:
        if "+" in factor:
            return sum(map(number, factor.split("+")))
        if "*" in factor:
            return prod(map(number, factor.split("*")))
        return int(factor) if factor.isdigit() else chosen[factor.rpartition(".")[2]]

    def draw_array(leaf: Leaf) -> Any:
        core = tuple(prod(map(number, d.factors)) for d in leaf.core if not d.variadic)
        shape = (chosen["d"],) if leaf.free else (*(batch if leaf.batched else ()), *core)
        if leaf.kind is Kind.FLOAT:
            return rng.uniform(-1, 1, shape).astype(np.float32).astype(dtype)
        if leaf.kind is Kind.BOOL:
            return rng.random(shape) < 2 / 3
        if leaf.path in operation.cumulative:
            # No sequence is empty, if there are enough positions.
            total = number(operation.cumulative[leaf.path])
            return np.linspace(0, total, shape[0]).astype(int)
        if leaf.path in operation.selections:
            count = number(operation.selections[leaf.path])
            orders = np.argsort(rng.random((*shape[:-1], max(count, shape[-1]))))[..., : shape[-1]]
            return np.where((rng.random(shape) < 2 / 3) & (orders < count), orders, -1)
        if leaf.path in operation.generated_below:
            return rng.integers(0, operation.generated_below[leaf.path], shape)
        return rng.integers(0, largest_integer(operation, leaf.path, number) + 1, shape)

    def choose(option: Option) -> Any:
        if option.path == operation.flag:
            return causal
        if option.optional or option.path in operation.defaults:
            return None
        if option.kind is Kind.SIZE:
            return number(option.path)
        if option.path in operation.indices:
            return int(rng.integers(number(operation.indices[option.path])))
        return (*option.choices, *operation.trial_values.get(option.path, ()))[0]

    def at(node: Leaf | Option) -> Any:
        return draw_array(node) if isinstance(node, Leaf) else choose(node)

    def count(branch: Branch) -> int:
        return ITEMS

    drawn = {name: value for name, value in build_tree(operation.call, at, count).items() if value is not None}
    if "sigma" in drawn:
        np.abs(drawn["sigma"], out=drawn["sigma"])
    return drawn


def without_keys_for_first_query(operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
    """Mask all keys of the first query, or of the only one; sinks, which every query attends to, are left out."""
    changed = {x: v for x, v in arguments.items() if operation.parts.get(x) is not ScoreEffect.SINK}
    for leaf in operation.masks.values():
        mask = changed[leaf.path].copy()
        mask[(..., 0, slice(None)) if len(leaf.core) > 1 else ...] = False
        changed[leaf.path] = mask
    return changed


def largest_integer(operation: Operation, path: str, number: Callable[[str], int]) -> int:
    """The largest integer that an argument may hold: a length, or an index."""
    return number(operation.lengths[path]) if path in operation.lengths else number(operation.indices[path]) - 1


@pytest.fixture
def draw() -> Draw:
    """`draw_arguments` with a generator of its own."""

    def drawn(operation: str, dtype: Any = np.float64, seed: int = 0, **options: Any) -> dict[str, Any]:
        return draw_arguments(operation, np.random.default_rng(seed), dtype, **options)

    return drawn
