"""bfloat16 matrix products with float32 sums, which are not rounded as PyTorch's are.

An instruction that adds two products per lane is twice as fast as float32; AMX, whose registers hold a tile of a
matrix, is ten times as fast.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm import tile_product
from attnspec.backends.pytorch.kernels.llvm.machine_code import multiplies_bfloat16
from attnspec.backends.pytorch.kernels.llvm.matmul import batched_product
from attnspec.backends.pytorch.kernels.llvm.matmul import faster_than_pytorch as float32_beats_pytorch
from attnspec.backends.pytorch.kernels.llvm.tile_registers import multiplies_tiles
from attnspec.backends.pytorch.kernels.llvm.transposition import columns

LEAST_WORK_OF_TILES = 2**19
"""Multiply-adds from which a product by tiles gains more than its call overhead."""


class PackedColumns(NamedTuple):
    """The right matrix: (entries, depth / 2, columns) pairs of bfloat16, each stored as a float32.

    With AMX: (entries, groups of columns, depth / 2, columns of a tile), padded with zero columns; ``number`` is
    without them.
    """

    memory: Tensor
    number: int

    def of(self, entries: slice) -> "PackedColumns":
        """Columns of some entries."""
        return PackedColumns(self.memory[entries], self.number)


def faster_than_float32(rows: int, columns: int, depth: int) -> bool:
    """Return whether products of this size are faster in pairs than in float32."""
    if depth % 2 or not multiplies_bfloat16():
        return False
    if multiplies_tiles():
        return rows * columns * depth >= LEAST_WORK_OF_TILES
    return float32_beats_pytorch(rows, columns, depth, torch.empty(0, dtype=torch.float32))


def nan_stays_in_row(depth: int) -> bool:
    """Return whether NaN in a bfloat16 row stays in that row when PyTorch multiplies it.

    With AMX, for odd ``depth``, PyTorch reads a row's last number with the next row's first, which it multiplies by 0.
    """
    return depth % 2 == 0 or not multiplies_tiles()


def columns_of_pairs(right: Tensor) -> PackedColumns:
    """`PackedColumns` of the transpose of right (entries, m, depth), whose depth is even."""
    rows = in_pairs(right)
    m = rows.shape[1]
    if not multiplies_tiles():
        return PackedColumns(columns(rows), m)
    return PackedColumns(tile_product.packed(rows), m)


def times_pairs(left: Tensor, columns: PackedColumns, output: Tensor | None = None) -> Tensor:
    """left·rightᵀ, in float32, for contiguous bfloat16 left (entries, n, depth) and the columns of right."""
    left = in_pairs(left)
    if not multiplies_tiles():
        return batched_product(left, columns.memory, output, pairs=True)
    if output is None:
        output = torch.empty(*left.shape[:2], columns.number, dtype=torch.float32)
    tile_product.multiply(left, columns.memory, output)
    return output


def in_pairs(x: Tensor) -> Tensor:
    """bfloat16 x (…, rows, depth) viewed as float32, two numbers in each."""
    x = x.resolve_neg().contiguous()
    # the view needs an even offset and even strides, also along dimensions of size 1
    if x.storage_offset() % 2 or any(stride % 2 for stride in x.stride()[:-1]):
        x = x.new_empty(x.shape).copy_(x)
    return x.view(torch.float32)
