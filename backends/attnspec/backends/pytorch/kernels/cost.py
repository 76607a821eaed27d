"""The form of what was measured of each path, and the calls of which it was."""

from collections.abc import Mapping
from typing import NamedTuple

SIZES = (
    (1, 1, 1, 8), (1, 1, 64, 64), (8, 1, 32, 128), (32, 1, 256, 256), (64, 1, 32, 512), (1, 1, 4096, 64),
    (2, 8, 8, 32), (64, 8, 8, 16), (4, 16, 16, 64), (4, 32, 32, 64), (8, 32, 32, 256), (4, 64, 64, 64),
    (16, 1, 256, 64), (1, 4096, 2, 32), (1, 2048, 64, 32), (1, 128, 128, 64), (1, 128, 128, 512), (2, 16, 512, 32),
    (2, 32, 1024, 8), (1, 256, 256, 64), (8, 4, 128, 128), (4, 256, 256, 64), (1, 512, 512, 64),
    (16, 50, 1, 200), (32, 200, 1, 128), (32, 50, 17, 300), (32, 100, 100, 50), (16, 1, 500, 200),
    (16, 200, 1, 200), (16, 13, 1, 300), (8, 1, 30, 300), (32, 1, 200, 200), (2, 1024, 1024, 64),
)  # fmt: skip
"""Batch, queries, keys, and features or hidden units, of what was measured."""


class Cost(NamedTuple):
    """Microseconds of a call, and nanoseconds of each unit of its work on one thread, as `Work` counts it.

    ``measured`` holds, for each of `SIZES`, how many times as long as that the call took; 0 where the path does not
    serve it. Empty, nothing is known but the rest.
    """

    call: float
    pair: float
    score: float
    row: float
    measured: tuple[float, ...] = ()


Costs = Mapping[tuple[str, str, str, str], Cost]
"""By operation, path, dtype, and whether gradients are computed."""
