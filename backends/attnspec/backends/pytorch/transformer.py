"""Transformers. Protocols: ``attnspec.spec.transformer``."""

from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.multihead import attend_in_heads
from attnspec.backends.pytorch.runtime.accumulation import widened
from attnspec.backends.pytorch.runtime.autocast import lowers
from attnspec.spec import EncoderLayer, EncoderLayerParameters, LayerNormParameters, implements

__all__ = ["encoder_layer"]

_encoder_layer = Check("encoder_layer")

EPSILON = 1e-5
"""What layer normalization adds to the variance."""


def _normalized(x: Tensor, parameters: LayerNormParameters[Tensor]) -> Tensor:
    """Layer normalization over the last dimension, in the dtype of x."""
    gain, bias = parameters.gain.to(x.dtype), parameters.bias.to(x.dtype)
    return layer_norm(x, x.shape[-1:], gain, bias, EPSILON)


@implements(EncoderLayer[Tensor])
@lowers
def encoder_layer(
    x: Float[Tensor, "*#batch n d"],
    parameters: EncoderLayerParameters[Tensor],
    *,
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
    norm: Literal["post", "pre"] = "post",
) -> Float[Tensor, "*batch n d"]:
    """Attention in the dtype of x; sums and normalizations of half dtypes in float32."""
    if norm not in ("post", "pre"):
        raise TypeError(f"encoder_layer: norm: expected 'post' or 'pre'; got {norm!r}")
    _encoder_layer(x, parameters, mask)
    p, f, dtype = parameters, parameters.feed_forward, x.dtype
    pre = norm == "pre"
    y = widened(x)
    query = _normalized(y, p.attention_norm) if pre else y
    y = y + widened(attend_in_heads(query.to(dtype), p.attention, mask))
    y = y if pre else _normalized(y, p.attention_norm)
    hidden = linear(_normalized(y, p.feed_forward_norm) if pre else y, widened(f.w_1), widened(f.b_1)).relu()
    y = y + linear(hidden, widened(f.w_2), widened(f.b_2))
    return (y if pre else _normalized(y, p.feed_forward_norm)).to(dtype)
