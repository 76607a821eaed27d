"""Predicted time of scaled dot-product attention on each CPU path, and the cheapest path.

``llvm`` is the tiled kernels of this package, ``small`` those for few queries and keys, ``decode`` the kernel for one
query per head, ``pytorch`` PyTorch's kernel, ``plain`` the formula, with scores in memory. Rates were measured on one
kind of call (`kernels.costs`); constants here correct them for others.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch

from attnspec.backends.pytorch.kernels import costs
from attnspec.backends.pytorch.kernels.costs import SIZES, Work, cost_of, leading_digits
from attnspec.backends.pytorch.kernels.dot.small_rows import MANY_QUERIES
from attnspec.backends.pytorch.kernels.dot.tiles import width

EVERYWHERE = "llvm", "pytorch"
"""Paths that support every call of scaled dot-product attention; the others support some."""

CHECK_OF_EXCLUSION = 10.0
"""Microseconds by which PyTorch's kernel takes longer if keys are excluded: its inputs are checked for NaN."""

RESHAPING = 0.45
"""Fraction of PyTorch's smallest call, without gradients, that reshaping to four dimensions and back takes. Measured
calls of ``pytorch`` include it; it is subtracted if operands have four dimensions already."""

FORMULA_EXTRA = 60.0
"""Microseconds by which the formula takes longer than PyTorch's kernel."""

LOGARITHMS_EXTRA = 0.4, 0.27
"""Extra time of ``llvm`` and ``decode`` for log Σ exp, without and with gradients. The unit is PyTorch's smallest call;
PyTorch's kernel always computes log Σ exp."""

PER_GROUPED_ELEMENT = 3e-3
"""Microseconds per element of all heads' keys and values: ``llvm`` sums their gradients over the heads of a group."""


def by_cost(b: int, h: int, n: int, m: int, d: int, d_v: int, dtype: torch.dtype, *, tracked: bool, excludes: bool,
            masked: bool = False, paths: Sequence[str] = EVERYWHERE, is_4d: bool = False, group: int = 1,
            logarithms: bool = False, merges_heads: bool = False) -> str:  # fmt: skip
    """The cheapest of ``paths``, all of which support the call, for these sizes.

    ``tracked``: gradients are recorded. ``masked``: a mask excludes keys. ``is_4d``: operands have the four dimensions
    of PyTorch's kernel. ``group`` heads share keys; if ``merges_heads``, ``llvm`` treats them as queries of one head.
    """
    times, threads = {}, torch.get_num_threads()
    for path in paths:
        # Assume that half of the pairs are excluded, and skipped by this package's kernels. But under a mask `small`
        # computes one query at a time, not tiles of several, which costs as much as skipping saves.
        skips_excluded = path == "llvm" or (path == "small" and (not masked or n < MANY_QUERIES))
        keys = -(-m // 2) if excludes and skips_excluded else m
        sizes = (b * h // group, group) if merges_heads and path == "llvm" else (b * h, n)
        # the formula has no rates of its own
        time = microseconds("pytorch" if path == "plain" else path, *sizes, keys, d, d_v, dtype, tracked, threads)
        if time is not None:
            times[path] = time + FORMULA_EXTRA * (path == "plain")
    if "pytorch" in times:
        times["pytorch"] += CHECK_OF_EXCLUSION * excludes
        times["pytorch"] -= RESHAPING * smallest_call(dtype, tracked) * (is_4d and not tracked)
    for path in ("llvm", "decode"):
        if path in times and logarithms:
            times[path] += LOGARITHMS_EXTRA[tracked] * smallest_call(dtype, tracked)
    if "llvm" in times and tracked and group > 1:
        times["llvm"] += PER_GROUPED_ELEMENT * b * h * m * (d + d_v)
    return min(times, key=times.__getitem__)


def microseconds(
    path: str, entries: int, n: int, m: int, d: int, d_v: int, dtype: torch.dtype, tracked: bool, threads: int
) -> float | None:
    """Predicted microseconds of a call; None if the path was not measured.

    Keys are rounded down by `leading_digits`; ``threads`` is only a cache key.
    """
    return _microseconds(path, entries, n, leading_digits(m), d, d_v, dtype, tracked, threads)


@lru_cache(maxsize=4096)
def _microseconds(
    path: str, entries: int, n: int, m: int, d: int, d_v: int, dtype: torch.dtype, tracked: bool, threads: int
) -> float | None:
    cost = cost_of("dot", path, dtype, tracked)
    return cost and costs.microseconds(cost, work(path, entries, n, m, d, d_v, dtype), _measured(path, dtype))


def smallest_call(dtype: torch.dtype, tracked: bool) -> float:
    """Microseconds of the smallest call of PyTorch's kernel."""
    return microseconds("pytorch", 1, 1, 1, 1, 1, dtype, tracked, 1) or 0.0


@lru_cache(maxsize=64)
def _measured(path: str, dtype: torch.dtype) -> tuple[Work, ...]:
    return tuple(work(path, batch, n, m, d, d, dtype) for batch, n, m, d in SIZES)


def work(path: str, entries: int, n: int, m: int, d: int, d_v: int, dtype: torch.dtype) -> Work:
    """`Work` of a path; ``llvm`` rounds queries up to whole lanes."""
    lanes = width(64 if dtype is torch.float64 else 32) if path == "llvm" else 1
    scores = entries * -(-n // lanes) * lanes * m
    return Work(scores * (d + d_v), scores, entries * (n + m) * (d + d_v))
