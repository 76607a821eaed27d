"""Variants that compute the tanh of additive scores in other ways."""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.scoring import ADDITIVE
from attnspec.conformance.variants.registry import variant
from attnspec.spec.attention import AdditiveAttention
from attnspec.spec.scoring import AdditiveScores


@variant("tanh factorised into exponentials", operations=ADDITIVE)
class Factorised(Formulas):
    """tanh(a + b) is 1 − 2/(1 + EF) unless E or F could overflow: E = e^2a of the query, F = e^2b of the key."""

    def hidden_layer(self, of_query: Numbers, of_key: Numbers) -> Numbers:
        """Factorised for projections up to ±20, tanh itself beyond."""
        small = (np.abs(value_of(of_query)) <= 20) & (np.abs(value_of(of_key)) <= 20)
        unit, two = of_query.dtype.type(1), of_query.dtype.type(2)
        factorised = unit - two / (unit + np.exp(two * of_query) * np.exp(two * of_key))
        return np.where(small, factorised, Formulas.hidden_layer(self, of_query, of_key))


@variant("tanh from exp(−2|x|)", operations=(AdditiveScores, AdditiveAttention), differentiable=False)
class TanhByExponential(Formulas):
    """tanh is sign(x)(1 − t)/(1 + t) with t = exp(−2|x|), which cannot overflow."""

    def activation(self, x: Numbers) -> Numbers:
        """tanh by exp(−2|x|)."""
        t = np.exp(-2 * np.abs(x))
        return np.sign(x) * ((1 - t) / (1 + t))


@variant("two hidden units share one division", operations=(AdditiveScores, AdditiveAttention), differentiable=False)
class PairedReciprocals(Formulas):
    """Two hidden units share one division: 1/x = y/(xy)."""

    def hidden_layer(self, of_query: Numbers, of_key: Numbers) -> Numbers:
        """Hidden layer by t = exp(−2|x|); both factors 1 + t are between 1 and 2."""
        x = of_query + of_key
        t = np.exp(-2 * np.abs(x))
        below = 1 + t
        other = np.flip(below, axis=-1)
        return np.sign(x) * ((1 - t) * (other / (below * other)))


@variant("fast tanh, declared", operations=ADDITIVE, precision={"float32": "ieee32+fast-tanh"}, differentiable=False)
class FastTanh(Formulas):
    """The tanh of the hidden layer is rounded to 11 bits, as declared."""

    def activation(self, x: Numbers) -> Numbers:
        """tanh with the mantissa of float16 and any exponent."""
        mantissa, exponent = np.frexp(np.tanh(x))
        return np.ldexp(np.rint(mantissa * 2**11) / x.dtype.type(2**11), exponent)


@variant("additive attention in bfloat16", operations=ADDITIVE, dtypes=("bfloat16",), differentiable=False)
class Bfloat16Operands(Formulas):
    """Projections are rounded to bfloat16 before the sum, weights before the product with values."""

    def hidden_layer(self, of_query: Numbers, of_key: Numbers) -> Numbers:
        """Hidden layer of projections rounded to bfloat16."""
        return self.activation(rounded(of_query, "bfloat16") + rounded(of_key, "bfloat16"))

    def attention_pooling(self, weights: Numbers, value: Numbers) -> Numbers:
        """Weighted sums by weights rounded to bfloat16."""
        return Formulas.attention_pooling(self, rounded(weights, "bfloat16"), value)
