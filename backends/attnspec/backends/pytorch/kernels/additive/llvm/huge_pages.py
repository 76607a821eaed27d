"""Large tensors in huge pages, which Linux provides on request.

Reading 64 MiB in pages of 4 KiB takes 16,384 address translations, a third of the whole time: measured on one Zen 4
core, 19 GB/s in small pages, 31 GB/s in huge ones. The first write to new memory differs even more: 28 ms for 64 MiB in
small pages, 7 ms in huge ones.
"""

import mmap
from collections.abc import Sequence
from contextlib import suppress
from math import prod

import numpy as np
import torch
from torch import Tensor

from attnspec.backends.pytorch.runtime import scratch_memory

HUGE = 2 << 20
"""Bytes in a huge page."""

BEYOND_HEAP = 32 << 20
"""Bytes from which glibc returns freed memory to the system; smaller blocks are often reused, their pages present."""


def empty(like: Tensor, *shape: int, read_often: bool = False) -> Tensor:
    """Return an uninitialised CPU tensor in the dtype of `like`; `read_often` allows huge pages from 2 MiB on."""
    size = prod(shape) * like.element_size()
    if size < (HUGE if read_often else BEYOND_HEAP) or not hasattr(mmap, "MADV_HUGEPAGE"):
        return like.new_empty(shape)
    memory = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a Linux kernel without huge pages: the memory is still usable
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -np.frombuffer(memory, np.uint8).__array_interface__["data"][0] % HUGE
    return torch.frombuffer(memory, dtype=like.dtype, count=prod(shape), offset=start).view(shape)


def leased_parts(kind: str, like: Tensor, sizes: Sequence[int]) -> tuple[object, Sequence[Tensor]]:
    """Return an object and uninitialised memory in parts of `sizes` elements. Hold it while the parts are used.

    Each thread keeps the memory between calls of a kind, unless it is large."""
    numbers = sum(sizes)
    held, memory = scratch_memory.lease_tensor(kind, numbers, like.dtype) or (like, empty(like, numbers))
    return held, torch.split_with_sizes(memory, sizes)


def leased_bytes(kind: str, like: Tensor, size: int) -> tuple[object, Tensor]:
    """Return `size` bytes of memory like `leased_parts`, and the object to hold."""
    leased = scratch_memory.lease_tensor(kind, size, torch.uint8)
    return leased or (like, empty(like.new_empty(0, dtype=torch.uint8), size))


def copy(x: Tensor) -> Tensor:
    """Return a contiguous copy that will be read many times."""
    return empty(x, *x.shape, read_often=True).copy_(x)


def converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x in the dtype; x itself if it has that dtype."""
    return x if x.dtype is dtype else empty(x.new_empty(0, dtype=dtype), *x.shape).copy_(x)
