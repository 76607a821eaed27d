"""Variants of attention kernels whose alignment, windows or logarithms are declared."""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.variants.registry import variant
from attnspec.spec.kernels import GroupedQueryAttention, PagedAttention, SlidingWindowMask, VariableLengthAttention


@variant(
    "queries at the end of key lengths, declared",
    operations=(GroupedQueryAttention,),
    declares={"length_alignment": "at-length"},
)
class AtLengths(Formulas):
    """With key lengths ℓ, query i is at position ℓ − n + i, as in ONNX's Attention-24 with `nonpad_kv_seqlen`."""

    def grouped_query_attention(
        self,
        query: Numbers,
        key: Numbers,
        value: Numbers,
        *,
        mask: Numbers = None,
        causal: bool = False,
        window: Any = None,
        bias: Numbers = None,
        slopes: Numbers = None,
        key_lengths: Numbers = None,
        **options: Any,
    ) -> Numbers:
        """Attention under one mask and one bias, into which causal flag, window, lengths and slopes are written."""
        n, m = query.shape[-2], key.shape[-2]
        if key_lengths is not None:
            self.check_lengths(key_lengths, m)
            beyond = np.arange(m) - np.arange(n)[:, None] - (key_lengths[..., None, None] - n)
            within = np.arange(m) < key_lengths[..., None, None]
            left, right = (None, None) if window is None else window
            for allowed in (
                beyond <= (0 if causal else m + n),
                beyond >= (-m - n if left is None else -left),
                beyond <= (m + n if right is None else right),
            ):
                within = within & allowed
            mask = within if mask is None else mask & within
            if slopes is not None:
                distances = np.abs(beyond)[..., None, :, :].astype(query.dtype)
                linear = -slopes[:, None, None] * distances
                bias, slopes = linear if bias is None else bias + linear, None
            causal, window = False, None
        return Formulas.grouped_query_attention(
            self, query, key, value, mask=mask, causal=causal, window=window, bias=bias, slopes=slopes, **options
        )


@variant(
    "windows include the query's own position, declared",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention, SlidingWindowMask),
    declares={"window_left": "includes-own"},
)
class OwnPositionIncluded(Formulas):
    """A window of W keys ends with the query's own, as `sliding_window` of Hugging Face's models."""

    def window_sides(self, window: Any) -> tuple[int | None, int | None]:
        """One key less than the window's left side."""
        left, right = (None, None) if window is None else window
        return (None if left is None else left - 1), right
