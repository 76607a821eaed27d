"""Examples: covering arrays cover, and sizes stay within the bound on work."""

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
    for (i, left), (j, right) in itertools.combinations(levels.items(), 2):
        for pair in itertools.product(left, right):
            assert any((row[i], row[j]) == pair for row in rows)
    assert len(rows) <= 12  # 9 is the least


def test_every_combination_of_three_levels_is_in_some_row() -> None:
    levels: dict[str, Sequence[object]] = {"a": (1, 2, 3), "b": ("x", "y"), "c": (True, False, None), "d": (0, 1)}
    rows = list(covering_rows(levels, random.Random(0), 1000, strength=3))
    for names in itertools.combinations(levels, 3):
        for combination in itertools.product(*(levels[name] for name in names)):
            assert any(tuple(row[name] for name in names) == combination for row in rows)
    assert len(rows) <= 24  # 18 is the least


def test_few_rows_cover_more_pairs_than_draws_do() -> None:
    levels = factors(OPERATION, Limits())

    def pairs(rows: list[dict[str, object]]) -> int:
        return len({(i, row[i], j, row[j]) for row in rows for i, j in itertools.combinations(row, 2)})

    rows = list(covering_rows(levels, random.Random(1), 18))
    rng = random.Random(1)
    drawn = [{name: rng.choice(list(options)) for name, options in levels.items()} for _ in range(18)]
    assert pairs(rows) > pairs(drawn)


@pytest.mark.parametrize("work", [2.0**12, 2.0**16])
def test_examples_stay_within_the_bound_on_work(work: float) -> None:
    examples = corners(OPERATION, Limits(), seed=3, most=40, work=work)
    assert len(examples) == 40
    small = 8**3 * 6  # what is small already is not lowered
    assert max(multiply_adds(dict(e.sizes), e.batch, OPERATION) for e in examples[4:]) <= max(work, small)


@pytest.mark.parametrize("name", [o.name for o in OPERATIONS.values() if o.chapter == "vision"])
def test_grids_stay_small(name: str) -> None:
    operation = OPERATIONS[name]
    for example in corners(operation, Limits(), seed=3, most=40, work=2.0**14):
        given = example.arguments(operation, "float32")
        assert sum(x.size for x in given.arrays.values()) < 2**17


@pytest.mark.parametrize("seed", range(5))
def test_the_first_examples_reach_beyond_the_tiles_of_kernels(seed: int) -> None:
    keys, queries, both, wide, *_ = corners(OPERATION, Limits(), seed=seed, most=5, work=2.0**12)
    assert keys.sizes["m"] > 128
    assert queries.sizes["n"] > 128
    assert min(both.sizes["n"], both.sizes["m"]) > 64
    assert both.options["causal"]
    assert min(wide.sizes["d"], wide.sizes["d_v"]) > 64
    for example in (keys, queries, both, wide):
        assert set(example.kinds.values()) == {"normal"}
    (short, *_) = corners(OPERATION, Limits(max_length=100), seed=seed, most=5, work=2.0**12)
    assert short.sizes["m"] == 65


def test_the_same_seed_gives_the_same_examples() -> None:
    once, again, other = (corners(OPERATION, Limits(), seed=s, most=10, work=2.0**12) for s in (1, 1, 2))
    assert once == again != other


def test_biases_share_each_of_their_axes() -> None:
    operation = OPERATIONS["grouped_query_attention"]
    rows = corners(operation, Limits(), seed=0, most=40, work=2.0**14)
    given = [row for row in rows if "bias" not in row.absent]
    assert {row.collapsed["bias"] for row in given} == {(), ("heads_k",), ("n",), ("m",)}
    of_all_rows = [row for row in given if row.collapsed["bias"] == ("n",)]
    assert {row.arguments(operation, "float32").array("bias").shape[-2] for row in of_all_rows} == {1}
