"""A third party's adapter of PyTorch's own attention, checked by mypy against the wheel."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.bases.torch import TorchBackend
from attnspec.spec import Limits, Semantics

check = Check("scaled_dot_product_attention")


class Mine(TorchBackend):
    """One operation, judged on the CPU in float32."""

    name = "mine"
    limits = Limits(dtypes=("float32",), broadcasting=False)
    semantics = Semantics(masked_nonfinite="propagates")

    def scaled_dot_product_attention(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """softmax(QKᵀ/√d)V."""
        check(query, key, value, mask, causal=causal)
        if causal:
            lower = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
            mask = lower if mask is None else mask & lower
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
