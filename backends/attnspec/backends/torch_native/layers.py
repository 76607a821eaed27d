"""Matrix rows of ``nn.TransformerEncoderLayer`` (slow and fast path) and ``nn.TransformerDecoderLayer``.

A layer takes its fast path in evaluation mode, without gradients, with an even number of heads. The row of the
fast path calls its operator directly: it takes any number of heads, and cannot fall back to the slow path.
"""

from collections.abc import Callable
from math import prod
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnspec.backends.bases.shapes import Check
from attnspec.backends.bases.torch import devices
from attnspec.backends.torch_native.attention import flat_batch, refuse_undivided
from attnspec.backends.torch_native.rows import DTYPES, Row, batch_of, excluded_mask
from attnspec.spec import DecoderLayerParameters, EncoderLayerParameters, Limits, Semantics

_check_encoder, _check_decoder = Check("encoder_layer"), Check("decoder_layer")


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


def layer_of(kind: Any, p: Any, norm: str) -> nn.Module:
    """Return a layer with meta weights (to be replaced), in training mode, without dropout."""
    heads, width, f = p.attention.w_q.shape[0], p.attention.w_q.shape[-1], p.feed_forward.w_1.shape[0]
    layer: nn.Module = kind(width, heads, f, dropout=0.0, batch_first=True, norm_first=norm == "pre", device="meta")
    return layer


def encode(x: Tensor, parameters: Any, mask: Tensor | None = None, norm: str = "post") -> Tensor:
    """torch.nn.TransformerEncoderLayer on its slow path."""
    p, n, heads = parameters, x.shape[-2], parameters.attention.w_q.shape[0]
    batch = batch_of(x, mask)
    excluded = excluded_mask(mask, batch, n, n, heads)
    if not x.new_empty(*batch, n).numel():  # the layer rejects empty masks
        excluded = None
    layer = layer_of(nn.TransformerEncoderLayer, p, norm)
    weights = {
        **attention_of("self_attn", p.attention),
        **network_of(p.feed_forward),
        **norms_of(p.attention_norm, p.feed_forward_norm),
    }
    output = torch.func.functional_call(layer, weights, (flat_batch(x, batch),), {"src_mask": excluded})
    return torch.as_tensor(output).reshape(*batch, *x.shape[-2:])


def encode_fast(x: Tensor, parameters: Any, mask: Tensor | None = None, norm: str = "post") -> Tensor:
    """The operator of the fast path of torch.nn.TransformerEncoderLayer."""
    p, a, n = parameters, parameters.attention, x.shape[-2]
    batch = batch_of(x, mask)
    excluded = excluded_mask(mask, batch, n, n, a.w_q.shape[0])
    if excluded is not None:
        excluded = excluded.reshape(prod(batch), a.w_q.shape[0], n, n)
    w, b, w_o, b_o = attention_of("", a).values()
    f = p.feed_forward
    # Private, but judged, since nn.TransformerEncoderLayer calls it in inference.
    output = torch._transformer_encoder_layer_fwd(
        flat_batch(x, batch), a.w_o.shape[0], a.w_q.shape[0], w, b, w_o, b_o, False, norm == "pre", 1e-5,
        p.attention_norm.gain, p.attention_norm.bias, p.feed_forward_norm.gain, p.feed_forward_norm.bias,
        f.w_1, f.b_1, f.w_2, f.b_2, excluded, None if excluded is None else 2,
    )  # fmt: skip
    return torch.as_tensor(output).reshape(*batch, *x.shape[-2:])


def decode(
    x: Tensor, memory: Tensor, parameters: Any,
    mask: Tensor | None = None, memory_mask: Tensor | None = None, norm: str = "post",
) -> Tensor:  # fmt: skip
    """torch.nn.TransformerDecoderLayer with the causal mask."""
    p, n, m, heads = parameters, x.shape[-2], memory.shape[-2], parameters.attention.w_q.shape[0]
    batch = batch_of(x, memory, mask, memory_mask)
    earlier = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
    excluded = excluded_mask(earlier if mask is None else mask & earlier, batch, n, n, heads)
    excluded_memory = excluded_mask(memory_mask, batch, n, m, heads)
    if not x.new_empty(*batch, n).numel():  # the layer rejects empty masks
        excluded = None
    if not x.new_empty(*batch, n, m).numel():
        excluded_memory = None
    layer = layer_of(nn.TransformerDecoderLayer, p, norm)
    weights = {
        **attention_of("self_attn", p.attention),
        **attention_of("multihead_attn", p.cross_attention),
        **network_of(p.feed_forward),
        **norms_of(p.attention_norm, p.cross_attention_norm, p.feed_forward_norm),
    }
    masks = {"tgt_mask": excluded, "memory_mask": excluded_memory}
    output = torch.func.functional_call(layer, weights, (flat_batch(x, batch), flat_batch(memory, batch)), masks)
    return torch.as_tensor(output).reshape(*batch, *x.shape[-2:])


class Layer(Row):
    """A matrix row of a transformer layer."""

    limits = Limits(dtypes=DTYPES, devices=devices(), divided_heads=True)
    semantics = Semantics(masked_nonfinite="propagates")
    parts = (batch_of, flat_batch, excluded_mask, attention_of, network_of, norms_of, layer_of)


class EncoderLayer(Layer):
    """torch.nn.TransformerEncoderLayer on one path."""

    def __init__(self, path: str, call: Callable[..., Tensor], semantics: Semantics) -> None:
        self.name = f"nn.TransformerEncoderLayer, {path} path"
        self.calls, self.semantics = {"encoder_layer": call}, semantics

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
        output: Tensor = self.calls["encoder_layer"](x, parameters, mask, norm)
        return output


class DecoderLayer(Layer):
    """torch.nn.TransformerDecoderLayer, whose two attentions have the same number of heads."""

    name = "nn.TransformerDecoderLayer"
    calls = {"decoder_layer": decode}  # noqa: RUF012 - a declaration

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
        """torch.nn.TransformerDecoderLayer."""
        _check_decoder(x, memory, parameters, mask, memory_mask, norm=norm)
        for name, a in (("attention", parameters.attention), ("cross_attention", parameters.cross_attention)):
            refuse_undivided("decoder_layer", f"parameters.{name}.", (a.w_q, a.w_k, a.w_v), a.w_o)
        return decode(x, memory, parameters, mask, memory_mask, norm)


slow_encoder = EncoderLayer("slow", encode, Semantics(masked_nonfinite="propagates"))
fast_encoder = EncoderLayer("fast", encode_fast, Semantics(masked_nonfinite="propagates", fully_masked="nan"))
decoder = DecoderLayer()
