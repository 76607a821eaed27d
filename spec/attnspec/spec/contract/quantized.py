"""Quantised operands: codes with scales, and the formats that a backend may declare."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PACKED = "_x2"
"""Ending of the names of PyTorch's dtypes with two codes in a byte."""

CODES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "int8": "int8"}
"""Dtypes of codes that have scales of float32."""

BLOCK_FORMATS = {
    "mxfp8": ("float8_e4m3fn", "float8_e8m0fnu", 32),
    "nvfp4": ("float4_e2m1fn", "float8_e4m3fn", 16),
}
"""Formats with scales of their own: the dtype of codes, that of scales, and the number of codes with one scale."""

PARTS: Mapping[str, tuple[int | None, int | None]] = {
    "tensor": (None, None), "head": (None, None), "token": (1, None), "channel": (None, 1),
}  # fmt: skip
"""Parts of an operand that may share one scale: how many tokens and channels, None for all."""


@dataclass(frozen=True, eq=False)
class Quantized:
    """An operand in few bits: each number is its code times its scale, times ``global_scale`` if there is one.

    - codes: an array of the operand's shape in float8, int8 or float4. PyTorch's packed float4 has two codes in a byte,
      the first in the lower bits.
    - scales: an array with as many axes as the codes, or fewer: leading ones may be missing. Each axis has the size of
      the codes' axis, 1, or a divisor of it. Then one scale holds for a block of consecutive codes.
    - global_scale: one float32 for the whole operand, as in NVFP4.
    - dtype: the float dtype that the operand stands for. Results have it where no other operand tells their dtype.

    It has a shape and counts as one array.
    """

    codes: Any
    scales: Any
    global_scale: Any = None
    dtype: str = "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the operand."""
        shape = tuple(self.codes.shape)
        # Only PyTorch packs codes. The dtype of a handle is not read: it would be one more request to its process.
        packed = type(self.codes).__module__.startswith("torch") and str(self.codes.dtype).endswith(PACKED)
        return (*shape[:-1], 2 * shape[-1]) if packed else shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.codes.shape)


@dataclass(frozen=True)
class OperandFormat:
    """A format of codes and scales; ``codes`` and ``scales`` are names of dtypes.

    ``tokens`` and ``channels`` count the consecutive ones with one scale, None for all of them. ``by_head`` is true if
    every head and batch element has its own scales.
    """

    name: str
    codes: str
    scales: str = "float32"
    tokens: int | None = None
    channels: int | None = None
    by_head: bool = True
    has_global_scale: bool = False


def operand_format(name: str) -> OperandFormat:
    """Return the format of a name, such as ``mxfp8``, ``int8-per-token`` or ``e4m3-per-128-channels``.

    ``ValueError`` says which names there are.
    """
    base, _, part = str(name).partition("-")
    if base in BLOCK_FORMATS and part in ("", "along-tokens"):
        codes, scales, block = BLOCK_FORMATS[base]
        tokens, channels = (block, 1) if part else (1, block)
        return OperandFormat(name, codes, scales, tokens, channels, has_global_scale=base == "nvfp4")
    block_of = re.fullmatch(r"per-([1-9]\d*)-(tokens|channels)", part)
    if base in CODES and block_of:
        size = int(block_of[1])
        sizes = (size, None) if block_of[2] == "tokens" else (1, size)
        return OperandFormat(name, CODES[base], "float32", *sizes)
    per, _, kind = part.partition("-")
    if base in CODES and per == "per" and kind in PARTS:
        return OperandFormat(name, CODES[base], "float32", *PARTS[kind], by_head=kind != "tensor")
    codes, parts = (" or ".join([", ".join(names[:-1]), names[-1]]) for names in (list(CODES), list(PARTS)))
    blocks = " or ".join(BLOCK_FORMATS)
    known = f"{codes}, with -per- and {parts} or such as 64-tokens; or {blocks}, alone or with -along-tokens"
    raise ValueError(f"operand format: expected {known}; got {name!r}")
