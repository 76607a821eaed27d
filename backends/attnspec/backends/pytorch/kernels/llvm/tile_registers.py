"""AMX tile registers: 16 rows of 64 bytes, which Intel's processors multiply as bfloat16 matrices.

The eight registers are divided among the sums, the left and the right matrix of one product. A thread configures the
rows and bytes of each before use, and releases them afterwards. Linux grants them to a process on request.
"""

import ctypes
import platform
import sys
from collections.abc import Sequence
from functools import lru_cache

import llvmlite.ir as ir

from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel
from attnspec.backends.pytorch.kernels.llvm.machine_code import HAS_512_BITS, processor
from attnspec.backends.pytorch.kernels.llvm.values import BYTE, INT, POINTER, IntPointer, RealPointer, Value

ROWS, BYTES = 16, 64
"""Largest number of rows of a register, and bytes of a row."""

PAIRS = BYTES // 4
"""bfloat16 pairs, or float32 sums, per row of a register."""

_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18
"""Linux's system call arch_prctl, its code ARCH_REQ_XCOMP_PERM, and the state: tile data."""


@lru_cache(maxsize=1)
def multiplies_tiles() -> bool:
    """Return whether the processor has tile registers, and Linux grants them to this process."""
    _, features = processor()
    if not (HAS_512_BITS and features.get("amx-tile") and features.get("amx-bf16")):
        return False
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0)


def configuration(shapes: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """Three integers with which `configure` gives each of the eight registers its (rows, bytes).

    Bytes of a row, two bytes each, of registers 0 to 3 and of 4 to 7; rows, one byte each, of all.
    """
    row_bytes = [size for _, size in shapes]
    return (
        int.from_bytes(b"".join(size.to_bytes(2, "little") for size in row_bytes[:4]), "little"),
        int.from_bytes(b"".join(size.to_bytes(2, "little") for size in row_bytes[4:]), "little"),
        int.from_bytes(bytes(rows for rows, _ in shapes), "little"),
    )


def configure(k: Kernel, words: tuple[Value, Value, Value]) -> None:
    """Configure this thread's registers with the integers of `configuration`."""
    memory, nothing = IntPointer(k.array(BYTES // k.size).address), k.integer(0)
    first_row_bytes, last_row_bytes, rows = words
    palette = k.integer(1)  # eight registers; the layout of these words is Intel's
    for i, word in enumerate((palette, nothing, first_row_bytes, last_row_bytes, nothing, nothing, rows, nothing)):
        k.store_int(word, memory, i)
    k.intrinsic("llvm.x86.ldtilecfg", ir.FunctionType(ir.VoidType(), [POINTER]), [memory.at(0)])


def release(k: Kernel) -> None:
    """Give the registers back."""
    k.intrinsic("llvm.x86.tilerelease", ir.FunctionType(ir.VoidType(), []), [])


def zero(k: Kernel, register: int) -> None:
    """Fill a register with zeros."""
    k.intrinsic("llvm.x86.tilezero", ir.FunctionType(ir.VoidType(), [BYTE]), [BYTE(register)])


def load(k: Kernel, register: int, base: RealPointer, element: Value, stride: Value) -> None:
    """Fill a register with rows from an element on, ``stride`` elements apart."""
    _move(k, "llvm.x86.tileloadd64", register, base, element, stride)


def store(k: Kernel, register: int, base: RealPointer, element: Value, stride: Value) -> None:
    """Store the rows of a register from an element on, ``stride`` elements apart."""
    _move(k, "llvm.x86.tilestored64", register, base, element, stride)


def _move(k: Kernel, name: str, register: int, base: RealPointer, element: Value, stride: Value) -> None:
    signature = ir.FunctionType(ir.VoidType(), [BYTE, POINTER, INT])
    k.intrinsic(name, signature, [BYTE(register), base.at(element), (stride * base.size).ssa])


def add_product(k: Kernel, sums: int, left: int, right: int) -> None:
    """Add the products of all bfloat16 pairs left[r, t], right[t, c] to sums[r, c]."""
    signature = ir.FunctionType(ir.VoidType(), [BYTE] * 3)
    k.intrinsic("llvm.x86.tdpbf16ps", signature, [BYTE(sums), BYTE(left), BYTE(right)])
