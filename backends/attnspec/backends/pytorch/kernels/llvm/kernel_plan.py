"""Plans of single kernels: argument buffers are cached; a run copies one and sets addresses."""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments
from attnspec.backends.pytorch.kernels.llvm.codegen import buffer_slots
from attnspec.backends.pytorch.kernels.llvm.machine_code import Compiled
from attnspec.backends.pytorch.kernels.llvm.threads import argument_buffer, call
from attnspec.backends.pytorch.runtime.plans import plan_class

CACHE_LINE = 64
"""Bytes of a cache line."""


class _NullTensor:
    """Null tensor. A real one would follow the defaults at import: start CUDA, or be fake, without an address."""

    def data_ptr(self) -> int:
        return 0


UNSET = cast(Tensor, _NullTensor())
"""Placeholder for a tensor whose address each run sets."""


@plan_class
class KernelPlan:
    """A kernel, its argument buffer with the slots of addresses, and its thread count."""

    kernel: Compiled[Any]
    buffer: "array[int]"
    slots: tuple[int, ...]
    threads: int

    def run(self, *addresses: int) -> None:
        """Call the kernel with these addresses, in the order of `slots`."""
        buffer = self.buffer[:]  # threads share the plan, and a kernel writes to the leading slots
        for slot, address in zip(self.slots, addresses, strict=True):
            buffer[slot] = address
        call(self.kernel, self.threads, buffer)


def kernel_plan(kernel: Compiled[Any], threads: int, arguments: Arguments, *slots: int) -> KernelPlan:
    """`KernelPlan` whose addresses go to ``slots``, counted from the first argument."""
    return KernelPlan(kernel, argument_buffer(arguments.to_slots()), buffer_slots(*slots), threads)


def unset_scratch(threads: int, numbers: int, dtype: torch.dtype) -> Tensor:
    """Placeholder for scratch memory (threads, numbers). Only its shape is used; each run sets the address."""
    return torch.empty(1, dtype=dtype, device="cpu").expand(threads, numbers)


def offsets_of(sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Offsets of parts of these sizes (bytes), aligned to cache lines, and the total."""
    ends = list(accumulate(-(-size // CACHE_LINE) * CACHE_LINE for size in sizes))
    return (0, *ends[:-1]), ends[-1]
