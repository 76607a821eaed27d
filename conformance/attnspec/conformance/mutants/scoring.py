"""Mutants of score functions.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone. ``value_of(x)``
is x without its record of gradients, so that no gradient flows through it.
"""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.attention import AdditiveAttention
from attnspec.spec.scoring import (
    AdditiveScores,
    DotScores,
    GaussianScores,
    GeneralScores,
    LocationScores,
    ScaledDotScores,
)
from attnspec.spec.seq2seq import BahdanauContext

ADDITIVE = (AdditiveScores, AdditiveAttention, BahdanauContext)
"""Operations with additive scores."""


@mutant(
    "scores divided by d",
    replaces="scale_scores",
    operations=(ScaledDotScores,),
    breaks=("attention.unbiased-scale", "moments.mean-and-variance"),
    source="a scale of d in place of √d",
)
def scores_over_d(correct: Formulas, scores: Numbers, d: int) -> Numbers:
    """Scores are divided by d in place of √d."""
    return scores / scores.dtype.type(d)


@mutant(
    "scores multiplied by √d",
    replaces="scale_scores",
    operations=(ScaledDotScores,),
    breaks=("attention.unbiased-scale", "moments.mean-and-variance"),
    source="esceptico/perceiver-io#9",
)
def divided_by_reciprocal_root(correct: Formulas, scores: Numbers, d: int) -> Numbers:
    """Scores are divided by 1/√d: they are multiplied by √d."""
    return scores * np.sqrt(scores.dtype.type(d))


