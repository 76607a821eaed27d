"""Laws of the moments of scores, which is why they are scaled."""

from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import S0, S2
from attnspec.spec.scoring import DotScores, ScaledDotScores

_SCORES = of(DotScores, ScaledDotScores)

MEAN = law(
    "moments.mean",
    "The mean of the scores of independent vectors is the product of their means.",
    formula=r"E[q^\top k] = \mu^\top \mu",
    governs=_SCORES,
    sources=[S2.passage("Justifying Scaled Self-Attention, solution 1")],
)
VARIANCE = law(
    "moments.variance",
    "The variance of the scores of independent vectors, exactly, on a four-wise independent design; also where every "
    "coordinate has the same mean.",
    formula=r"\operatorname{Var}[q^\top k] = 2\sigma^2 \mu^\top \mu + d\sigma^4",
    governs=_SCORES,
    sources=[
        S0.equation(5),
        S2.passage("Justifying Scaled Self-Attention"),
        S2.passage("Justifying Scaled Self-Attention, solution 2"),
    ],
)
