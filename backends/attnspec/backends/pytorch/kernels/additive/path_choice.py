"""The available paths of additive attention, and the CPU path with the lowest predicted time."""

import os
from functools import lru_cache

import torch

from attnspec.backends.pytorch.kernels import costs
from attnspec.backends.pytorch.kernels.costs import Work, cost_of, leading_digits
from attnspec.backends.pytorch.runtime.forcing import forced
from attnspec.backends.pytorch.runtime.optional import HAS_LLVMLITE, HAS_TRITON, TRITON_ON_CUDA

PATHS = "pointwise", "llvm"
"""CPU paths between which predicted times decide."""


def available_paths(device_type: str) -> tuple[str, ...]:
    """Return the paths for tensors of this device, preferred first."""
    paths = []
    if device_type == "cpu" and HAS_LLVMLITE:
        paths += ["llvm", "pointwise"]
    if device_type == "cuda" and TRITON_ON_CUDA:
        paths.append("triton")
    paths.append("plain")
    if device_type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1" and HAS_TRITON:
        paths.append("triton")
    return tuple(paths)


def by_cost(entries: int, n: int, m: int, h: int, d: int, dtype: torch.dtype, *, tracked: bool) -> str:
    """Return ``pointwise`` or ``llvm`` for a batch of `entries`; ``tracked`` if gradients are needed."""
    if not entries * n * m:  # only `llvm` has empty results
        return "llvm"
    forced_path = forced()
    if forced_path in PATHS:
        return forced_path
    return min(PATHS, key=lambda path: microseconds(path, entries, n, m, h, d, dtype, tracked, torch.get_num_threads()))


def microseconds(
    path: str, entries: int, n: int, m: int, h: int, d: int, dtype: torch.dtype, tracked: bool, threads: int
) -> float:
    """Predicted microseconds of a call with about m keys on a path.

    m is rounded, so that decoding steps with more and more keys reuse choices. `threads` is only a cache key: the
    cost model asks PyTorch for its number of threads.
    """
    return _microseconds(path, entries, n, leading_digits(m), h, d, dtype, tracked, threads)


@lru_cache(maxsize=4096)
def _microseconds(
    path: str, entries: int, n: int, m: int, h: int, d: int, dtype: torch.dtype, tracked: bool, threads: int
) -> float:
    cost = cost_of("additive", path, dtype, tracked)
    assert cost is not None
    return costs.microseconds(cost, work(entries, n, m, h, d))


def work(entries: int, n: int, m: int, h: int, d: int) -> Work:
    """Counts of terms, scores and elements of the operands; predicted time is linear in them."""
    return Work(pairs=entries * n * m * h, scores=entries * n * m, rows=entries * ((n + m) * h + m * d))
