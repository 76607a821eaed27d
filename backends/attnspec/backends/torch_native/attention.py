"""Adapters of ``F.scaled_dot_product_attention`` and ``F.multi_head_attention_forward``.

Both take a mask or the causal flag, not both. The first does not broadcast the query's batch to that of a mask, nor to
any batch if a size is 0. Shapes are checked because its CPU kernel accepts invalid ones: in four dimensions keys and
values of different m, in two and three a mask of one dimension. The second expects one batch dimension after the
positions, joined weights, and masks that are inverted (True = excluded), for every head, and not empty.
"""

from math import prod

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.bases.torch import TorchBackend

_check = Check("scaled_dot_product_attention")
_check_heads = Check("multi_head_attention")
_check_biased = Check("biased_multi_head_attention")


def batch_of(*arrays: Tensor | None) -> tuple[int, ...]:
    """Return the common batch of arrays (*batch, n, d) and masks; None is ignored."""
    shapes = [x.shape[:-2] for x in arrays if x is not None]
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def flat_batch(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """Return rows (*batch, n, d) with one flattened batch dimension."""
    return x.expand(*batch, *x.shape[-2:]).reshape(prod(batch), *x.shape[-2:])


def excluded_mask(mask: Tensor | None, batch: tuple[int, ...], n: int, m: int, heads: int) -> Tensor | None:
    """Return the inverted mask (batch × heads, n, m), True = excluded; None if it is None or empty."""
    if mask is None or not prod(batch) * n * m:  # PyTorch rejects empty masks
        return None
    return flat_batch(~mask.expand(*mask.shape[:-2], n, m), batch).repeat_interleave(heads, 0)


def excluded_pairs(
    mask: Tensor | None, causal: bool, query: Tensor, batch: tuple[int, ...], m: int, heads: int
) -> Tensor | None:
    """Return excluded pairs: (batch × heads, n, m), or (n, m) if only causal."""
    n = query.shape[-2]
    later = torch.ones(n, m, dtype=torch.bool, device=query.device).triu(1) if causal and n * m else None
    excluded = excluded_mask(mask, batch, n, m, heads)
    return later if excluded is None else excluded if later is None else excluded | later


def refuse_undivided(operation: str, prefix: str, weights: tuple[Tensor, Tensor, Tensor], w_o: Tensor) -> None:
    """Raise ``ValueError`` unless heads × features per head is the width of input and result.

    PyTorch's modules assume it without a check. ``prefix``, such as ``parameters.attention.``, precedes a weight's name
    in the message.
    """
    for name, w in zip(("w_q", "w_k", "w_v"), weights, strict=True):
        heads, p, width = w.shape
        if width != heads * p or width != w_o.shape[0]:
            expected = f"heads × features of a head and features of the input to be {w_o.shape[0]}"
            raise ValueError(f"{operation}: {prefix}{name}: expected {expected}; got {heads} × {p} and {width}")


class Attention(TorchBackend):
    """PyTorch's attention operations; NaN or infinity in a masked key or value reaches the result."""

    def scaled_dot_product_attention(
        self,
        query: Float[Tensor, "*#batch n d"],
        key: Float[Tensor, "*#batch m d"],
        value: Float[Tensor, "*#batch m d_v"],
        *,
        mask: Bool[Tensor, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "*batch n d_v"]:
        """softmax(QKᵀ/√d)V by PyTorch's choice of kernel."""
        *batch, n, _ = _check(query, key, value, mask, causal=causal)
        query = query.expand(*batch, n, -1)
        if mask is None:
            return F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        if causal:
            mask = mask & torch.ones(n, key.shape[-2], dtype=torch.bool, device=mask.device).tril()
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    def multi_head_attention(
        self,
        query: Float[Tensor, "*#batch n d_q"],
        key: Float[Tensor, "*#batch m d_k"],
        value: Float[Tensor, "*#batch m d_v"],
        w_q: Float[Tensor, "heads p_q d_q"],
        w_k: Float[Tensor, "heads p_q d_k"],
        w_v: Float[Tensor, "heads p_v d_v"],
        w_o: Float[Tensor, "p_o heads*p_v"],
        *,
        mask: Bool[Tensor, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "*batch n p_o"]:
        """torch.nn.MultiheadAttention, without biases and without returned weights."""
        shape = _check_heads(query, key, value, w_q, w_k, w_v, w_o, mask, causal=causal)
        refuse_undivided("multi_head_attention", "", (w_q, w_k, w_v), w_o)
        return _forward((query, key, value), (w_q, w_k, w_v), None, w_o, None, mask, causal, shape)

    def biased_multi_head_attention(
        self,
        query: Float[Tensor, "*#batch n d_q"],
        key: Float[Tensor, "*#batch m d_k"],
        value: Float[Tensor, "*#batch m d_v"],
        w_q: Float[Tensor, "heads p_q d_q"],
        w_k: Float[Tensor, "heads p_q d_k"],
        w_v: Float[Tensor, "heads p_v d_v"],
        w_o: Float[Tensor, "p_o heads*p_v"],
        b_q: Float[Tensor, "heads p_q"],
        b_k: Float[Tensor, "heads p_q"],
        b_v: Float[Tensor, "heads p_v"],
        b_o: Float[Tensor, " p_o"],
        *,
        mask: Bool[Tensor, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "*batch n p_o"]:
        """torch.nn.MultiheadAttention with its biases, without returned weights."""
        shape = _check_biased(query, key, value, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, mask, causal=causal)
        refuse_undivided("biased_multi_head_attention", "", (w_q, w_k, w_v), w_o)
        biases = torch.cat([b.flatten() for b in (b_q, b_k, b_v)])
        return _forward((query, key, value), (w_q, w_k, w_v), biases, w_o, b_o, mask, causal, shape)


def _forward(
    inputs: tuple[Tensor, Tensor, Tensor], weights: tuple[Tensor, Tensor, Tensor], biases: Tensor | None,
    w_o: Tensor, b_o: Tensor | None, mask: Tensor | None, causal: bool, shape: tuple[int, ...],
) -> Tensor:  # fmt: skip
    """Call nn.MultiheadAttention's function; ``biases`` are those of all three projections."""
    (*batch, n, width), heads = shape, weights[0].shape[0]
    query, key, _ = inputs
    excluded = excluded_pairs(mask, causal, query, tuple(batch), key.shape[-2], heads)
    q, k, v = (flat_batch(x, tuple(batch)).transpose(0, 1) for x in inputs)
    joined = torch.cat([w.flatten(0, 1) for w in weights])
    # with is_causal PyTorch demands a mask and ignores it, so both are passed only for the causal triangle alone
    output, _ = F.multi_head_attention_forward(
        q, k, v, width, heads, joined, biases, None, None, False, 0.0, w_o, b_o, training=False,
        need_weights=False, attn_mask=excluded, is_causal=excluded is not None and mask is None,
    )  # fmt: skip
    return output.transpose(0, 1).reshape(*batch, n, width)
