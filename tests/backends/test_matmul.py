"""Products of matrices by compiled kernels, against products in double precision."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="llvmlite is not installed")

from attnspec.backends.pytorch.kernels.llvm import bfloat16_pairs, matmul, projection, transposition
from attnspec.backends.pytorch.kernels.llvm.machine_code import is_zen, multiplies_bfloat16, register_bytes
from tests.budgets import assert_within_budgets

SIZES = [(1, 16, 1), (6, 64, 5), (7, 80, 256), (49, 48, 257), (100, 144, 600), (3, 256, 2), (7, 17, 30), (13, 200, 64)]
"""Rows, columns and depth: more and fewer than tiles, tasks and blocks of terms have."""


def draw(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.fixture(autouse=True)
def _every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "LEAST_WORK", 1)
    monkeypatch.setattr(matmul, "HAS_512_BITS", True)
    monkeypatch.setattr(matmul, "is_zen", lambda: True)
    monkeypatch.setattr(bfloat16_pairs, "LEAST_WORK_OF_TILES", 1)


@pytest.mark.parametrize(("rows", "columns", "depth"), SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_are_those_of_pytorch(rows: int, columns: int, depth: int, dtype: torch.dtype) -> None:
    left, right = draw(rows, depth, dtype=dtype), draw(depth, columns, dtype=dtype)
    for x in (left, left.mT.contiguous().mT, torch.stack([left, left], 1)[:, 1]):
        result = matmul.product(x, right)
        assert result.dtype is dtype
        assert_within_budgets(result, lambda x, y: x @ y, x, right)


@pytest.mark.parametrize(("rows", "columns", "depth"), SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_projections_of_half_dtypes_are_not_rounded(rows: int, columns: int, depth: int, dtype: torch.dtype) -> None:
    x, w = draw(2, rows, depth, dtype=dtype), draw(columns, depth, dtype=dtype)
    project = projection.Projection(w, 2 * rows)
    in_pairs = dtype is torch.bfloat16 and depth % 2 == 0 and multiplies_bfloat16()
    assert (project.pairs is not None) == in_pairs
    result = project(x)
    sums = torch.float64 if dtype is torch.float64 else torch.float32
    assert result.dtype is sums
    exact = "ieee64" if dtype is torch.float64 else "ieee32"
    assert_within_budgets(result, lambda x, w: x @ w.T, x, w, precision=exact)


def test_nan_and_infinities_stay_in_their_rows_and_columns() -> None:
    left, right = draw(13, 20, dtype=torch.float32), draw(20, 64, dtype=torch.float32)
    left[4, 3], left[12, 7], right[5, 33] = torch.nan, torch.inf, torch.nan
    assert_within_budgets([matmul.product(left, right), left @ right], lambda x, y: x @ y, left, right)


def test_columns_that_do_not_fill_a_register_are_left_to_pytorch() -> None:
    columns = register_bytes() // 4 - 1
    assert not matmul.faster_than_pytorch(100, columns, 100, draw(1, dtype=torch.float32))
    left, right = draw(5, 7, dtype=torch.float32), draw(7, columns, dtype=torch.float32)
    assert torch.equal(matmul.product(left, right), left @ right)


def test_small_products_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert not matmul.faster_than_pytorch(64, 64, 64, draw(1, dtype=torch.float32))
    assert matmul.faster_than_pytorch(4096, 64, 64, draw(1, dtype=torch.float32)) is (
        register_bytes() == 64 and is_zen()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 40), (16, 16), (33, 17), (100, 25)])
def test_columns_are_the_transpose(rows: int, columns: int, dtype: torch.dtype) -> None:
    x = draw(3, rows, columns, dtype=dtype)
    result = transposition.columns(x)
    assert result.is_contiguous()
    assert torch.equal(result, x.mT)
