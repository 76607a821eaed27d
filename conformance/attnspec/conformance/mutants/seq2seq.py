"""Mutants of contexts."""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.attention import AdditiveAttention
from attnspec.spec.seq2seq import BahdanauContext


@mutant(
    "location bias in the context",
    replaces="attend",
    operations=(BahdanauContext,),
    breaks=("seq2seq.context-follows-content", "attention.key-permutation"),
    source="location-sensitive attention left on",
)
def location_bias(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """Later annotations score higher by 1/8 each."""
    bias = (np.arange(scores.shape[-1]) / 8).astype(scores.dtype)
    return Formulas.attend(correct, scores + bias, value, mask, causal)


@mutant(
    "one state for the whole batch",
    replaces="bahdanau_context",
    operations=(BahdanauContext,),
    breaks=("seq2seq.independent-states",),
    source="Alexander-H-Liu/End-to-end-ASR-Pytorch#8",
)
def one_state(
    correct: Formulas,
    state: Numbers,
    annotations: Numbers,
    w_q: Numbers,
    w_k: Numbers,
    w_v: Numbers,
    *,
    mask: Numbers = None,
) -> Numbers:
    """The first state of the batch is everybody's query."""
    if state.ndim > 1 and state.shape[0]:
        state = np.repeat(state[:1], state.shape[0], axis=0)
    return Formulas.bahdanau_context(correct, state, annotations, w_q, w_k, w_v, mask=mask)


@mutant(
    "softmax over the states",
    replaces="normalized",
    operations=(BahdanauContext,),
    breaks=("seq2seq.independent-states", "pooling.convexity"),
    source="PetrochukM/PyTorch-NLP#2, stevezheng23/reading_comprehension_tf#30",
)
def over_states(correct: Formulas, scores: Numbers) -> Numbers:
    """Normalised along the first dimension, the batch if there is one."""
    return np.moveaxis(Formulas.normalized(correct, np.moveaxis(scores, 0, -1)), -1, 0)


@mutant(
    "context keeps its query axis",
    replaces="bahdanau_context",
    operations=(BahdanauContext,),
    breaks=("operation.shape",),
    source="OpenNMT/OpenNMT-py#110, DeepTrackAI/DeepLearningCrashCourse#89",
)
def keeps_axis(
    correct: Formulas,
    state: Numbers,
    annotations: Numbers,
    w_q: Numbers,
    w_k: Numbers,
    w_v: Numbers,
    *,
    mask: Numbers = None,
) -> Numbers:
    """(*batch, 1, d_h)."""
    return Formulas.bahdanau_context(correct, state, annotations, w_q, w_k, w_v, mask=mask)[..., None, :]


@mutant(
    "scores through a second tanh",
    replaces="additive_scores",
    operations=(AdditiveAttention, BahdanauContext),
    breaks=("operation.oracle", "attention.scale"),
    source="richliao/textClassifier#24, vietnh1009/Hierarchical-attention-networks-pytorch#13",
)
def squashed_scores(
    correct: Formulas, query: Numbers, key: Numbers, w_q: Numbers, w_k: Numbers, w_v: Numbers
) -> Numbers:
    """tanh of the product with the output weights."""
    return np.tanh(Formulas.additive_scores(correct, query, key, w_q, w_k, w_v))


@mutant(
    "context without the state",
    replaces="hidden",
    operations=(BahdanauContext,),
    breaks=("operation.oracle",),
    source="a query projection that is never added",
)
def without_state(correct: Formulas, of_query: Numbers, of_key: Numbers) -> Numbers:
    """tanh(W_k h)."""
    return correct.activation(of_key + of_query * of_query.dtype.type(0))
