"""Calls of kernels whose words are made once for all calls of the same sizes: each run fills in addresses alone."""

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
"""Bytes."""


class _Nothing:
    """No tensor: one made while this module is imported would be of the device or the mode of that moment."""

    def data_ptr(self) -> int:
        """No address."""
        return 0


NOTHING = cast(Tensor, _Nothing())
"""In the place of a tensor whose address is filled in."""


@plan_class
class Step:
    """A kernel, the words of its arguments, the places of addresses among them, and its threads."""

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
    """A step whose addresses take the places of these words of the arguments."""
    return Step(kernel, with_leading(arguments.to_words()), tuple(LEADING + place for place in places), threads)


def scratch(threads: int, numbers: int, dtype: torch.dtype) -> Tensor:
    """In the place of scratch memory (threads, numbers): its shape is read, and its address filled in."""
    return torch.empty(1, dtype=dtype, device="cpu").expand(threads, numbers)


def laid_out(sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Where parts of so many bytes begin in one memory, each on a cache line, and the bytes of all."""
    ends = list(accumulate(-(-size // CACHE_LINE) * CACHE_LINE for size in sizes))
    return (0, *ends[:-1]), ends[-1]
