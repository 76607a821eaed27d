"""Runs a compiled kernel on as many threads as PyTorch is set to use.

Where PyTorch's own threads can be had (OpenMP of GNU, as in its builds for Linux), they run the kernels too: they are
awake after the call before, and nobody else's threads spin beside them. Elsewhere, and in a forked child, where they
do not exist, threads of Python do. (A child that forks from a parent with several threads must still set PyTorch to one
thread: PyTorch's own operations around the kernels wait for theirs.)
"""

import ctypes
import os
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm.codegen import LEADING, Kernel
from attnspec.backends.pytorch.kernels.llvm.machine_code import Compiled

WORTH_WAKING = 200_000
"""Terms of additive scores, or as much work of another kind, from which threads are woken: some 10 microseconds."""

_pools = threading.local()
_forked = False


def _after_fork() -> None:
    global _pools, _forked
    _pools, _forked = threading.local(), True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@cache
def compiled(build: Callable[..., Kernel], *arguments: int | bool) -> Compiled:
    """The machine code of a kernel, built at its first use."""
    return build(*arguments).compile()


def thread_count(tasks: int, work: float) -> int:
    """Threads for `tasks` tasks of `work` terms in all: one, or all that PyTorch uses, which are one team."""
    return 1 if tasks < 2 or work < WORTH_WAKING else torch.get_num_threads()


def run(kernel: Compiled, threads: int, values: Mapping[str, int | Tensor | None]) -> None:
    """Call the kernel with sizes and the addresses of tensors, by name; returns when every thread is done."""
    launch(kernel, threads, [word(values[field]) for field in kernel.fields])


def word(value: int | Tensor | None) -> int:
    """An argument as a kernel reads it: a size, or the address of a tensor, which must outlive the call; None is 0."""
    return 0 if value is None else value.data_ptr() if isinstance(value, Tensor) else value


def launch(kernel: Compiled, threads: int, words: Sequence[int]) -> None:
    """Call the kernel with the words of its fields, in their order."""
    memory = array("q", bytes(8 * LEADING))
    memory.extend(words)
    address = memory.buffer_info()[0]
    if threads == 1:
        kernel.call(address)
        return
    parallel = None if _forked else _team()
    if parallel is not None:
        parallel(kernel.address, address, threads, 0)
        return
    _on_python_threads(kernel, address, threads)


def _on_python_threads(kernel: Compiled, address: int, threads: int) -> None:
    """On threads of the caller's own. If it is interrupted, they end first: they write to memory that it frees."""
    if not hasattr(_pools, "own"):
        _pools.own = ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="attnspec")
    pool: ThreadPoolExecutor = _pools.own
    ended = False
    try:
        others = [pool.submit(kernel.call, address) for _ in range(1, threads)]
        kernel.call(address)
        for other in others:
            other.result()
        ended = True
    finally:
        if not ended:
            _pools.__dict__.clear()
            _end(pool)


def _end(pool: ThreadPoolExecutor) -> None:
    """Wait for all threads of the pool, also when interrupted once more."""
    ended = False
    try:
        pool.shutdown()
        ended = True
    finally:
        if not ended:
            _end(pool)


@cache
def _team() -> Callable[[int, int, int, int], None] | None:
    """A function and its argument on a number of PyTorch's threads; None where PyTorch has none of that kind."""
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    if not found or "OpenMP" not in torch.__config__.parallel_info():
        return None
    parallel = ctypes.CDLL(str(found[0])).GOMP_parallel
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    function: Callable[[int, int, int, int], None] = parallel
    return function
