"""Variants of attention kernels whose alignment, windows or logarithms are declared."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.variants.registry import variant
from attnspec.reference.defining.choices import choosing
from attnspec.spec.contract.operation import Operation
from attnspec.spec.kernels import (
    GroupedQueryAttention,
    MergeAttention,
    PagedAttention,
    SlidingWindowMask,
    VariableLengthAttention,
)


@variant(
    "queries at the end of key lengths, declared",
    operations=(GroupedQueryAttention,),
    declares={"length_alignment": "at-length"},
)
class AtLengths(Formulas):
    """With key lengths ℓ, query i is at position ℓ − n + i.

    ONNX's Attention-24 does so with `nonpad_kv_seqlen`.
    """

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
        """Attention under a mask and a bias that express all options of positions."""
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
    "queries at the end of key lengths, else of all keys, declared",
    operations=(GroupedQueryAttention,),
    declares={"length_alignment": "at-length", "causal_alignment": "bottom-right"},
)
class AtEnds(Library):
    """The last query is at the end of its key length, or of all keys.

    `flash_attn_with_kvcache` does so.
    """

    def compute(self, operation: Operation, arguments: Mapping[str, Any]) -> Any:
        """The formula under both choices."""
        with choosing(length_alignment="at-length", causal_alignment="bottom-right"):
            return super().compute(operation, arguments)


@variant(
    "windows include the query's own position, declared",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention, SlidingWindowMask),
    declares={"window_left": "includes-own"},
)
class OwnPositionIncluded(Formulas):
    """A window of W keys includes the query's own, as in Hugging Face's models."""

    def window_sides(self, window: Any) -> tuple[int | None, int | None]:
        """One key less than the window's left side."""
        left, right = (None, None) if window is None else window
        return (None if left is None else left - 1), right


@variant(
    "log-sum-exps to base 2, declared",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention, MergeAttention),
    declares={"logarithms": "base-2"},
    differentiable=False,
)
class BaseTwo(Formulas):
    """Log-sum-exps are logarithms to base 2, and parts weigh 2^ℓ, as in FlashInfer."""

    def log_sum_exp(self, scores: Numbers) -> Numbers:
        """log₂ Σ exp of every row."""
        shift = self.shift(scores)
        total = self.total(self.exponential(scores - shift))
        return (shift * scores.dtype.type(np.log2(np.e)) + np.log2(total))[..., 0]

    def in_chosen_base(self, logarithms: Numbers) -> Numbers:
        """Logarithms as they are."""
        return logarithms

    def merge_attention(self, outputs: Numbers, log_sum_exps: Numbers) -> Numbers:
        """Merge by powers of 2."""
        highest = np.max(log_sum_exps, axis=-1, keepdims=True, initial=-np.inf)
        shift = np.where(highest == -np.inf, 0, highest).astype(log_sum_exps.dtype)
        powers = np.exp2(log_sum_exps - shift)
        total = np.sum(powers, axis=-1, keepdims=True)
        weights = powers / np.where(total == 0, total.dtype.type(1), total)
        merged = self.pool(weights[..., None, :], outputs, np.isfinite(log_sum_exps)[..., None, :])[..., 0, :]
        return merged, np.broadcast_to((shift + np.log2(total))[..., 0], merged.shape[:-1])


@variant(
    "log-sum-exps times log₂ e, declared to base 2",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention, MergeAttention),
    declares={"logarithms": "base-2"},
)
class Converted(Formulas):
    """Natural log-sum-exps are multiplied by log₂ e, and divided by it before a merge."""

    def in_chosen_base(self, logarithms: Numbers) -> Numbers:
        """Logarithms times log₂ e."""
        return logarithms * logarithms.dtype.type(np.log2(np.e))

    def natural(self, logarithms: Numbers) -> Numbers:
        """Logarithms divided by log₂ e."""
        return logarithms / logarithms.dtype.type(np.log2(np.e))


@variant(
    "log-sum-exps −∞ of rows with a sink alone, declared",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention),
    declares={"sink_alone": "minus-infinity"},
)
class SkippedRows(Formulas):
    """Rows without attendable keys are skipped, their sinks too."""

    def log_sum_exps(self, scores: Numbers, attendable: Numbers, sinks: Numbers) -> Numbers:
        """Log-sum-exps; −∞ where no key is attendable."""
        logarithms = Formulas.log_sum_exps(self, scores, attendable, sinks)
        skipped = not scores.shape[-1] if attendable is None else ~np.any(attendable, axis=-1)
        return np.where(skipped, scores.dtype.type(-np.inf), logarithms)
