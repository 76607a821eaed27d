"""Softmax attention on the CPU by matrix products over blocks of heads.

PyTorch's fused CPU kernel splits heads and queries over the threads by itself, and its backward only heads. Where
heads are many and short, or fewer than the threads, the matrix library's own batched products are faster, as long
as the scores of one block stay in the cache. Which of the two is taken is in ``cpu_routes.kernel``.
"""

from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.first_order import first_order

CACHE = 1 << 20
"""Bytes of scores that one thread works on at a time."""


def blocked(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, heads: int, scale: float) -> Tensor:
    """softmax(scale·QKᵀ + bias)V for (N, n, d), (N, m, d), (N, m, d_v); scores are not kept.

    ``heads`` of the N belong to one batch element; bias (b|1, heads|1, n, m).
    """
    every, n, _ = query.shape
    m, d_v = value.shape[-2:]
    threads = torch.get_num_threads()
    block = max(1, CACHE // (n * m * query.element_size()) * threads // heads) * heads
    output, scores, transposed = query.new_empty(every, n, d_v), query.new_empty(min(every, block), n, m), key.mT
    for start in range(0, every, block):
        stop = min(every, start + block)
        part = scores[: stop - start]
        torch.baddbmm(part, query[start:stop], transposed[start:stop], beta=0, alpha=scale, out=part)
        if bias is not None:
            own = bias if len(bias) == 1 else bias[start // heads : stop // heads]
            part.view(-1, heads, n, m).add_(own)
        torch.softmax(part, -1, out=part)
        torch.bmm(part, value[start:stop], out=output[start:stop])
    return output


class Kept(torch.autograd.Function):
    """The same with the weights kept for the backward: four products there instead of five.

    ``heads`` of the N belong to one batch element; bias (b|1, heads|1, n, m).
    """

    @staticmethod
    def forward(
        query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, heads: int, scale: float
    ) -> tuple[Tensor, Tensor]:
        """The pooled values and the weights."""
        scores = torch.baddbmm(query.new_empty(()), query, key.mT, beta=0, alpha=scale)
        if bias is not None:
            scores.view(-1, heads, *scores.shape[1:]).add_(bias)
        weights = torch.softmax(scores, -1, out=scores)
        return torch.bmm(weights, value), weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep what the backward reads."""
        query, key, value, _, _, ctx.scale = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(query, key, value, output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of query, key and value."""
        if gradient is None:
            return None, None, None, None, None, None
        of_query, of_key, of_value = ctx.needs_input_grad[:3]

        def gradients(
            gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, weights: Tensor
        ) -> tuple[Tensor | None, ...]:
            free = query.new_empty(())
            by_value = torch.bmm(weights.mT, gradient) if of_value else None
            if not (of_query or of_key):
                return None, None, by_value
            by_weight = torch.bmm(gradient, value.mT)
            by_score = torch._softmax_backward_data(by_weight, weights, -1, weights.dtype, grad_input=by_weight)
            return (
                torch.baddbmm(free, by_score, key, beta=0, alpha=ctx.scale) if of_query else None,
                torch.baddbmm(free, by_score.mT, query, beta=0, alpha=ctx.scale) if of_key else None,
                by_value,
            )

        found = first_order("scaled dot-product attention", "kept", gradients, gradient, *ctx.saved_tensors)
        return *found, None, None, None
