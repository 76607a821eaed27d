"""Laws of the scorers."""

from attnspec.spec.contract.law import law, named
from attnspec.spec.contract.sources import S0, S1, S2

ADDITIVE = ("additive_scores", "additive_attention", "bahdanau_context")
"""The operations whose scores are additive."""

LINEARITY = law(
    "scoring.linearity",
    "Scores are linear in the query.",
    formula=r"e(q + q', k) = e(q, k) + e(q', k)",
    governs=named("dot_scores", "scaled_dot_scores", "general_scores", "location_scores"),
    sources=[S1.passage("Attention: definition"), S2.passage("Luong Attention, footnote 1")],
)
KEY_LINEARITY = law(
    "scoring.key-linearity",
    "Scores are linear in the key.",
    formula=r"e(q, k + k') = e(q, k) + e(q, k')",
    governs=named("dot_scores", "scaled_dot_scores", "general_scores"),
    sources=[S1.passage("Attention: definition")],
)
SYMMETRY = law(
    "scoring.symmetry",
    "Exchanging queries and keys transposes the scores.",
    formula=r"e(q, k) = e(k, q)^\top",
    governs=named("dot_scores", "scaled_dot_scores", "gaussian_scores"),
    sources=[S0.equation(5)],
)
ROTATION_INVARIANCE = law(
    "scoring.rotation-invariance",
    "Permuting coordinates and flipping their signs, in queries and keys alike, changes nothing.",
    formula=r"e(Rq, Rk) = e(q, k),\ R^\top R = I",
    governs=named("dot_scores", "scaled_dot_scores", "gaussian_scores"),
    sources=[S0.equation(5)],
)
SCALE = law(
    "scoring.scale",
    "The ensemble of all elements shows no error of scale, even one far below the rounding of each element.",
    formula=r"\hat\varepsilon = \sum w (e - e^*) e^* / \sum w {e^*}^2 \approx 0",
    governs=named("dot_scores", "scaled_dot_scores", "general_scores", "gaussian_scores"),
    sources=[S0.equation(5)],
)
PERCEPTRON = law(
    "scoring.perceptron",
    "Additive scores are a perceptron with one hidden layer on the concatenation of query and key.",
    formula=r"w_v^\top \tanh([W_q\ W_k][q; k]) = e(q, k)",
    governs=named("additive_scores"),
    sources=[S0.equation(4)],
)
ADDITIVE_BOUND = law(
    "scoring.additive-bound",
    "No additive score exceeds the sum of the absolute output weights.",
    formula=r"|e(q, k)| \le \lVert w_v \rVert_1",
    governs=named("additive_scores"),
    sources=[S0.equation(4)],
)
ODDNESS = law(
    "scoring.oddness",
    "Negating query and key negates the additive score.",
    formula=r"e(-q, -k) = -e(q, k)",
    governs=named("additive_scores"),
    sources=[S0.equation(4)],
)
SATURATION = law(
    "scoring.saturation",
    "Projections up to 10⁶, of either sign and of both that cancel, give finite scores within budget.",
    formula=r"|W_q q|, |W_k k| \in [10^{-3}, 10^6]",
    governs=named(*ADDITIVE),
    sources=[S0.equation(4)],
)
SATURATION_GRADIENT = law(
    "scoring.saturation-gradient",
    "Gradients are right at every magnitude of the projections, of both that cancel and of both that add up.",
    formula=r"\partial e / \partial a = w_v (1 - \tanh^2(a + b)),\quad a = W_q q,\ b = W_k k",
    governs=named(*ADDITIVE),
    sources=[S0.equation(4)],
    gradients=True,
)
TRANSLATION_INVARIANCE = law(
    "scoring.translation-invariance",
    "Gaussian scores depend on the difference of query and key alone.",
    formula=r"e(q + t, k + t) = e(q, k)",
    governs=named("gaussian_scores"),
)
NONPOSITIVE = law(
    "scoring.nonpositive",
    "Gaussian scores are never positive, and 0 where query and key are equal.",
    formula=r"e(q, k) \le 0,\quad e(q, q) = 0",
    governs=named("gaussian_scores"),
)
