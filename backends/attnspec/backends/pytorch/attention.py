"""Attention operations: scores, softmax over the attendable keys, pooling. Protocols: ``attnspec.spec.attention``."""

from jaxtyping import Bool, Float
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.kernels import additive
from attnspec.backends.pytorch.kernels.additive import cached_plans
from attnspec.backends.pytorch.kernels.dot.sdpa import attend as dot_attention
from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.backends.pytorch.runtime.autocast import follows_autocast
from attnspec.backends.pytorch.runtime.products import product
from attnspec.backends.pytorch.scoring import projections, query_first
from attnspec.spec import (
    AdditiveAttention,
    CrossAttention,
    DotProductAttention,
    GeneralAttention,
    ProjectedSelfAttention,
    ScaledDotProductAttention,
    SelfAttention,
    implements,
)

__all__ = [
    "additive_attention",
    "cross_attention",
    "dot_product_attention",
    "general_attention",
    "projected_self_attention",
    "scaled_dot_product_attention",
    "self_attention",
]

_dot = Check("dot_product_attention")
_scaled = Check("scaled_dot_product_attention")
_general = Check("general_attention")
_additive = Check("additive_attention")
_self = Check("self_attention")
_projected = Check("projected_self_attention")
_cross = Check("cross_attention")


@implements(DotProductAttention[Tensor])
@follows_autocast
def dot_product_attention(
    query: Float[Tensor, "*#batch n d"],
    key: Float[Tensor, "*#batch m d"],
    value: Float[Tensor, "*#batch m d_v"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "*batch n d_v"]:
    """softmax(QKᵀ)V."""

    def check() -> None:
        _dot(query, key, value, mask, causal=causal)

    return dot_attention(query, key, value, mask=mask, causal=causal, scale=1.0, check=check)


@implements(ScaledDotProductAttention[Tensor])
@follows_autocast
def scaled_dot_product_attention(
    query: Float[Tensor, "*#batch n d"],
    key: Float[Tensor, "*#batch m d"],
    value: Float[Tensor, "*#batch m d_v"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "*batch n d_v"]:
    """softmax(QKᵀ/√d)V."""

    def check() -> None:
        _scaled(query, key, value, mask, causal=causal)

    return dot_attention(query, key, value, mask=mask, causal=causal, check=check)


@implements(GeneralAttention[Tensor])
@follows_autocast
def general_attention(
    query: Float[Tensor, "*#batch n d_q"],
    key: Float[Tensor, "*#batch m d_k"],
    value: Float[Tensor, "*#batch m d_v"],
    w: Float[Tensor, "d_q d_k"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "*batch n d_v"]:
    """softmax(QWKᵀ)V; W is applied to queries or keys, whichever costs less."""
    _general(query, key, value, w, mask, causal=causal)
    if query_first(query, key):
        return dot_attention(product(query, w), key, value, mask=mask, causal=causal, scale=1.0)
    return dot_attention(query, product(key, w.mT), value, mask=mask, causal=causal, scale=1.0)


@implements(AdditiveAttention[Tensor])
@follows_autocast
def additive_attention(
    query: Float[Tensor, "*#batch n d_q"],
    key: Float[Tensor, "*#batch m d_k"],
    value: Float[Tensor, "*#batch m d_v"],
    w_q: Float[Tensor, "h d_q"],
    w_k: Float[Tensor, "h d_k"],
    w_v: Float[Tensor, " h"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "*batch n d_v"]:
    """softmax(w_v·tanh(W_q q + W_k k))V."""
    output = cached_plans.attend(_additive, query, key, value, w_q, w_k, w_v, mask, causal)
    if output is not None:
        return output
    a, b = projections(query, key, w_q, w_k)
    return additive.attention(a, b, upcast(w_v), upcast(value), mask=mask, causal=causal).to(value.dtype)


@implements(SelfAttention[Tensor])
@follows_autocast
def self_attention(
    x: Float[Tensor, "*#batch n d"], *, mask: Bool[Tensor, "*#batch #n #n"] | None = None, causal: bool = False
) -> Float[Tensor, "*batch n d"]:
    """softmax(XXᵀ/√d)X."""
    _self(x, mask, causal=causal)
    return dot_attention(x, x, x, mask=mask, causal=causal)


@implements(ProjectedSelfAttention[Tensor])
@follows_autocast
def projected_self_attention(
    x: Float[Tensor, "*#batch n d_x"],
    w_q: Float[Tensor, "d_k d_x"],
    w_k: Float[Tensor, "d_k d_x"],
    w_v: Float[Tensor, "d_v d_x"],
    *,
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "*batch n d_v"]:
    """softmax(QKᵀ/√d)V with Q, K and V projected from x."""
    _projected(x, w_q, w_k, w_v, mask, causal=causal)
    return dot_attention(product(x, w_q.mT), product(x, w_k.mT), product(x, w_v.mT), mask=mask, causal=causal)


@implements(CrossAttention[Tensor])
@follows_autocast
def cross_attention(
    x: Float[Tensor, "*#batch n d_x"],
    memory: Float[Tensor, "*#batch m d_m"],
    w_q: Float[Tensor, "d_k d_x"],
    w_k: Float[Tensor, "d_k d_m"],
    w_v: Float[Tensor, "d_v d_m"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
) -> Float[Tensor, "*batch n d_v"]:
    """softmax(QKᵀ/√d)V with Q projected from x, and K and V from the memory."""
    _cross(x, memory, w_q, w_k, w_v, mask)
    return dot_attention(product(x, w_q.mT), product(memory, w_k.mT), product(memory, w_v.mT), mask=mask, causal=False)
