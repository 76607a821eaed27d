"""Modules of dot-product, additive and general attention."""

from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from attnspec.backends.pytorch.attention import (
    additive_attention,
    dot_product_attention,
    general_attention,
    scaled_dot_product_attention,
)
from attnspec.backends.pytorch.nn.initialization import Device, draw, linear_bound, parameter
from attnspec.backends.pytorch.nn.records import check_sizes
from attnspec.backends.pytorch.nn.scorer import AdditiveScorer

__all__ = ["AdditiveAttention", "DotProductAttention", "GeneralAttention"]


class DotProductAttention(nn.Module):
    """Attention whose scores are dot products, divided by √d unless ``scaled`` is False.

    Args:
        scaled: divide scores by √d.

    Shape: query (*batch, n, d), key (*batch, m, d), value (*batch, m, d_v); result (*batch, n, d_v). The mask is
        boolean, True = may attend, and broadcasts to (*batch, n, m).
    Source: operations ``scaled_dot_product_attention`` and ``dot_product_attention``.

    >>> attention = DotProductAttention()
    >>> attention(torch.randn(2, 5, 16), torch.randn(2, 7, 16), torch.randn(2, 7, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, *, scaled: bool = True) -> None:
        super().__init__()
        self.scaled = scaled

    def extra_repr(self) -> str:
        """Show ``scaled``."""
        return f"scaled={self.scaled}"

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """Values pooled for every query."""
        attend = scaled_dot_product_attention if self.scaled else dot_product_attention
        return attend(query, key, value, mask=mask, causal=causal)

    if TYPE_CHECKING:
        __call__ = forward


class AdditiveAttention(AdditiveScorer):
    """Bahdanau's attention: scores w_v·tanh(W_q q + W_k k).

    Args:
        embed_dim: features of a query, d_q.
        hidden_dim: hidden units of the scorer, h.
        kdim: features of a key, d_k; ``embed_dim`` unless given.

    Shape: query (*batch, n, d_q), key (*batch, m, d_k), value (*batch, m, d_v); result (*batch, n, d_v). The mask is
        boolean, True = may attend, and broadcasts to (*batch, n, m). Weights w_q (h, d_q), w_k (h, d_k), w_v (h).
    Initialisation: each as ``nn.Linear``'s weight: uniform within 1/√d_q, 1/√d_k and 1/√h.
    Errors: ``ValueError`` for sizes below 1.
    Source: operation ``additive_attention``.

    >>> attention = AdditiveAttention(16, 32, kdim=12)
    >>> mask = torch.arange(7) < torch.tensor([7, 4])[:, None, None]
    >>> attention(torch.randn(2, 5, 16), torch.randn(2, 7, 12), torch.randn(2, 7, 8), mask=mask).shape
    torch.Size([2, 5, 8])
    """

    named = MappingProxyType({"embed_dim": "d_q", "hidden_dim": "h", "kdim": "d_k"})

    def __init__(
        self, embed_dim: int, hidden_dim: int, *, kdim: int | None = None,
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(embed_dim, embed_dim if kdim is None else kdim, hidden_dim, device=device, dtype=dtype)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """Values pooled for every query."""
        return additive_attention(query, key, value, self.w_q, self.w_k, self.w_v, mask=mask, causal=causal)

    if TYPE_CHECKING:
        __call__ = forward


class GeneralAttention(nn.Module):
    """Luong's general attention of n queries: scores qᵀWk.

    Args:
        embed_dim: features of a query, d_q.
        kdim: features of a key, d_k; ``embed_dim`` unless given.

    Shape: query (*batch, n, d_q), key (*batch, m, d_k), value (*batch, m, d_v); result (*batch, n, d_v). The mask is
        boolean, True = may attend, and broadcasts to (*batch, n, m). Weight w (d_q, d_k).
    Initialisation: as ``nn.Bilinear``'s weight: uniform within 1/√d_q.
    Errors: ``ValueError`` for sizes below 1.
    Source: operation ``general_attention``.

    >>> attention = GeneralAttention(16, kdim=12)
    >>> attention(torch.randn(5, 16), torch.randn(7, 12), torch.randn(7, 8), causal=True).shape
    torch.Size([5, 8])
    """

    def __init__(
        self, embed_dim: int, *, kdim: int | None = None, device: Device = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        kdim = embed_dim if kdim is None else kdim
        check_sizes("GeneralAttention", embed_dim=embed_dim, kdim=kdim)
        self.w = parameter(embed_dim, kdim, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        draw(linear_bound(self.w.shape[0]), self.w)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"embed_dim={self.w.shape[0]}, kdim={self.w.shape[1]}"

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """Values pooled for every query."""
        return general_attention(query, key, value, self.w, mask=mask, causal=causal)

    if TYPE_CHECKING:
        __call__ = forward
