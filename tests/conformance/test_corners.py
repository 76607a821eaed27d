"""Corners: covering arrays contain every pair, and sizes stay within the bound on work."""

import itertools
import random
from collections.abc import Sequence

import pytest

from attnspec.conformance.inputs.corners import corners, covering_rows, factors, multiply_adds
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import OPERATIONS

OPERATION = OPERATIONS["scaled_dot_product_attention"]


def test_every_pair_of_levels_is_in_some_row() -> None:
    levels: dict[str, Sequence[object]] = {"a": (1, 2, 3), "b": ("x", "y"), "c": (True, False, None), "d": (0,)}
    rows = list(covering_rows(levels, random.Random(0), 1000))
    for (i, levels_i), (j, levels_j) in itertools.combinations(levels.items(), 2):
        for pair in itertools.product(levels_i, levels_j):
            assert any((row[i], row[j]) == pair for row in rows)
    assert len(rows) <= 12  # 9 is the least


def test_every_combination_of_three_levels_is_in_some_row() -> None:
    levels: dict[str, Sequence[object]] = {"a": (1, 2, 3), "b": ("x", "y"), "c": (True, False, None), "d": (0, 1)}
    rows = list(covering_rows(levels, random.Random(0), 1000, strength=3))
    for names in itertools.combinations(levels, 3):
        for combination in itertools.product(*(levels[name] for name in names)):
            assert any(tuple(row[name] for name in names) == combination for row in rows)
    assert len(rows) <= 24  # 18 is the least


def test_a_covering_array_covers_more_pairs_than_random_rows() -> None:
    levels = factors(OPERATION, Limits())

    def pairs(rows: list[dict[str, object]]) -> int:
        return len({(i, row[i], j, row[j]) for row in rows for i, j in itertools.combinations(row, 2)})

    rows = list(covering_rows(levels, random.Random(1), 18))
    rng = random.Random(1)
    random_rows = [{name: rng.choice(list(options)) for name, options in levels.items()} for _ in range(18)]
    assert pairs(rows) > pairs(random_rows)


@pytest.mark.parametrize("work", [2.0**12, 2.0**16])
def test_examples_stay_within_the_bound_on_work(work: float) -> None:
    examples = corners(OPERATION, Limits(), seed=3, most=40, work=work)
    assert len(examples) == 40
    # Sizes are not lowered below 8, nor batches, of which (2, 1, 3) is the largest. The first 4 examples are long.
    small = 8**3 * 6
    assert max(multiply_adds(dict(e.sizes), e.batch, OPERATION) for e in examples[4:]) <= max(work, small)


@pytest.mark.parametrize("name", [o.name for o in OPERATIONS.values() if o.chapter == "vision"])
def test_grids_stay_small(name: str) -> None:
    operation = OPERATIONS[name]
    for example in corners(operation, Limits(), seed=3, most=40, work=2.0**14):
        arguments = example.arguments(operation, "float32")
        assert sum(x.size for x in arguments.arrays.values()) < 2**17


@pytest.mark.parametrize("seed", range(5))
def test_the_first_examples_reach_beyond_the_tiles_of_kernels(seed: int) -> None:
    keys, queries, both, features, *_ = corners(OPERATION, Limits(), seed=seed, most=5, work=2.0**12)
    assert keys.sizes["m"] > 128
    assert queries.sizes["n"] > 128
    assert min(both.sizes["n"], both.sizes["m"]) > 64
    assert both.options["causal"]
    assert set(both.masks.values()) == {"absent"}
    assert min(features.sizes["d"], features.sizes["d_v"]) > 64
    for example in (keys, queries, both, features):
        assert set(example.kinds.values()) == {"normal"}
    (limited, *_) = corners(OPERATION, Limits(max_length=100), seed=seed, most=5, work=2.0**12)
    assert limited.sizes["m"] == 65  # the longest that `LENGTHS` has up to 100


def test_the_same_seed_gives_the_same_examples() -> None:
    first, repeated, other_seed = (corners(OPERATION, Limits(), seed=s, most=10, work=2.0**12) for s in (1, 1, 2))
    assert first == repeated != other_seed


def test_biases_have_size_1_along_each_of_their_axes() -> None:
    operation = OPERATIONS["grouped_query_attention"]
    rows = corners(operation, Limits(), seed=0, most=40, work=2.0**14)
    biased = [row for row in rows if "bias" not in row.absent]
    assert {row.collapsed["bias"] for row in biased} == {(), ("heads_k",), ("n",), ("m",)}
    shared_by_queries = [row for row in biased if row.collapsed["bias"] == ("n",)]
    assert {row.arguments(operation, "float32").array("bias").shape[-2] for row in shared_by_queries} == {1}
