"""Rediscovered defects of returned attention weights and of gated outputs.

Each function is a step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it.
"""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.kernels import AttentionWeights, GatedOutput


@rediscovered(
    "pytorch/pytorch#160064",
    "MultiheadAttention returns all NaN when using attn_mask to fully mask some heads, and using `need_weights=True`",
    framework="PyTorch",
    operation=AttentionWeights,
    breaks=("operation.oracle",),
    replaces="attention_weights",
)
def rows_without_keys(correct: Formulas, query: Numbers, key: Numbers, **options: Any) -> Numbers:
    """Weights of a row without attendable keys are NaN."""
    weights = Formulas.attention_weights(correct, query, key, **options)
    empty = ~np.any(value_of(weights) != 0, axis=-1, keepdims=True)
    return np.where(empty, weights.dtype.type(np.nan), weights)


@rediscovered(
    "facebookresearch/fairseq#3365",
    'Argument "need_head_weights" ignored/not triggered in some cases in MultiheadAttention class',
    framework="fairseq",
    operation=AttentionWeights,
    breaks=("kernels.grouped-heads-share-keys",),
    replaces="attention_weights",
)
def head_weights_averaged(
    correct: Formulas, query: Numbers, key: Numbers, *, key_lengths: Numbers = None, **options: Any
) -> Numbers:
    """The mean over heads is returned for every head, unless there are lengths."""
    weights = Formulas.attention_weights(correct, query, key, key_lengths=key_lengths, **options)
    if key_lengths is not None:
        return weights
    mean = np.sum(weights, axis=-3, keepdims=True) / weights.dtype.type(weights.shape[-3])
    return np.broadcast_to(mean, weights.shape)


@rediscovered(
    "awslabs/sockeye#637",
    "The output of attention weight",
    framework="Sockeye",
    operation=AttentionWeights,
    breaks=("normalization.sums-to-one",),
    replaces="attention_weights",
)
def without_the_end_of_the_sentence(correct: Formulas, query: Numbers, key: Numbers, **options: Any) -> Numbers:
    """The last key, the end of the sentence, has lost its weight."""
    weights = Formulas.attention_weights(correct, query, key, **options)
    return np.where(np.arange(weights.shape[-1]) == weights.shape[-1] - 1, weights.dtype.type(0), weights)


@rediscovered(
    "Dao-AILab/flash-attention#902",
    "How are the returned attention weights to be interpreted?",
    framework="FlashAttention",
    operation=AttentionWeights,
    breaks=("normalization.sums-to-one",),
    replaces="attention_weights",
    differentiable=False,
)
def weights_without_division(correct: Formulas, query: Numbers, key: Numbers, **options: Any) -> Numbers:
    """Weights are relative to the largest of their row, and not divided by their sum."""
    weights = Formulas.attention_weights(correct, query, key, **options)
    largest = np.max(weights, axis=-1, keepdims=True, initial=0)
    return weights / np.where(largest > 0, largest, largest.dtype.type(1))


@rediscovered(
    "emmtrix/emx-onnx-cgen#731",
    "codegen: apply Attention softcap before mask/bias addition",
    framework="emx-onnx-cgen",
    operation=AttentionWeights,
    breaks=("operation.options-have-effect",),
    replaces="biased",
)
def capped_with_bias(
    correct: Formulas, scores: Numbers, softcap: Any, bias: Numbers, slopes: Numbers, attendable: Numbers
) -> Numbers:
    """Scores are capped after the bias is added."""
    biased = Formulas.biased(correct, scores, None, bias, slopes, attendable)
    return Formulas.capped(correct, biased, softcap)


@rediscovered(
    "lucidrains/alphafold2#84",
    "MSA attention gated problem",
    framework="alphafold2 (lucidrains)",
    operation=GatedOutput,
    breaks=("kernels.output-gate",),
    replaces="output_gate",
)
def gate_without_sigmoid(correct: Formulas, gate: Numbers) -> Numbers:
    """The gate is not squashed: outputs are multiplied by g."""
    return gate
