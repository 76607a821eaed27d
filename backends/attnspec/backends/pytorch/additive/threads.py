"""Runs a compiled kernel on as many threads as PyTorch is set to use."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from torch import Tensor

from .codegen import Compiled, Kernel

_pool: ThreadPoolExecutor | None = None


def _forget_pool() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)  # threads do not survive a fork


@cache
def compiled(build: Callable[..., Kernel], *arguments: int | bool) -> Compiled:
    """The machine code of a kernel, built at its first use."""
    return build(*arguments).compile()


def thread_count(tasks: int, work: float) -> int:
    """Threads for `tasks` tasks of `work` terms in all; a thread is worth waking for about 100 microseconds."""
    return max(1, min(torch.get_num_threads(), tasks, int(work / 2_000_000) + 1))


def run(kernel: Compiled, threads: int, values: dict[str, int | Tensor | None]) -> None:
    """Call the kernel with sizes and the addresses of tensors; returns when every thread is done."""
    global _pool
    words = np.zeros(len(kernel.fields), np.int64)
    counter = np.zeros(8, np.int64)
    for i, field in enumerate(kernel.fields):
        if field == "counter":
            words[i] = counter.ctypes.data
        else:
            value = values[field]
            words[i] = 0 if value is None else value.data_ptr() if isinstance(value, Tensor) else value
    address = words.ctypes.data
    if threads == 1:
        kernel.call(address, 0)
        return
    if _pool is None:
        _pool = ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="attnspec")
    others = [_pool.submit(kernel.call, address, i) for i in range(1, threads)]
    kernel.call(address, 0)
    for other in others:
        other.result()
