"""Modules of multi-head attention: scaled dot-product and additive."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from attnspec.backends.pytorch.multihead import (
    biased_multi_head_attention,
    multi_head_additive_attention,
    multi_head_attention,
)
from attnspec.backends.pytorch.nn.conversion import check, check_kind, check_no_dropout, check_same, refuse
from attnspec.backends.pytorch.nn.initialization import Device, draw, linear_bound, parameter, xavier_bound
from attnspec.backends.pytorch.nn.records import Recorded, check_sizes, copied
from attnspec.spec import MultiHeadParameters

__all__ = ["MultiHeadAdditiveAttention", "MultiHeadAttention"]


def _head_size(module: str, embed_dim: int, num_heads: int) -> int:
    if embed_dim % num_heads:
        raise ValueError(f"{module}: embed_dim: expected a multiple of num_heads = {num_heads}; got {embed_dim}")
    return embed_dim // num_heads


BIASES = ("b_q", "b_k", "b_v", "b_o")
"""Biases of the projections, (heads, p) each, and of the result, (p_o)."""


def _draw_projections(w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor) -> None:
    """Draw as ``nn.MultiheadAttention`` does: projections of equal input width count as one matrix."""
    inputs = [w.shape[-1] for w in (w_q, w_k, w_v)]
    outputs = [w.shape[0] * w.shape[1] for w in (w_q, w_k, w_v)]
    joined = len(set(inputs)) == 1
    for w, wide, rows in zip((w_q, w_k, w_v), inputs, outputs, strict=True):
        draw(xavier_bound(wide, sum(outputs) if joined else rows), w)
    draw(linear_bound(w_o.shape[-1]), w_o)


class MultiHeadAttention(Recorded[MultiHeadParameters[Tensor]]):
    """Scaled dot-product attention in heads, concatenated and projected.

    Unlike ``nn.MultiheadAttention`` it has no dropout, the batch comes first, True in a mask means may attend, and the
    result is the output alone. It has biases only with ``bias``, or where ``from_torch`` found some that are not 0:
    b_q (heads, p_q), b_k (heads, p_q), b_v (heads, p_v) and b_o (p_o).

    Args:
        embed_dim: features of a query and of the result, d_q = p_o; those of all heads together.
        num_heads: heads, which divide ``embed_dim``.
        kdim: features of a key, d_k; ``embed_dim`` unless given.
        vdim: features of a value, d_v; ``embed_dim`` unless given.
        bias: whether the four projections have biases, which begin as 0.

    Shape: query (*batch, n, d_q), key (*batch, m, d_k), value (*batch, m, d_v); result (*batch, n, p_o). The mask is
        boolean and broadcasts to (*batch, n, m), without an axis for heads. Weights w_q (heads, p_q, d_q),
        w_k (heads, p_q, d_k), w_v (heads, p_v, d_v), w_o (p_o, heads·p_v). ``from_record`` takes any sizes.
    Initialisation: as ``nn.MultiheadAttention``. Projections are Xavier uniform: within
        √(6 / (d + rows of all three)), as one matrix, if queries, keys and values have one width d, else within
        √(6 / (d + heads·p)) each. w_o is uniform within 1/√(heads·p_v).
    Errors: ``ValueError`` for sizes below 1 and if heads do not divide ``embed_dim``.
    Source: operations ``multi_head_attention`` and, with biases, ``biased_multi_head_attention``.

    >>> attention = MultiHeadAttention(16, 4)
    >>> x = torch.randn(2, 5, 16)
    >>> attention(x, x, x, causal=True).shape
    torch.Size([2, 5, 16])
    """

    kind = MultiHeadParameters
    b_q: Tensor
    b_k: Tensor
    b_v: Tensor
    b_o: Tensor

    def __init__(
        self, embed_dim: int, num_heads: int, *, kdim: int | None = None, vdim: int | None = None, bias: bool = False,
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        kdim, vdim = (embed_dim if d is None else d for d in (kdim, vdim))
        check_sizes("MultiHeadAttention", embed_dim=embed_dim, num_heads=num_heads, kdim=kdim, vdim=vdim)
        p = _head_size("MultiHeadAttention", embed_dim, num_heads)
        self.w_q, self.w_k, self.w_v = (
            parameter(num_heads, p, d, device=device, dtype=dtype) for d in (embed_dim, kdim, vdim)
        )
        self.w_o = parameter(embed_dim, embed_dim, device=device, dtype=dtype)
        if bias:
            self.add_biases(*(torch.zeros_like(w[..., 0]) for w in (self.w_q, self.w_k, self.w_v, self.w_o)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights; biases become 0."""
        _draw_projections(self.w_q, self.w_k, self.w_v, self.w_o)
        for name in BIASES if self.beyond_record else ():
            nn.init.zeros_(getattr(self, name))

    def add_biases(self, b_q: Tensor, b_k: Tensor, b_v: Tensor, b_o: Tensor) -> None:
        """Add copies of biases as parameters: b_q and b_k (heads, p_q), b_v (heads, p_v), b_o (p_o)."""
        for name, bias in zip(BIASES, (b_q, b_k, b_v, b_o), strict=True):
            self.register_parameter(name, nn.Parameter(copied(bias)))
        self.beyond_record = "biases of attention"

    def extra_repr(self) -> str:
        """Show the sizes, and that there are biases."""
        d_q, d_k, d_v = (w.shape[-1] for w in (self.w_q, self.w_k, self.w_v))
        sizes = f"embed_dim={d_q}, num_heads={self.w_q.shape[0]}, kdim={d_k}, vdim={d_v}"
        return sizes + (", biases" if self.beyond_record else "")

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """Values pooled for every query in every head, projected."""
        weights = self.w_q, self.w_k, self.w_v, self.w_o
        if not self.beyond_record:
            return multi_head_attention(query, key, value, *weights, mask=mask, causal=causal)
        biases = self.b_q, self.b_k, self.b_v, self.b_o
        return biased_multi_head_attention(query, key, value, *weights, *biases, mask=mask, causal=causal)

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> Self:
        """Return a module with a copy of PyTorch's weights, in the same mode; biases that are all 0 are left out.

        ``ValueError`` for settings that the formula does not have: added keys, dropout in training; and for
        ``batch_first=False``, which expects inputs in another layout.
        """
        caller = "MultiHeadAttention.from_torch"
        check_kind(caller, module, nn.MultiheadAttention)
        check(caller, "batch_first", module.batch_first, True, "the batch comes first here")
        check_no_dropout(caller, module, module.dropout)
        check(caller, "add_zero_attn", module.add_zero_attn, False, "the formula has no key of zeros")
        if module.bias_k is not None:
            refuse(caller, "bias_k", "None, since the formula adds no key", "a tensor")
        if module.in_proj_weight is not None:
            matrices = module.in_proj_weight.chunk(3)
        else:
            matrices = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        packed = module.in_proj_bias
        biases = [None] * 4 if packed is None else [*packed.chunk(3), module.out_proj.bias]
        return cls._from_matrices(module.num_heads, (*matrices, module.out_proj.weight), biases).train(module.training)

    @classmethod
    def from_linear(cls, num_heads: int, query: nn.Linear, key: nn.Linear, value: nn.Linear, output: nn.Linear) -> Self:
        """Return a module with a copy of four linear layers; biases that are all 0 are left out.

        The first three compute all heads. ``ValueError`` unless heads divide their outputs.
        """
        layers = query, key, value, output
        for layer in layers:
            check_kind("MultiHeadAttention.from_linear", layer, nn.Linear)
        return cls._from_matrices(num_heads, [x.weight for x in layers], [x.bias for x in layers])

    @classmethod
    def _from_matrices(cls, heads: int, matrices: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Self:
        """Return a module with copies of matrices (heads·p, d) and their biases, results last."""
        for w in matrices[:3]:
            _head_size("MultiHeadAttention", w.shape[0], heads)
        w_q, w_k, w_v = (copied(w).reshape(heads, -1, w.shape[-1]) for w in matrices[:3])
        converted = cls.from_record(MultiHeadParameters(w_q, w_k, w_v, matrices[3]))
        if any(b is not None and b.any() for b in biases):
            b_q, b_k, b_v, b_o = (
                w.new_zeros(w.shape[0]) if b is None else b for w, b in zip(matrices, biases, strict=True)
            )
            b_q, b_k, b_v = (b.reshape(heads, -1) for b in (b_q, b_k, b_v))
            converted.add_biases(b_q, b_k, b_v, b_o)
        return converted

    def to_torch(self, *, bias: bool = False) -> nn.MultiheadAttention:
        """Return PyTorch's module with a copy of the weights, batch first, in the same mode.

        ``bias`` adds biases of 0 to a module that has none. ``ValueError`` for sizes that PyTorch does not have:
        features of a query, of the result and of all heads together must be equal.
        """
        (heads, p, d_q), d_k, d_v = self.w_q.shape, self.w_k.shape[-1], self.w_v.shape[-1]
        caller, reason = "MultiHeadAttention.to_torch", "torch.nn has one embed_dim for queries, heads and results"
        check_same(caller, "p_o", d_q, self.w_o.shape[0], reason)
        check_same(caller, "heads·p_q", d_q, heads * p, reason)
        check_same(caller, "heads·p_v", d_q, self.w_o.shape[1], reason)
        attention = nn.MultiheadAttention(
            d_q, heads, bias=bias or bool(self.beyond_record), kdim=d_k, vdim=d_v, batch_first=True,
            device=self.w_q.device, dtype=self.w_q.dtype,
        )  # fmt: skip
        projections = [copied(w).flatten(0, 1) for w in (self.w_q, self.w_k, self.w_v)]
        with torch.no_grad():
            if attention.in_proj_weight is not None:
                attention.in_proj_weight.copy_(torch.cat(projections))
            else:
                for name, w in zip(("q", "k", "v"), projections, strict=True):
                    getattr(attention, f"{name}_proj_weight").copy_(w)
            attention.out_proj.weight.copy_(self.w_o)
            if self.beyond_record:
                attention.in_proj_bias.copy_(torch.stack((self.b_q, self.b_k, self.b_v)).flatten())
                attention.out_proj.bias.copy_(self.b_o)
        return attention.train(self.training)


class MultiHeadAdditiveAttention(nn.Module):
    """Additive attention in heads, concatenated and projected.

    Args:
        embed_dim: features of a query and of the result, d_q = p_o; those of all heads together.
        num_heads: heads, which divide ``embed_dim``.
        hidden_dim: hidden units of the scorer of each head, h.
        kdim: features of a key, d_k; ``embed_dim`` unless given.
        vdim: features of a value, d_v; ``embed_dim`` unless given.

    Shape: query (*batch, n, d_q), key (*batch, m, d_k), value (*batch, m, d_v); result (*batch, n, p_o). The mask is
        boolean, True = may attend, and broadcasts to (*batch, n, m), without an axis for heads. Weights w_q, w_k and
        w_v are (heads, p, d), w_o (p_o, heads·p), a_q and a_k (heads, h, p), a_v (heads, h).
    Initialisation: projections and w_o as in :class:`MultiHeadAttention`; a_q, a_k and a_v as ``nn.Linear``'s weight,
        uniform within 1/√p, 1/√p and 1/√h.
    Errors: ``ValueError`` for sizes below 1 and if heads do not divide ``embed_dim``.
    Source: operation ``multi_head_additive_attention``.

    >>> attention = MultiHeadAdditiveAttention(16, 4, hidden_dim=8, vdim=6)
    >>> attention(torch.randn(2, 5, 16), torch.randn(2, 7, 16), torch.randn(2, 7, 6)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self, embed_dim: int, num_heads: int, hidden_dim: int, *, kdim: int | None = None, vdim: int | None = None,
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        kdim, vdim = (embed_dim if d is None else d for d in (kdim, vdim))
        sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "hidden_dim": hidden_dim, "kdim": kdim, "vdim": vdim}
        check_sizes("MultiHeadAdditiveAttention", **sizes)
        p = _head_size("MultiHeadAdditiveAttention", embed_dim, num_heads)
        self.w_q, self.w_k, self.w_v = (
            parameter(num_heads, p, d, device=device, dtype=dtype) for d in (embed_dim, kdim, vdim)
        )
        self.w_o = parameter(embed_dim, embed_dim, device=device, dtype=dtype)
        self.a_q, self.a_k = (parameter(num_heads, hidden_dim, p, device=device, dtype=dtype) for _ in range(2))
        self.a_v = parameter(num_heads, hidden_dim, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        _draw_projections(self.w_q, self.w_k, self.w_v, self.w_o)
        for a in (self.a_q, self.a_k, self.a_v):
            draw(linear_bound(a.shape[-1]), a)

    def extra_repr(self) -> str:
        """Show the sizes."""
        (heads, hidden), d = self.a_v.shape, [w.shape[-1] for w in (self.w_q, self.w_k, self.w_v)]
        return f"embed_dim={d[0]}, num_heads={heads}, hidden_dim={hidden}, kdim={d[1]}, vdim={d[2]}"

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """Values pooled for every query in every head, projected."""
        return multi_head_additive_attention(
            query, key, value, self.w_q, self.w_k, self.w_v, self.w_o, self.a_q, self.a_k, self.a_v,
            mask=mask, causal=causal,
        )  # fmt: skip

    if TYPE_CHECKING:
        __call__ = forward
