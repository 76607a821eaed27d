"""Scratch memory that a thread keeps, since new pages cost as much as small kernels.

Freed memory would not do: the allocator may return it to the system. A call leases all its memory at once, holds the
lease until it returns, and hands no part of it to its caller. Leased memory is not leased twice: a signal handler or a
finalizer may call the same kernel during a call, and then gets new memory.
"""

import threading

import torch
from torch import Tensor

MOST_BYTES = 2**23
"""Most bytes kept for one kind of call, per thread that works on it."""


class _Slot:
    """Memory for one kind of call; size and address are stored, since tensors are slow."""

    __slots__ = ("address", "leased", "memory", "size")

    def __init__(self, size: int) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8, device="cpu")
        self.size, self.address, self.leased = size, self.memory.data_ptr(), False


class Lease:
    """Lease of a slot. Deleting this object ends it, so that exceptions end it too."""

    __slots__ = ("_slot",)

    def __init__(self, slot: _Slot) -> None:
        self._slot = slot
        slot.leased = True

    def __del__(self) -> None:
        self._slot.leased = False

    @property
    def memory(self) -> Tensor:
        """The whole memory, as bytes."""
        return self._slot.memory


class _ThreadSlots(threading.local):
    def __init__(self) -> None:
        self.slots: dict[str, _Slot] = {}


_thread = _ThreadSlots()


def lease_address(kind: str, bytes_needed: int, threads: int = 1) -> tuple[int, Lease]:
    """Return the address of at least ``bytes_needed`` bytes of scratch memory, and their lease.

    ``threads`` work on it. It is newly allocated if more than `MOST_BYTES` per thread, or if it is leased already.
    """
    slot = _thread.slots.get(kind)
    if slot is None or slot.size < bytes_needed or slot.leased:
        slot = _Slot(bytes_needed)
        if bytes_needed <= MOST_BYTES * threads:
            _thread.slots[kind] = slot
    return slot.address, Lease(slot)


def lease_tensor(kind: str, numbers: int, dtype: torch.dtype) -> tuple[Lease, Tensor] | None:
    """Return a lease and ``numbers`` uninitialised numbers; None beyond `MOST_BYTES`."""
    size = numbers * dtype.itemsize
    if size > MOST_BYTES:
        return None
    _, lease = lease_address(kind, size)
    return lease, lease.memory[:size].view(dtype)
