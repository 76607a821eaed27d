"""Adapter to ``torch.nn.MultiheadAttention``, without declarations."""

import torch
from torch import Tensor

from attnspec.backends.bases.torch import TorchBackend


class TorchMHA(TorchBackend):
    """Backend that calls the module with its weights replaced."""

    name = "torch-mha"

    def multi_head_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        w_q: Tensor,
        w_k: Tensor,
        w_v: Tensor,
        w_o: Tensor,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Multi-head attention; the module's masks are (n, m) or (batch·heads, n, m), True = excluded."""
        heads, width = w_q.shape[0], w_q.shape[-1]
        module = torch.nn.MultiheadAttention(width, heads, bias=False, batch_first=True, dtype=query.dtype)
        weights = {"in_proj_weight": torch.cat([w.flatten(0, 1) for w in (w_q, w_k, w_v)]), "out_proj.weight": w_o}
        if causal:
            earlier = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
            mask = earlier if mask is None else mask & earlier
        excluded = None if mask is None else ~mask.expand(*mask.shape[:-2], query.shape[-2], key.shape[-2])
        if excluded is not None and excluded.ndim > 2:
            excluded = excluded.repeat_interleave(heads, 0)
        output: Tensor
        output, _ = torch.func.functional_call(
            module, weights, (query, key, value), {"attn_mask": excluded, "need_weights": False}
        )
        return output
