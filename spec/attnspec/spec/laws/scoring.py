"""Laws of scoring functions."""

from attnspec.spec.attention import AdditiveAttention
from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.sources import LUONG, S0, S4
from attnspec.spec.recurrent import RNNCell
from attnspec.spec.scoring import AdditiveScores, DotScores, GaussianScores, ScaledDotScores
from attnspec.spec.seq2seq import AttentionalState, BahdanauContext

_additive = of(AdditiveScores, AdditiveAttention, BahdanauContext)
"""Operations with additive scores."""

_isometric = of(DotScores, ScaledDotScores, GaussianScores)
"""Scores that depend only on lengths of vectors and angles between them."""


def has_number_per_key(operation: Operation) -> bool:
    """True if the result has a number for every key."""
    return operation.key_size is not None and any(-1 in leaf.axes(operation.key_size) for leaf in operation.outputs)


ISOMETRY_INVARIANCE = law(
    "scoring.isometry-invariance",
    "Inner products and distances do not change if coordinates are permuted or change their signs in queries and "
    "keys alike. Exchanging queries and keys transposes the scores. Gaussian scores depend only on differences, are "
    "never positive, and are 0 where query and key are equal.",
    formula=r"e(Rq, Rk) = e(q, k),\ R^\top R = I;\quad e(q, k) = e(k, q)^\top;\quad e(q + t, k + t) = e(q, k),"
    r"\quad e(q, k) \le 0,\quad e(q, q) = 0,"
    r"\quad R \text{ a permutation with signs}",
    governs=_isometric,
    sources=[S0.equation(5)],
)
ADDITIVE_IS_PERCEPTRON = law(
    "scoring.additive-is-perceptron",
    "Additive scores are a perceptron with one hidden layer, applied to the concatenation of query and key.",
    formula=r"w_v^\top \tanh([W_q\ W_k][q; k]) = e(q, k)",
    governs=of(AdditiveScores),
    sources=[S0.equation(4)],
)
TANH_ODD_AND_BOUNDED = law(
    "scoring.tanh-odd-and-bounded",
    "tanh is odd and has at most magnitude 1. So states and additive scores change their signs with their inputs. The "
    "magnitude of states is at most 1, that of scores at most the sum of the absolute output weights.",
    formula=r"e(-q, -k) = -e(q, k),\quad |e(q, k)| \le \lVert w_v \rVert_1;\quad f(-s, -c) = -f(s, c),"
    r"\quad |f(s, c)| \le 1 \text{ of a state } s \text{ and an input or context } c",
    governs=of(AdditiveScores, RNNCell, AttentionalState),
    sources=[S0.equation(4), S4.passage("RNN"), LUONG.passage("3")],
)
SATURATION_STAYS_FINITE = law(
    "scoring.saturation-stays-finite",
    "Projections of magnitudes from 10⁻³ to 10⁶, of either sign or cancelling each other, give finite scores within "
    "budget.",
    formula=r"|W_q q|, |W_k k| \in [10^{-3}, 10^6]",
    governs=_additive,
    sources=[S0.equation(4)],
)
SATURATION_GRADIENT = law(
    "scoring.saturation-gradient",
    "Gradients follow the formula at every magnitude of the two projections, whether they cancel or add up.",
    formula=r"\partial e / \partial a = w_v (1 - \tanh^2(a + b)),\quad a = W_q q,\ b = W_k k",
    governs=_additive,
    sources=[S0.equation(4)],
    gradients=True,
)
