"""Matrix rows of ``torch.nn.MultiheadAttention``: slow and fast path, with and without weights.

The module takes the fast path in evaluation mode, without gradients, if query, key and value are one tensor and the
number of heads is even. The row of the fast path calls its operator, which has fewer restrictions.
"""

from dataclasses import replace
from functools import partial
from math import prod

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.bases.torch import devices
from attnspec.backends.torch_native.attention import (
    batch_of,
    excluded_mask,
    excluded_pairs,
    flat_batch,
    refuse_undivided,
)
from attnspec.backends.torch_native.rows import DTYPES, Row
from attnspec.spec import Limits, Semantics

_check = Check("multi_head_attention")


def slow(
    weights: bool, query: Tensor, key: Tensor, value: Tensor,
    w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, mask: Tensor | None = None, causal: bool = False,
) -> Tensor:  # fmt: skip
    """Call the slow path of torch.nn.MultiheadAttention, without biases."""
    n, heads, width = query.shape[-2], w_q.shape[0], w_o.shape[0]
    batch = batch_of(query, key, value, mask)
    excluded = excluded_pairs(mask, causal, query, batch, key.shape[-2], heads)
    q, k, v = (flat_batch(x, batch).transpose(0, 1) for x in (query, key, value))
    joined = torch.cat([w.flatten(0, 1) for w in (w_q, w_k, w_v)])
    output, _ = F.multi_head_attention_forward(
        q, k, v, width, heads, joined, None, None, None, False, 0.0, w_o, None,
        training=False, need_weights=weights, attn_mask=excluded, average_attn_weights=False,
    )  # fmt: skip
    return output.transpose(0, 1).reshape(*batch, n, width)


def fast(
    weights: bool, query: Tensor, key: Tensor, value: Tensor,
    w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, mask: Tensor | None = None, causal: bool = False,
) -> Tensor:  # fmt: skip
    """Call the fast path's operator without biases, padded to n = m, which it needs."""
    n, m, heads, width = query.shape[-2], key.shape[-2], w_q.shape[0], w_o.shape[0]
    batch = batch_of(query, key, value, mask)
    size = max(n, m)
    q, k, v = (F.pad(flat_batch(x, batch), (0, 0, 0, size - x.shape[-2])) for x in (query, key, value))
    excluded = excluded_pairs(mask, causal, query, batch, m, heads)
    if size > m and excluded is None:
        excluded = torch.zeros(n, m, dtype=torch.bool, device=query.device)
    mask_type = None
    if excluded is not None:
        excluded, mask_type = F.pad(F.pad(excluded, (0, size - m), value=True), (0, 0, 0, size - n)), 0
        # PyTorch's types: 0 is one mask (n, n) for all heads, 2 a mask (batch, heads, n, n)
        if excluded.ndim == 3:
            excluded, mask_type = excluded.reshape(prod(batch), heads, size, size), 2
    joined = torch.cat([w.flatten(0, 1) for w in (w_q, w_k, w_v)])
    zero_biases = [w.new_zeros(w.shape[0]) for w in (joined, w_o)]
    # Private, but judged, since nn.MultiheadAttention calls it in inference.
    output, _ = torch._native_multi_head_attention(
        q, k, v, width, heads, joined, zero_biases[0], w_o, zero_biases[1], excluded, weights, False, mask_type
    )
    return output[:, :n].reshape(*batch, n, width)


class Heads(Row):
    """One path of nn.MultiheadAttention and its `semantics`; the fast path has no gradients."""

    limits = Limits(dtypes=DTYPES, devices=devices(), divided_heads=True)
    parts = (batch_of, flat_batch, excluded_mask, excluded_pairs)

    def __init__(self, path: str, *, weights: bool, semantics: Semantics) -> None:
        self.name = f"nn.MultiheadAttention, {path} path, {'with' if weights else 'without'} weights"
        self.call = partial({"slow": slow, "fast": fast}[path], weights)
        self.calls = {"multi_head_attention": self.call}
        self.semantics = semantics
        if path == "fast":
            self.limits = replace(self.limits, gradients=())

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
        """torch.nn.MultiheadAttention on this path."""
        _check(query, key, value, w_q, w_k, w_v, w_o, mask, causal=causal)
        refuse_undivided("multi_head_attention", "", (w_q, w_k, w_v), w_o)
        return self.call(query, key, value, w_q, w_k, w_v, w_o, mask, causal)


# A softmax of −∞ alone gives NaN. Without weights the slow path calls F.scaled_dot_product_attention, which gives 0
# there and on the CPU may hide NaN in a query. The fast path also gives NaN for m = 0: it pads with excluded keys.
_BY_SOFTMAX = Semantics(masked_nonfinite="propagates", fully_masked="nan")
_BY_SDPA = Semantics(masked_nonfinite="propagates", nan_queries="hidden")
_PADDED = replace(_BY_SOFTMAX, no_keys="nan")

slow_path = Heads("slow", weights=False, semantics=_BY_SDPA)
slow_path_with_weights = Heads("slow", weights=True, semantics=_BY_SOFTMAX)
fast_path = Heads("fast", weights=False, semantics=_PADDED)
fast_path_with_weights = Heads("fast", weights=True, semantics=_PADDED)
