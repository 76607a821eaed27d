"""Matrix rows of ``F.scaled_dot_product_attention``, one for each kernel of PyTorch, forced by ``sdpa_kernel``."""

from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnspec.backends.bases.shapes import Check
from attnspec.backends.torch_native.attention import batch_of
from attnspec.backends.torch_native.rows import Row
from attnspec.spec import Semantics

_check = Check("scaled_dot_product_attention")


def as_heads(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """Return (*batch, n, d) with two batch dimensions, the second in place of heads."""
    x = x.expand(*batch, *x.shape[-2:])
    return x[(None,) * (2 - len(batch))] if len(batch) < 2 else x.flatten(0, len(batch) - 2)


def with_causal(mask: Tensor, causal: bool, n: int, m: int, query: Tensor) -> Tensor:
    """Return the mask, combined with the causal mask if `causal`."""
    return mask & torch.ones(n, m, dtype=torch.bool, device=query.device).tril() if causal else mask


def by_kernel(
    kernel: SDPBackend, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """softmax(QKᵀ/√d)V by one kernel, which gets contiguous rows, and values as wide as keys."""
    n, d, d_v, m = query.shape[-2], query.shape[-1], value.shape[-1], key.shape[-2]
    batch = batch_of(query, key, value, mask)
    mask_of_call = None if mask is None else with_causal(mask, causal, n, m, query)
    q, k, v = (F.pad(as_heads(x, batch), (0, max(d, d_v) - x.shape[-1])).contiguous() for x in (query, key, value))
    allowed = None if mask_of_call is None else as_heads(mask_of_call.expand(*mask_of_call.shape[:-2], n, m), batch)
    with sdpa_kernel(kernel):
        output = F.scaled_dot_product_attention(
            q, k, v, attn_mask=allowed, is_causal=causal and mask_of_call is None, scale=d**-0.5
        )
    return output[..., :d_v].reshape(*batch, n, d_v)


class Attention(Row):
    """A matrix row of scaled dot-product attention."""

    def scaled_dot_product_attention(
        self,
        query: Float[Tensor, "*#batch n d"],
        key: Float[Tensor, "*#batch m d"],
        value: Float[Tensor, "*#batch m d_v"],
        *,
        mask: Bool[Tensor, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "*batch n d_v"]:
        """softmax(QKᵀ/√d)V by this row's function."""
        _check(query, key, value, mask, causal=causal)
        output: Tensor = self.calls["scaled_dot_product_attention"](query, key, value, mask, causal)
        return output


class Kernel(Attention):
    """A matrix row of one kernel; NaN or infinity in masked keys or values propagates."""

    semantics = Semantics(masked_nonfinite="propagates")
    notes = {"layout": "values of another width than keys are padded with zeros, and rows are copied without gaps"}  # noqa: RUF012 - a declaration
    parts = (batch_of, as_heads, with_causal)
    imports = "from torch.nn.attention import SDPBackend, sdpa_kernel\n"

    def __init__(self, kernel: SDPBackend, semantics: Semantics = semantics) -> None:
        self.name = f"SDPBackend.{kernel.name}"
        self.calls, self.semantics = {"scaled_dot_product_attention": partial(by_kernel, kernel)}, semantics


math = Kernel(SDPBackend.MATH)
flash = Kernel(SDPBackend.FLASH_ATTENTION, Semantics(masked_nonfinite="propagates", nan_queries="hidden"))
efficient = Kernel(SDPBackend.EFFICIENT_ATTENTION)
cudnn = Kernel(SDPBackend.CUDNN_ATTENTION)
overrideable = Kernel(SDPBackend.OVERRIDEABLE)
