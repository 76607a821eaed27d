"""Laws of the scorers."""

from attnspec.spec.attention import AdditiveAttention
from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.sources import S0, S1, S2
from attnspec.spec.scoring import AdditiveScores, DotScores, GaussianScores, GeneralScores, ScaledDotScores
from attnspec.spec.seq2seq import BahdanauContext

_additive = of(AdditiveScores, AdditiveAttention, BahdanauContext)
"""The operations whose scores are additive."""

_isometric = of(DotScores, ScaledDotScores, GaussianScores)
"""Scores that depend on lengths and angles alone."""


def gives_keys(operation: Operation) -> bool:
    """Whether the result has a number for every key."""
    return operation.asked is not None and any(-1 in leaf.axes(operation.asked) for leaf in operation.outputs)


LINEARITY = law(
    "scoring.linearity",
    "Scores are linear in the query.",
    formula=r"e(q + q', k) = e(q, k) + e(q', k)",
    governs=lambda operation: gives_keys(operation) and any(x.path in operation.linear for x in operation.queries),
    sources=[S1.passage("Attention: definition"), S2.passage("Luong Attention, footnote 1")],
)
KEY_LINEARITY = law(
    "scoring.key-linearity",
    "Scores are linear in the key.",
    formula=r"e(q, k + k') = e(q, k) + e(q, k')",
    governs=lambda operation: gives_keys(operation) and any(x.path in operation.linear for x in operation.attended),
    sources=[S1.passage("Attention: definition")],
)
SYMMETRY = law(
    "scoring.symmetry",
    "Exchanging queries and keys transposes the scores.",
    formula=r"e(q, k) = e(k, q)^\top",
    governs=_isometric,
    sources=[S0.equation(5)],
)
ROTATION_INVARIANCE = law(
    "scoring.rotation-invariance",
    "Permuting coordinates and flipping their signs, in queries and keys alike, changes nothing.",
    formula=r"e(Rq, Rk) = e(q, k),\ R^\top R = I",
    governs=_isometric,
    sources=[S0.equation(5)],
)
SCALE = law(
    "scoring.scale",
    "The ensemble of all elements shows no error of scale, even one far below the rounding of each element.",
    formula=r"\hat\varepsilon = \sum w (e - e^*) e^* / \sum w {e^*}^2 \approx 0",
    governs=of(DotScores, ScaledDotScores, GeneralScores, GaussianScores),
    sources=[S0.equation(5)],
)
PERCEPTRON = law(
    "scoring.perceptron",
    "Additive scores are a perceptron with one hidden layer on the concatenation of query and key.",
    formula=r"w_v^\top \tanh([W_q\ W_k][q; k]) = e(q, k)",
    governs=of(AdditiveScores),
    sources=[S0.equation(4)],
)
ADDITIVE_BOUND = law(
    "scoring.additive-bound",
    "No additive score exceeds the sum of the absolute output weights.",
    formula=r"|e(q, k)| \le \lVert w_v \rVert_1",
    governs=of(AdditiveScores),
    sources=[S0.equation(4)],
)
ODDNESS = law(
    "scoring.oddness",
    "Negating query and key negates the additive score.",
    formula=r"e(-q, -k) = -e(q, k)",
    governs=of(AdditiveScores),
    sources=[S0.equation(4)],
)
SATURATION = law(
    "scoring.saturation",
    "Projections up to 10⁶, of either sign and of both that cancel, give finite scores within budget.",
    formula=r"|W_q q|, |W_k k| \in [10^{-3}, 10^6]",
    governs=_additive,
    sources=[S0.equation(4)],
)
SATURATION_GRADIENT = law(
    "scoring.saturation-gradient",
    "Gradients are right at every magnitude of the projections, of both that cancel and of both that add up.",
    formula=r"\partial e / \partial a = w_v (1 - \tanh^2(a + b)),\quad a = W_q q,\ b = W_k k",
    governs=_additive,
    sources=[S0.equation(4)],
    gradients=True,
)
TRANSLATION_INVARIANCE = law(
    "scoring.translation-invariance",
    "Gaussian scores depend on the difference of query and key alone.",
    formula=r"e(q + t, k + t) = e(q, k)",
    governs=of(GaussianScores),
)
NONPOSITIVE = law(
    "scoring.nonpositive",
    "Gaussian scores are never positive, and 0 where query and key are equal.",
    formula=r"e(q, k) \le 0,\quad e(q, q) = 0",
    governs=of(GaussianScores),
)
