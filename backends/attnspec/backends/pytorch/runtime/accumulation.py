"""Products whose sums run in float32 for bfloat16 and float16, and as they are otherwise."""

from torch import Tensor, float32
from torch import bfloat16 as _bfloat16
from torch import float16 as _float16


def widened(x: Tensor) -> Tensor:
    """The same numbers in the dtype that sums run in."""
    return x.to(float32) if x.dtype in (_bfloat16, _float16) else x


def product(left: Tensor, right: Tensor) -> Tensor:
    """Matrix product, rounded once to the dtype of ``left``; batches broadcast."""
    return (widened(left) @ widened(right)).to(left.dtype)
