"""Combinations of what models have: which there are, and the masks and layouts of each."""

import itertools

import numpy as np
import pytest

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.combinations import LEVELS, combinations, masked, placed
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import OPERATIONS

ATTENTION = OPERATIONS["scaled_dot_product_attention"]


def call(n: int = 5, m: int = 9) -> Arguments:
    rng = np.random.default_rng(0)
    shapes = {"query": (2, 2, n, 4), "key": (2, 2, m, 4), "value": (2, 2, m, 3)}
    return Arguments(ATTENTION, {path: rng.standard_normal(shape) for path, shape in shapes.items()})


def test_every_combination_of_three_is_tried() -> None:
    rows = combinations(ATTENTION, Limits(), 3)
    for names in itertools.combinations(LEVELS, 3):
        there = {tuple(row[name] for name in names) for row in rows}
        assert there == set(itertools.product(*(LEVELS[name] for name in names)))


def test_every_pair_is_tried_by_fewer() -> None:
    rows = combinations(ATTENTION, Limits(), 2)
    assert len(rows) < len(combinations(ATTENTION, Limits(), 3)) / 2
    for names in itertools.combinations(LEVELS, 2):
        there = {tuple(row[name] for name in names) for row in rows}
        assert there == set(itertools.product(*(LEVELS[name] for name in names)))


@pytest.mark.parametrize(
    ("limits", "masks"),
    [
        (Limits(features=()), {"none"}),
        (Limits(features=("mask",)), {"none", "shared", "own"}),
        (Limits(features=("causal",)), {"none", "triangle"}),
        (Limits(broadcasting=False), {"none", "triangle", "own"}),
        (Limits(max_batch_dims=1), {"none", "triangle", "own"}),
    ],
)
def test_combinations_stay_within_the_limits(limits: Limits, masks: set[str]) -> None:
    assert {row["masks"] for row in combinations(ATTENTION, limits, 3)} == masks


def test_masks_leave_every_query_a_key() -> None:
    rng = np.random.default_rng(0)
    assert masked(call(), "none", rng).mask is None
    assert masked(call(), "triangle", rng).causal
    for kind, heads in (("shared", 1), ("own", 2)):
        mask = masked(call(), kind, rng).mask
        assert mask is not None
        assert mask.shape == (2, heads, 5, 9)
        assert mask.any(-1).all()
        assert not mask.all()
        assert not mask[..., 1::2, :4].any()


@pytest.mark.parametrize("layout", LEVELS["layout"])
def test_layouts_hold_the_numbers_of_the_arguments(layout: str) -> None:
    given, inputs = placed(call(), layout, np.ascontiguousarray)
    for path, x in given.arrays.items():
        np.testing.assert_array_equal(inputs[path], x)
    contiguous = {path: inputs[path].flags.c_contiguous for path in given.arrays}
    assert all(contiguous.values()) == (layout == "contiguous")
    repeated = {path for path in given.arrays if 0 in inputs[path].strides}
    assert repeated == ({"key", "value"} if layout == "one for all heads" else set())
