"""Memory that a thread keeps between calls: new pages cost as much as a small kernel.

The system may take back freed memory of any size when other operations free theirs. A call takes all memory that it
needs at once, holds its lease until it returns, and passes none of it on. Leased memory is not leased again: a signal
handler or a finalizer may call the same kernel during a call, and then gets new memory.
"""

import threading

import torch
from torch import Tensor

MOST = 2**23
"""Most bytes kept for one kind of call, per thread that works on it."""


class _Slot:
    """Memory for one kind of call, with size and address, which tensors report slowly, and lease state."""

    __slots__ = ("address", "lent", "memory", "size")

    def __init__(self, size: int) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8, device="cpu")
        self.size, self.address, self.lent = size, self.memory.data_ptr(), False


class Lease:
    """Memory leased until this object is deleted, so that exceptions release it too."""

    __slots__ = ("_slot",)

    def __init__(self, slot: _Slot) -> None:
        self._slot = slot
        slot.lent = True

    def __del__(self) -> None:
        self._slot.lent = False

    @property
    def memory(self) -> Tensor:
        """The whole memory, as bytes."""
        return self._slot.memory


class _Own(threading.local):
    def __init__(self) -> None:
        self.slots: dict[str, _Slot] = {}


_own = _Own()


def address(kind: str, size: int, threads: int = 1) -> tuple[int, Lease]:
    """Address of ``size`` or more bytes of this thread's memory, and the lease to hold meanwhile.

    ``threads`` share it. It is newly allocated if larger than `MOST` per thread, or already leased.
    """
    slot = _own.slots.get(kind)
    if slot is None or slot.size < size or slot.lent:
        slot = _Slot(size)
        if size <= MOST * threads:
            _own.slots[kind] = slot
    return slot.address, Lease(slot)


def kept(kind: str, numbers: int, dtype: torch.dtype) -> tuple[Lease, Tensor] | None:
    """Lease of this thread's memory, and ``numbers`` uninitialised numbers in it; None if that is too many."""
    size = numbers * dtype.itemsize
    if size > MOST:
        return None
    _, lease = address(kind, size)
    return lease, lease.memory[:size].view(dtype)
