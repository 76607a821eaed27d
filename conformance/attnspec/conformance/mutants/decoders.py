"""Mutants of recurrent decoders with attention and of the encoder's context.

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
from attnspec.spec.seq2seq import (
    AttentionDecoderParameters,
    BeamDecode,
    DecoderStep,
    EncoderContext,
    GreedyDecode,
    TeacherForcedDecode,
)

Parameters = AttentionDecoderParameters[Numbers]
STEPS = (DecoderStep, TeacherForcedDecode)
SEARCHES = (GreedyDecode, BeamDecode)

# The encoder's context ------------------------------------------------------------------------------------------------


@mutant(
    "last row taken for the last state",
    replaces="state_at",
    operations=(EncoderContext,),
    breaks=("seq2seq.context-is-last-state", "masking.masking-equals-truncation", "operation.oracle"),
    source="output[:, -1] of a padded batch",
)
def state_of_padding(correct: Formulas, states: Numbers, count: Numbers) -> Numbers:
    """The context is the last state, padding included, not the last within the length."""
    return Formulas.state_at(correct, states, np.full_like(count, states.shape[-2]))


@mutant(
    "first state taken for the last",
    replaces="state_at",
    operations=(EncoderContext,),
    breaks=("seq2seq.context-is-last-state", "operation.gradient"),
    source="the last state of a network that reads backwards is that of the first token",
)
def first_state(correct: Formulas, states: Numbers, count: Numbers) -> Numbers:
    """The context is the first state h₁ in place of the last."""
    return Formulas.state_at(correct, states, np.minimum(count, 1))


@mutant(
    "mean of the last two states",
    replaces="state_at",
    operations=(EncoderContext,),
    breaks=("seq2seq.context-is-last-state", "operation.oracle"),
    source="pooling, another choice of q",
)
def mean_state(correct: Formulas, states: Numbers, count: Numbers) -> Numbers:
    """The context is the mean of the last two states in place of the last."""
    half = states.dtype.type(0.5)
    before = Formulas.state_at(correct, states, np.maximum(count - 1, 0))
    return half * Formulas.state_at(correct, states, count) + half * before


@mutant(
    "last state by a product with one-hot rows",
    replaces="state_at",
    operations=(EncoderContext,),
    breaks=("seq2seq.context-is-last-state",),
    source="states times a mask of the last position, where 0·NaN is NaN",
)
def last_by_product(correct: Formulas, states: Numbers, count: Numbers) -> Numbers:
    """The last state is selected by one-hot rows times the states, where 0·NaN is NaN."""
    one_hot = (np.arange(states.shape[-2]) == count[..., None] - 1).astype(states.dtype)
    return correct.product(one_hot[..., None, :], states)[..., 0, :]


@mutant(
    "an empty source is read from the end",
    replaces="state_at",
    operations=(EncoderContext,),
    breaks=("seq2seq.context-is-last-state",),
    source="states[length − 1], where −1 is the last one",
)
def empty_from_the_end(correct: Formulas, states: Numbers, count: Numbers) -> Numbers:
    """For length 0 the context is the last of all t states, not 0."""
    return Formulas.state_at(correct, states, np.where(count == 0, states.shape[-2], count))


@mutant(
    "gradient of the last state to all states",
    replaces="state_at",
    operations=(EncoderContext,),
    breaks=("operation.gradient",),
    source="a backward pass that expands where it should scatter",
)
def gradient_to_all(correct: Formulas, states: Numbers, count: Numbers) -> Numbers:
    """Every state gets 1/64 of the last state's gradient in addition."""
    last = Formulas.state_at(correct, states, count)
    return last + (np.sum(states, axis=-2) - np.sum(value_of(states), axis=-2)) * states.dtype.type(1 / 64)


# One step -------------------------------------------------------------------------------------------------------------


@mutant(
    "the next state is the query",
    replaces="next_state",
    operations=STEPS,
    breaks=("operation.oracle", "operation.gradient"),
    source="S2: s_{t'}, where S0(16), S3 and the specification have s_{t'−1}",
)
def next_state_as_query(
    correct: Formulas, token: Numbers, state: Numbers, annotations: Numbers, p: Parameters, mask: Numbers
) -> Numbers:
    """The context's query is the state after the step, not the one before it."""
    first = Formulas.next_state(correct, token, state, annotations, p, mask)
    context = correct.context_of(first, annotations, p, mask)
    return correct.rnn_cell(correct.cell_input(correct.table_rows(p.embedding, token), context), state, p.cell)


