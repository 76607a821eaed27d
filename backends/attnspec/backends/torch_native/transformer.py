"""Adapters of PyTorch's transformer encoder and decoder layers, ``F.layer_norm`` and linear layers.

The layers take one batch dimension, inverted masks (True = excluded), and PyTorch's parameters: weights of queries,
keys and values are joined, and biases that a formula does not have are 0. Both attentions of a decoder have the same
number of heads.

The layers are in training mode, without dropout. In evaluation mode a fully masked row would be NaN without gradients,
by the fast path of self-attention, and 0 with gradients: no single declaration would fit both.
"""

from functools import lru_cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnspec.backends.bases.shapes import Check
from attnspec.backends.bases.torch import TorchBackend
from attnspec.backends.torch_native.attention import batch_of, excluded_mask, flat_batch, refuse_undivided
from attnspec.spec import DecoderLayerParameters, EncoderLayerParameters, FeedForwardParameters, LayerNormParameters

_check_norm = Check("layer_norm")
_check_rms_norm = Check("rms_norm")
_check_network = Check("feed_forward")
_check_encoder = Check("encoder_layer")
_check_decoder = Check("decoder_layer")


def attention_of(name: str, p: Any) -> dict[str, Tensor]:
    """Return the weights of an attention under the names of torch.nn.MultiheadAttention."""
    w = torch.cat([x.flatten(0, 1) for x in (p.w_q, p.w_k, p.w_v)])
    return {
        f"{name}.in_proj_weight": w,
        f"{name}.in_proj_bias": w.new_zeros(w.shape[0]),
        f"{name}.out_proj.weight": p.w_o,
        f"{name}.out_proj.bias": w.new_zeros(p.w_o.shape[0]),
    }


def network_of(p: Any) -> dict[str, Tensor]:
    """Return the weights of a feed-forward network under PyTorch's names."""
    return {"linear1.weight": p.w_1, "linear1.bias": p.b_1, "linear2.weight": p.w_2, "linear2.bias": p.b_2}


def norms_of(*norms: Any) -> dict[str, Tensor]:
    """Return gains and biases of normalizations under PyTorch's names, in the order of the layer."""
    gains = {f"norm{i}.weight": p.gain for i, p in enumerate(norms, 1)}
    return gains | {f"norm{i}.bias": p.bias for i, p in enumerate(norms, 1)}


@lru_cache(maxsize=256)
def layer_of(kind: type[nn.Module], d: int, heads: int, f: int, norm: str) -> nn.Module:
    """Return a layer in training mode, which has no fast path; its weights are placeholders."""
    return kind(d, heads, f, dropout=0.0, batch_first=True, norm_first=norm == "pre", device="meta")


def encode(x: Tensor, parameters: Any, mask: Tensor | None = None, norm: str = "post") -> Tensor:
    """torch.nn.TransformerEncoderLayer on its slow path."""
    p, n, heads = parameters, x.shape[-2], parameters.attention.w_q.shape[0]
    batch = batch_of(x, mask)
    excluded = excluded_mask(mask, batch, n, n, heads)
    layer = layer_of(nn.TransformerEncoderLayer, x.shape[-1], heads, p.feed_forward.w_1.shape[0], norm)
    weights = {
        **attention_of("self_attn", p.attention),
        **network_of(p.feed_forward),
        **norms_of(p.attention_norm, p.feed_forward_norm),
    }
    output = torch.func.functional_call(layer, weights, (flat_batch(x, batch),), {"src_mask": excluded})
    return torch.as_tensor(output).reshape(*batch, *x.shape[-2:])


def decode(
    x: Tensor, memory: Tensor, parameters: Any,
    mask: Tensor | None = None, memory_mask: Tensor | None = None, norm: str = "post",
) -> Tensor:  # fmt: skip
    """torch.nn.TransformerDecoderLayer with the causal mask."""
    p, n, heads = parameters, x.shape[-2], parameters.attention.w_q.shape[0]
    batch = batch_of(x, memory, mask, memory_mask)
    earlier = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
    excluded = excluded_mask(earlier if mask is None else mask & earlier, batch, n, n, heads)
    excluded_memory = excluded_mask(memory_mask, batch, n, memory.shape[-2], heads)
    layer = layer_of(nn.TransformerDecoderLayer, x.shape[-1], heads, p.feed_forward.w_1.shape[0], norm)
    weights = {
        **attention_of("self_attn", p.attention),
        **attention_of("multihead_attn", p.cross_attention),
        **network_of(p.feed_forward),
        **norms_of(p.attention_norm, p.cross_attention_norm, p.feed_forward_norm),
    }
    masks = {"tgt_mask": excluded, "memory_mask": excluded_memory}
    output = torch.func.functional_call(layer, weights, (flat_batch(x, batch), flat_batch(memory, batch)), masks)
    return torch.as_tensor(output).reshape(*batch, *x.shape[-2:])


class Transformer(TorchBackend):
    """PyTorch's transformer layers."""

    def layer_norm(
        self, x: Float[Tensor, "*batch d"], parameters: LayerNormParameters[Tensor], *, epsilon: float = 1e-5
    ) -> Float[Tensor, "*batch d"]:
        """F.layer_norm."""
        _check_norm(x, parameters, epsilon)
        return F.layer_norm(x, x.shape[-1:], parameters.gain, parameters.bias, epsilon)

    def rms_norm(
        self, x: Float[Tensor, "*batch d"], weight: Float[Tensor, " d"], *, epsilon: float = 1e-6
    ) -> Float[Tensor, "*batch d"]:
        """F.rms_norm."""
        _check_rms_norm(x, weight, epsilon)
        return F.rms_norm(x, x.shape[-1:], weight, epsilon)

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
        _check_encoder(x, parameters, mask, norm=norm)
        a = parameters.attention
        refuse_undivided("encoder_layer", "parameters.attention.", (a.w_q, a.w_k, a.w_v), a.w_o)
        return encode(x, parameters, mask, norm)

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
        _check_decoder(x, memory, parameters, mask, memory_mask, norm=norm)
        p = parameters
        for name, a in (("attention", p.attention), ("cross_attention", p.cross_attention)):
            refuse_undivided("decoder_layer", f"parameters.{name}.", (a.w_q, a.w_k, a.w_v), a.w_o)
        heads, got = p.attention.w_q.shape[0], p.cross_attention.w_q.shape[0]
        if got != heads:
            expected = f"{heads} heads, as in parameters.attention"
            raise ValueError(f"decoder_layer: parameters.cross_attention.w_q: expected {expected}; got {got}")
        return decode(x, memory, parameters, mask, memory_mask, norm)
