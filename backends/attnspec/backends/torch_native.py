"""PyTorch's own ``F.scaled_dot_product_attention``, unmodified, as a backend.

The adapter presents: it joins ``mask`` and ``causal``, of which the function takes one, and gives the query the whole
batch, which the function does not take from a mask, nor from anything where a size is 0. It also checks shapes, because
on four dimensions the CPU kernel takes keys and values of different m and returns a result, and on two and three a mask
of one dimension. Nothing is done to the numbers.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.bases.torch import TorchBackend, devices
from attnspec.spec import Limits, Semantics

_check = Check("scaled_dot_product_attention")


class TorchNative(TorchBackend):
    """``F.scaled_dot_product_attention``: a NaN or an infinity stored at a masked key or value reaches its result."""

    name = "torch-native"
    limits = Limits(dtypes=("float64", "float32", "bfloat16", "float16"), devices=devices())
    semantics = Semantics(masked_nonfinite="propagates")

    def scaled_dot_product_attention(
        self,
        query: Float[Tensor, "*#batch n d"],
        key: Float[Tensor, "*#batch m d"],
        value: Float[Tensor, "*#batch m d_v"],
        *,
        mask: Bool[Tensor, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "*batch n d_v"]:
        """softmax(QKᵀ/√d)V by PyTorch's choice of kernel."""
        *batch, n, _ = _check(query, key, value, mask)
        query = query.expand(*batch, n, -1)
        if mask is None:
            return F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        if causal:
            mask = mask & torch.ones(n, key.shape[-2], dtype=torch.bool, device=mask.device).tril()
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


backend = TorchNative()
