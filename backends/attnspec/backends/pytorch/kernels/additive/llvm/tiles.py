"""Sizes of the tiles of additive attention, as registers allow, and of the blocks in which keys are stored."""

from attnspec.backends.pytorch.kernels.llvm.machine_code import HAS_512_BITS, register_bytes

ROW_TILE = 4 if HAS_512_BITS else 1
"""Query rows whose scores are in registers at once, against `KEY_TILE` vectors of keys."""
KEY_TILE = 2 if HAS_512_BITS else 4

PRODUCT_ROWS = 6
"""Rows of a product whose sums are in registers at once, `PRODUCT_VECTORS` vectors of each."""
PRODUCT_VECTORS = 4 if HAS_512_BITS else 2

SHARED = 3
"""Units whose reciprocals share one division; the last group may have one more."""

CHUNK = 24
"""Query rows of one task, a multiple of the rows of both tiles."""


def key_lanes(bits: int) -> int:
    """Keys in one block of the key factors."""
    return KEY_TILE * register_bytes() * 8 // bits
