"""Mutants of recurrent cells."""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.recurrent import (
    GRUCell,
    GRUParameters,
    LSTMCell,
    LSTMParameters,
    RNNCell,
    RNNOutput,
    RNNParameters,
)


@mutant(
    "update gate inverted",
    replaces="updated",
    operations=(GRUCell,),
    breaks=("recurrent.copied-state", "recurrent.gru-is-an-rnn", "operation.oracle", "operation.gradient"),
    source="Chung et al. 2014, h = (1 − z) h + z h̃, against Cho et al. 2014",
)
def inverted_update(correct: Formulas, update: Numbers, h: Numbers, candidate: Numbers) -> Numbers:
    """Z and 1 − Z exchanged."""
    return Formulas.updated(correct, 1 - update, h, candidate)


@mutant(
    "GRU gates exchanged",
    replaces="gru_gates",
    operations=(GRUCell,),
    breaks=("recurrent.copied-state", "recurrent.gru-is-an-rnn", "operation.oracle"),
    source="keras stacks the gates as z, r, h, torch.nn.GRU as r, z, n",
)
def exchanged_gru_gates(correct: Formulas, x: Numbers, h: Numbers, p: GRUParameters[Numbers]) -> tuple[Numbers, ...]:
    """The update gate resets, and the reset gate updates."""
    reset, update = Formulas.gru_gates(correct, x, h, p)
    return update, reset


@mutant(
    "candidate without reset gate",
    replaces="gru_candidate",
    operations=(GRUCell,),
    breaks=("recurrent.forgotten-state", "operation.oracle", "operation.gradient"),
    source="the minimal gated unit, from which the reset gate was dropped",
)
def without_reset(correct: Formulas, x: Numbers, h: Numbers, reset: Numbers, p: GRUParameters[Numbers]) -> Numbers:
    """The candidate sees the whole state."""
    return Formulas.gru_candidate(correct, x, h, reset * reset.dtype.type(0) + reset.dtype.type(1), p)


@mutant(
    "state added to the mean",
    replaces="updated",
    operations=(GRUCell,),
    breaks=("recurrent.mixed-state", "operation.oracle"),
    source="a residual connection around the cell",
)
def residual_state(correct: Formulas, update: Numbers, h: Numbers, candidate: Numbers) -> Numbers:
    """H + (1 − Z) ⊙ H̃."""
    return h + (1 - update) * candidate


@mutant(
    "no gradient through the gates of a GRU",
    replaces="gru_gates",
    operations=(GRUCell,),
    breaks=("operation.gradient",),
    source="a gate computed under no_grad",
)
def detached_gates(correct: Formulas, x: Numbers, h: Numbers, p: GRUParameters[Numbers]) -> tuple[Numbers, ...]:
    """Constants for the backward pass."""
    return tuple(value_of(gate) for gate in Formulas.gru_gates(correct, x, h, p))


@mutant(
    "LSTM gates in another order",
    replaces="lstm_gates",
    operations=(LSTMCell,),
    breaks=("operation.oracle", "recurrent.kept-cell", "operation.gradient"),
    source="keras-team/keras#9463: i, f, c, o against PyTorch's i, f, g, o",
)
def exchanged_gates(correct: Formulas, x: Numbers, h: Numbers, p: LSTMParameters[Numbers]) -> tuple[Numbers, ...]:
    """Input and forget gate exchanged."""
    input_gate, forget_gate, output_gate, candidate = Formulas.lstm_gates(correct, x, h, p)
    return forget_gate, input_gate, output_gate, candidate


@mutant(
    "input gate coupled to the forget gate",
    replaces="next_cell",
    operations=(LSTMCell,),
    breaks=("operation.oracle",),
    source="the coupled gates of Greff et al. 2017 (CIFG), as in a GRU",
)
def coupled_gates(
    correct: Formulas, input_gate: Numbers, forget_gate: Numbers, candidate: Numbers, c: Numbers
) -> Numbers:
    """Input and forget gate add up to 1, as in a GRU."""
    return Formulas.next_cell(correct, 1 - forget_gate, forget_gate, candidate, c)


@mutant(
    "candidate of the cell scaled by 1.5",
    replaces="next_cell",
    operations=(LSTMCell,),
    breaks=("recurrent.cell-bound",),
    source="LeCun's scaled tanh, 1.7159 tanh(2x/3), as activation",
)
def scaled_candidate(
    correct: Formulas, input_gate: Numbers, forget_gate: Numbers, candidate: Numbers, c: Numbers
) -> Numbers:
    """The candidate reaches 1.5."""
    return Formulas.next_cell(correct, input_gate, forget_gate, candidate.dtype.type(1.5) * candidate, c)


