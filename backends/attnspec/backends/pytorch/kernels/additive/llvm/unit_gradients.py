"""Gradients of scores with respect to projected queries, keys and the weight, on the CPU."""

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnspec.backends.pytorch.kernels.llvm.threads import run, thread_count

from . import backward, pages
from .backward import UnitGradient, WeightGradient, unit_gradient_kernel, unit_scratch, weight_gradient_kernel
from .factors import DIRECT_FLAGS
from .layout import Factors, Weight, bits, blocked, reach
from .scores import capacity
from .tiles import key_lanes


def _extent(used: Tensor, width: int) -> Tensor:
    """For each tile of query rows the range of key blocks that hold a True of `used` (entries, n and m rounded up)."""
    entries, n, stride = used.shape
    blocks = stride // width
    tiles = used.reshape(entries, n // backward.ROWS, backward.ROWS, blocks, width).any(-1).any(2)
    number = torch.arange(blocks, device=used.device)
    low = torch.where(tiles, number, blocks).amin(-1)
    return torch.stack((low, torch.where(tiles, number + 1, 0).amax(-1)), -1).contiguous()


@lru_cache(maxsize=64)
def unit_constants(h: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Ones (h), and for each unit how large 1 + EF may be without a clamp."""
    ones = torch.ones(h, dtype=dtype, device="cpu")
    return ones, ones * (capacity(bits(ones), 2) / 2)


class UnitGradients:
    """Gradients of a, b and w_v of sum(score_grad * scores), by factors wherever they serve."""

    def __init__(
        self, a: Tensor, b: Tensor, w: Tensor, a_index: Tensor, b_index: Tensor,
        memory: tuple[Tensor, Tensor] | tuple[None, None] = (None, None),
    ) -> None:  # fmt: skip
        """``memory`` is for the factors of queries and of keys."""
        weight = Weight.of(w)
        self.w, self.unit, self.index = weight.raw, float(weight.unit), (a_index, b_index)
        ones, limits = unit_constants(len(w), w.dtype)
        self.queries = Factors.of_queries(a, ones, ones, memory[0])
        self.keys = Factors.of_keys(b, ones, memory=memory[1])
        self.direct, clamped = reach(self.queries, self.keys, ones, limits)
        self.clamp = clamped is not None
        entries, (n, h), m = a_index.numel(), a.shape[1:], b.shape[1]
        self.a, self.weight = a.new_empty(entries, n, h), a.new_empty(entries, h)
        self.b = pages.empty(a, entries, m, h)

    def add(self, first: int, score_grad: Tensor, extent: Tensor) -> None:
        """Fill in the batch entries from `first`; score_grad is (entries, n and m rounded up)."""
        stop = first + score_grad.shape[0]
        if not self.direct:
            self._fill(first, stop, score_grad, extent, direct=False)
            return
        n, stride = self.a.shape[1], score_grad.shape[2]
        row, key = self.queries.flag.reshape(-1, n), pad(self.keys.flag, (0, stride - self.keys.flag.shape[1]))
        flags = row[self.index[0][first:stop], :, None] + key[self.index[1][first:stop], None, :]
        direct = pad(flags >= DIRECT_FLAGS, (0, 0, 0, score_grad.shape[1] - n))
        here = _extent(direct, key_lanes(bits(self.a)))
        self._fill(first, stop, torch.where(direct, score_grad, 0.0), here, direct=True)
        directly = [x[first:stop].clone() for x in (self.a, self.b, self.weight)]
        self._fill(first, stop, torch.where(direct, 0.0, score_grad), extent, direct=False)
        for gradient, part in zip((self.a, self.b, self.weight), directly, strict=True):
            gradient[first:stop] += part

    def _fill(self, first: int, stop: int, score_grad: Tensor, extent: Tensor, direct: bool) -> None:
        count, (n, h), m, stride = stop - first, self.a.shape[1:], self.b.shape[1], score_grad.shape[2]
        whole = *self.index, self.a, self.b, self.weight
        a_index, b_index, a, b, weight = whole if count == len(self.a) else [x[first:stop] for x in whole]
        chunks = -(-h // backward.UNITS)
        threads = thread_count(count * chunks, count * n * m * h)
        arguments = UnitGradient(
            tasks=count * chunks, chunks=chunks, n=n, m=m, stride=stride, h=h,
            a_index=a_index, b_index=b_index,
            query=self.queries.raw if direct else self.queries.factor,
            key=blocked(self.keys.raw) if direct else self.keys.factor,
            weight=self.w, clamp=self.clamp and not direct,
            scratch=score_grad.new_empty(threads, sum(unit_scratch(stride))), score_grad=score_grad, extent=extent,
            grad_query=a, grad_key=b, grad_weight=weight,
        )  # fmt: skip
        run(unit_gradient_kernel(bits(self.w), direct, n == 1), threads, arguments)

    def projection_gradients(self) -> tuple[Tensor, Tensor]:
        """da (entries, n, h) and db (entries, m, h)."""
        return (self.a, self.b) if self.unit == 1.0 else (self.a * self.unit, self.b * self.unit)

    def weight_gradient(self) -> Tensor:
        """dw_v but for sum(score_grad), 0 under a softmax."""
        entries, h = self.weight.shape
        total = torch.empty_like(self.w)
        arguments = WeightGradient(entries=entries, h=h, of_entries=self.weight, total=total)
        run(weight_gradient_kernel(bits(self.w)), 1, arguments)
        return total
