"""Mutants of recurrent cells."""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.recurrent import LSTMCell, LSTMParameters


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
