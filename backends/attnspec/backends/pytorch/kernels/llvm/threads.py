"""Runs of compiled kernels on as many threads as PyTorch is set to use.

Where PyTorch uses GNU OpenMP, as its builds for Linux do, kernels run on its own team of threads: they are still awake
from the operation before, and no second team competes with them for the cores. Elsewhere, and in a forked child, which
does not inherit the team, kernels run on Python threads. (A child forked from a process with several threads must still
set PyTorch to one thread: PyTorch's own operations around the kernels would wait for the missing team.)
"""

import ctypes
import os
import threading
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments
from attnspec.backends.pytorch.kernels.llvm.codegen import COUNTERS, LEADING, LINE, NUMBERING, THREADS
from attnspec.backends.pytorch.kernels.llvm.machine_code import Compiled

WORTH_WAKING = 200_000
"""Terms of additive scores, or equal work, from which waking threads (10 µs) pays off."""

A = TypeVar("A", bound=Arguments)

_pools = threading.local()
_forked = False


def _after_fork() -> None:
    global _pools, _forked
    _pools, _forked = threading.local(), True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def worth_waking(tasks: int, work: float) -> bool:
    """Return whether `tasks` tasks of `work` terms in all are worth several threads."""
    return tasks > 1 and work >= WORTH_WAKING


def thread_count(tasks: int, work: float) -> int:
    """Threads for `tasks` tasks of `work` terms in all: one, or the whole team of PyTorch."""
    return torch.get_num_threads() if worth_waking(tasks, work) else 1


def run(kernel: Compiled[A], threads: int, arguments: A) -> None:
    """Call a kernel; return when every thread is done."""
    launch(kernel, threads, arguments.to_slots())


def launch(kernel: Compiled[Any], threads: int, slots: Sequence[int]) -> None:
    """Call a kernel with the contents of its argument slots."""
    call(kernel, threads, argument_buffer(slots))


def argument_buffer(slots: Sequence[int]) -> "array[int]":
    """Argument buffer for `call`: leading slots, which are 0, then these slots."""
    buffer = array("q", bytes(8 * LEADING))
    buffer.extend(slots)
    return buffer


def call(kernel: Compiled[Any], threads: int, buffer: "array[int]") -> None:
    """Call a kernel with an argument buffer whose leading slots are 0."""
    address = buffer.buffer_info()[0]
    if threads == 1:
        kernel.call(address)
        return
    counters = array("q", bytes(8 * LINE * threads))
    buffer[THREADS], buffer[COUNTERS] = threads, counters.buffer_info()[0]
    team = None if _forked else _team()
    if team is not None:
        buffer[NUMBERING] = team.number
        team.parallel(kernel.address, address, threads, 0)
        return
    _on_python_threads(kernel, address, threads)


def _on_python_threads(kernel: Compiled[Any], address: int, threads: int) -> None:
    """Run on the calling thread's pool. If interrupted, wait for all threads: they write to buffer freed next."""
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
    """Wait for all threads of the pool, even if interrupted again."""
    ended = False
    try:
        pool.shutdown()
        ended = True
    finally:
        if not ended:
            _end(pool)


class Team(NamedTuple):
    """Functions of GNU OpenMP: ``GOMP_parallel(function, argument, threads, flags)``, and the address of
    ``omp_get_thread_num``."""

    parallel: Callable[[int, int, int, int], None]
    number: int


@cache
def _team() -> Team | None:
    """Return PyTorch's team of threads; None if it does not use GNU OpenMP."""
    libraries = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    if not libraries or "OpenMP" not in torch.__config__.parallel_info():
        return None
    library = ctypes.CDLL(str(libraries[0]))
    parallel = library.GOMP_parallel
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    number = ctypes.cast(library.omp_get_thread_num, ctypes.c_void_p).value
    assert number is not None
    return Team(parallel, number)
