"""Projections x ↦ x wᵀ and their gradients, each by the fastest matrix product."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from attnspec.backends.pytorch.kernels.llvm import bfloat16_pairs, matmul
from attnspec.backends.pytorch.kernels.llvm.machine_code import splits_512_bits
from attnspec.backends.pytorch.kernels.llvm.matmul import DEPTH, Multiply
from attnspec.backends.pytorch.runtime.accumulation import upcast

ROWS = 512 if splits_512_bits() else 128
"""Rows of x from which the gain exceeds the time to transpose w.

PyTorch reads w as stored. 512 was measured on Zen 4, with 64 to 1,024 columns; 128 follows for Zen 5 from the rates of
both products. No other processor uses this product (`matmul.faster_than_pytorch`).
"""


class Projection:
    """x ↦ x wᵀ for contiguous w (columns, depth); half dtypes are widened, results not rounded.

    Three products serve: of bfloat16 ``pairs``, of this package if ``fast``, otherwise PyTorch's.
    """

    def __init__(self, w: Tensor, rows: int) -> None:
        self.columns, self.depth = w.shape
        self.pairs = None
        if w.dtype is torch.bfloat16 and bfloat16_pairs.faster_than_float32(rows, self.columns, self.depth):
            self.pairs = bfloat16_pairs.columns_of_pairs(w[None])
            return
        wide = upcast(w)
        self.fast = rows >= ROWS and matmul.faster_than_pytorch(rows, self.columns, self.depth, wide)
        self.right = wide.resolve_neg().mT.contiguous() if self.fast else wide

    def __call__(self, x: Tensor, output: Tensor | None = None) -> Tensor:
        """x wᵀ for contiguous x (*batch, depth), written to ``output`` (*batch, columns) unless None."""
        if self.pairs is None and not self.fast:
            if output is None:
                return linear(upcast(x), self.right)
            torch.mm(upcast(x).reshape(-1, self.depth), self.right.mT, out=output.view(-1, self.columns))
            return output
        rows = x.reshape(1, -1, self.depth)
        output = None if output is None else output.view(1, -1, self.columns)
        if self.pairs is not None:
            product = bfloat16_pairs.times_pairs(rows, self.pairs, output)
        else:
            product = matmul.batched_product(upcast(rows).resolve_neg().contiguous(), self.right[None], output)
        return product.view(*x.shape[:-1], self.columns)


def projection_plan(rows: int, columns: int, depth: int, dtype: torch.dtype) -> Multiply | None:
    """Return a function of x, w and output that writes x wᵀ.

    x is (rows, depth), w (columns, depth), all contiguous. None if PyTorch is faster or operands need widening.
    """
    if dtype is torch.bfloat16 and bfloat16_pairs.faster_than_float32(rows, columns, depth):

        def in_pairs(x: Tensor, w: Tensor, output: Tensor) -> None:
            of_w, output = bfloat16_pairs.columns_of_pairs(w[None]), output.view(1, rows, columns)
            bfloat16_pairs.times_pairs(x.view(1, rows, depth), of_w, output)

        return in_pairs
    like = upcast(torch.empty(0, dtype=dtype))
    if rows < ROWS or not matmul.faster_than_pytorch(rows, columns, depth, like) or like.dtype is not dtype:
        return None
    empty = like.new_empty
    multiply = matmul.plan(empty(1, rows, depth), empty(1, depth, columns), empty(1, rows, columns))
    return lambda x, w, output: multiply(x, w.mT.contiguous(), output)


class ProjectionGradients:
    """Gradients of x and w from that of x wᵀ (rows, columns). All are in the accumulation dtype."""

    def __init__(self, rows: int, columns: int, depth: int, dtype: torch.dtype) -> None:
        """Plan for x (rows, depth) and w (columns, depth)."""
        # of empty tensors only sizes and strides are read; a product is None where PyTorch's is faster
        empty, parts = torch.empty(0, dtype=dtype).new_empty, _parts(rows)
        self.of_input: Multiply | None = None
        self.of_parts: Multiply | None = None
        self.shape = parts, columns, depth
        if matmul.faster_than_pytorch(rows, depth, columns, empty(0)):
            self.of_input = matmul.plan(empty(1, rows, columns), empty(1, columns, depth), empty(1, rows, depth))
        if matmul.faster_than_pytorch(columns, depth, rows, empty(0)):
            left, right = empty(parts, rows // parts, columns).mT, empty(parts, rows // parts, depth)
            self.of_parts = matmul.plan(left, right, empty(self.shape))

    def input(self, gradient: Tensor, w: Tensor) -> Tensor:
        """Gradient of x (rows, depth)."""
        if self.of_input is None:
            return gradient @ w
        output = w.new_empty(len(gradient), self.shape[2])
        self.of_input(gradient, w, output)
        return output

    def weight(self, gradient: Tensor, x: Tensor) -> Tensor:
        """Gradient of w (columns, depth)."""
        if self.of_parts is None:
            return matmul.product_over_rows(gradient, x)
        output = x.new_empty(self.shape)
        self.of_parts(gradient, x, output)
        return output.sum(0)


def _parts(rows: int) -> int:
    """Number of parts of a sum over rows, for threads to share; depends on ``rows`` alone."""
    return next((parts for parts in (8, 4, 2) if rows % parts == 0 and rows // parts >= DEPTH), 1)
