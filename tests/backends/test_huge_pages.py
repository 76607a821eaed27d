"""Memory in huge pages: as good as any other, and aligned as they need it."""

import mmap

import pytest
import torch

from attnspec.backends.pytorch.kernels.additive.llvm import huge_pages


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_copies_hold_the_same_numbers_and_start_a_huge_page(dtype: torch.dtype) -> None:
    x = torch.randn(3, 1024, 257, dtype=dtype)
    copy = huge_pages.copy(x.mT).mT
    assert torch.equal(copy, x)
    assert copy.mT.is_contiguous()
    if hasattr(mmap, "MADV_HUGEPAGE"):
        assert copy.data_ptr() % huge_pages.HUGE == 0
    x.zero_()
    assert copy.any()


def test_small_arrays_are_ordinary() -> None:
    assert huge_pages.empty(torch.zeros(1), 2, 3).shape == (2, 3)


def test_a_kernel_without_huge_pages_costs_only_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    x = torch.randn(1 << 20)
    assert torch.equal(huge_pages.copy(x), x)
