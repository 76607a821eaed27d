"""Mutants of greedy decoding and of beam search.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone.
``x * x.dtype.type(0)`` leaves x out but keeps its shape.
"""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.seq2seq import BeamDecode, GreedyDecode

SEARCHES = (GreedyDecode, BeamDecode)


@mutant(
    "<eos> does not stop",
    replaces="has_ended",
    operations=SEARCHES,
    breaks=("seq2seq.nothing-after-eos", "operation.oracle"),
    source="generation that runs to max_length and is cut by the tokenizer",
)
def eos_ignored(correct: Formulas, last: Numbers, eos: int) -> Numbers:
    """Sentences do not end at <eos>: later tokens are chosen and scored."""
    return np.zeros(np.shape(last), bool)


@mutant(
    "the whole batch stops with its first sentence",
    replaces="has_ended",
    operations=SEARCHES,
    breaks=("seq2seq.score-sums-log-probabilities",),
    source="a loop that breaks when any sentence has ended",
)
def batch_ends_with_first(correct: Formulas, last: Numbers, eos: int) -> Numbers:
    """All sentences of the batch end with the first that ends."""
    return np.full(np.shape(last), bool((np.asarray(last) == eos).any()))


@mutant(
    "score without <eos>",
    replaces="score_gain",
    operations=SEARCHES,
    breaks=("seq2seq.score-sums-log-probabilities", "operation.oracle"),
    source="the end counted as padding",
)
def uncounted_end(correct: Formulas, logarithm: Numbers, chosen: Numbers, eos: int) -> Numbers:
    """<eos> adds 0 to the score in place of its log-probability."""
    return np.where(chosen == eos, logarithm.dtype.type(0), logarithm)


@mutant(
    "probabilities summed, not their logarithms",
    replaces="score_gain",
    operations=SEARCHES,
    breaks=("seq2seq.score-sums-log-probabilities", "operation.oracle"),
    source="softmax in place of log_softmax before the scores are added",
)
def summed_probabilities(correct: Formulas, logarithm: Numbers, chosen: Numbers, eos: int) -> Numbers:
    """The score is Σ P in place of Σ log P."""
    return np.exp(logarithm)


@mutant(
    "second best token",
    replaces="best_token",
    operations=(GreedyDecode,),
    breaks=("seq2seq.greedy-takes-most-probable", "operation.oracle"),
    source="top-k sampling left on",
)
def second_best(correct: Formulas, logarithms: Numbers) -> Numbers:
    """The second most probable token is chosen, if there are two."""
    return np.argsort(-logarithms, axis=-1, kind="stable")[..., min(1, logarithms.shape[-1] - 1)]


@mutant(
    "last of equal tokens",
    replaces="best_token",
    operations=(GreedyDecode,),
    breaks=("seq2seq.greedy-takes-most-probable",),
    source="an argmax that compares with ≥",
)
def last_of_equals(correct: Formulas, logarithms: Numbers) -> Numbers:
    """The last of several equally probable tokens is chosen, not the first."""
    return logarithms.shape[-1] - 1 - np.argmax(logarithms[..., ::-1], axis=-1)


@mutant(
    "last of equal candidates",
    replaces="survivors",
    operations=(BeamDecode,),
    breaks=("seq2seq.greedy-takes-most-probable",),
    source="torch.topk, which may take any of equal numbers",
)
def last_candidates(correct: Formulas, candidates: Numbers, count: int) -> Numbers:
    """The last of several equally probable candidates is kept, not the first."""
    backwards = candidates[..., ::-1, ::-1]
    total = candidates.shape[-2] * candidates.shape[-1]
    return total - 1 - Formulas.survivors(correct, backwards, count)


@mutant(
    "tokens after <eos> are 0",
    replaces="greedy_decode",
    operations=(GreedyDecode,),
    breaks=("seq2seq.nothing-after-eos", "operation.oracle"),
    source="a padding token that is 0, whatever ends a sentence",
)
def padded_with_zero(correct: Formulas, *inputs: Any, **options: Any) -> tuple[Numbers, Numbers]:
    """Tokens after <eos> are 0 in place of <eos>."""
    tokens, score = Formulas.greedy_decode(correct, *inputs, **options)
    *_, eos = inputs
    ends = tokens == eos
    return np.where(np.cumsum(ends, axis=-1) - ends > 0, 0, tokens), score


@mutant(
    "scores of a beam not accumulated",
    replaces="candidate_scores",
    operations=(BeamDecode,),
    breaks=("seq2seq.score-sums-log-probabilities", "seq2seq.exhaustive-beam-is-optimal"),
    source="each step's own log-probabilities compared",
)
def only_the_last(correct: Formulas, scores: Numbers, gains: Numbers, ended: Numbers, eos: int) -> Numbers:
    """Candidates are compared by the score of their last token only."""
    return Formulas.candidate_scores(correct, scores * scores.dtype.type(0), gains, ended, eos)


