"""Half dtypes that are widened part by part for PyTorch's kernel: nothing is read beyond a part."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="llvmlite is not installed")

from attnspec.backends import pytorch
from attnspec.backends.pytorch.kernels.dot import planned, planned_pytorch
from attnspec.backends.pytorch.kernels.dot.zero_rows import finder
from attnspec.backends.pytorch.runtime.forcing import forcing
from tests.budgets import assert_within_budgets


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_looks_for_hidden_nan_looks_at_one_part(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned_pytorch, "PIECE", 64)
    monkeypatch.setattr(planned_pytorch, "WORTH_WIDENING", 1)
    looked: list[int] = []

    def careful(shape: torch.Size, size: int) -> Callable[[Tensor], bool]:
        find = finder(shape, size)

        def found(x: Tensor) -> bool:
            assert x.numel() == shape.numel()
            looked.append(x.numel())
            return find(x)

        return found

    monkeypatch.setattr(planned_pytorch, "finder", careful)
    planned._plans._known.clear()
    made = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(20, rows, 8, generator=made).to(dtype) for rows in (2, 3, 3))
    key[13, 1, 2] = torch.nan
    with forcing("pytorch"):
        for _ in range(2):
            found = pytorch.scaled_dot_product_attention(query, key, value)
    assert_within_budgets(found, "scaled_dot_product_attention", query, key, value)
    planned._plans._known.clear()
