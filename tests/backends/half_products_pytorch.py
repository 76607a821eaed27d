"""The PyTorch backend with its products of half dtypes on CUDA, emulated on the CPU.

PyTorch's ``out_dtype`` exists for GPUs only. Here its definition takes its place: widened products, summed in float32.
"""

from typing import Any

import torch
from torch import Tensor

from attnspec.backends import pytorch as backend
from attnspec.backends.pytorch.runtime import products

_aten = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]


def _mm(left: Tensor, right: Tensor, out_dtype: torch.dtype) -> Tensor:
    assert left.dtype == right.dtype != out_dtype, "PyTorch multiplies operands of one half dtype into float32"
    return left.to(out_dtype) @ right.to(out_dtype)


_aten.impl("mm.dtype", _mm, "CPU")  # type: ignore[no-untyped-call]
_aten.impl("bmm.dtype", _mm, "CPU")  # type: ignore[no-untyped-call]
products.multiplies_halves = lambda x, dtype: True

name = "pytorch by half products"
notes = {**backend.notes, "products": "of half operands, into float32"}


def __getattr__(attribute: str) -> Any:
    return getattr(backend, attribute)