@mutant(
    "finished hypotheses extended",
    replaces="candidate_scores",
    operations=(BeamDecode,),
    breaks=("seq2seq.nothing-after-eos", "operation.oracle"),
    source="a search that asks only at the end which hypotheses have ended",
)
def extended_ends(correct: Formulas, scores: Numbers, gains: Numbers, ended: Numbers, eos: int) -> Numbers:
    """Hypotheses that have ended are extended by further tokens."""
    return Formulas.candidate_scores(correct, scores, gains, np.zeros_like(ended), eos)


@mutant(
    "beam starts with equal hypotheses",
    replaces="initial_hypotheses",
    operations=(BeamDecode,),
    breaks=("seq2seq.exhaustive-beam-is-optimal", "operation.oracle"),
    source="a beam that begins with k equal hypotheses of score 0, and keeps duplicates",
)
def equal_first_hypotheses(correct: Formulas, beams: int) -> int:
    """The beam starts with k equal hypotheses in place of one."""
    return beams


@mutant(
    "states of a beam not reordered",
    replaces="reorder_states",
    operations=(BeamDecode,),
    breaks=("seq2seq.score-sums-log-probabilities",),
    source="a cache that does not follow the hypotheses",
)
def not_reordered(correct: Formulas, states: Numbers, before: Numbers) -> Numbers:
    """Decoder states are not reordered with the hypotheses of the beam."""
    return np.take_along_axis(states, (np.arange(before.shape[-1]) % states.shape[-2] + 0 * before)[..., None], axis=-2)


@mutant(
    "worst hypothesis of the beam",
    replaces="best_hypothesis",
    operations=(BeamDecode,),
    breaks=("operation.oracle",),
    source="a heap that keeps the least score at the top",
)
def worst_hypothesis(correct: Formulas, scores: Numbers, tokens: Numbers, eos: int) -> Numbers:
    """The hypothesis with the lowest finite score is returned."""
    return np.argmin(np.where(np.isfinite(scores), scores, np.inf), axis=-1)


@mutant(
    "hypothesis with the best score per token returned",
    replaces="best_hypothesis",
    operations=(BeamDecode,),
    breaks=("seq2seq.exhaustive-beam-is-optimal", "operation.oracle"),
    source="scores divided by lengths without being asked",
)
def normalized_by_length(correct: Formulas, scores: Numbers, tokens: Numbers, eos: int) -> Numbers:
    """The hypothesis with the best score per token is returned."""
    ends = tokens == eos
    lengths = np.maximum((np.cumsum(ends, axis=-1) - ends == 0).sum(-1), 1)
    return np.argmax(scores / lengths.astype(scores.dtype), axis=-1)


@mutant(
    "beam one too wide",
    replaces="beam_width",
    operations=(BeamDecode,),
    breaks=("seq2seq.beam-of-one-is-greedy", "operation.oracle"),
    source="2k candidates kept so that k unfinished ones are left",
)
def beam_too_wide(correct: Formulas, beams: int) -> int:
    """The beam keeps k + 1 hypotheses in place of k."""
    return beams + 1


@mutant(
    "length penalty |y|^α",
    replaces="penalty",
    operations=(BeamDecode,),
    breaks=("seq2seq.score-sums-log-probabilities", "operation.oracle"),
    source="transformers' length_penalty, an exponent of the number of tokens itself",
)
def power_of_length(correct: Formulas, lengths: Numbers, exponent: float) -> Numbers:
    """The length penalty is |y|^α, not ((5 + |y|) / 6)^α."""
    return np.maximum(lengths, 1) ** float(exponent)


@mutant(
    "length without the end token",
    replaces="penalty",
    operations=(BeamDecode,),
    breaks=("seq2seq.score-sums-log-probabilities", "operation.oracle"),
    source="vllm-project/vllm#2606: the length of transformers does not count the end token",
)
def length_before_end(correct: Formulas, lengths: Numbers, exponent: float) -> Numbers:
    """The length penalty counts one token less."""
    return Formulas.penalty(correct, np.maximum(lengths - 1, 0), exponent)


@mutant(
    "length penalty multiplied",
    replaces="penalty",
    operations=(BeamDecode,),
    breaks=("seq2seq.score-sums-log-probabilities", "operation.oracle"),
    source="a penalty that is written for probabilities, applied to logarithms",
)
def multiplied_penalty(correct: Formulas, lengths: Numbers, exponent: float) -> Numbers:
    """Scores are multiplied by the length penalty, not divided by it."""
    return Formulas.penalty(correct, lengths, -exponent)


@mutant(
    "beam pruned without the length penalty",
    operations=(BeamDecode,),
    breaks=("operation.oracle",),
    source="a penalty that the last comparison alone applies",
)
class PenaltyAtTheEnd(Formulas):
    """Hypotheses are kept by their sums of log P; only the last comparison divides by the length penalty."""

    def survivors(self, candidates: Numbers, count: int) -> Numbers:
        """Candidates of this step, times the penalty that divided them."""
        return super().survivors(candidates * vars(self)["penalties"][..., None], count)

    def penalty(self, lengths: Numbers, exponent: float) -> Numbers:
        """Remember the penalty."""
        vars(self)["penalties"] = super().penalty(lengths, exponent)
        return vars(self)["penalties"]
