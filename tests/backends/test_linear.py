"""Linear attention of more steps than the backend prepares together."""

from typing import Any

import numpy as np
import pytest

from attnspec.backends import pytorch
from attnspec.backends.bases.torch import from_numpy, gradients, to_numpy
from attnspec.backends.pytorch import linear
from tests.budgets import assert_gradients_within_budgets, assert_within_budgets

STEPS = 2 * linear.SEGMENT + 37


@pytest.mark.parametrize("options", [(), ("decay",), ("decay", "beta"), ("beta",)], ids=", ".join)
@pytest.mark.parametrize("features", [1, 2])
def test_segments_are_joined(options: tuple[str, ...], features: int) -> None:
    draw = np.random.default_rng(0)
    shapes = {"query": (2, STEPS, 2), "key": (1, STEPS, 2), "value": (1, STEPS, 3), "state": (1, 2, 3)}
    arguments: dict[str, Any] = {name: draw.standard_normal(shape) / 2 for name, shape in shapes.items()}
    arguments |= {"decay": -draw.random((1, STEPS, features)), "beta": draw.random((1, STEPS))}
    arguments = {name: np.float32(x) for name, x in arguments.items() if name in (*shapes, *options)}
    tensors: dict[str, Any] = {name: from_numpy(x, device="cpu") for name, x in arguments.items()}
    results = tuple(map(to_numpy, pytorch.linear_attention(**tensors)))
    assert_within_budgets(results, "linear_attention", **arguments, informative=False)
    weights: Any = tuple(draw.standard_normal(np.shape(x)).astype(np.float32) for x in results)
    computed = gradients(pytorch.linear_attention, tensors, tuple(from_numpy(x, device="cpu") for x in weights))
    assert_gradients_within_budgets(
        {path: to_numpy(x) for path, x in computed.items()}, weights, "linear_attention", **arguments, informative=False
    )


@pytest.mark.parametrize("largest", [1.0, 1e30])
def test_decays_to_nothing_in_every_step_of_a_chunk(largest: float) -> None:
    draw = np.random.default_rng(0)
    steps = 2 * linear.CHUNK_OF_VECTORS + 3
    arguments: dict[str, Any] = {
        "query": draw.standard_normal((1, steps, 2)) / largest,
        "key": draw.standard_normal((1, steps, 2)) * largest,
        "value": draw.standard_normal((1, steps, 3)),
        "state": draw.standard_normal((1, 2, 3)),
        "decay": draw.choice([0.0, -1.0, linear.LEAST_OF_VECTORS], (1, steps, 2), p=[0.1, 0.1, 0.8]),
    }
    arguments = {name: np.float32(x) for name, x in arguments.items()}
    tensors: dict[str, Any] = {name: from_numpy(x, device="cpu") for name, x in arguments.items()}
    results = tuple(map(to_numpy, pytorch.linear_attention(**tensors)))
    assert_within_budgets(results, "linear_attention", **arguments)
