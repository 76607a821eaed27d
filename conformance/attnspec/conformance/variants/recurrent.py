"""Other ways to the gates and the steps of recurrent networks."""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.variants.registry import variant
from attnspec.spec.recurrent import (
    GRU,
    LSTM,
    RNN,
    BidirectionalLSTM,
    GRUCell,
    LSTMCell,
    RNNCell,
    StackedGRU,
    StackedRNN,
)
from attnspec.spec.seq2seq import TeacherForcedDecode
from attnspec.spec.vision import AttentionGate


@variant("input and state in one product", operations=(RNNCell, LSTMCell, StackedRNN, LSTM))
class OneProduct(Formulas):
    """[x; h] [W_x; W_h]."""

    def affine(self, x: Numbers, h: Numbers, w_x: Numbers, w_h: Numbers, b: Numbers) -> Numbers:
        """One sum over the features of both."""
        rows = self.beside(x, h)[..., None, :]
        return self.product(rows, np.concatenate([w_x, w_h], axis=-2))[..., 0, :] + b


@variant("the bias comes first", operations=(RNN, GRUCell, BidirectionalLSTM))
class BiasFirst(Formulas):
    """b + xW + hW, term by term."""

    def affine(self, x: Numbers, h: Numbers, w_x: Numbers, w_h: Numbers, b: Numbers) -> Numbers:
        """As a fused multiplication and addition begins."""
        return b + self.product(x[..., None, :], w_x)[..., 0, :] + self.product(h[..., None, :], w_h)[..., 0, :]


@variant("gates from exponentials", operations=(GRU, LSTMCell, AttentionGate), differentiable=False)
class Logistic(Formulas):
    """1/(1 + e^−x), which is 0 where e^−x overflows."""

    def gate(self, x: Numbers) -> Numbers:
        """One division."""
        return 1 / (1 + np.exp(-x))

    def coefficient(self, x: Numbers) -> Numbers:
        """Likewise."""
        return 1 / (1 + np.exp(-x))


@variant("the state moves away from the candidate", operations=(GRUCell, StackedGRU))
class Moved(Formulas):
    """h̃ + z(h − h̃)."""

    def updated(self, update: Numbers, h: Numbers, candidate: Numbers) -> Numbers:
        """One product."""
        return candidate + update * (h - candidate)


@variant("a decoder in double precision", operations=(TeacherForcedDecode, LSTM), differentiable=False)
class WideSteps(Formulas):
    """Products are summed in double precision, states kept in single."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Rounded once."""
        return (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype)