@mutant(
    "hidden state and cell exchanged",
    replaces="lstm_cell",
    operations=(LSTMCell,),
    breaks=("operation.oracle",),
    source="frameworks return (h, c) and take (c, h)",
)
def exchanged_results(
    correct: Formulas, x: Numbers, state: tuple[Numbers, Numbers], parameters: LSTMParameters[Numbers]
) -> tuple[Numbers, Numbers]:
    """The cell first, (c, h)."""
    h, c = Formulas.lstm_cell(correct, x, state, parameters)
    return c, h


@mutant(
    "cell output_gate without tanh",
    replaces="lstm_cell",
    operations=(LSTMCell,),
    breaks=("operation.oracle", "recurrent.cell-bound"),
    source="the second activation left out",
)
def bare_cell(
    correct: Formulas, x: Numbers, state: tuple[Numbers, Numbers], parameters: LSTMParameters[Numbers]
) -> tuple[Numbers, Numbers]:
    """O ⊙ C."""
    input_gate, forget_gate, output_gate, candidate = correct.lstm_gates(x, state[0], parameters)
    cell = correct.next_cell(input_gate, forget_gate, candidate, state[1])
    return output_gate * cell, cell


@mutant(
    "hard sigmoid",
    replaces="gate",
    operations=(LSTMCell,),
    breaks=("operation.oracle", "operation.gradient"),
    source="keras's recurrent_activation was once hard_sigmoid",
)
def hard_sigmoid(correct: Formulas, x: Numbers) -> Numbers:
    """max(0, min(1, x/5 + 1/2))."""
    line = x * x.dtype.type(0.2) + x.dtype.type(0.5)
    return np.maximum(np.minimum(line, x.dtype.type(1)), x.dtype.type(0))


@mutant(
    "ReLU for tanh",
    replaces="squashed",
    operations=(RNNCell,),
    breaks=("recurrent.odd-cell", "recurrent.state-bound", "operation.gradient"),
    source="torch.nn.RNN's nonlinearity='relu'",
)
def rectified_state(correct: Formulas, x: Numbers) -> Numbers:
    """max(0, x)."""
    return np.maximum(x, x.dtype.type(0))


@mutant(
    "state scaled as by LeCun",
    replaces="squashed",
    operations=(RNNCell,),
    breaks=("recurrent.state-bound", "operation.oracle"),
    source="1.7159 tanh(2x/3)",
)
def scaled_state(correct: Formulas, x: Numbers) -> Numbers:
    """Reaches 1.7159."""
    return x.dtype.type(1.7159) * np.tanh(x * x.dtype.type(2 / 3))


@mutant(
    "weights of the state transposed",
    replaces="rnn_cell",
    operations=(RNNCell,),
    breaks=("operation.oracle",),
    source="torch.nn.RNN's weights are (out, in), those of S4 (in, out)",
)
def transposed_state_weights(
    correct: Formulas, x: Numbers, state: Numbers, parameters: RNNParameters[Numbers]
) -> Numbers:
    """W_hhᵀ."""
    p = parameters
    return correct.squashed(correct.affine(x, state, p.w_xh, np.swapaxes(p.w_hh, 0, 1), p.b_h))


@mutant(
    "bias counted twice",
    replaces="rnn_cell",
    operations=(RNNCell,),
    breaks=("operation.oracle", "operation.gradient"),
    source="torch.nn.RNN has b_ih and b_hh, and one bias went into both",
)
def two_biases(correct: Formulas, x: Numbers, state: Numbers, parameters: RNNParameters[Numbers]) -> Numbers:
    """b_h twice."""
    p = parameters
    return correct.squashed(correct.affine(x, state, p.w_xh, p.w_hh, p.b_h) + p.b_h)


@mutant(
    "output squashed too",
    replaces="rnn_output",
    operations=(RNNOutput,),
    breaks=("recurrent.output-bias", "operation.oracle"),
    source="Elman's network, whose outputs have an activation",
)
def squashed_output(correct: Formulas, state: Numbers, w_hq: Numbers, b_q: Numbers) -> Numbers:
    """tanh of the output."""
    return np.tanh(Formulas.rnn_output(correct, state, w_hq, b_q))


@mutant(
    "output without its bias",
    replaces="rnn_output",
    operations=(RNNOutput,),
    breaks=("recurrent.output-bias", "operation.gradient"),
    source="nn.Linear(…, bias=False)",
)
def without_output_bias(correct: Formulas, state: Numbers, w_hq: Numbers, b_q: Numbers) -> Numbers:
    """H W."""
    return Formulas.rnn_output(correct, state, w_hq, b_q * b_q.dtype.type(0))
