"""Causal attention on the CPU by halves: the second half of the rows attends the first half of the keys without a mask.

What remains are the two halves themselves, each causal: after some halvings blocks on the diagonal. Halves of one size
are one call of PyTorch's fused kernel, which by itself skips excluded keys in blocks of 512 only. The parts of a row
are put together by the logarithms of their sums, and each part has its own gradients, given the whole row's sum.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.first_order import first_order

fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def blocks(n: int) -> int:
    """Blocks on the diagonal of n rows; 1 if they cannot be halved so often.

    One thread takes blocks of 128 to 255 rows; for several threads such calls are too short.
    """
    count = 1 << max(n // (128 if torch.get_num_threads() == 1 else 256), 1).bit_length() - 1
    return count if n % count == 0 else 1


class CausalHalves(torch.autograd.Function):
    """softmax(scale·QKᵀ)V over j ≤ i for (N, n, d), (N, n, d), (N, n, d), n a multiple of ``count``, a power of two."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, scale: float, count: int) -> tuple[Tensor, Tensor]:
        """The pooled values, and the logarithm of the sum of every row."""
        output = query.new_empty(query.shape)
        sums = query.new_empty(query.shape[:2])
        for rows, keys, causal in _parts(count):
            pooled, total = fused(rows(query), keys(key), keys(value), 0.0, causal, scale=scale)
            whole, sum_ = rows(output), rows(sums)
            if causal:
                whole.copy_(pooled)
                sum_.copy_(total)
            else:
                whole.lerp_(pooled, torch.sigmoid(total - sum_).unsqueeze(-1))
                torch.logaddexp(sum_, total, out=sum_)
        return output, sums

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep what the backward reads."""
        query, key, value, ctx.scale, ctx.count = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(query, key, value, *output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of query, key and value."""
        if gradient is None:
            return None, None, None, None, None

        def gradients(
            gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, sums: Tensor
        ) -> tuple[Tensor, ...]:
            totals = [query.new_empty(x.shape) for x in (query, key, value)]
            for rows, keys, causal in _parts(ctx.count):
                inputs = rows(gradient), rows(query), keys(key), keys(value), rows(output), rows(sums)
                parts = _flash_backward(*inputs, 0.0, causal, scale=ctx.scale)
                for total, part, where in zip(totals, parts, (rows, keys, keys), strict=True):
                    if causal:
                        where(total).copy_(part)
                    else:
                        where(total).add_(part)
            return tuple(totals)

        found = first_order("scaled dot-product attention", "halves", gradients, gradient, *ctx.saved_tensors)
        return *found, None, None


class _Halves:
    """One half of each of ``count`` equal pieces of the rows, (N, count, rows, …); all of the piece for no ``half``."""

    def __init__(self, count: int, half: int | None) -> None:
        self.count, self.half = count, half

    def __call__(self, x: Tensor) -> Tensor:
        if self.half is None:
            return x.view(x.shape[0], self.count, -1, *x.shape[2:])
        return x.view(x.shape[0], self.count, 2, -1, *x.shape[2:]).select(2, self.half)


def _parts(count: int) -> Iterator[tuple[_Halves, _Halves, bool]]:
    """The blocks on the diagonal, then the halves from the smallest on."""
    diagonal = _Halves(count, None)
    yield diagonal, diagonal, True
    while count > 1:
        count //= 2
        yield _Halves(count, 1), _Halves(count, 0), False
