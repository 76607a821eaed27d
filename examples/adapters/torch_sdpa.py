"""Adapter to ``torch.nn.functional.scaled_dot_product_attention``, without declarations."""

import torch
from torch import Tensor

from attnspec.backends.bases.torch import TorchBackend


class TorchSDPA(TorchBackend):
    """Backend that calls PyTorch's function as its documentation says."""

    name = "torch-sdpa"

    def scaled_dot_product_attention(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """Attention; PyTorch takes a mask or the causal flag, not both."""
        if causal and mask is not None:
            mask, causal = mask & torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril(), False
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
