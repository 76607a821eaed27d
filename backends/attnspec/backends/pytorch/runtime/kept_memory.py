"""Memory that a thread keeps between calls: pages of new memory take as long as the work of a small kernel.

What is freed goes back to the system as other operations free theirs, whatever the size. A call takes all that it needs
at once, uses it until it returns, and gives none of it away.
"""

import threading

import torch
from torch import Tensor

MOST = 2**23
"""Bytes that a thread keeps for one kind of call."""

_own = threading.local()


def address(size: int) -> tuple[int, Tensor]:
    """Where this thread's memory of at least so many bytes begins, and the memory, to be held while it is used.

    It is that of all small kernels; for more than a thread keeps, it is new.
    """
    # the size is kept beside: len() of a tensor takes as long as making one
    own: tuple[int, tuple[int, Tensor]] | None = getattr(_own, "small", None)
    if own is not None and own[0] >= size:
        return own[1]
    memory = torch.empty(size, dtype=torch.uint8, device="cpu")
    found = memory.data_ptr(), memory
    if size <= MOST:
        _own.small = size, found
    return found


def kept(kind: str, numbers: int, dtype: torch.dtype) -> Tensor | None:
    """Memory of this thread for so many numbers, with what is left of other calls of a kind; None for too many."""
    size = numbers * dtype.itemsize
    if size > MOST:
        return None
    memory: dict[str, Tensor] | None = getattr(_own, "memory", None)
    if memory is None:
        memory = _own.memory = {}
    found = memory.get(kind)
    if found is None or len(found) < size:
        found = memory[kind] = torch.empty(size, dtype=torch.uint8)
    return found[:size].view(dtype)
