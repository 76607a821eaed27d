"""Tile sizes of additive attention, as registers allow, and the size of key blocks."""

from attnspec.backends.pytorch.kernels.llvm.machine_code import HAS_512_BITS, register_bytes

ROW_TILE = 4 if HAS_512_BITS else 1
"""Query rows per tile whose scores stay in registers, against `KEY_TILE` vectors of keys."""
KEY_TILE = 2 if HAS_512_BITS else 4

PRODUCT_ROWS = 6
"""Rows of a product whose sums stay in registers, `PRODUCT_VECTORS` vectors per row."""
PRODUCT_VECTORS = 4 if HAS_512_BITS else 2

GROUP = 3
"""Hidden units per group; a group's reciprocals share one division. The last group may have one more unit."""

CHUNK = 24
"""Query rows per task, a multiple of `ROW_TILE` and `PRODUCT_ROWS`."""


def key_lanes(bits: int) -> int:
    """Keys in one block of the key factors."""
    return KEY_TILE * register_bytes() * 8 // bits
