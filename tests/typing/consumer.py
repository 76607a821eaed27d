"""What a third party writes: an adapter in ten lines, checked by mypy against the wheel, and its conformance tests."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnspec.backends.bases.torch import TorchBackend
from attnspec.conformance import ConformanceSuite
from attnspec.spec import DotScores, ScaledDotProductAttention, implements


class Mine(TorchBackend):
    """PyTorch's attention, as somebody would wrap it."""

    name = "mine"
    semantics = {"masked_nonfinite": "propagates"}

    def scaled_dot_product_attention(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """softmax(QKᵀ/√d)V."""
        if causal:
            lower = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
            mask = lower if mask is None else mask & lower
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


@implements(DotScores[Tensor])
def dot_scores(query: Tensor, key: Tensor) -> Tensor:
    """QKᵀ."""
    return query @ key.mT





class TestMine(ConformanceSuite):
    """The suite in a test file."""

    backend = Mine()
    operations = ("scaled_dot_product_attention",)
