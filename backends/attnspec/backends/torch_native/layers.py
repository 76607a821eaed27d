"""Matrix rows of ``nn.TransformerEncoderLayer`` (slow and fast path) and ``nn.TransformerDecoderLayer``.

A layer takes its fast path in evaluation mode, without gradients, with an even number of heads. The row of the
fast path calls its operator directly: it takes any number of heads, and cannot fall back to the slow path.
"""

from collections.abc import Callable
from math import prod
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.bases.torch import devices
from attnspec.backends.torch_native.attention import batch_of, excluded_mask, flat_batch, refuse_undivided
from attnspec.backends.torch_native.rows import DTYPES, Row
from attnspec.backends.torch_native.transformer import (
    Transformer,
    attention_of,
    decode,
    encode,
    layer_of,
    network_of,
    norms_of,
)
from attnspec.spec import EncoderLayerParameters, Limits, Semantics

_check = Check("encoder_layer")


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


class Layer(Row):
    """A matrix row of a transformer layer."""

    limits = Limits(dtypes=DTYPES, devices=devices(), divided_heads=True)
    semantics = Semantics(masked_nonfinite="propagates")
    parts = (batch_of, flat_batch, excluded_mask, attention_of, network_of, norms_of, layer_of)
    imports = "from functools import lru_cache\n"


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
        _check(x, parameters, mask, norm=norm)
        a = parameters.attention
        refuse_undivided("encoder_layer", "parameters.attention.", (a.w_q, a.w_k, a.w_v), a.w_o)
        output: Tensor = self.calls["encoder_layer"](x, parameters, mask, norm)
        return output


class DecoderLayer(Layer):
    """torch.nn.TransformerDecoderLayer, whose two attentions have the same number of heads."""

    name = "nn.TransformerDecoderLayer"
    calls = {"decoder_layer": decode}  # noqa: RUF012 - a declaration
    decoder_layer = Transformer.decoder_layer


slow_encoder = EncoderLayer("slow", encode, Semantics(masked_nonfinite="propagates"))
fast_encoder = EncoderLayer("fast", encode_fast, Semantics(masked_nonfinite="propagates", fully_masked="nan"))
decoder = DecoderLayer()
