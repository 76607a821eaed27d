"""Variants of the gates and steps of recurrent networks."""

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
    """Input and state are multiplied together: [x; h] [W_x; W_h]."""

    def affine(self, x: Numbers, h: Numbers, w_x: Numbers, w_h: Numbers, b: Numbers) -> Numbers:
        """Pre-activation by one product over the features of both."""
        rows = self.join_features(x, h)[..., None, :]
        return self.product(rows, np.concatenate([w_x, w_h], axis=-2))[..., 0, :] + b


@variant("bias added first", operations=(RNN, GRUCell, BidirectionalLSTM))
class BiasFirst(Formulas):
    """Pre-activations are b + xW + hW, in this order."""

    def affine(self, x: Numbers, h: Numbers, w_x: Numbers, w_h: Numbers, b: Numbers) -> Numbers:
        """Pre-activation that starts from the bias, as fused multiply-adds do."""
        return b + self.product(x[..., None, :], w_x)[..., 0, :] + self.product(h[..., None, :], w_h)[..., 0, :]


@variant("gates from exponentials", operations=(GRU, LSTMCell, AttentionGate), differentiable=False)
class LogisticByExponential(Formulas):
    """Gates are 1/(1 + e^−x), which is 0 if e^−x overflows."""

    def gate(self, x: Numbers) -> Numbers:
        """The logistic function by an exponential."""
        return 1 / (1 + np.exp(-x))

    def gate_activation(self, x: Numbers) -> Numbers:
        """The logistic function by an exponential, for attention gates."""
        return 1 / (1 + np.exp(-x))


@variant("GRU state as candidate + z · (state − candidate)", operations=(GRUCell, StackedGRU))
class ShiftedCandidate(Formulas):
    """The new state is h̃ + z(h − h̃)."""

    def gru_update(self, update: Numbers, h: Numbers, candidate: Numbers) -> Numbers:
        """The new state by one product."""
        return candidate + update * (h - candidate)


@variant("recurrent products in double precision", operations=(TeacherForcedDecode, LSTM), differentiable=False)
class WideSteps(Formulas):
    """Products are summed in float64 and rounded to float32."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Matrix product in float64, rounded once."""
        return (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype)
