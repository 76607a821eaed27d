"""Memory that a thread keeps between calls: pages of new memory take as long as the work of a small kernel.

What is freed goes back to the system as other operations free theirs, whatever the size. A call takes all that it needs
at once, holds it until it returns, and gives none of it away. What is held is lent to nobody else: a signal or a
finalizer may call the same kernel in the midst of a call.
"""

import threading
from sys import getrefcount

import torch
from torch import Tensor

MOST = 2**23
"""Bytes that a thread keeps for one kind of call, for itself and as many for each other thread that works for it."""


class _Own(threading.local):
    """For each kind of call the bytes that there are, for len() of a tensor takes as long as making one, and where."""

    def __init__(self) -> None:
        self.memory: dict[str, tuple[int, tuple[int, Tensor]]] = {}


_own = _Own()


def address(kind: str, size: int, threads: int = 1) -> tuple[int, Tensor]:
    """Where this thread's memory of at least so many bytes begins, and the memory, to be held while it is used.

    ``threads`` share it. For more than a thread keeps, and while that is held, it is new.
    """
    own = _own.memory.get(kind)
    if own is not None and own[0] >= size and _references(own[1]) == _ALONE:
        return own[1]
    memory = torch.empty(size, dtype=torch.uint8, device="cpu")
    found = memory.data_ptr(), memory
    if size <= MOST * threads:
        _own.memory[kind] = size, found
    return found


def kept(kind: str, numbers: int, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
    """Memory of this thread, to be held, and as much of it as so many numbers take, with what is left of other calls of
    a kind; None for too many."""
    size = numbers * dtype.itemsize
    if size > MOST:
        return None
    _, memory = address(kind, size)
    return memory, memory[:size].view(dtype)


def _references(found: tuple[int, object]) -> int:
    """How often the memory is referred to."""
    return getrefcount(found[1])


_ALONE = _references((0, object()))
