"""Checks of the laws of recurrent cells."""

from collections.abc import Mapping

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import bounded, odd_in, random_like, record, wide
from attnspec.conformance.laws.registry import checks
from attnspec.reference.budget import oracle_dtype
from attnspec.spec.contract.axes import Role
from attnspec.spec.laws import recurrent as law
from attnspec.spec.recurrent import GRUParameters, LSTMParameters

SATURATED = 1024.0
"""A bias at which a sigmoid is 0 or 1 in every dtype, whatever else is added."""


def _saturated(subject: Subject, arguments: Arguments, biases: Mapping[int, float]) -> Arguments:
    """Saturate gates by biases, given by the ``id`` of the array, which weights and inputs are too small to undo."""
    changes = {}
    for leaf, x in arguments.floats:
        bound = 0.5 if subject.operation.role(leaf) is Role.WEIGHT else 2
        changes[leaf.path] = subject.exact(np.clip(wide(x), -bound, bound))
        if id(x) in biases:
            changes[leaf.path] = subject.exact(np.full(x.shape, biases[id(x)]))
    return arguments.replaced(changes)


def _cell_states(subject: Subject) -> list[str]:
    """The paths of the previous state, of an LSTM those of the hidden state and the cell."""
    sizes = subject.operation.outputs[-1].sizes
    return [leaf.path for leaf in subject.operation.leaves if leaf.batched and leaf.sizes == sizes]


@checks(law.COPIED_STATE)
def copied_state(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Open the update gate."""
    p = record(arguments, GRUParameters)
    given = _saturated(subject, arguments, {id(p.b_z): SATURATED})
    got = subject.call(given)
    (path,) = _cell_states(subject)
    kept = np.broadcast_to(wide(given.array(path)), got.shape)
    subject.matches(got, kept, subject.budget(given), given, "of a state that is kept, the result")
    return bool(got.size)


@checks(law.FORGOTTEN_STATE)
def forgotten_state(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Close both gates, and pass another state."""
    p = record(arguments, GRUParameters)
    given = _saturated(subject, arguments, dict.fromkeys((id(p.b_r), id(p.b_z)), -SATURATED))
    other = given.replaced({path: random_like(given.array(path), rng, subject) for path in _cell_states(subject)})
    got, expected = subject.call(other), wide(subject.call(given))
    budget = subject.budget(given) + subject.budget(other)
    subject.matches(got, expected, budget, other, "of another state that is forgotten, the result")
    return bool(got.size)


@checks(law.GRU_IS_AN_RNN)
def gru_is_an_rnn(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Close the update gate and open the reset gate."""
    p = record(arguments, GRUParameters)
    given = _saturated(subject, arguments, {id(p.b_z): -SATURATED, id(p.b_r): SATURATED})
    p = record(given, GRUParameters)
    (path,) = _cell_states(subject)
    (x,) = (a for leaf, a in given.batched if leaf.path != path)
    exact = oracle_dtype(subject.precision.dtype)
    of_input, of_state = (v.astype(exact) @ w.astype(exact) for v, w in ((x, p.w_xh), (given.array(path), p.w_hh)))
    expected = np.tanh(of_input + of_state + p.b_h.astype(exact))
    subject.matches(subject.call(given), expected, subject.budget(given), given, "as of a plain network, the result")
    return bool(expected.size)


@checks(law.MIXED_STATE)
def mixed_state(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The magnitude of every unit of the next state."""
    (path,) = _cell_states(subject)
    bound = np.maximum(np.abs(wide(arguments.array(path))), 1)
    bounded(subject, arguments, subject.operation.outputs[0].path, bound, "the result")
    return bool(subject.call(arguments).size)


@checks(law.KEPT_CELL)
def kept_cell(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Open the forget gate and close the input gate."""
    p = record(arguments, LSTMParameters)
    given = _saturated(subject, arguments, {id(p.b_f): SATURATED, id(p.b_i): -SATURATED})
    path = subject.operation.outputs[-1].path
    got = subject.results(given)[path]
    kept = np.broadcast_to(wide(given.array(_cell_states(subject)[-1])), got.shape)
    subject.matches(got, kept, subject.budgets(given)[path], given, f"the result {path}")
    return bool(got.size)


@checks(law.CELL_BOUND)
def cell_bound(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the magnitudes of both results with their bounds: 1, and 1 more than the previous cell."""
    hidden, cell = subject.operation.outputs
    bounds: dict[str, Numbers | float] = {
        hidden.path: 1.0,
        cell.path: np.abs(wide(arguments.array(_cell_states(subject)[-1]))) + 1,
    }
    for path, bound in bounds.items():
        bounded(subject, arguments, path, bound, f"the result {path}")
    return bool(subject.results(arguments)[cell.path].size)


@checks(law.STATE_BOUND)
def state_bound(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """The magnitude of every next state."""
    bounded(subject, arguments, subject.operation.outputs[0].path, 1.0, "the result")
    return bool(subject.call(arguments).size)


@checks(law.ODD_CELL)
def odd_cell(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Negate whatever is no matrix: input, state and bias."""
    return odd_in(subject, arguments, [leaf.path for leaf, _ in arguments.floats if len(leaf.core) == 1])


@checks(law.OUTPUT_BIAS)
def output_bias(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set the state to 0."""
    operation = subject.operation
    changes = {leaf.path: np.zeros_like(x) for leaf, x in arguments.floats if operation.role(leaf) is Role.STATE}
    given = arguments.replaced(changes)
    (bias,) = (x for leaf, x in given.floats if operation.role(leaf) is Role.WEIGHT and len(leaf.core) == 1)
    got = subject.call(given)
    expected = np.broadcast_to(wide(bias), got.shape)
    subject.matches(got, expected, subject.budget(given), given, "of a state of 0, the result")
    return bool(got.size)
