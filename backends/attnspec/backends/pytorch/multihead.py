"""Multi-head attention. Protocol: ``attnspec.spec.multihead``."""

from jaxtyping import Bool, Float
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.attention import dot_attention
from attnspec.backends.pytorch.runtime.accumulation import product
from attnspec.backends.pytorch.runtime.autocast import lowers
from attnspec.spec import MultiHeadAttention, implements

_multi_head = Check("multi_head_attention")


def per_head(x: Tensor, w: Tensor) -> Tensor:
    """Project (*batch, n, d) with (h, p, d) to (*batch, h, n, p), by one product for all heads."""
    h, p, d = w.shape
    joined = product(x, w.reshape(h * p, d).mT)
    return joined.reshape(*joined.shape[:-1], h, p).transpose(-3, -2)


@implements(MultiHeadAttention[Tensor])
@lowers
def multi_head_attention(
    query: Float[Tensor, "*#batch n d_q"],
    key: Float[Tensor, "*#batch m d_k"],
    value: Float[Tensor, "*#batch m d_v"],
    w_q: Float[Tensor, "h p_q d_q"],
    w_k: Float[Tensor, "h p_q d_k"],
    w_v: Float[Tensor, "h p_v d_v"],
    w_o: Float[Tensor, "p_o h*p_v"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "*batch n p_o"]:
    """Scaled dot-product attention in every head, concatenated and projected."""
    _multi_head(query, key, value, w_q, w_k, w_v, w_o, mask)
    in_every_head = None if mask is None else mask.unsqueeze(-3)
    projected = per_head(query, w_q), per_head(key, w_k), per_head(value, w_v)
    heads = dot_attention(*projected, mask=in_every_head, causal=causal)
    return product(heads.transpose(-3, -2).flatten(-2), w_o.mT)
