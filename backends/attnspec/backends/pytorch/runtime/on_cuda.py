"""Choices that the backend makes on CUDA alone, by operation.

None was seen on a GPU yet. PyTorch documents that backward passes of its fused kernels are not repeatable bit by bit,
and excluding NaN or checking integers would make every call wait for the device.
"""

from collections.abc import Mapping

from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.contract.semantics import QUESTIONS

BY_FUSED_KERNELS = [
    "dot_product_attention", "scaled_dot_product_attention", "general_attention", "self_attention",
    "projected_self_attention", "cross_attention", "multi_head_attention", "concat_heads_attention",
    "biased_multi_head_attention", "luong_context_dot", "luong_context_general", "luong_context_location",
    "rnn_self_attention", "encoder_layer", "encoder_stack", "decoder_layer", "decoder_stack", "cached_decoder_step",
    "encoder_decoder", "decoder_only", "encoder_only", "vit_encoder", "grouped_query_attention",
    "variable_length_attention", "paged_attention", "latent_attention",
]  # fmt: skip
"""Operations with dot products as scores, which PyTorch's fused kernels compute on CUDA."""


def semantics() -> Mapping[str, Mapping[str, str]]:
    """Return the choices by operation, those of other operations being normative."""
    fused = {o: {"masked_nonfinite": "propagates", "repeatability": "within-budget"} for o in BY_FUSED_KERNELS}
    # Lengths, indices, tokens and ends of sequences are checked on the CPU alone.
    checked = (
        o.name for o in OPERATIONS.values() if o.lengths or o.indices or o.selections or o.sizes_of(Axis.SEQUENCE)
    )
    unread = {o: {"rejection": "unchecked"} for o in checked}
    # `rnn_self_attention`, for one, takes no mask, and must not declare what becomes of masked numbers.
    return {name: _concerning(OPERATIONS[name], fused.get(name, {}) | unread.get(name, {})) for name in fused | unread}


def _concerning(operation: Operation, choices: Mapping[str, str]) -> dict[str, str]:
    return {question: choice for question, choice in choices.items() if QUESTIONS[question].concerns(operation)}