@mutant(
    "context before the token",
    replaces="cell_input",
    operations=STEPS,
    breaks=("operation.oracle", "operation.gradient"),
    source="d2l's decoder concatenates (context, embedded), PyTorch's tutorial (embedded, context)",
)
def context_first(correct: Formulas, token: Numbers, context: Numbers) -> Numbers:
    """The cell's input is [c; y] in place of [y; c]: the context before the token."""
    return correct.join_features(context, token)


@mutant(
    "context left out of the cell",
    replaces="cell_input",
    operations=STEPS,
    breaks=("operation.oracle", "operation.gradient"),
    source="a context that is computed and not concatenated",
)
def without_context(correct: Formulas, token: Numbers, context: Numbers) -> Numbers:
    """The cell's input is [y; 0]: the context is left out."""
    return correct.join_features(token, context * context.dtype.type(0))


@mutant(
    "no gradient through the context",
    replaces="cell_input",
    operations=STEPS,
    breaks=("operation.gradient",),
    source="context.detach()",
)
def detached_context(correct: Formulas, token: Numbers, context: Numbers) -> Numbers:
    """No gradient flows through the context."""
    return correct.join_features(token, value_of(context))


@mutant(
    "no gradient to the embedding",
    replaces="cell_input",
    operations=STEPS,
    breaks=("operation.gradient",),
    source="pretrained embeddings left frozen",
)
def frozen_embedding(correct: Formulas, token: Numbers, context: Numbers) -> Numbers:
    """No gradient flows to the embedding."""
    return correct.join_features(value_of(token), context)


@mutant(
    "mask of the source ignored",
    replaces="context_of",
    operations=(*STEPS, *SEARCHES),
    breaks=("masking.masking-equals-truncation", "masking.masked-keys-ignored"),
    source="the mask is given to the encoder alone",
)
def unmasked_source(correct: Formulas, state: Numbers, annotations: Numbers, p: Parameters, mask: Numbers) -> Numbers:
    """The context is computed without the mask."""
    return Formulas.context_of(correct, state, annotations, p, None)


@mutant(
    "logistic weights of the context",
    replaces="context_of",
    operations=STEPS,
    breaks=("seq2seq.one-annotation-is-context", "operation.oracle"),
    source="alignments that need not sum to 1",
)
def logistic_weights(correct: Formulas, state: Numbers, annotations: Numbers, p: Parameters, mask: Numbers) -> Numbers:
    """The context is Σ σ(e) h, with logistic weights σ(e) in place of a softmax."""
    scores = correct.additive_scores(state[..., None, :], annotations, p.w_q, p.w_k, p.w_v)
    weights = correct.gate(scores)
    if mask is not None:
        weights = np.where(mask[..., None, :], weights, weights.dtype.type(0))
    return correct.product(weights, annotations)[..., 0, :]


@mutant(
    "distribution from the state before the step",
    replaces="decoder_step",
    operations=(DecoderStep,),
    breaks=("operation.oracle", "operation.gradient"),
    source="S4: s_{t'} comes from y_{t'−1}, where S0 and the specification have y_{t'}",
)
def early_distribution(
    correct: Formulas, token: Numbers, state: Numbers, annotations: Numbers, p: Parameters, **options: Any
) -> tuple[Numbers, Numbers]:
    """The distribution is softmax(W s_{t'−1} + b), from the state before the step."""
    _, following = Formulas.decoder_step(correct, token, state, annotations, p, **options)
    # Zeros with the batch of all arguments, to which ``state`` broadcasts.
    zeros = following[..., :1] * following.dtype.type(0)
    return correct.output_distribution(state + zeros, p.w_o, p.b_o), following


@mutant(
    "tokens of a decoder not checked",
    replaces="check_tokens",
    operations=(*STEPS, *SEARCHES),
    breaks=("operation.rejection",),
    source="an index of −1 for padding, which NumPy reads from the end",
)
def unchecked_token(correct: Formulas, tokens: Numbers, count: int) -> None:
    """Tokens are not checked: negative ones count from the end of the vocabulary."""


