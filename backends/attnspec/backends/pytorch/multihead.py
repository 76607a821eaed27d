"""Multi-head attention. Protocol: ``attnspec.spec.multihead``."""

from jaxtyping import Bool, Float
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.attention import dot_attention
from attnspec.backends.pytorch.runtime.accumulation import product
from attnspec.backends.pytorch.runtime.autocast import lowers
from attnspec.spec import MultiHeadAttention, MultiHeadParameters, implements

__all__ = ["multi_head_attention"]

_multi_head = Check("multi_head_attention")


def per_head(x: Tensor, w: Tensor) -> Tensor:
    """Project (*batch, n, d) with (heads, p, d) to (*batch, heads, n, p), by one product for all heads."""
    heads, p, d = w.shape
    joined = product(x, w.reshape(heads * p, d).mT)
    return joined.reshape(*joined.shape[:-1], heads, p).transpose(-3, -2)


@implements(MultiHeadAttention[Tensor])
@lowers
def multi_head_attention(
    query: Float[Tensor, "*#batch n d_q"],
    key: Float[Tensor, "*#batch m d_k"],
    value: Float[Tensor, "*#batch m d_v"],
    w_q: Float[Tensor, "heads p_q d_q"],
    w_k: Float[Tensor, "heads p_q d_k"],
    w_v: Float[Tensor, "heads p_v d_v"],
    w_o: Float[Tensor, "p_o heads*p_v"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "*batch n p_o"]:
    """Scaled dot-product attention in every head, concatenated and projected."""
    _multi_head(query, key, value, w_q, w_k, w_v, w_o, mask)
    return _in_heads(query, key, value, MultiHeadParameters(w_q, w_k, w_v, w_o), mask, causal)


def attend_in_heads(x: Tensor, parameters: MultiHeadParameters[Tensor], mask: Tensor | None) -> Tensor:
    """Self-attention of x (*batch, n, d) in heads, for layers, which have checked their arguments."""
    return _in_heads(x, x, x, parameters, mask, False)


def _in_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    parameters: MultiHeadParameters[Tensor],
    mask: Tensor | None,
    causal: bool,
) -> Tensor:
    p = parameters
    in_every_head = None if mask is None else mask.unsqueeze(-3)
    projected = per_head(query, p.w_q), per_head(key, p.w_k), per_head(value, p.w_v)
    heads = dot_attention(*projected, mask=in_every_head, causal=causal)
    return product(heads.transpose(-3, -2).flatten(-2), p.w_o.mT)
