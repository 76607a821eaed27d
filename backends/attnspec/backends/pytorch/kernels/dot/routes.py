"""Choice of the cheapest CPU kernel for a call of scaled dot-product attention."""

from collections.abc import Sequence
from functools import lru_cache

import torch

from attnspec.backends.pytorch.kernels import costs
from attnspec.backends.pytorch.kernels.costs import SIZES, Work, cost_of, leading_digits
from attnspec.backends.pytorch.kernels.dot.few_rows import MANY
from attnspec.backends.pytorch.kernels.dot.tiles import width

EVERYWHERE = "llvm", "pytorch"
"""Paths that support every call of scaled dot-product attention; the others support some."""

EXCLUDING = 10.0
"""Extra microseconds of PyTorch's kernel if keys are excluded: its inputs must be checked for NaN and infinities."""

VIEWS = 0.45
"""Fraction of PyTorch's smallest call, without gradients, spent on reshaping operands to four dimensions and the result
back."""

PLAIN = 60.0
"""Extra microseconds of the formula over PyTorch's kernel."""

OF_LOGARITHMS = 0.4, 0.27
"""Extra time of ``llvm`` and ``step`` for log Σ exp, without and with gradients, as a fraction of PyTorch's smallest
call. PyTorch's kernel always computes log Σ exp."""

OF_HEADS = 3e-3
"""Microseconds per element of keys and values of each head in which ``llvm`` sums the gradients of a group."""


def by_cost(b: int, h: int, n: int, m: int, d: int, d_v: int, dtype: torch.dtype, *, tracked: bool, excludes: bool,
            masked: bool = False, paths: Sequence[str] = EVERYWHERE, fits: bool = False, group: int = 1,
            logarithms: bool = False, joins: bool = False) -> str:  # fmt: skip
    """The cheapest of ``paths``, all of which support the call, for these sizes.

    ``tracked``: gradients are recorded. ``masked``: a mask excludes keys. ``fits``: operands have the four dimensions
    that PyTorch's kernel needs. ``group`` heads share keys; if ``joins``, ``llvm`` takes them as queries of one head.
    """
    times, threads = {}, torch.get_num_threads()
    for path in paths:
        # assume that exclusion halves the pairs, which this package's kernels skip; under a mask `few` loses its tiles,
        # which cancels the gain
        leaves_out = path == "llvm" or (path == "few" and (not masked or n < MANY))
        keys = -(-m // 2) if excludes and leaves_out else m
        sizes = (b * h // group, group) if joins and path == "llvm" else (b * h, n)
        time = microseconds("pytorch" if path == "plain" else path, *sizes, keys, d, d_v, dtype, tracked, threads)
        if time is not None:
            times[path] = time + PLAIN * (path == "plain")
    if "pytorch" in times:
        times["pytorch"] += EXCLUDING * excludes
        times["pytorch"] -= VIEWS * least(dtype, tracked) * (fits and not tracked)
    for path in ("llvm", "step"):
        if path in times and logarithms:
            times[path] += OF_LOGARITHMS[tracked] * least(dtype, tracked)
    if "llvm" in times and tracked and group > 1:
        times["llvm"] += OF_HEADS * b * h * m * (d + d_v)
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


def least(dtype: torch.dtype, tracked: bool) -> float:
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
