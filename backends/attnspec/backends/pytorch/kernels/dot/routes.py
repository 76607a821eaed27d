"""Which of the kernels for CPUs a call of scaled dot-product attention takes: those that cost least."""

from collections.abc import Sequence
from functools import lru_cache

import torch

from attnspec.backends.pytorch.kernels import costs
from attnspec.backends.pytorch.kernels.costs import SIZES, Work, cost_of, leading_digits
from attnspec.backends.pytorch.kernels.dot.few_rows import MANY
from attnspec.backends.pytorch.kernels.dot.tiles import width

EVERYWHERE = "llvm", "pytorch"
"""Paths that serve every call of scaled dot-product attention; the others serve some."""

EXCLUDING = 10.0
"""Microseconds that the kernel of PyTorch takes longer where keys are excluded: what it is given must be checked."""

VIEWS = 0.45
"""Part of a call of PyTorch's kernel, without gradients, in which operands are given four dimensions and the result
three."""

PLAIN = 60.0
"""Microseconds that the formula takes longer than PyTorch's kernel."""

OF_LOGARITHMS = 0.4, 0.27
"""What ``llvm`` and ``step`` take longer where log Σ exp is wanted, without gradients and with them, as part of the
least time that PyTorch's kernel takes: that one finds it in any case."""

OF_HEADS = 3e-3
"""Microseconds in which ``llvm`` adds up the gradients of a group, for each number of keys and values of each head."""


def by_cost(b: int, h: int, n: int, m: int, d: int, d_v: int, dtype: torch.dtype, *, tracked: bool, excludes: bool,
            masked: bool = False, paths: Sequence[str] = EVERYWHERE, fits: bool = False, group: int = 1,
            logarithms: bool = False, joins: bool = False) -> str:  # fmt: skip
    """The cheapest of ``paths``, which serve the call, for operands of these sizes.

    ``tracked`` says that gradients are taken, ``masked`` that a mask excludes keys, ``fits`` that operands have four
    dimensions, as PyTorch's kernel wants them; ``group`` heads share keys, for ``llvm`` as queries of one if ``joins``.
    """
    times, threads = {}, torch.get_num_threads()
    for path in paths:
        # what is excluded is taken to be half of all, which the kernels of this package leave out; what `few` gains by
        # tiles it loses under a mask
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
    """What a call with about so many keys takes on a path by PyTorch's threads, whose number only tells remembered
    results apart.

    None where the path was not measured.
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
    """What a path has to do; ``llvm`` fills the lanes of queries."""
    lanes = width(64 if dtype is torch.float64 else 32) if path == "llvm" else 1
    scores = entries * -(-n // lanes) * lanes * m
    return Work(scores * (d + d_v), scores, entries * (n + m) * (d + d_v))
