"""Mutants of embeddings, contexts and outputs of a decoder.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone. ``value_of(x)``
is x without its record of gradients, so that no gradient flows through it. ``x * x.dtype.type(0)`` leaves x out but
keeps its shape. S0 to S4 are sources of the specification.
"""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.attention import AdditiveAttention
from attnspec.spec.seq2seq import (
    AttentionalState,
    BahdanauContext,
    ConcatOutput,
    Embed,
    LuongContextDot,
    LuongContextGeneral,
    LuongContextLocation,
    OutputDistribution,
)


@mutant(
    "location bias in the context",
    replaces="attend",
    operations=(BahdanauContext,),
    breaks=("attention.permutation-equivariance",),
    source="location-sensitive attention left on",
)
def location_bias(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """j/8 is added to the score of annotation j."""
    bias = (np.arange(scores.shape[-1]) / 8).astype(scores.dtype)
    return Formulas.attend(correct, scores + bias, value, mask, causal)


@mutant(
    "first state used for the whole batch",
    replaces="bahdanau_context",
    operations=(BahdanauContext,),
    breaks=("seq2seq.shared-source-equals-separate",),
    source="Alexander-H-Liu/End-to-end-ASR-Pytorch#8",
)
def one_state(correct: Formulas, state: Numbers, *others: Numbers, **options: Any) -> Numbers:
    """The first state of the batch is the query for every element."""
    if state.ndim > 1 and state.shape[0]:
        state = np.repeat(state[:1], state.shape[0], axis=0)
    return Formulas.bahdanau_context(correct, state, *others, **options)


@mutant(
    "softmax over the states",
    replaces="normalized",
    operations=(BahdanauContext,),
    breaks=("seq2seq.shared-source-equals-separate", "pooling.convexity"),
    source="PetrochukM/PyTorch-NLP#2, stevezheng23/reading_comprehension_tf#30",
)
def over_states(correct: Formulas, scores: Numbers) -> Numbers:
    """The softmax runs along the first dimension of the scores in place of the annotations."""
    return np.moveaxis(Formulas.normalized(correct, np.moveaxis(scores, 0, -1)), -1, 0)


@mutant(
    "context keeps its query axis",
    replaces="bahdanau_context",
    operations=(BahdanauContext,),
    breaks=("operation.shape",),
    source="OpenNMT/OpenNMT-py#110, DeepTrackAI/DeepLearningCrashCourse#89",
)
def keeps_axis(correct: Formulas, *arrays: Numbers, **options: Any) -> Numbers:
    """The context has the shape (*batch, 1, d_h) in place of (*batch, d_h)."""
    return Formulas.bahdanau_context(correct, *arrays, **options)[..., None, :]


@mutant(
    "scores through a second tanh",
    replaces="additive_scores",
    operations=(AdditiveAttention, BahdanauContext),
    breaks=("operation.oracle", "attention.unbiased-scale"),
    source="richliao/textClassifier#24, vietnh1009/Hierarchical-attention-networks-pytorch#13",
)
def squashed_scores(
    correct: Formulas, query: Numbers, key: Numbers, w_q: Numbers, w_k: Numbers, w_v: Numbers
) -> Numbers:
    """Additive scores pass through a second tanh."""
    return np.tanh(Formulas.additive_scores(correct, query, key, w_q, w_k, w_v))


@mutant(
    "context without the state",
    replaces="hidden_layer",
    operations=(BahdanauContext,),
    breaks=("operation.oracle",),
    source="a query projection that is never added",
)
def without_state(correct: Formulas, of_query: Numbers, of_key: Numbers) -> Numbers:
    """The hidden layer is tanh(W_k h), without the state."""
    return correct.activation(of_key + of_query * of_query.dtype.type(0))


LUONG = (LuongContextDot, LuongContextGeneral, LuongContextLocation)


@mutant(
    "Luong's scores divided by √d",
    replaces="context",
    operations=LUONG,
    breaks=("operation.oracle", "attention.unbiased-scale"),
    source="the scale of transformers, which Luong's scores do not have",
)
def scaled_context(correct: Formulas, scores: Numbers, annotations: Numbers, mask: Numbers) -> Numbers:
    """Scores are divided by √d, with d the width of the annotations."""
    return Formulas.context(correct, correct.scale_scores(scores, annotations.shape[-1]), annotations, mask)


@mutant(
    "Gaussian window at the last annotation",
    replaces="context",
    operations=LUONG,
    breaks=("operation.oracle", "masking.masking-equals-truncation"),
    source="a local attention, as in Luong 2015, 3.2, in place of the global one",
)
def local_context(correct: Formulas, scores: Numbers, annotations: Numbers, mask: Numbers) -> Numbers:
    """The squared distance to the last annotation, divided by 8, is subtracted from the scores."""
    m = scores.shape[-1]
    distance = np.arange(m)[::-1].astype(scores.dtype)
    return Formulas.context(correct, scores - distance * distance / 8, annotations, mask)


@mutant(
    "mask of Luong's context ignored",
    replaces="context",
    operations=LUONG,
    breaks=("masking.masking-equals-truncation", "masking.masked-keys-ignored"),
    source="a mask that is not passed to the step",
)
def unmasked_context(correct: Formulas, scores: Numbers, annotations: Numbers, mask: Numbers) -> Numbers:
    """The mask is ignored: padding is attended to."""
    return Formulas.context(correct, scores, annotations, None)


@mutant(
    "location bias in Luong's context",
    replaces="context",
    operations=(LuongContextDot, LuongContextGeneral),
    breaks=("attention.permutation-equivariance",),
    source="location and content scores added",
)
def location_and_content(correct: Formulas, scores: Numbers, annotations: Numbers, mask: Numbers) -> Numbers:
    """j/8 is added to the score of annotation j."""
    bias = (np.arange(scores.shape[-1]) / 8).astype(scores.dtype)
    return Formulas.context(correct, scores + bias, annotations, mask)


@mutant(
    "W of Luong's scores transposed",
    replaces="luong_context_general",
    operations=(LuongContextGeneral,),
    breaks=("operation.oracle",),
    source="OpenNMT's linear_in is applied to the state, Luong's W_a to the annotations",
)
def transposed_general(
    correct: Formulas, state: Numbers, annotations: Numbers, w: Numbers, *, mask: Numbers = None
) -> Numbers:
    """W is transposed if it is square: scores are hᵀ W s in place of sᵀ W h."""
    if w.shape[0] == w.shape[1]:
        w = np.swapaxes(w, 0, 1)
    return Formulas.luong_context_general(correct, state, annotations, w, mask=mask)


@mutant(
    "first scores used for the whole batch",
    replaces="context",
    operations=LUONG,
    breaks=("seq2seq.shared-source-equals-separate", "operation.batch-invariance"),
    source="Alexander-H-Liu/End-to-end-ASR-Pytorch#8",
)
def scores_of_one_state(correct: Formulas, scores: Numbers, annotations: Numbers, mask: Numbers) -> Numbers:
    """Every batch element uses the scores of the first."""
    if scores.ndim > 2 and len(scores):
        scores = np.repeat(scores[:1], len(scores), axis=0)
    return Formulas.context(correct, scores, annotations, mask)


@mutant(
    "first feature of annotations added to location scores",
    replaces="luong_context_location",
    operations=(LuongContextLocation,),
    breaks=("pooling.linearity", "operation.oracle"),
    source="content and location scores mixed",
)
def location_of_annotations(
    correct: Formulas, state: Numbers, annotations: Numbers, w: Numbers, *, mask: Numbers = None
) -> Numbers:
    """The first feature of each annotation is added to its location score."""
    location_scores = correct.location_scores(state[..., None, :], w)
    return correct.context(location_scores + np.swapaxes(annotations, -1, -2)[..., :1, :], annotations, mask)


@mutant(
    "context before the state",
    replaces="attentional_state",
    operations=(AttentionalState,),
    breaks=("operation.oracle", "operation.gradient"),
    source="Luong 2015's [c; h] against S2's [h; c]",
)
def context_before_state(correct: Formulas, state: Numbers, context: Numbers, w: Numbers) -> Numbers:
    """The layer's input is [c; s] in place of [s; c]."""
    rows = correct.join_features(context, state)[..., None, :]
    return np.tanh(correct.project(rows, w))[..., 0, :]


@mutant(
    "attentional state without tanh",
    replaces="attentional_state",
    operations=(AttentionalState,),
    breaks=("scoring.tanh-odd-and-bounded", "operation.oracle"),
    source="a linear layer and no activation",
)
def without_activation(correct: Formulas, state: Numbers, context: Numbers, w: Numbers) -> Numbers:
    """The attentional state is W [s; c] without tanh."""
    return correct.project(correct.join_features(state, context)[..., None, :], w)[..., 0, :]


@mutant(
    "attentional state with a bias",
    replaces="attentional_state",
    operations=(AttentionalState,),
    breaks=("scoring.tanh-odd-and-bounded",),
    source="nn.Linear has one unless it is told not to",
)
def with_bias(correct: Formulas, state: Numbers, context: Numbers, w: Numbers) -> Numbers:
    """A bias of 1/8 is added before tanh."""
    rows = correct.join_features(state, context)[..., None, :]
    return np.tanh(correct.project(rows, w) + w.dtype.type(0.125))[..., 0, :]


@mutant(
    "state before the context",
    replaces="concat_output",
    operations=(ConcatOutput,),
    breaks=("seq2seq.concatenation-order", "operation.oracle"),
    source="S1 against S2: [a; s] and [h; c]",
)
def state_first(correct: Formulas, context: Numbers, state: Numbers) -> Numbers:
    """[s; a] is returned in place of [a; s]: the state before the context."""
    return correct.join_features(state, context)


@mutant(
    "context left out",
    replaces="concat_output",
    operations=(ConcatOutput,),
    breaks=("seq2seq.concatenation-order", "operation.gradient"),
    source="a context that is initialized to 0 and never assigned",
)
def context_left_out(correct: Formulas, context: Numbers, state: Numbers) -> Numbers:
    """[0; s] is returned in place of [a; s]: the context is left out."""
    return correct.join_features(context * context.dtype.type(0), state)


@mutant(
    "tokens from 1",
    replaces="table_rows",
    operations=(Embed,),
    breaks=("seq2seq.embedding-is-table-row", "operation.oracle"),
    source="a vocabulary that is counted from 1",
)
def tokens_from_one(correct: Formulas, table: Numbers, tokens: Numbers) -> Numbers:
    """Token t gets row t − 1 of the table; token 0 row 0."""
    return table[np.maximum(tokens - 1, 0)]


@mutant(
    "tokens by a product with one-hot rows",
    replaces="table_rows",
    operations=(Embed,),
    breaks=("seq2seq.embedding-is-table-row",),
    source="one-hot vectors times the table, where 0·NaN is NaN",
)
def one_hot_rows(correct: Formulas, table: Numbers, tokens: Numbers) -> Numbers:
    """Embeddings are one-hot vectors times the table, where 0·NaN is NaN."""
    one_hot = (tokens[..., None] == np.arange(table.shape[0])).astype(table.dtype)
    return correct.product(one_hot, table)


@mutant(
    "tokens not checked",
    replaces="check_tokens",
    operations=(Embed,),
    breaks=("operation.rejection",),
    source="NumPy and CUDA wrap or read on",
)
def unchecked_tokens(correct: Formulas, tokens: Numbers, count: int) -> None:
    """Negative tokens do not raise: they count from the end of the table."""


@mutant(
    "gradient of the last occurrence",
    replaces="table_rows",
    operations=(Embed,),
    breaks=("operation.gradient",),
    source="table.grad[tokens] += g, which adds once for a token that occurs twice",
)
def last_occurrence(correct: Formulas, table: Numbers, tokens: Numbers) -> Numbers:
    """Only the last occurrence of a repeated token contributes to the table's gradient."""
    flat = tokens.reshape(-1)
    last = np.zeros(flat.shape, bool)
    last[[int(np.flatnonzero(flat == token)[-1]) for token in np.unique(flat)]] = True
    return np.where(last.reshape(tokens.shape)[..., None], table[tokens], value_of(table)[tokens])


@mutant(
    "logits in place of probabilities",
    replaces="output_distribution",
    operations=(OutputDistribution,),
    breaks=("normalization.sums-to-one", "operation.oracle"),
    source="a loss that takes logits",
)
def unnormalized(correct: Formulas, state: Numbers, w: Numbers, b: Numbers) -> Numbers:
    """Logits W s + b are returned in place of probabilities."""
    return correct.logits(state, w, b)


@mutant(
    "0.001 added to every probability",
    replaces="output_distribution",
    operations=(OutputDistribution,),
    breaks=("normalization.sums-to-one", "operation.oracle"),
    source="ε in the probabilities, so that their logarithm is finite",
)
def smoothed_probabilities(correct: Formulas, state: Numbers, w: Numbers, b: Numbers) -> Numbers:
    """0.001 is added to every probability."""
    p = Formulas.output_distribution(correct, state, w, b)
    return p + p.dtype.type(0.001)
