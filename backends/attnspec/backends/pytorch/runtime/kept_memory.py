"""Memory that a thread keeps between calls: pages of new memory take as long as the work of a small kernel.

What is freed goes back to the system as other operations free theirs, whatever the size. A call takes all that it needs
at once, holds its lease until it returns, and gives none of it away. What is lent is lent to nobody else: a signal or a
finalizer may call the same kernel in the midst of a call, which then gets new memory.
"""

import threading

import torch
from torch import Tensor

MOST = 2**23
"""Bytes that a thread keeps for one kind of call, for itself and as many for each other thread that works for it."""


class _Slot:
    """Memory for one kind of call, its size and address, which tensors tell slowly, and whether a call has it."""

    __slots__ = ("address", "lent", "memory", "size")

    def __init__(self, size: int) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8, device="cpu")
        self.size, self.address, self.lent = size, self.memory.data_ptr(), False


class Lease:
    """Memory until this object goes: also where a call ends with an exception, as no explicit return would."""

    __slots__ = ("_slot",)

    def __init__(self, slot: _Slot) -> None:
        self._slot = slot
        slot.lent = True

    def __del__(self) -> None:
        self._slot.lent = False

    @property
    def memory(self) -> Tensor:
        """All of it, as bytes."""
        return self._slot.memory


class _Own(threading.local):
    def __init__(self) -> None:
        self.slots: dict[str, _Slot] = {}


_own = _Own()


def address(kind: str, size: int, threads: int = 1) -> tuple[int, Lease]:
    """Where this thread's memory of at least so many bytes begins, and the lease, to be held while it is used.

    ``threads`` share it. For more than a thread keeps, and while that is lent, it is new.
    """
    slot = _own.slots.get(kind)
    if slot is None or slot.size < size or slot.lent:
        slot = _Slot(size)
        if size <= MOST * threads:
            _own.slots[kind] = slot
    return slot.address, Lease(slot)


def kept(kind: str, numbers: int, dtype: torch.dtype) -> tuple[Lease, Tensor] | None:
    """The lease of this thread's memory, to be held, and as much of it as so many numbers take, with what is left of
    other calls of a kind; None for too many."""
    size = numbers * dtype.itemsize
    if size > MOST:
        return None
    _, lease = address(kind, size)
    return lease, lease.memory[:size].view(dtype)
