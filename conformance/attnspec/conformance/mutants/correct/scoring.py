"""Correct formulas of scores."""

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Arithmetic, Numbers


class Scoring(Arithmetic):
    """Scores of queries against keys."""

    def dot_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """Dot products (…, n, m)."""
        return self.product(query, np.swapaxes(key, -1, -2))

    def scaled_dot_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """Dot products divided by √d."""
        return self.scale_scores(self.dot_scores(query, key), query.shape[-1])

    def scale_scores(self, scores: Numbers, d: int) -> Numbers:
        """Scores divided by √d."""
        return scores / np.sqrt(scores.dtype.type(d))

    def additive_scores(self, query: Numbers, key: Numbers, w_q: Numbers, w_k: Numbers, w_v: Numbers) -> Numbers:
        """Scores of every pair by a perceptron with one hidden layer."""
        of_query, of_key = self.project(query, w_q), self.project(key, w_k)
        return self.hidden_layer(of_query[..., :, None, :], of_key[..., None, :, :]) @ w_v

    def hidden_layer(self, of_query: Numbers, of_key: Numbers) -> Numbers:
        """The hidden layer of additive scores, from both projections."""
        return self.activation(of_query + of_key)

    def activation(self, x: Numbers) -> Numbers:
        """The nonlinearity of additive scores."""
        return np.tanh(x)

    def general_scores(self, query: Numbers, key: Numbers, w: Numbers) -> Numbers:
        """Bilinear form q w k of every pair."""
        return self.dot_scores(self.product(query, w), key)

    def location_scores(self, query: Numbers, w: Numbers) -> Numbers:
        """Scores from the query alone."""
        return self.project(query, w)

    def gaussian_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """Minus half the squared distance."""
        difference = query[..., :, None, :] - key[..., None, :, :]
        return -0.5 * np.sum(difference * difference, axis=-1)
