"""Subjects with PyTorch's FlexAttention: dot products with a mask or a bias per key."""

from collections.abc import Callable

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from benchmarks.case import Call, Subject, compiled, make_call

NAME = "flex_attention"
NO_DOT_PRODUCT = "its scores are dot products"


def flexible(
    mode: str,
    inputs: tuple[Tensor, ...],
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    key_term: Callable[[Tensor], Tensor] | None = None,
    project: Callable[..., Tensor] | None = None,
) -> Subject:
    """Return FlexAttention under ``torch.compile``, its intended use; making the block mask is not timed.

    ``key_term`` computes a bias per key, (*batch, m), which is added to the scores. ``project`` maps the query by the
    inputs that follow the value. FlexAttention has no backward on the CPU and raises there.
    """

    def make() -> Call:
        blocks = None if mask is None and not causal else _blocks(inputs[0], inputs[1], mask)

        def compute(query: Tensor, key: Tensor, value: Tensor, *weights: Tensor) -> Tensor:
            if project is not None:
                query = project(query, *weights)
            term = None if key_term is None else key_term(key)

            def modified(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return score if term is None else score + term[b, j]

            has_heads = query.dim() == 4
            query, key, value = (x if has_heads else x.unsqueeze(1) for x in (query, key, value))
            out = flex_attention(
                query, key, value, block_mask=blocks, scale=scale, score_mod=None if term is None else modified
            )
            assert isinstance(out, Tensor)
            return out if has_heads else out.squeeze(1)

        return make_call(mode, compiled(compute), inputs)

    return Subject(NAME, make, compiles=True)


def _blocks(query: Tensor, key: Tensor, mask: Tensor | None) -> BlockMask:
    n, m = query.shape[-2], key.shape[-2]

    def not_later(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j <= i

    def rows(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert mask is not None
        return mask[i, j]

    def padded(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert mask is not None
        return mask[b, 0, 0, j]

    of_batch = mask is not None and mask.dim() == 4
    chosen = not_later if mask is None else padded if of_batch else rows
    return create_block_mask(chosen, len(query) if of_batch else None, None, n, m, device=str(query.device))
