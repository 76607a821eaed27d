"""Matrix row of ``torch.nn.attention.varlen``: concatenated sequences; older PyTorch lacks it."""

from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from attnspec.backends.bases.shapes import Check
from attnspec.backends.bases.torch import devices
from attnspec.backends.torch_native.rows import DTYPES, Row
from attnspec.spec import Limits, Semantics

_check = Check("variable_length_attention")


def packed(
    query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, key_ends: Tensor, causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, None]:  # fmt: skip
    """Call varlen_attn, with heads after positions and the longest sequences' lengths."""
    q, k, v = (x.transpose(0, 1) for x in (query, key, value))
    longest_q, longest_k = (max(b - a for a, b in pairwise(ends.tolist())) for ends in (query_ends, key_ends))
    output = varlen_attn(
        q, k, v, query_ends.to(torch.int32), key_ends.to(torch.int32), longest_q, longest_k,
        scale=scale, window_size=(-1, 0) if causal else (-1, -1), enable_gqa=True,
    )  # fmt: skip
    assert isinstance(output, Tensor)
    return output.transpose(0, 1), None


class Packed(Row):
    """Flash attention of concatenated sequences."""

    name = "varlen_attn"
    limits = Limits(dtypes=DTYPES, devices=devices(), max_batch_dims=0, features=("causal", "scale"))
    semantics = Semantics(causal_alignment="bottom-right")
    imports = "from itertools import pairwise\n\nfrom torch.nn.attention.varlen import varlen_attn\n"
    calls = {"variable_length_attention": packed}  # noqa: RUF012 - a declaration

    def variable_length_attention(
        self,
        query: Float[Tensor, "heads n d"],
        key: Float[Tensor, "heads_k m d"],
        value: Float[Tensor, "heads_k m d_v"],
        query_ends: Int[Tensor, " ends"],
        key_ends: Int[Tensor, " ends"],
        *,
        causal: bool = False,
        scale: float | None = None,
        window: tuple[int | None, int | None] | None = None,
        softcap: float | None = None,
        slopes: Float[Tensor, " heads"] | None = None,
        sinks: Float[Tensor, " heads"] | None = None,
        key_lengths: Int[Tensor, " sequences"] | None = None,
    ) -> tuple[Float[Tensor, "heads n d_v"], Float[Tensor, "heads n"] | None]:
        """softmax(QKᵀ·scale)V of each sequence; options not in `limits` are unsupported."""
        others = scale, window, softcap, slopes, sinks, key_lengths
        _check(query, key, value, query_ends, key_ends, *others, causal=causal)
        return packed(query, key, value, query_ends, key_ends, causal, scale)


packed_row = Packed()