# Teacher forcing ------------------------------------------------------------------------------------------------------


@mutant(
    "teacher forcing one token ahead",
    replaces="input_token",
    operations=(TeacherForcedDecode,),
    breaks=("masking.future-invariance", "operation.oracle"),
    source="inputs and targets not shifted against each other: the decoder is fed what it is to predict",
)
def fed_one_ahead(correct: Formulas, tokens: Numbers, i: int) -> Numbers:
    """Step i takes token i + 1, the last step the last token."""
    return tokens[..., min(i + 1, tokens.shape[-1] - 1)]


@mutant(
    "teacher forcing one token late",
    replaces="input_token",
    operations=(TeacherForcedDecode,),
    breaks=("operation.oracle", "recurrent.resumes-from-state"),
    source="inputs shifted twice, in the data and in the model",
)
def fed_one_late(correct: Formulas, tokens: Numbers, i: int) -> Numbers:
    """Step i takes token i − 1, the first step the first token."""
    return tokens[..., max(i - 1, 0)]


@mutant(
    "every step from the first state",
    replaces="previous_state",
    operations=(TeacherForcedDecode,),
    breaks=("operation.oracle", "recurrent.resumes-from-state"),
    source="a state that is not assigned in the loop",
)
def every_step_from_first_state(correct: Formulas, states: list[Numbers]) -> Numbers:
    """Every step starts from the initial state s₀ in place of the previous state."""
    return states[0]


@mutant(
    "no gradient between steps",
    replaces="previous_state",
    operations=(TeacherForcedDecode,),
    breaks=("operation.gradient",),
    source="state.detach() in the loop, for backpropagation that is truncated",
)
def detached_state(correct: Formulas, states: list[Numbers]) -> Numbers:
    """No gradient flows from a step to the steps before it."""
    return states[0] if len(states) == 1 else value_of(states[-1])


@mutant(
    "final state before the last token",
    replaces="teacher_forced_decode",
    operations=(TeacherForcedDecode,),
    breaks=("operation.oracle", "recurrent.resumes-from-state"),
    source="the input state of the last step is kept",
)
def early_final(
    correct: Formulas, tokens: Numbers, state: Numbers, annotations: Numbers, p: Parameters, **options: Any
) -> tuple[Numbers, Numbers]:
    """The final state is the one before the last token."""
    log_probs, final = Formulas.teacher_forced_decode(correct, tokens, state, annotations, p, **options)
    if tokens.shape[-1] > 0:
        _, final = Formulas.teacher_forced_decode(correct, tokens[..., :-1], state, annotations, p, **options)
    return log_probs, final


@mutant(
    "probabilities in place of their logarithms",
    replaces="log_probabilities",
    operations=(TeacherForcedDecode,),
    breaks=("normalization.sums-to-one", "operation.oracle"),
    source="nn.NLLLoss, which takes logarithms, given a softmax",
)
def no_logarithms(correct: Formulas, states: Numbers, w: Numbers, b: Numbers) -> Numbers:
    """softmax(W s + b) is returned in place of its logarithm."""
    return np.exp(Formulas.log_probabilities(correct, states, w, b))


@mutant(
    "scores not normalized",
    replaces="log_probabilities",
    operations=(TeacherForcedDecode,),
    breaks=("normalization.sums-to-one", "operation.gradient"),
    source="logits where a loss takes log-probabilities",
)
def not_normalized(correct: Formulas, states: Numbers, w: Numbers, b: Numbers) -> Numbers:
    """Scores minus the maximum of their row are returned in place of log-probabilities."""
    scores = correct.logits(states, w, b)
    return scores - np.max(scores, axis=-1, keepdims=True)


@mutant(
    "first sentence fed to the whole batch",
    replaces="input_token",
    operations=(TeacherForcedDecode,),
    breaks=("seq2seq.shared-source-equals-separate",),
    source="decoder inputs that are read once and not at each step",
)
def first_sentence(correct: Formulas, tokens: Numbers, i: int) -> Numbers:
    """Every batch element is fed the tokens of the first."""
    step_tokens = tokens[..., i]
    return np.broadcast_to(step_tokens[:1], step_tokens.shape) if step_tokens.ndim and len(step_tokens) else step_tokens
