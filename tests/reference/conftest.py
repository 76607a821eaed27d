"""Arguments for every operation, drawn from its Protocol."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
import pytest

from attnspec.spec import OPERATIONS, Kind, Operation

_SIZES = "n=3 m=4 d=2 d_q=5 d_k=6 d_v=7 h=2 p_q=3 p_v=4 p_o=5 d_x=5 d_m=3 d_s=5 d_h=6"
SIZES: Mapping[str, int] = {name: int(size) for name, size in (pair.split("=") for pair in _SIZES.split())}
"""No two sizes that meet in one argument are equal, so that no axis can be taken for another."""

Draw = Callable[..., dict[str, Any]]


def argument_shapes(operation: Operation, batch: tuple[int, ...] = (), **sizes: int) -> dict[str, Any]:
    """A shape for every array argument, a number for every size; a vector of d coordinates for the moments."""
    chosen = {**SIZES, **sizes}
    result: dict[str, Any] = {}
    for a in operation.arguments:
        if a.is_array:
            core = tuple(prod(chosen[f] for f in d.factors) for d in a.core)
            own = (chosen["d"],) if a.batched and a.dims[0].name == "coordinates" else batch
            result[a.name] = (own if a.batched else ()) + core
        elif a.kind is Kind.SIZE and not a.optional:
            result[a.name] = chosen[a.name]
    return result


def draw_arguments(
    operation: str, rng: np.random.Generator, dtype: Any = np.float64, *, causal: bool = False, **how: Any
) -> dict[str, Any]:
    """Random arguments: floats in [−1, 1] that float32 holds exactly, masks that allow about two keys in three."""
    drawn: dict[str, Any] = {}
    for name, shape in argument_shapes(OPERATIONS[operation], **how).items():
        kind = OPERATIONS[operation].argument(name).kind
        if kind is Kind.FLOAT:
            drawn[name] = rng.uniform(-1, 1, shape).astype(np.float32).astype(dtype)
        elif kind is Kind.BOOL:
            drawn[name] = rng.random(shape) < 2 / 3
        elif kind is Kind.INT:
            drawn[name] = rng.integers(0, SIZES["m"] + 1, shape)
        else:
            drawn[name] = shape
    if "sigma" in drawn:
        np.abs(drawn["sigma"], out=drawn["sigma"])
    if OPERATIONS[operation].takes("causal"):
        drawn["causal"] = causal
    return drawn


@pytest.fixture
def draw() -> Draw:
    """`draw_arguments` with a generator of its own."""

    def drawn(operation: str, dtype: Any = np.float64, seed: int = 0, **how: Any) -> dict[str, Any]:
        return draw_arguments(operation, np.random.default_rng(seed), dtype, **how)

    return drawn
