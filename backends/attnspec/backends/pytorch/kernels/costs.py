"""What a call of each path takes, by instruction set and dtype: a model, whose constants `measured` holds.

Nothing is timed in a user's process: the same call takes the same path in every run.
"""

from functools import lru_cache
from math import exp, log, log2
from typing import NamedTuple

import torch

from attnspec.backends.pytorch.kernels.cost import Cost
from attnspec.backends.pytorch.kernels.measured import COSTS


class Work(NamedTuple):
    """What a call takes time for: the terms or multiply-adds of all pairs of a query and a key, the scores, and the
    numbers of queries, keys and values themselves. Kernels whose lanes hold queries count empty lanes too."""

    pairs: float
    scores: float
    rows: float


def leading_digits(size: int) -> int:
    """The first five binary digits of a size: a path is chosen once for all that share them, as keys grow by steps."""
    rest = max(size.bit_length() - 5, 0)
    return size >> rest << rest


@lru_cache(maxsize=1)
def instruction_set() -> str:
    """``amx``, ``zen5``, ``avx512``, ``avx2`` or ``neon``: by the registers that kernels use.

    AMD's processors add in registers of 512 bits by halves up to Zen 4, and at once from Zen 5 on.
    """
    from attnspec.backends.pytorch.kernels.llvm.machine_code import is_zen, register_bytes, splits_512_bits
    from attnspec.backends.pytorch.kernels.llvm.tile_registers import multiplies_tiles

    if multiplies_tiles():
        return "amx"
    if register_bytes() == 64 and is_zen() and not splits_512_bits():
        return "zen5"
    return {64: "avx512", 32: "avx2"}.get(register_bytes(), "neon")


def cost_of(operation: str, path: str, dtype: torch.dtype, tracked: bool) -> Cost | None:
    """The constants of a path of ``additive`` or ``dot``; None where it was not measured."""
    kind = str(dtype).removeprefix("torch.")
    return COSTS[instruction_set()].get((operation, path, kind, "gradients" if tracked else "forward"))


def microseconds(cost: Cost, work: Work, measured: tuple[Work, ...]) -> float:
    """The time of a call whose work is divided among all threads, where it is worth waking them.

    ``measured`` is the work of the calls that were measured. What they took more or less than the sum over units of
    work, a call takes more or less, too, the more it resembles them.
    """
    alone = (cost.pair * work.pairs + cost.score * work.scores + cost.row * work.rows) / 1e3
    threads = torch.get_num_threads()
    total = cost.call + (alone / threads if threads > 1 and alone > WORTH_WAKING else alone)
    return total * exp(_correction(cost, work, measured)) if cost.measured else total


def _correction(cost: Cost, work: Work, measured: tuple[Work, ...]) -> float:
    """The logarithm of what was measured over the model, of calls with similar work."""
    pairs, scores, rows = _logarithms(work)
    weighted, weights = 0.0, FAR
    # written out: every size that is seen for the first time waits for it
    for of_pairs, of_scores, of_rows, factor in _known(cost, measured):
        by_pairs, by_scores, by_rows = pairs - of_pairs, scores - of_scores, rows - of_rows
        weight = 1 / (by_pairs * by_pairs + by_scores * by_scores + by_rows * by_rows + NEAR)
        weighted += weight * factor
        weights += weight
    return weighted / weights


@lru_cache(maxsize=64)
def _known(cost: Cost, measured: tuple[Work, ...]) -> list[tuple[float, float, float, float]]:
    """Logarithms of the work of the calls that were measured on a path, and of what they took over the model."""
    pairs = zip(measured, cost.measured, strict=True)
    return [(*_logarithms(known), log(factor)) for known, factor in pairs if factor]


def _logarithms(work: Work) -> tuple[float, float, float]:
    return log2(work.pairs + 1), log2(work.scores + 1), log2(work.rows + 1)


NEAR, FAR = 0.05, 0.1
"""Squared powers of two of work: within ``NEAR`` of a measured call nothing else counts, and where all are further away
than 1/``FAR``, none does."""

WORTH_WAKING = 50.0
"""Microseconds of work from which threads share it."""
