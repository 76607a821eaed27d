"""Rediscovered defects of caches, of parts that are merged, and of positions.

Each function is a step of ``Formulas``, the correct formulas, or of ``Library`` with a defect; ``replaces`` names it.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.roles import changed
from attnspec.conformance.rediscovered.layouts import c_strides, read_with
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.kernels import (
    MergeAttention,
    PagedAttention,
    PositionsFromMask,
    RollingBufferPositions,
    VariableLengthAttention,
)

# Keys that are used --------------------------------------------------------------------------------------------------


@rediscovered(
    "Dao-AILab/flash-attention#1192",
    "Fix a wrong reference to seqlen_k variable in the varlen kernel",
    framework="FlashAttention 2",
    operation=VariableLengthAttention,
    breaks=("kernels.packed-equals-separate",),
    replaces="used_keys",
)
def longest_for_all(correct: Formulas, ends: Numbers, lengths: Numbers) -> list[slice]:
    """All sequences use as many keys as the longest of the batch."""
    return Formulas.used_keys(correct, ends, None if lengths is None else np.full_like(lengths, lengths.max()))


@rediscovered(
    "Dao-AILab/flash-attention#2167",
    "[Cute,Bwd,Sm100] fix seqused in varlen bwd",
    framework="FlashAttention 4",
    operation=VariableLengthAttention,
    breaks=("operation.gradient",),
    replaces="vjp",
)
def lengths_forgotten_backward(
    correct: Library, operation: str, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """Gradients are those of all keys, used or not."""
    used = next(x.path for x in OPERATIONS[operation].leaves if x.path in OPERATIONS[operation].generated_below)
    return Library.vjp(correct, operation, {**arguments, used: None}, cotangent)


@rediscovered(
    "EricLBuehler/mistral.rs#2094",
    "Gemma 4: PagedAttention paged decode kernel ignores sliding window constraint (correctness bug)",
    framework="mistral.rs",
    operation=PagedAttention,
    breaks=("operation.options-have-effect",),
    replaces="cache_mask",
)
def window_forgotten_in_decoding(
    correct: Formulas, lengths: Numbers, n: int, m: int, causal: bool, window: Any
) -> Numbers:
    """A single query attends to the whole cache."""
    return Formulas.cache_mask(correct, lengths, n, m, causal, None if n == 1 else window)


@rediscovered(
    "vllm-project/vllm#22003",
    "[Bugfix]: Fix Possible Output Corruption in Cascade Attention Caused by Non-Contiguous LSE Tensor",
    framework="vLLM",
    operation=MergeAttention,
    breaks=("storage.views-equal-copies",),
    replaces="prepare",
)
def logarithms_read_as_contiguous(
    correct: Library, operation: Operation, arguments: Mapping[str, Any]
) -> dict[str, Numbers]:
    """The log-sum-exps of the parts are read as if they were contiguous."""
    path = operation.leaves[-1].path
    logarithms = arguments[path]
    return Library.prepare(correct, operation, changed(arguments, {path: read_with(logarithms, c_strides(logarithms))}))


# Rolling buffers ------------------------------------------------------------------------------------------------------

rolling = partial(
    rediscovered,
    operation=RollingBufferPositions,
    breaks=("kernels.rolling-buffer-keeps-last",),
    replaces="age_of_slots",
)


@rolling(
    "huggingface/transformers#47708",
    "Fix sliding window cache index off-by-one on wraparound",
    framework="transformers",
)
def rotated_before_full(correct: Formulas, last: Numbers, slot: Numbers, slots: int) -> Numbers:
    """Before the buffer is full, its first position is sought in slot ℓ mod w."""
    started = np.where(last + 1 < slots, slot + last + 1, slot)
    return Formulas.age_of_slots(correct, last, started, slots)


@rolling(
    "huggingface/transformers#37574",
    "Wrong KV cache update for sliding-window attention (SWA) layers when total sequence length reaches window size",
    framework="transformers",
)
def rolled_before_overflow(correct: Formulas, last: Numbers, slot: Numbers, slots: int) -> Numbers:
    """When position w − 1 is stored, the buffer is rolled already: position 0 is lost."""
    age = Formulas.age_of_slots(correct, last, slot, slots)
    return np.where((last == slots - 1) & (age == slots - 1), last + 1, age)


@rolling(
    "ollama/ollama#14912",
    "Fix RotatingKVCache trim and wrap handling for sliding window attention",
    framework="Ollama (MLX)",
)
def wrapped_read_in_order(correct: Formulas, last: Numbers, slot: Numbers, slots: int) -> Numbers:
    """A buffer that has wrapped around is read as if slot 0 were the oldest."""
    age = Formulas.age_of_slots(correct, last, slot, slots)
    return np.where(last >= slots, slots - 1 - slot, age)


@rediscovered(
    "huggingface/transformers#45940",
    "cache_utils: fix StaticSlidingWindowLayer.get_mask_sizes returning sliding_window size before cache is full",
    framework="transformers",
    operation=RollingBufferPositions,
    breaks=("kernels.rolling-buffer-keeps-last",),
    replaces="of_written_slots",
)
def empty_slots_as_keys(correct: Formulas, positions: Numbers) -> Numbers:
    """Slots that were never written count as position 0."""
    return np.maximum(positions, 0)


# Positions of padded sequences ----------------------------------------------------------------------------------------

padded = partial(
    rediscovered,
    operation=PositionsFromMask,
    breaks=("kernels.padding-takes-no-position",),
)


@padded(
    "TransformerLensOrg/TransformerLens#1609",
    "[Bug Report] TransformerBridge ignores attention_mask when deriving position_ids, so left-padded input silently "
    "returns wrong logits and loss",
    framework="TransformerLens",
    replaces="positions_from_mask",
)
def mask_not_asked(correct: Formulas, mask: Numbers) -> Numbers:
    """Positions are 0, 1, 2, …, padding included."""
    return np.broadcast_to(np.arange(mask.shape[-1]), mask.shape)


@padded(
    "TransformerLensOrg/TransformerLens#1610",
    "fix(bridge): derive position_ids from attention_mask for left-padded input",
    framework="TransformerLens",
    replaces="positions_from_mask",
)
def left_padding_only(correct: Formulas, mask: Numbers) -> Numbers:
    """Sequences that begin with a token have positions 0, 1, 2, …, whatever is padded."""
    counted = Formulas.positions_from_mask(correct, mask)
    return np.where(mask[..., :1], np.arange(mask.shape[-1]), counted)


@padded(
    "unslothai/unsloth#3699",
    "Batched generation with left-padding produces incorrect output",
    framework="unsloth",
    replaces="positions_from_mask",
)
def one_row_for_all(correct: Formulas, mask: Numbers) -> Numbers:
    """All sequences have the positions of the longest one."""
    counted = Formulas.positions_from_mask(correct, mask)
    if mask.ndim < 2 or not mask.size:
        return counted
    flat = counted.reshape(-1, mask.shape[-1])
    longest = np.argmax(mask.reshape(flat.shape).sum(-1))
    return np.broadcast_to(flat[longest], mask.shape)


@rediscovered(
    "torch-spyre/sendnn-inference#495",
    "[CB] 🐛 fix padding of position ids",
    framework="sendnn-inference",
    operation=PositionsFromMask,
    breaks=("semantics.padding_positions",),
    replaces="position_of_padding",
)
def padding_token_as_position(correct: Formulas, last: Numbers) -> Numbers:
    """Padding has the number of the padding token as its position, here 2."""
    return 2 + 0 * last
