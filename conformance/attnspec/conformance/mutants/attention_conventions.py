"""Mutants that do otherwise than they declare: alignment, windows and logarithms of attention kernels.

See :mod:`attnspec.conformance.mutants.semantics` for how mutants are written.
"""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.reference.defining.choices import choosing
from attnspec.spec.kernels import (
    GroupedQueryAttention,
    MergeAttention,
    PagedAttention,
    SlidingWindowMask,
    VariableLengthAttention,
)


@mutant(
    "packed sequences aligned by the totals, declared bottom right",
    operations=(VariableLengthAttention,),
    declares={"causal_alignment": "bottom-right"},
    breaks=("semantics.causal_alignment", "kernels.packed-equals-separate", "operation.oracle"),
    source="the offset is computed from the shapes of the arrays, which hold all sequences",
)
class OneOffset(Formulas):
    """All packed sequences have the offset m − n of the whole arrays."""

    def variable_length_attention(
        self, query: Numbers, key: Numbers, value: Numbers, query_ends: Numbers, key_ends: Numbers, **options: object
    ) -> Numbers:
        """Remember the offset of the whole arrays."""
        vars(self)["offset"] = key.shape[-2] - query.shape[-2]
        return Formulas.variable_length_attention(self, query, key, value, query_ends, key_ends, **options)

    def attendable(self, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
        """The causal mask j ≤ i + offset."""
        return np.tri(n, m, vars(self)["offset"], dtype=bool) if causal else mask


@mutant(
    "queries at the end of key lengths",
    operations=(GroupedQueryAttention,),
    breaks=("semantics.length_alignment", "masking.equals-explicit-mask", "operation.oracle"),
    source="onnx/onnx: Attention-24 with nonpad_kv_seqlen; flash_attn_with_kvcache with cache_seqlens",
)
class AtLengths(Formulas):
    """With key lengths ℓ, query i is at ℓ − n + i, undeclared."""

    def grouped_query_attention(
        self, query: Numbers, key: Numbers, value: Numbers, *, key_lengths: Numbers = None, **options: Any
    ) -> Numbers:
        """Attention to each length alone, aligned at the bottom right."""
        if key_lengths is None:
            return Formulas.grouped_query_attention(self, query, key, value, **options)
        return self.aligned_at_lengths(query, key, value, key_lengths, **options)


@mutant(
    "key lengths move no query, declared at the length",
    replaces="aligned_at_lengths",
    operations=(GroupedQueryAttention,),
    declares={"length_alignment": "at-length"},
    breaks=("semantics.length_alignment", "masking.equals-explicit-mask", "operation.oracle"),
    source="microsoft/onnxruntime#28958: lengths were a padding mask only",
)
def padding_alone(
    correct: Formulas, query: Numbers, key: Numbers, value: Numbers, lengths: Numbers, **options: Any
) -> Numbers:
    """Key lengths, declared to align the last query, only hide keys."""
    with choosing(length_alignment="ignored"):
        return correct.grouped_query_attention(query, key, value, key_lengths=lengths, **options)


@mutant(
    "linear biases top-left, where key lengths move the causal mask",
    replaces="linear_bias",
    operations=(GroupedQueryAttention,),
    declares={"length_alignment": "at-length"},
    breaks=("kernels.slopes-and-sinks-are-biases", "operation.oracle"),
    source="Dao-AILab/flash-attention#517: the mask moved, biases did not",
)
def biases_stay(correct: Formulas, slopes: Numbers, n: int, m: int) -> Numbers:
    """Linear biases count distances from position i, though key lengths align the queries."""
    return slopes[:, None, None] * correct.distances(n, m).astype(slopes.dtype)


@mutant(
    "windows include the query's own position",
    replaces="window_sides",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention, SlidingWindowMask),
    breaks=("semantics.window_left", "operation.oracle"),
    source="huggingface/transformers#29623, sgl-project/sglang#32062: W keys, or W keys before the query",
)
def own_position_included(correct: Formulas, window: Any) -> tuple[int | None, int | None]:
    """The left side of a window includes the query's own position, undeclared."""
    left, right = Formulas.window_sides(correct, window)
    return (None if left is None else left - 1), right


@mutant(
    "windows exclude the query's own position, declared to include it",
    replaces="window_sides",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention, SlidingWindowMask),
    declares={"window_left": "includes-own"},
    breaks=("semantics.window_left", "operation.oracle"),
    source="a declaration for the model's configuration, made for the kernel's window_size",
)
def own_position_excluded(correct: Formulas, window: Any) -> tuple[int | None, int | None]:
    """The left side of a window excludes the query's own position, against the declaration."""
    return (None, None) if window is None else window


@mutant(
    "both sides of windows include the query's own position, declared for the left",
    replaces="window_sides",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention, SlidingWindowMask),
    declares={"window_left": "includes-own"},
    breaks=("operation.oracle",),
    source="a symmetric window of W keys, halved",
)
def own_position_on_both_sides(correct: Formulas, window: Any) -> tuple[int | None, int | None]:
    """Both sides of a window include the query's own position, declared for the left."""
    left, right = Formulas.window_sides(correct, window)
    return (None if left is None else left - 1), right and right - 1


@mutant(
    "log-sum-exps to base 2 merged as natural ones",
    replaces="natural",
    operations=(MergeAttention,),
    declares={"logarithms": "base-2"},
    breaks=("semantics.logarithms", "kernels.merged-parts-equal-whole", "operation.oracle"),
    source="sgl-project/sglang#40903, vllm-project/vllm#52796: weights exp(ℓ) for kernels that return log2",
)
def merged_as_natural(correct: Formulas, logarithms: Numbers) -> Numbers:
    """Log-sum-exps, declared to base 2, weight parts as natural logarithms."""
    return logarithms


@mutant(
    "log-sum-exps natural, declared to base 2",
    replaces="in_chosen_base",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention),
    declares={"logarithms": "base-2"},
    breaks=("semantics.logarithms", "operation.oracle"),
    source="flashinfer-ai/flashinfer#4485: the base depends on the backend that is chosen",
)
def natural_after_all(correct: Formulas, logarithms: Numbers) -> Numbers:
    """Log-sum-exps are natural, as specified, but declared to base 2."""
    return logarithms


@mutant(
    "log-sum-exps −∞ of rows with a sink alone",
    replaces="log_sum_exps",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention),
    breaks=("semantics.sink_alone", "kernels.log-sum-exp", "operation.oracle"),
    source="tiles without attendable keys are skipped before the sink is added",
)
def sink_left_out_alone(correct: Formulas, scores: Numbers, attendable: Numbers, sinks: Numbers) -> Numbers:
    """The log-sum-exp of a row with a sink alone is −∞, undeclared."""
    with choosing(sink_alone="minus-infinity"):
        return Formulas.log_sum_exps(correct, scores, attendable, sinks)


@mutant(
    "log-sum-exps of sinks alone, declared −∞",
    replaces="log_sum_exps",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention),
    declares={"sink_alone": "minus-infinity"},
    breaks=("semantics.sink_alone", "kernels.log-sum-exp", "operation.oracle"),
    source="a skipped tile was mended, its declaration was not",
)
def sink_counts_after_all(correct: Formulas, scores: Numbers, attendable: Numbers, sinks: Numbers) -> Numbers:
    """The log-sum-exp of a row with a sink alone, declared −∞, is the sink."""
    with choosing(sink_alone="sink"):
        return Formulas.log_sum_exps(correct, scores, attendable, sinks)
