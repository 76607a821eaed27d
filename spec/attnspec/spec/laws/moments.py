"""Laws of the mean and variance of scores, the reason for scaling them."""

from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import S0, S2
from attnspec.spec.scoring import DotScores, ScaledDotScores

MEAN_AND_VARIANCE = law(
    "moments.mean-and-variance",
    "The mean score of independent vectors is the inner product of their means, and the variance of their scores is "
    "2σ²μᵀμ + dσ⁴. A scale multiplies the mean, and its square the variance. All this holds exactly on a four-wise "
    "independent design, also where every coordinate has the same mean.",
    formula=r"E[q^\top k] = \mu^\top \mu,"
    r"\quad \operatorname{Var}[q^\top k] = 2\sigma^2 \mu^\top \mu + d\sigma^4",
    governs=of(DotScores, ScaledDotScores),
    sources=[
        S0.equation(5),
        S2.passage("Justifying Scaled Self-Attention"),
        S2.passage("Justifying Scaled Self-Attention, solution 1"),
        S2.passage("Justifying Scaled Self-Attention, solution 2"),
    ],
)
