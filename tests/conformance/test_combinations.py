"""Combinations of the masks, layouts and sizes that models use."""

import itertools

import numpy as np
import pytest

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.combinations import LEVELS, combinations, in_layout, with_mask_level
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import OPERATIONS

ATTENTION = OPERATIONS["scaled_dot_product_attention"]


def call(n: int = 5, m: int = 9) -> Arguments:
    rng = np.random.default_rng(0)
    shapes = {"query": (2, 2, n, 4), "key": (2, 2, m, 4), "value": (2, 2, m, 3)}
    return Arguments(ATTENTION, {path: rng.standard_normal(shape) for path, shape in shapes.items()})


def test_every_triple_of_levels_is_in_some_row() -> None:
    rows = combinations(ATTENTION, Limits(), 3)
    for names in itertools.combinations(LEVELS, 3):
        combinations_of_names = {tuple(row[name] for name in names) for row in rows}
        assert combinations_of_names == set(itertools.product(*(LEVELS[name] for name in names)))


def test_every_pair_of_levels_needs_fewer_rows() -> None:
    rows = combinations(ATTENTION, Limits(), 2)
    assert len(rows) < len(combinations(ATTENTION, Limits(), 3)) / 2
    for names in itertools.combinations(LEVELS, 2):
        pairs_of_names = {tuple(row[name] for name in names) for row in rows}
        assert pairs_of_names == set(itertools.product(*(LEVELS[name] for name in names)))


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


def test_masks_leave_every_query_an_attendable_key() -> None:
    rng = np.random.default_rng(0)
    assert with_mask_level(call(), "none", rng).mask is None
    assert with_mask_level(call(), "triangle", rng).causal
    for kind, heads in (("shared", 1), ("own", 2)):
        mask = with_mask_level(call(), kind, rng).mask
        assert mask is not None
        assert mask.shape == (2, heads, 5, 9)
        assert mask.any(-1).all()
        assert not mask.all()
        assert not mask[..., 1::2, :4].any()  # odd queries attend only to the later half of the 9 keys


@pytest.mark.parametrize("layout", LEVELS["layout"])
def test_layouts_hold_the_numbers_of_the_arguments(layout: str) -> None:
    arguments, inputs = in_layout(call(), layout, np.ascontiguousarray)
    for path, x in arguments.arrays.items():
        np.testing.assert_array_equal(inputs[path], x)
    contiguous = {path: inputs[path].flags.c_contiguous for path in arguments.arrays}
    assert all(contiguous.values()) == (layout == "contiguous")
    repeated = {path for path in arguments.arrays if 0 in inputs[path].strides}
    assert repeated == ({"key", "value"} if layout == "one for all heads" else set())
