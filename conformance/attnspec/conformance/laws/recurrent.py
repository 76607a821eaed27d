"""Checks of the laws of recurrent cells."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import bounded, odd_in, wide
from attnspec.conformance.laws.registry import checks
from attnspec.spec.contract.axes import Role
from attnspec.spec.laws import recurrent as law
from attnspec.spec.recurrent import LSTMParameters

SATURATED = 1024.0
"""A bias at which a sigmoid is 0 or 1 in every dtype, whatever else is added."""


@checks(law.KEPT_CELL)
def kept_cell(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Open the forget gate and close the input gate by biases that weights and inputs are too small to undo."""
    changes = {}
    for leaf, x in arguments.floats:
        if subject.operation.role(leaf) is Role.WEIGHT:
            changes[leaf.path] = subject.exact(np.clip(wide(x), -0.5, 0.5))
        else:
            changes[leaf.path] = subject.exact(np.clip(wide(x), -2, 2))
    (records,) = (x for x in arguments.values_by_name.values() if isinstance(x, LSTMParameters))
    biases = {id(records.b_f): SATURATED, id(records.b_i): -SATURATED}
    changes |= {
        leaf.path: subject.exact(np.full(x.shape, biases[id(x)])) for leaf, x in arguments.floats if id(x) in biases
    }
    given = arguments.replaced(changes)
    path = subject.operation.outputs[-1].path
    got = subject.results(given)[path]
    kept = np.broadcast_to(wide(given.array(_cell(subject))), got.shape)
    subject.matches(got, kept, subject.budgets(given)[path], given, f"the result {path}")
    return bool(got.size)


def _cell(subject: Subject) -> str:
    """The path of the previous cell, which is the second part of the state."""
    states = [leaf for leaf in subject.operation.leaves if subject.operation.role(leaf) is Role.STATE]
    return states[-1].path


@checks(law.CELL_BOUND)
def cell_bound(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare the magnitudes of both results with their bounds: 1, and 1 more than the previous cell."""
    hidden, cell = subject.operation.outputs
    bounds: dict[str, Numbers | float] = {
        hidden.path: 1.0,
        cell.path: np.abs(wide(arguments.array(_cell(subject)))) + 1,
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
