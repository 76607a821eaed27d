"""Products by tiles of bfloat16, against products in double precision."""

import numpy as np
import pytest
import torch

pytest.importorskip("llvmlite", reason="llvmlite is not installed")

from attnspec.backends.pytorch.kernels.llvm import bfloat16_pairs, tile_registers
from attnspec.backends.pytorch.kernels.llvm.machine_code import multiplies_bfloat16
from tests.budgets import assert_within_budgets

SIZES = [(1, 1, 1, 2), (2, 5, 7, 6), (1, 16, 16, 32), (3, 33, 50, 300), (2, 100, 17, 50), (1, 130, 200, 64)]
"""Entries, rows, columns and depth: less than a tile, whole tiles, and more tasks than one."""


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def test_registers_are_described_in_three_integers() -> None:
    shapes = [(16, 64), (3, 64), (16, 20), (1, 4), (16, 64), (5, 64), (16, 8), (2, 64)]
    first, second, rows = tile_registers.configuration(shapes)
    sizes = first.to_bytes(8, "little") + second.to_bytes(8, "little")
    assert [int.from_bytes(sizes[i : i + 2], "little") for i in range(0, 16, 2)] == [x for _, x in shapes]
    assert list(rows.to_bytes(8, "little")) == [x for x, _ in shapes]


@pytest.mark.skipif(not multiplies_bfloat16(), reason="the processor does not multiply pairs of bfloat16")
@pytest.mark.parametrize(("entries", "rows", "columns", "depth"), SIZES)
def test_sums_are_not_rounded(entries: int, rows: int, columns: int, depth: int) -> None:
    left, right = draw(entries, rows, depth), draw(entries, columns, depth)
    output = torch.full((entries, rows, columns), torch.nan)
    of_right = bfloat16_pairs.columns_of_pairs(right)
    assert bfloat16_pairs.times_pairs(left, of_right, output) is output
    assert_within_budgets(output, lambda x, y: x @ np.swapaxes(y, -1, -2), left, right, precision="ieee32")
    last_entry = slice(entries - 1, entries)
    assert torch.equal(bfloat16_pairs.times_pairs(left[last_entry], of_right.of(last_entry)), output[last_entry])


@pytest.mark.skipif(not multiplies_bfloat16(), reason="the processor does not multiply pairs of bfloat16")
def test_nan_and_infinities_stay_in_their_rows_and_columns() -> None:
    left, right = draw(1, 37, 70), draw(1, 41, 70)
    left[0, 4, 3], left[0, 36, 69], right[0, 40, 33] = torch.nan, torch.inf, torch.nan
    result = bfloat16_pairs.times_pairs(left, bfloat16_pairs.columns_of_pairs(right))
    results = [result, left.float() @ right.float().mT]
    assert_within_budgets(results, lambda x, y: x @ np.swapaxes(y, -1, -2), left, right)


def test_small_products_and_odd_depths_are_not_taken_in_pairs() -> None:
    assert not bfloat16_pairs.faster_than_float32(4096, 64, 63)
    assert not bfloat16_pairs.faster_than_float32(8, 8, 8)
