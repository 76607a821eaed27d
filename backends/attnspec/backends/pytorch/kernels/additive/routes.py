"""The paths of additive attention, and the one among those for CPUs that costs least."""

import os
from functools import lru_cache

import torch

from attnspec.backends.pytorch.kernels import costs
from attnspec.backends.pytorch.kernels.costs import Work, cost_of, leading_digits
from attnspec.backends.pytorch.runtime.forcing import forced
from attnspec.backends.pytorch.runtime.optional import HAS_LLVMLITE, HAS_TRITON

PATHS = "direct", "llvm"


def available_paths(device_type: str) -> tuple[str, ...]:
    """The paths that tensors of this device can take, the preferred first."""
    paths = []
    if device_type == "cpu" and HAS_LLVMLITE:
        paths += ["llvm", "direct"]
    if device_type == "cuda" and HAS_TRITON:
        paths.append("triton")
    paths.append("plain")
    if device_type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1" and HAS_TRITON:
        paths.append("triton")
    return tuple(paths)


def by_cost(entries: int, n: int, m: int, h: int, d: int, dtype: torch.dtype, *, tracked: bool) -> str:
    """``direct`` or ``llvm``, for as many elements of a batch and these sizes; ``tracked`` if gradients are taken."""
    if not entries * n * m:
        return "llvm"
    wish = forced()
    if wish in PATHS:
        return wish
    return min(PATHS, key=lambda path: microseconds(path, entries, n, m, h, d, dtype, tracked, torch.get_num_threads()))


def microseconds(
    path: str, entries: int, n: int, m: int, h: int, d: int, dtype: torch.dtype, tracked: bool, threads: int
) -> float:
    """What a call with about so many keys takes on a path by PyTorch's threads, whose number only tells remembered
    results apart."""
    return _microseconds(path, entries, n, leading_digits(m), h, d, dtype, tracked, threads)


@lru_cache(maxsize=4096)
def _microseconds(
    path: str, entries: int, n: int, m: int, h: int, d: int, dtype: torch.dtype, tracked: bool, threads: int
) -> float:
    cost = cost_of("additive", path, dtype, tracked)
    assert cost is not None
    return costs.microseconds(cost, work(entries, n, m, h, d))


def work(entries: int, n: int, m: int, h: int, d: int) -> Work:
    """What time is proportional to."""
    return Work(entries * n * m * h, entries * n * m, entries * ((n + m) * h + m * d))
