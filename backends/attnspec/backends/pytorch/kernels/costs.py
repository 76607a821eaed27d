"""Cost model: predicted time of a call on each path, by instruction set and dtype.

Its constants are in the tables of the folder ``measured``. Nothing is timed in a user's process: the same call takes
the same path in every run.
"""

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from math import exp, log, log2
from typing import NamedTuple

import torch

SIZES = (
    (1, 1, 1, 8), (1, 1, 64, 64), (8, 1, 32, 128), (32, 1, 256, 256), (64, 1, 32, 512), (1, 1, 4096, 64),
    (2, 8, 8, 32), (64, 8, 8, 16), (4, 16, 16, 64), (4, 32, 32, 64), (8, 32, 32, 256), (4, 64, 64, 64),
    (16, 1, 256, 64), (1, 4096, 2, 32), (1, 2048, 64, 32), (1, 128, 128, 64), (1, 128, 128, 512), (2, 16, 512, 32),
    (2, 32, 1024, 8), (1, 256, 256, 64), (8, 4, 128, 128), (4, 256, 256, 64), (1, 512, 512, 64),
    (16, 50, 1, 200), (32, 200, 1, 128), (32, 50, 17, 300), (32, 100, 100, 50), (16, 1, 500, 200),
    (16, 200, 1, 200), (16, 13, 1, 300), (8, 1, 30, 300), (32, 1, 200, 200), (2, 1024, 1024, 64),
)  # fmt: skip
"""Measured calls: batch, queries, keys, and features or hidden units."""


class Cost(NamedTuple):
    """Microseconds per call, and nanoseconds per unit of `Work` on one thread.

    ``measured`` holds, for each of `SIZES`, measured over modelled time; 0 where the path does not support the call. It
    is empty for additive attention: there the model alone chooses nearly the same paths.
    """

    call: float
    pair: float
    score: float
    row: float
    measured: tuple[float, ...] = ()


Costs = Mapping[tuple[str, str, str, str], Cost]
"""Constants by operation, path, dtype, and ``forward`` or ``gradients``."""

COLUMNS = "operation", "path", "dtype", "mode", *Cost._fields
"""Header of a table, below its comment lines."""


class Work(NamedTuple):
    """Work of a call: terms or multiply-adds of pairs, scores, elements of operands. Kernels with one query per lane
    count empty lanes too."""

    pairs: float
    scores: float
    rows: float


def leading_digits(size: int) -> int:
    """Round a size down to its first five binary digits: choices are reused while a cache of keys grows."""
    dropped = max(size.bit_length() - 5, 0)
    return size >> dropped << dropped


@lru_cache(maxsize=1)
def instruction_set() -> str:
    """Return ``amx``, ``zen5``, ``avx512``, ``avx2`` or ``neon``: the vector instructions of kernels.

    Zen 4 computes 512-bit registers in two halves, Zen 5 in one piece.
    """
    from attnspec.backends.pytorch.kernels.llvm.machine_code import is_zen, register_bytes, splits_512_bits
    from attnspec.backends.pytorch.kernels.llvm.tile_registers import multiplies_tiles

    if multiplies_tiles():
        return "amx"
    if register_bytes() == 64 and is_zen() and not splits_512_bits():
        return "zen5"
    return {64: "avx512", 32: "avx2"}.get(register_bytes(), "neon")


def cost_of(operation: str, path: str, dtype: torch.dtype, tracked: bool) -> Cost | None:
    """The constants of a path of ``additive`` or ``dot``; None if it was not measured."""
    kind = str(dtype).removeprefix("torch.")
    return table(instruction_set()).get((operation, path, kind, "gradients" if tracked else "forward"))


@lru_cache
def table(instructions: str) -> Costs:
    """The constants of all paths, for a result of `instruction_set`."""
    if instructions == "neon":  # not measured: assumed to take twice AVX2's time per pair and score
        costs = table("avx2")
        return {key: cost._replace(pair=2 * cost.pair, score=2 * cost.score) for key, cost in costs.items()}
    return parsed((files(__package__) / "measured" / f"{instructions}.tsv").read_text(encoding="utf-8"))


def parsed(text: str) -> Costs:
    """The constants of a table as `python -m benchmarks calibrate` prints it."""
    costs = {}
    for line in [line for line in text.splitlines() if not line.startswith("#")][1:]:
        operation, path, dtype, mode, call, pair, score, row, measured = line.split("\t")
        factors = tuple(map(float, measured.split()))
        costs[operation, path, dtype, mode] = Cost(float(call), float(pair), float(score), float(row), factors)
    return costs


def microseconds(cost: Cost, work: Work, measured: tuple[Work, ...] = ()) -> float:
    """Predicted time of a call; threads share work above `WORTH_WAKING`.

    ``measured`` is the work of the measured calls. Their ratio of measured to modelled time corrects the prediction,
    weighted by how similar their work is.
    """
    one_thread = (cost.pair * work.pairs + cost.score * work.scores + cost.row * work.rows) / 1e3
    threads = torch.get_num_threads()
    total = cost.call + (one_thread / threads if threads > 1 and one_thread > WORTH_WAKING else one_thread)
    return total * exp(_correction(cost, work, measured)) if cost.measured else total


def _correction(cost: Cost, work: Work, measured: tuple[Work, ...]) -> float:
    """Logarithm of measured over modelled time, averaged by similarity of work."""
    pairs, scores, rows = _logarithms(work)
    weighted_sum, weight_sum = 0.0, FAR
    # written out for speed: the first call of every size waits for it
    for of_pairs, of_scores, of_rows, factor in _measured_logarithms(cost, measured):
        by_pairs, by_scores, by_rows = pairs - of_pairs, scores - of_scores, rows - of_rows
        weight = 1 / (by_pairs * by_pairs + by_scores * by_scores + by_rows * by_rows + NEAR)
        weighted_sum += weight * factor
        weight_sum += weight
    return weighted_sum / weight_sum


@lru_cache(maxsize=64)
def _measured_logarithms(cost: Cost, measured: tuple[Work, ...]) -> list[tuple[float, float, float, float]]:
    """Logarithms of work, and of measured over modelled time, of a path's measured calls."""
    pairs = zip(measured, cost.measured, strict=True)
    return [(*_logarithms(measured_work), log(factor)) for measured_work, factor in pairs if factor]


def _logarithms(work: Work) -> tuple[float, float, float]:
    return log2(work.pairs + 1), log2(work.scores + 1), log2(work.rows + 1)


NEAR, FAR = 0.05, 0.1
"""Bounds on squared log2 distances of work. Within ``NEAR`` a single measured call dominates; beyond 1/``FAR`` none
counts."""

WORTH_WAKING = 50.0
"""Microseconds of work above which threads share it."""
