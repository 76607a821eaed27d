"""Kernel calls with cached argument buffers: each run fills in only addresses."""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments
from attnspec.backends.pytorch.kernels.llvm.codegen import LEADING
from attnspec.backends.pytorch.kernels.llvm.machine_code import Compiled
from attnspec.backends.pytorch.kernels.llvm.threads import call, with_leading
from attnspec.backends.pytorch.runtime.plans import plan_class

CACHE_LINE = 64
"""Bytes of a cache line."""


class _Nothing:
    """Null tensor; a real one would have the device or mode that is active at import."""

    def data_ptr(self) -> int:
        """Return 0, the null address."""
        return 0


NOTHING = cast(Tensor, _Nothing())
"""Placeholder for a tensor whose address is filled in."""


@plan_class
class Step:
    """A kernel, its argument buffer, indices of addresses in it, and its number of threads."""

    kernel: Compiled[Any]
    words: "array[int]"
    places: tuple[int, ...]
    threads: int

    def run(self, *addresses: int) -> None:
        """Call the kernel, with addresses in the order of their places."""
        words = self.words[:]
        for place, there in zip(self.places, addresses, strict=True):
            words[place] = there
        call(self.kernel, self.threads, words)


def step(kernel: Compiled[Any], threads: int, arguments: Arguments, *places: int) -> Step:
    """`Step` whose addresses go to ``places``, the numbers of argument words."""
    return Step(kernel, with_leading(arguments.to_words()), tuple(LEADING + place for place in places), threads)


def scratch(threads: int, numbers: int, dtype: torch.dtype) -> Tensor:
    """Placeholder for scratch memory (threads, numbers): its shape is read, its address filled in."""
    return torch.empty(1, dtype=dtype, device="cpu").expand(threads, numbers)


def laid_out(sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Offsets of parts of these sizes (bytes), aligned to cache lines, and the total."""
    ends = list(accumulate(-(-size // CACHE_LINE) * CACHE_LINE for size in sizes))
    return (0, *ends[:-1]), ends[-1]
