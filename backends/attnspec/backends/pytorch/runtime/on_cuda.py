"""Choices that the backend makes on CUDA alone, by operation.

None was seen on a GPU yet. PyTorch documents that backward passes of its fused kernels are not repeatable bit by bit,
and excluding NaN or checking integers would make every call wait for the device.
"""

from collections.abc import Mapping

BY_FUSED_KERNELS = [
    "dot_product_attention", "scaled_dot_product_attention", "general_attention", "self_attention",
    "projected_self_attention", "cross_attention", "multi_head_attention", "concat_heads_attention",
    "luong_context_dot", "luong_context_general", "encoder_layer", "encoder_stack", "decoder_layer", "decoder_stack",
    "cached_decoder_step", "encoder_decoder", "decoder_only", "encoder_only", "vit_encoder", "grouped_query_attention",
    "variable_length_attention", "paged_attention", "latent_attention",
]  # fmt: skip
"""Operations with dot products as scores, which PyTorch's fused kernels compute on CUDA."""

OF_INTEGERS = [
    "grouped_query_attention", "variable_length_attention", "paged_attention", "embed", "encoder_context", "rnn", "gru",
    "lstm", "bidirectional_rnn", "bidirectional_gru", "bidirectional_lstm", "stacked_rnn", "stacked_gru",
    "stacked_lstm", "decoder_step", "teacher_forced_decode", "greedy_decode", "beam_decode",
]  # fmt: skip
"""Operations that check lengths, indices or tokens; on CUDA their numbers are not read."""


def semantics() -> Mapping[str, Mapping[str, str]]:
    """Return the choices by operation, those of other operations being normative."""
    choices: dict[str, dict[str, str]] = {name: {} for name in (*BY_FUSED_KERNELS, *OF_INTEGERS)}
    for name in BY_FUSED_KERNELS:
        choices[name] |= {"masked_nonfinite": "propagates", "repeatability": "within-budget"}
    for name in OF_INTEGERS:
        choices[name] |= {"rejection": "unchecked"}
    return choices