@mutant(
    "scores 0.2 % too large in bfloat16",
    replaces="dot_scores",
    operations=(DotScores, ScaledDotScores),
    dtype="bfloat16",
    breaks=("attention.unbiased-scale",),
    source="a constant rounded to bfloat16",
)
def slightly_large(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """Scores are multiplied by 1.002, less than bfloat16 rounds a single score."""
    return Formulas.dot_scores(correct, query, key) * key.dtype.type(1.002)


@mutant(
    "location scores with a bias",
    replaces="location_scores",
    operations=(LocationScores,),
    breaks=("pooling.linearity",),
    source="linear layers have a bias unless told otherwise",
)
def with_bias(correct: Formulas, query: Numbers, w: Numbers) -> Numbers:
    """A bias of 1/8 is added to the scores."""
    return Formulas.location_scores(correct, query, w) + query.dtype.type(0.125)


@mutant(
    "keys normalised to length 1",
    replaces="dot_scores",
    operations=(DotScores, GeneralScores),
    breaks=("pooling.linearity",),
    source="query–key normalisation left on",
)
def normalised_keys(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """Keys are divided by their length before the product."""
    length = np.sqrt(np.sum(key * key, axis=-1, keepdims=True))
    return Formulas.dot_scores(correct, query, key / np.maximum(length, key.dtype.type(1e-12)))


@mutant(
    "distance bias in the scores",
    replaces="dot_scores",
    operations=(DotScores, ScaledDotScores, GeneralScores),
    breaks=("attention.permutation-equivariance", "pooling.linearity"),
    source="linear position biases (ALiBi) added where scores are made",
)
def distance_bias(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """−|i − j|/8 is added to the scores."""
    distance = np.abs(np.arange(query.shape[-2])[:, None] - np.arange(key.shape[-2]))
    return Formulas.dot_scores(correct, query, key) - (distance / 8).astype(query.dtype)


@mutant(
    "queries through a ReLU",
    replaces="dot_scores",
    operations=(DotScores, ScaledDotScores),
    breaks=("scoring.isometry-invariance", "pooling.linearity"),
    source="feature maps of linear attention",
)
def relu_queries(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """Negative coordinates of queries count as 0."""
    return Formulas.dot_scores(correct, np.maximum(query, query.dtype.type(0)), key)


@mutant(
    "features beyond a power of two ignored",
    replaces="dot_scores",
    operations=(DotScores, ScaledDotScores),
    breaks=("scoring.isometry-invariance", "moments.mean-and-variance"),
    source="turboderp-org/exllamav3#316",
)
def power_of_two_only(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """Dot products leave out features beyond the largest power of two ≤ d."""
    whole = 1 << (query.shape[-1].bit_length() - 1)
    return Formulas.dot_scores(correct, query[..., :whole], key[..., :whole])


@mutant(
    "dot products accumulated in float16",
    replaces="dot_scores",
    operations=(DotScores, ScaledDotScores),
    breaks=("operation.oracle", "attention.unbiased-scale", "pooling.linearity"),
    source="stanford-crfm/mistral#67",
)
def half_accumulation(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """Dot products are rounded to float16 after every added term."""
    total = query[..., :, None, 0] * key[..., None, :, 0]
    for i in range(1, query.shape[-1]):
        total = rounded(total + query[..., :, None, i] * key[..., None, :, i], "float16")
    return total


@mutant(
    "W of general scores transposed",
    replaces="general_scores",
    operations=(GeneralScores,),
    breaks=("operation.oracle",),
    source="(out, in) and (in, out) weights confused",
)
def transposed_matrix(correct: Formulas, query: Numbers, key: Numbers, w: Numbers) -> Numbers:
    """The memory of W is read as if it were transposed."""
    return Formulas.general_scores(correct, query, key, np.swapaxes(w, -1, -2).reshape(*w.shape))


@mutant(
    "location scores by position from the end",
    replaces="location_scores",
    operations=(LocationScores,),
    breaks=("attention.permutation-equivariance", "operation.oracle"),
    source="left padding taken for right padding",
)
def positions_from_the_end(correct: Formulas, query: Numbers, w: Numbers) -> Numbers:
    """The weights of position j are used for position m − 1 − j."""
    return Formulas.location_scores(correct, query, np.flip(w, axis=-2))


@mutant(
    "each projection through its own tanh",
    replaces="hidden_layer",
    operations=(AdditiveScores,),
    breaks=("scoring.additive-is-perceptron", "operation.oracle"),
    source="Alexander-H-Liu/End-to-end-ASR-Pytorch, scores of separately activated projections",
)
def separate_activations(correct: Formulas, of_query: Numbers, of_key: Numbers) -> Numbers:
    """The hidden layer is tanh(W_q q) + tanh(W_k k), not tanh(W_q q + W_k k)."""
    return correct.activation(of_query) + correct.activation(of_key)


@mutant(
    "additive scores with a ReLU",
    replaces="activation",
    operations=(AdditiveScores,),
    breaks=("scoring.tanh-odd-and-bounded",),
    source="the activation of feed-forward layers",
)
def relu_for_tanh(correct: Formulas, x: Numbers) -> Numbers:
    """The activation is max(0, x) in place of tanh x."""
    return np.maximum(x, x.dtype.type(0))


@mutant(
    "additive scores with a sigmoid",
    replaces="activation",
    operations=ADDITIVE,
    breaks=("scoring.tanh-odd-and-bounded", "operation.oracle"),
    source="gates use a sigmoid where scores use tanh",
)
def sigmoid_for_tanh(correct: Formulas, x: Numbers) -> Numbers:
    """The activation is σ(x) = (1 + tanh(x/2))/2 in place of tanh x."""
    half = x.dtype.type(0.5)
    return half + half * np.tanh(half * x)


@mutant(
    "tanh from exponentials that overflow",
    replaces="hidden_layer",
    operations=ADDITIVE,
    breaks=("scoring.saturation-stays-finite", "scoring.tanh-odd-and-bounded"),
    source="exp-factorised tanh without clamps",
)
def overflowing_tanh(correct: Formulas, of_query: Numbers, of_key: Numbers) -> Numbers:
    """tanh(a + b) is (EF − 1)/(EF + 1): ∞/∞ or 0·∞ if E = e^2a or F = e^2b overflows."""
    both = np.exp(2 * of_query) * np.exp(2 * of_key)
    return (both - 1) / (both + 1)


@mutant(
    "tanh rounded to 11 bits, undeclared",
    replaces="activation",
    operations=(AdditiveScores, AdditiveAttention),
    breaks=("operation.oracle",),
    source="the approximate tanh of GPUs, relative error 2⁻¹¹",
)
def approximate_tanh(correct: Formulas, x: Numbers) -> Numbers:
    """tanh is rounded to the precision of float16."""
    return rounded(np.tanh(x), "float16")


@mutant(
    "projections clamped to ±5",
    replaces="hidden_layer",
    operations=ADDITIVE,
    breaks=("scoring.saturation-stays-finite", "operation.oracle"),
    source="clamps that guard exponentials, set too tight",
)
def tight_clamps(correct: Formulas, of_query: Numbers, of_key: Numbers) -> Numbers:
    """Both projections are clamped to ±5, which is wrong if both are large and cancel."""
    low, high = of_query.dtype.type(-5), of_query.dtype.type(5)
    clamped = (np.minimum(np.maximum(x, low), high) for x in (of_query, of_key))
    return Formulas.hidden_layer(correct, *clamped)


@mutant(
    "exponentials clamped if either projection fits",
    replaces="hidden_layer",
    operations=ADDITIVE,
    breaks=("scoring.saturation-stays-finite", "scoring.saturation-gradient"),
    source="a condition on both sides for one on either, in the choice of a path",
)
def clamped_exponentials(correct: Formulas, of_query: Numbers, of_key: Numbers) -> Numbers:
    """tanh(a + b) is 1 − 2/(1 + e^2a e^2b): an exponent beyond ±69 is clamped, unless both are."""
    bound, unit, two = (of_query.dtype.type(x) for x in (34.5, 1, 2))
    exponentials = (np.exp(two * np.minimum(np.maximum(x, -bound), bound)) for x in (of_query, of_key))
    factorised = unit - two / (unit + np.multiply(*exponentials))
    beyond = (np.abs(value_of(of_query)) > bound) & (np.abs(value_of(of_key)) > bound)
    return np.where(beyond, Formulas.hidden_layer(correct, of_query, of_key), factorised)


@mutant(
    "w_q and w_k read from one buffer in the wrong order",
    replaces="additive_scores",
    operations=(AdditiveScores,),
    breaks=("operation.oracle", "scoring.additive-is-perceptron"),
    source="positional weights passed in the other order",
)
def exchanged_weights(
    correct: Formulas, query: Numbers, key: Numbers, w_q: Numbers, w_k: Numbers, w_v: Numbers
) -> Numbers:
    """W_q and W_k are read from one buffer that holds W_k first."""
    both = np.concatenate([w_k.reshape(-1), w_q.reshape(-1)])
    first, second = both[: w_q.size], both[w_q.size :]
    return Formulas.additive_scores(correct, query, key, first.reshape(*w_q.shape), second.reshape(*w_k.shape), w_v)


@mutant(
    "squared distance by expansion",
    replaces="gaussian_scores",
    operations=(GaussianScores,),
    breaks=("scoring.isometry-invariance", "operation.oracle"),
    source="scikit-learn#9354, pytorch#42479",
)
def expanded_distance(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """−½‖q − k‖² is computed as q·k − ½‖q‖² − ½‖k‖², which cancels."""
    squares = (np.sum(x * x, axis=-1) for x in (query, key))
    of_query, of_key = squares
    return Formulas.dot_scores(correct, query, key) - 0.5 * of_query[..., :, None] - 0.5 * of_key[..., None, :]


@mutant(
    "first coordinate of q in place of −½‖q‖²",
    replaces="gaussian_scores",
    operations=(GaussianScores,),
    breaks=("scoring.isometry-invariance",),
    source="what is constant in a row cancels in the softmax, but not in the scores",
)
def without_query_norm(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """In scores −½‖q − k‖², the first feature of q replaces the term −½‖q‖²."""
    of_key = np.sum(key * key, axis=-1)
    return Formulas.dot_scores(correct, query, key) - 0.5 * of_key[..., None, :] + query[..., :, None, 0]


@mutant(
    "Gaussian scores without ½",
    replaces="gaussian_scores",
    operations=(GaussianScores,),
    breaks=("attention.unbiased-scale", "operation.oracle"),
    source="exp(−‖u‖²) and exp(−½‖u‖²) are both called Gaussian kernels",
)
def twice_the_distance(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """Scores are −‖q − k‖² in place of −½‖q − k‖²."""
    return 2 * Formulas.gaussian_scores(correct, query, key)


@mutant(
    "Manhattan distance",
    replaces="gaussian_scores",
    operations=(GaussianScores,),
    breaks=("operation.oracle",),
    source="the wrong norm",
)
def manhattan(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """Scores are −½ Σ|q − k| in place of −½‖q − k‖²."""
    return -0.5 * np.sum(np.abs(query[..., :, None, :] - key[..., None, :, :]), axis=-1)
