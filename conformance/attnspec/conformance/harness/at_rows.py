"""The gradients of some queries, with budgets: dqᵢ = Σⱼ αᵢⱼ (gᵢ·vⱼ − Dᵢ) kⱼ/√d with Dᵢ = Σⱼ αᵢⱼ gᵢ·vⱼ.

Errors are those of :mod:`attnspec.reference.budget.derivative`, but for two. That of Dᵢ is the same at every key, and
so moves the gradient along Σⱼ αᵢⱼ kⱼ: it is taken as that. And where scores of a row are equal not all errors add
linearly, but those of these keys.
"""

import numpy as np

from attnspec.conformance.harness.equals import equals
from attnspec.conformance.harness.normalizers import Scores
from attnspec.conformance.harness.tiles import of_key_tiles
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.reference.budget.error_array import WIDTH
from attnspec.reference.budget.numbers import attendable_softmax
from attnspec.reference.budget.softmax import statistical_weights
from attnspec.reference.budget.statistical import Statistical
from attnspec.spec.contract.precision import Precision


def query_gradients(
    query: Numbers,
    key: Numbers,
    value: Numbers,
    cotangent: Numbers,
    allowed: Numbers | None,
    scores: Scores,
    precision: Precision,
) -> tuple[Numbers, Numbers]:
    """The gradients of queries of one element of the batch and their budgets; ``allowed`` are the pairs that attend."""
    p, u = precision, precision.accumulation
    with np.errstate(all="ignore"):
        q, k, v, g = (Statistical(x.astype(np.float64), 0.0, p, given=True) for x in (query, key, value, cotangent))
        scored = scores(q, k)
        softmax = attendable_softmax(scored.value, allowed)
        alpha, sigma, repeats, level = statistical_weights(softmax, scored.error, p)
        # Kernels recompute the weights as exp(e − L), with scores that were summed in another order than those in L.
        largest = np.where(softmax.attendable, np.abs(scored.value), 0.0).max(-1, keepdims=True, initial=0.0)
        sigma = np.hypot(sigma, alpha * np.sqrt(1 + 0.5 * query.shape[-1]) * u * largest)
        weights = Statistical(alpha, sigma, p)

        of_weights = g @ v.swapaxes(-1, -2)
        terms = alpha * of_weights.value
        inner = terms.sum(-1, keepdims=True)
        of_scores = weights * (of_weights - Statistical(inner, np.zeros(inner.shape), p))
        scale = float(scores(np.eye(1, query.shape[-1]), np.eye(1, query.shape[-1]))[0, 0])
        found = (of_scores / np.float64(1 / scale)) @ k

        output = alpha @ v.value
        stored = ((0.6 * p.output * g.value * output) ** 2 + (p.output_smallest * g.value) ** 2).sum(-1, keepdims=True)
        own = (sigma * of_weights.value) ** 2 + (alpha * of_weights.error) ** 2 + 2 * (0.6 * p.operand * terms) ** 2
        summing = (0.5 * u) ** 2 * alpha.shape[-1] * (inner**2 + (terms**2).sum(-1, keepdims=True))
        shared = np.hypot(level, 0.5 * u * repeats)
        alike = (np.hypot(shared, 0.6 * p.operand) * inner) ** 2
        of_inner = own.sum(-1, keepdims=True) + stored + summing + alike

        variance = found.error**2 + of_inner * (scale * (alpha @ k.value)) ** 2 + (shared * found.value) ** 2
        variance = variance + of_key_tiles(scale * of_scores.value.T, k.value, p)
        relative = np.hypot(np.where(alpha > 0, sigma / alpha, 0.0), 0.6 * p.operand)
        marks = np.where(softmax.attendable, np.log(alpha), np.nan)
        for i, row in enumerate(relative * of_scores.value * scale):
            variance[i] += equals(marks[i], p).variance(row, k.value)
        budget = WIDTH * (np.sqrt(variance + (0.6 * p.output * found.value) ** 2) + p.output_smallest)
        return found.value, budget
