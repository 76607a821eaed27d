"""Adapters of PyTorch's transformer encoder and decoder layers, ``F.layer_norm`` and linear layers.

The layers take one batch dimension, inverted masks (True = excluded), and PyTorch's parameters: weights of queries,
keys and values are joined, and biases that a formula does not have are 0. Both attentions of a decoder have the same
number of heads.

The layers are in training mode, without dropout. In evaluation mode a fully masked row would be NaN without gradients,
by the fast path of self-attention, and 0 with gradients: no single declaration would fit both.
"""

from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call

from attnspec.backends.bases.shapes import Check
from attnspec.backends.bases.torch import TorchBackend
from attnspec.backends.torch_native.attention import excluded_mask, flat_batch, join_heads, refuse_undivided
from attnspec.spec import (
    DecoderLayerParameters,
    EncoderLayerParameters,
    FeedForwardParameters,
    LayerNormParameters,
    MultiHeadParameters,
)

_check_norm = Check("layer_norm")
_check_network = Check("feed_forward")
_check_encoder = Check("encoder_layer")
_check_decoder = Check("decoder_layer")


@lru_cache(maxsize=256)
def _layer(kind: type[nn.Module], d: int, heads: int, f: int, pre: bool) -> nn.Module:
    """Return a layer in training mode, which has no fast path; its weights are placeholders."""
    return kind(d, heads, f, dropout=0.0, batch_first=True, norm_first=pre, device="meta")


def _attention(name: str, p: MultiHeadParameters[Tensor]) -> dict[str, Tensor]:
    w = torch.cat([join_heads(x) for x in (p.w_q, p.w_k, p.w_v)])
    return {
        f"{name}.in_proj_weight": w,
        f"{name}.in_proj_bias": w.new_zeros(w.shape[0]),
        f"{name}.out_proj.weight": p.w_o,
        f"{name}.out_proj.bias": w.new_zeros(p.w_o.shape[0]),
    }


def _norm(name: str, p: LayerNormParameters[Tensor]) -> dict[str, Tensor]:
    return {f"{name}.weight": p.gain, f"{name}.bias": p.bias}


def _network(p: FeedForwardParameters[Tensor]) -> dict[str, Tensor]:
    return {"linear1.weight": p.w_1, "linear1.bias": p.b_1, "linear2.weight": p.w_2, "linear2.bias": p.b_2}


class Transformer(TorchBackend):
    """PyTorch's transformer layers."""

    def layer_norm(
        self, x: Float[Tensor, "*batch d"], parameters: LayerNormParameters[Tensor]
    ) -> Float[Tensor, "*batch d"]:
        """F.layer_norm."""
        _check_norm(x, parameters)
        return F.layer_norm(x, x.shape[-1:], parameters.gain, parameters.bias)

    def feed_forward(
        self, x: Float[Tensor, "*batch d"], parameters: FeedForwardParameters[Tensor]
    ) -> Float[Tensor, "*batch d"]:
        """Two torch.nn.Linear and a ReLU, as in torch.nn.TransformerEncoderLayer."""
        _check_network(x, parameters)
        p = parameters
        return F.linear(F.relu(F.linear(x, p.w_1, p.b_1)), p.w_2, p.b_2)

    def encoder_layer(
        self,
        x: Float[Tensor, "*#batch n d"],
        parameters: EncoderLayerParameters[Tensor],
        *,
        mask: Bool[Tensor, "*#batch #n #n"] | None = None,
        norm: Literal["post", "pre"] = "post",
    ) -> Float[Tensor, "*batch n d"]:
        """torch.nn.TransformerEncoderLayer."""
        *batch, n, d = _check_encoder(x, parameters, mask, norm=norm)
        p, a, batch_sizes = parameters, parameters.attention, tuple(batch)
        refuse_undivided("encoder_layer", "parameters.attention.", (a.w_q, a.w_k, a.w_v), a.w_o)
        heads = a.w_q.shape[0]
        weights = {
            **_attention("self_attn", a),
            **_norm("norm1", p.attention_norm),
            **_network(p.feed_forward),
            **_norm("norm2", p.feed_forward_norm),
        }
        layer = _layer(nn.TransformerEncoderLayer, d, heads, p.feed_forward.w_1.shape[0], norm == "pre")
        masks = {"src_mask": excluded_mask(mask, batch_sizes, n, n, heads)}
        output = functional_call(layer, weights, (flat_batch(x, batch_sizes),), masks)
        return torch.as_tensor(output).reshape(*batch, n, d)

    def decoder_layer(
        self,
        x: Float[Tensor, "*#batch n d"],
        memory: Float[Tensor, "*#batch m d_m"],
        parameters: DecoderLayerParameters[Tensor],
        *,
        mask: Bool[Tensor, "*#batch #n #n"] | None = None,
        memory_mask: Bool[Tensor, "*#batch #n #m"] | None = None,
        norm: Literal["post", "pre"] = "post",
    ) -> Float[Tensor, "*batch n d"]:
        """torch.nn.TransformerDecoderLayer with the causal mask."""
        *batch, n, d = _check_decoder(x, memory, parameters, mask, memory_mask, norm=norm)
        p, m, batch_sizes = parameters, memory.shape[-2], tuple(batch)
        for name, a in (("attention", p.attention), ("cross_attention", p.cross_attention)):
            refuse_undivided("decoder_layer", f"parameters.{name}.", (a.w_q, a.w_k, a.w_v), a.w_o)
        heads = p.attention.w_q.shape[0]
        if p.cross_attention.w_q.shape[0] != heads:
            raise ValueError(
                f"decoder_layer: parameters.cross_attention.w_q: expected heads = {heads} as in the self-attention; "
                f"got {p.cross_attention.w_q.shape[0]}"
            )
        weights = {
            **_attention("self_attn", p.attention),
            **_norm("norm1", p.attention_norm),
            **_attention("multihead_attn", p.cross_attention),
            **_norm("norm2", p.cross_attention_norm),
            **_network(p.feed_forward),
            **_norm("norm3", p.feed_forward_norm),
        }
        layer = _layer(nn.TransformerDecoderLayer, d, heads, p.feed_forward.w_1.shape[0], norm == "pre")
        earlier = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        masks = {
            "tgt_mask": excluded_mask(earlier if mask is None else mask & earlier, batch_sizes, n, n, heads),
            "memory_mask": excluded_mask(memory_mask, batch_sizes, n, m, heads),
        }
        output = functional_call(layer, weights, (flat_batch(x, batch_sizes), flat_batch(memory, batch_sizes)), masks)
        return torch.as_tensor(output).reshape(*batch, n, d)
