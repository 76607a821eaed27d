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
    opened, forgotten, shown, candidate = Formulas.lstm_gates(correct, x, h, p)
    return forgotten, opened, shown, candidate


@mutant(
    "forget gate with a bias of 1",
    replaces="next_cell",
    operations=(LSTMCell,),
    breaks=("operation.oracle",),
    source="an initialization that is applied at every step",
)
def coupled_gates(correct: Formulas, opened: Numbers, forgotten: Numbers, candidate: Numbers, c: Numbers) -> Numbers:
    """Input and forget gate add up to 1, as in a GRU."""
    return Formulas.next_cell(correct, 1 - forgotten, forgotten, candidate, c)


@mutant(
    "candidate of the cell without a bound",
    replaces="next_cell",
    operations=(LSTMCell,),
    breaks=("recurrent.cell-bound",),
    source="an activation of 1.1 tanh",
)
def unbounded_candidate(
    correct: Formulas, opened: Numbers, forgotten: Numbers, candidate: Numbers, c: Numbers
) -> Numbers:
    """The candidate reaches 1.5."""
    return Formulas.next_cell(correct, opened, forgotten, candidate.dtype.type(1.5) * candidate, c)


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
    """(c, h)."""
    h, c = Formulas.lstm_cell(correct, x, state, parameters)
    return c, h


@mutant(
    "cell shown without tanh",
    replaces="lstm_cell",
    operations=(LSTMCell,),
    breaks=("operation.oracle", "recurrent.cell-bound"),
    source="the second activation left out",
)
def bare_cell(
    correct: Formulas, x: Numbers, state: tuple[Numbers, Numbers], parameters: LSTMParameters[Numbers]
) -> tuple[Numbers, Numbers]:
    """O ⊙ C."""
    opened, forgotten, shown, candidate = correct.lstm_gates(x, state[0], parameters)
    cell = correct.next_cell(opened, forgotten, candidate, state[1])
    return shown * cell, cell


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
