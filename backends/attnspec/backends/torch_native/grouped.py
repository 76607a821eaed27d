"""Matrix row of ``enable_gqa``: query heads share keys; the only option is the scale."""

from math import prod

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.bases.torch import devices
from attnspec.backends.torch_native.attention import batch_of
from attnspec.backends.torch_native.kernels import with_causal
from attnspec.backends.torch_native.rows import DTYPES, Row
from attnspec.spec import Limits, Semantics

_check = Check("grouped_query_attention")


def grouped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, None]:  # fmt: skip
    """Call F.scaled_dot_product_attention with enable_gqa on one batch dimension; no logarithms of sums."""
    n, m = query.shape[-2], key.shape[-2]
    batch = batch_of(*(x[..., 0] for x in (query, key, value)), mask)
    q, k, v = (x.expand(*batch, *x.shape[-3:]).reshape(prod(batch), *x.shape[-3:]) for x in (query, key, value))
    if mask is not None:
        mask = with_causal(mask, causal, n, m, query).expand(*batch, n, m).reshape(prod(batch), 1, n, m)
    output = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal and mask is None, scale=scale, enable_gqa=True
    )
    return output.reshape(*batch, *output.shape[1:]), None


class Grouped(Row):
    """PyTorch's choice of kernel: masked NaN and infinity propagate."""

    name = "enable_gqa"
    limits = Limits(dtypes=DTYPES, devices=devices(), features=("scale",))
    semantics = Semantics(masked_nonfinite="propagates")
    calls = {"grouped_query_attention": grouped}  # noqa: RUF012 - a declaration
    parts = (batch_of, with_causal)

    def grouped_query_attention(
        self,
        query: Float[Tensor, "*#batch heads n d"],
        key: Float[Tensor, "*#batch heads_k m d"],
        value: Float[Tensor, "*#batch heads_k m d_v"],
        *,
        mask: Bool[Tensor, "*#batch #n #m"] | None = None,
        causal: bool = False,
        scale: float | None = None,
        window: tuple[int | None, int | None] | None = None,
        softcap: float | None = None,
        bias: Float[Tensor, "*#batch #heads #n #m"] | None = None,
        slopes: Float[Tensor, " heads"] | None = None,
        sinks: Float[Tensor, " heads"] | None = None,
        key_lengths: Int[Tensor, "*#batch"] | None = None,
    ) -> tuple[Float[Tensor, "*batch heads n d_v"], Float[Tensor, "*batch heads n"] | None]:
        """softmax(QKᵀ·scale)V with shared keys and values; options not in `limits` are unsupported."""
        _check(query, key, value, mask, scale, window, softcap, bias, slopes, sinks, key_lengths, causal=causal)
        return grouped(query, key, value, mask, causal, scale)


grouped_row = Grouped()
