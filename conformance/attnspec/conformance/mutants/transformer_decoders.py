"""Mutants of transformer decoders.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone. ``value_of(x)``
is x without its record of gradients, so that no gradient flows through it. S0 to S4 are sources of the specification.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.tape import Tape, value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.multihead import MultiHeadParameters
from attnspec.spec.transformer import DecoderLayer, DecoderLayerParameters, DecoderStack, LayerNormParameters

Weights = MultiHeadParameters[Numbers]
Layer = DecoderLayerParameters[Numbers]


def _self_attention(correct: Formulas, x: Numbers, w: Weights, allowed: Numbers, mask: Numbers) -> Numbers:
    """Self-attention under ``allowed`` and ``mask``, which may be None."""
    both = allowed if mask is None else allowed & mask
    return correct.multi_head_attention(x, x, x, w.w_q, w.w_k, w.w_v, w.w_o, mask=both)


def _acausal_self_attention(correct: Formulas, x: Numbers, w: Weights, mask: Numbers) -> Numbers:
    return correct.multi_head_attention(x, x, x, w.w_q, w.w_k, w.w_v, w.w_o, mask=mask)


@mutant(
    "causal mask without the position itself",
    replaces="attend_to_targets",
    operations=(DecoderLayer,),
    breaks=("operation.oracle", "operation.gradient"),
    source="tril(diagonal=-1)",
)
def strictly_before(correct: Formulas, x: Numbers, w: Weights, mask: Numbers) -> Numbers:
    """The causal mask is j < i: no position attends to itself."""
    n = x.shape[-2]
    return _self_attention(correct, x, w, np.tri(n, k=-1, dtype=bool), mask)


@mutant(
    "causal mask that shows the next position",
    replaces="attend_to_targets",
    operations=(DecoderLayer, DecoderStack),
    breaks=("masking.future-invariance",),
    source="triu(diagonal=2), off by one",
)
def one_ahead(correct: Formulas, x: Numbers, w: Weights, mask: Numbers) -> Numbers:
    """The causal mask is j ≤ i + 1: every position sees the next one."""
    n = x.shape[-2]
    return _self_attention(correct, x, w, np.tri(n, k=1, dtype=bool), mask)


@mutant(
    "decoder that sees the future",
    replaces="attend_to_targets",
    operations=(DecoderLayer, DecoderStack),
    breaks=("masking.future-invariance", "masking.masked-gets-no-gradient"),
    source="torch.nn.TransformerDecoderLayer without tgt_mask",
)
def not_causal(correct: Formulas, x: Numbers, w: Weights, mask: Numbers) -> Numbers:
    """Self-attention of the decoder is not causal."""
    return _acausal_self_attention(correct, x, w, mask)


@mutant(
    "decoder that sees only the future",
    replaces="attend_to_targets",
    operations=(DecoderLayer,),
    breaks=("masking.future-invariance", "transformer.decoder-without-memory"),
    source="S2, whose formula keeps the scores with i ≤ j",
)
def only_the_future(correct: Formulas, x: Numbers, w: Weights, mask: Numbers) -> Numbers:
    """The causal mask is j ≥ i: every position sees only itself and the future."""
    n = x.shape[-2]
    return _self_attention(correct, x, w, np.tri(n, dtype=bool).T, mask)


@mutant(
    "causal mask forgotten under a mask",
    replaces="attend_to_targets",
    operations=(DecoderLayer,),
    breaks=("masking.future-invariance", "operation.oracle"),
    source="attn_mask set by whichever mask comes last",
)
def one_of_two(correct: Formulas, x: Numbers, w: Weights, mask: Numbers) -> Numbers:
    """With a mask, the causal mask is ignored."""
    return correct.multi_head_attention(x, x, x, w.w_q, w.w_k, w.w_v, w.w_o, mask=mask, causal=mask is None)


@mutant(
    "mask of the targets not passed on",
    replaces="attend_to_targets",
    operations=(DecoderLayer,),
    breaks=("masking.masked-keys-ignored", "operation.oracle"),
    source="tgt_key_padding_mask forgotten",
)
def targets_unmasked(correct: Formulas, x: Numbers, w: Weights, mask: Numbers) -> Numbers:
    """The mask of the targets is ignored."""
    return Formulas.attend_to_targets(correct, x, w, None)


@mutant(
    "mask of the memory not passed on",
    replaces="attend_to_memory",
    operations=(DecoderLayer, DecoderStack),
    breaks=("masking.masking-equals-truncation", "masking.masked-keys-ignored"),
    source="huggingface/transformers: encoder_attention_mask forgotten in generate",
)
def memory_unmasked(correct: Formulas, x: Numbers, memory: Numbers, w: Weights, mask: Numbers) -> Numbers:
    """The mask of the memory is ignored: padding of the sources is attended to."""
    return Formulas.attend_to_memory(correct, x, memory, w, None)


@mutant(
    "causal attention to the memory",
    replaces="attend_to_memory",
    operations=(DecoderLayer,),
    breaks=("attention.permutation-equivariance", "operation.oracle"),
    source="one is_causal for both attentions",
)
def causal_memory(correct: Formulas, x: Numbers, memory: Numbers, w: Weights, mask: Numbers) -> Numbers:
    """Attention to the memory is causal: target i sees only sources up to i."""
    return correct.multi_head_attention(x, memory, memory, w.w_q, w.w_k, w.w_v, w.w_o, mask=mask, causal=True)


@mutant(
    "masks of targets and memory exchanged",
    replaces="decoder_layer",
    operations=(DecoderLayer,),
    breaks=("masking.masked-keys-ignored", "operation.oracle"),
    source="tgt_mask and memory_mask by position in another order",
)
def masks_exchanged(
    correct: Formulas,
    x: Numbers,
    memory: Numbers,
    p: Layer,
    *,
    mask: Numbers = None,
    memory_mask: Numbers = None,
    norm: str = "post",
) -> Numbers:
    """With as many targets as sources, the masks of targets and memory are exchanged."""
    if x.shape[-2] == memory.shape[-2]:
        mask, memory_mask = memory_mask, mask
    return Formulas.decoder_layer(correct, x, memory, p, mask=mask, memory_mask=memory_mask, norm=norm)


@mutant(
    "keys and values from the targets, not the memory",
    replaces="attend_to_memory",
    operations=(DecoderLayer,),
    breaks=("operation.oracle",),
    source="attn(x, x, x) copied from the self-attention",
)
def targets_for_memory(correct: Formulas, x: Numbers, memory: Numbers, w: Weights, mask: Numbers) -> Numbers:
    """Keys and values come from the targets, not from an equally wide memory."""
    if x.shape[-1] != memory.shape[-1]:
        return Formulas.attend_to_memory(correct, x, memory, w, mask)
    return correct.multi_head_attention(x, x, x, w.w_q, w.w_k, w.w_v, w.w_o)


@mutant(
    "memory normalized before attention",
    replaces="attend_to_memory",
    operations=(DecoderLayer,),
    breaks=("operation.oracle", "operation.gradient"),
    source="pre-norm of queries, keys and values alike",
)
def memory_normalized(correct: Formulas, x: Numbers, memory: Numbers, w: Weights, mask: Numbers) -> Numbers:
    """The memory is normalized to mean 0 and variance 1."""
    centred = memory - np.mean(memory, axis=-1, keepdims=True)
    normalized = centred / np.sqrt(correct.variance(centred) + memory.dtype.type(correct.epsilon()))
    return Formulas.attend_to_memory(correct, x, normalized, w, mask)


@mutant(
    "layer norms of both attentions exchanged",
    replaces="decoder_layer",
    operations=(DecoderLayer,),
    breaks=("operation.oracle", "operation.gradient"),
    source="norm2 and norm3 exchanged when weights are converted",
)
def norms_exchanged(correct: Formulas, x: Numbers, memory: Numbers, p: Layer, **options: Any) -> Numbers:
    """The layer norms of self-attention and attention to the memory are exchanged."""
    wrong = DecoderLayerParameters(
        p.attention, p.cross_attention_norm, p.cross_attention, p.attention_norm, p.feed_forward, p.feed_forward_norm
    )
    return Formulas.decoder_layer(correct, x, memory, wrong, **options)


@mutant(
    "attention to the memory before self-attention",
    replaces="decoder_layer",
    operations=(DecoderLayer,),
    breaks=("operation.oracle", "operation.gradient"),
    source="the order of the two attentions",
)
def memory_first(
    correct: Formulas,
    x: Numbers,
    memory: Numbers,
    p: Layer,
    *,
    mask: Numbers = None,
    memory_mask: Numbers = None,
    norm: str = "post",
) -> Numbers:
    """Attention to the memory comes before self-attention."""
    x = correct.residual(
        x, lambda y: correct.attend_to_memory(y, memory, p.cross_attention, memory_mask), p.cross_attention_norm, norm
    )
    x = correct.residual(x, lambda y: correct.attend_to_targets(y, p.attention, mask), p.attention_norm, norm)
    return correct.residual(x, lambda y: correct.feed_forward(y, p.feed_forward), p.feed_forward_norm, norm)


@mutant(
    "memory added without its residual connection",
    replaces="decoder_layer",
    operations=(DecoderLayer,),
    breaks=("transformer.zero-sublayers-identity", "transformer.decoder-without-memory", "operation.oracle"),
    source="x = cross(x) for x = x + cross(x)",
)
def no_residual(
    correct: Formulas,
    x: Numbers,
    memory: Numbers,
    p: Layer,
    *,
    mask: Numbers = None,
    memory_mask: Numbers = None,
    norm: str = "post",
) -> Numbers:
    """Attention to the memory has no residual connection: it replaces x."""
    x = correct.residual(x, lambda y: correct.attend_to_targets(y, p.attention, mask), p.attention_norm, norm)
    y = x if norm == "post" else correct.layer_norm(x, p.cross_attention_norm)
    attended = correct.attend_to_memory(y, memory, p.cross_attention, memory_mask)
    x = correct.layer_norm(attended, p.cross_attention_norm) if norm == "post" else attended
    return correct.residual(x, lambda y: correct.feed_forward(y, p.feed_forward), p.feed_forward_norm, norm)


@mutant(
    "post-norm on top of pre-norm",
    replaces="residual",
    operations=(DecoderLayer,),
    breaks=("transformer.zero-sublayers-identity", "operation.options-have-effect"),
    source="norm_first read by the encoder only",
)
def post_and_pre(
    correct: Formulas, x: Numbers, sublayer: Callable[[Numbers], Numbers], p: LayerNormParameters[Numbers], norm: str
) -> Numbers:
    """With pre-norm, the sum is normalized as well."""
    result = Formulas.residual(correct, x, sublayer, p, norm)
    return correct.layer_norm(result, p) if norm == "pre" else result


@mutant(
    "normalization left out before the decoder's sublayers",
    replaces="residual",
    operations=(DecoderLayer,),
    breaks=("operation.options-have-effect", "operation.oracle"),
    source="pre-norm in a branch that is never taken",
)
def unnormalized_input(
    correct: Formulas, x: Numbers, sublayer: Callable[[Numbers], Numbers], p: LayerNormParameters[Numbers], norm: str
) -> Numbers:
    """With pre-norm, sublayers get their input without normalization."""
    return x + sublayer(x) if norm == "pre" else Formulas.residual(correct, x, sublayer, p, norm)


@mutant(
    "no gradient for the memory",
    replaces="attend_to_memory",
    operations=(DecoderLayer, DecoderStack),
    breaks=("operation.gradient",),
    source="an encoder that is run under no_grad",
)
def memory_detached(correct: Formulas, x: Numbers, memory: Numbers, w: Weights, mask: Numbers) -> Numbers:
    """The memory gets no gradient."""
    return Formulas.attend_to_memory(correct, x, value_of(memory), w, mask)


@mutant(
    "gradient of the memory without its values",
    replaces="attend_to_memory",
    operations=(DecoderLayer,),
    breaks=("operation.gradient",),
    source="a gradient written to the same buffer twice: dK over dV",
)
def keys_only(correct: Formulas, x: Numbers, memory: Numbers, w: Weights, mask: Numbers) -> Numbers:
    """The gradient of the memory leaves out its use as values."""
    values = value_of(memory)
    return correct.multi_head_attention(x, memory, values, w.w_q, w.w_k, w.w_v, w.w_o, mask=mask)


@mutant(
    "gradients without the causal mask",
    replaces="attend_to_targets",
    operations=(DecoderLayer,),
    breaks=("masking.masked-gets-no-gradient", "operation.gradient"),
    source="the causal mask not saved for the backward pass",
)
def gradient_of_everything(correct: Formulas, x: Numbers, w: Weights, mask: Numbers) -> Numbers:
    """Gradients are computed without the causal mask; results are causal."""
    result = Formulas.attend_to_targets(correct, x, w, mask)
    if not isinstance(x, Tape):
        return result
    return Tape(result.value, [_acausal_self_attention(correct, x, w, mask)], lambda g: [g])


@mutant(
    "mask of the memory in the first layer only",
    replaces="decoder_layer_of_stack",
    operations=(DecoderStack,),
    breaks=("masking.masked-keys-ignored", "operation.oracle"),
    source="a mask that is not passed on",
)
def memory_masked_once(
    correct: Formulas,
    number: int,
    x: Numbers,
    memory: Numbers,
    p: Layer,
    mask: Numbers,
    memory_mask: Numbers,
    norm: str,
) -> Numbers:
    """The mask of the memory applies to the first layer only."""
    seen = None if number else memory_mask
    return Formulas.decoder_layer_of_stack(correct, number, x, memory, p, mask, seen, norm)


@mutant(
    "layers attend to their input, not the memory",
    replaces="decoder_layer_of_stack",
    operations=(DecoderStack,),
    breaks=("operation.oracle", "operation.gradient"),
    source="for layer in layers: memory = x = layer(x, memory)",
)
def memory_replaced(
    correct: Formulas,
    number: int,
    x: Numbers,
    memory: Numbers,
    p: Layer,
    mask: Numbers,
    memory_mask: Numbers,
    norm: str,
) -> Numbers:
    """Layers from the second on attend to their input, not to an equally wide memory."""
    fits = number and x.shape[-1] == memory.shape[-1]
    z, seen = (x, None) if fits else (memory, memory_mask)
    return Formulas.decoder_layer_of_stack(correct, number, x, z, p, mask, seen, norm)


@mutant(
    "decoder layers share their parameters",
    replaces="decoder_stack",
    operations=(DecoderStack,),
    breaks=("operation.oracle", "operation.gradient", "transformer.stack-is-composition"),
    source="[layer] * N, which is one layer N times",
)
def one_decoder_layer(
    correct: Formulas, x: Numbers, memory: Numbers, layers: tuple[Layer, ...], **options: Any
) -> Numbers:
    """Every layer uses the weights of the first."""
    return Formulas.decoder_stack(correct, x, memory, layers[:1] * len(layers), **options)


@mutant(
    "input of the decoder stack normalized",
    replaces="decoder_stack",
    operations=(DecoderStack,),
    breaks=("transformer.stack-is-composition", "operation.oracle"),
    source="an embedding norm, in a stack that has none",
)
def normalized_without_layers(
    correct: Formulas, x: Numbers, memory: Numbers, layers: tuple[Layer, ...], **options: Any
) -> Numbers:
    """The input of the stack is normalized to mean 0 and variance 1."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    y = centred / np.sqrt(correct.variance(centred) + x.dtype.type(correct.epsilon()))
    return Formulas.decoder_stack(correct, y, memory, layers, **options)
