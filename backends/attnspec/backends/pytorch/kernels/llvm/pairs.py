"""Products of matrices of bfloat16 whose sums are float32 and are not rounded, as PyTorch's are.

Where one instruction adds the products of two pairs, they are taken twice as fast as those of float32; by registers
that hold a tile of a matrix (AMX), ten times.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm import tile_product
from attnspec.backends.pytorch.kernels.llvm.machine_code import multiplies_bfloat16
from attnspec.backends.pytorch.kernels.llvm.matmul import products
from attnspec.backends.pytorch.kernels.llvm.matmul import worthwhile as worthwhile_in_float32
from attnspec.backends.pytorch.kernels.llvm.tile_registers import multiplies_tiles
from attnspec.backends.pytorch.kernels.llvm.transposition import columns

LEAST_OF_TILES = 2**19
"""Multiply-adds from which a product by tiles is worth more than it takes to begin."""


class Columns(NamedTuple):
    """The right matrix of products, by entries: (entries, depth / 2, columns) pairs, each in the place of a float32.

    For tiles (entries, groups of columns, depth / 2, columns of a tile), with zeros behind the last of the columns.
    """

    memory: Tensor
    number: int

    def of(self, entries: slice) -> "Columns":
        """Those of some entries."""
        return Columns(self.memory[entries], self.number)


def worthwhile(rows: int, columns: int, depth: int) -> bool:
    """Whether products of this size are faster in pairs than in float32."""
    if depth % 2 or not multiplies_bfloat16():
        return False
    if multiplies_tiles():
        return rows * columns * depth >= LEAST_OF_TILES
    return worthwhile_in_float32(rows, columns, depth, torch.empty(0, dtype=torch.float32))


def stay_in_rows(depth: int) -> bool:
    """Whether NaN in a row of a matrix of bfloat16 stays there when PyTorch multiplies it, for so many terms.

    By tiles it reads an odd row in pairs, and with the last number the first of the next row, which it multiplies by 0.
    """
    return depth % 2 == 0 or not multiplies_tiles()


def columns_of_pairs(right: Tensor) -> Columns:
    """Of right (entries, m, depth), which has an even depth, the columns of its transpose."""
    rows = in_pairs(right)
    m = rows.shape[1]
    if not multiplies_tiles():
        return Columns(columns(rows), m)
    return Columns(tile_product.packed(rows), m)


def times_pairs(left: Tensor, columns: Columns, output: Tensor | None = None) -> Tensor:
    """left·rightᵀ, in float32, for left (entries, n, depth) of bfloat16 in memory and the columns of right."""
    left = in_pairs(left)
    if not multiplies_tiles():
        return products(left, columns.memory, output, pairs=True)
    if output is None:
        output = torch.empty(*left.shape[:2], columns.number, dtype=torch.float32)
    tile_product.multiply(left, columns.memory, output)
    return output


def in_pairs(x: Tensor) -> Tensor:
    """x (…, rows, depth) of bfloat16, each two numbers as one of float32."""
    x = x.resolve_neg().contiguous()
    # what lies at an odd place, or has an odd stride along a dimension of size 1
    if x.storage_offset() % 2 or any(stride % 2 for stride in x.stride()[:-1]):
        x = x.new_empty(x.shape).copy_(x)
    return x.view(torch.float32)
