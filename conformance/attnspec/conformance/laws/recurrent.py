"""Checks of the laws of recurrent cells and sequences. Options of ``@checks``: see ``Check``."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, keep, take
from attnspec.conformance.inputs.changes import with_other_rows
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.common import (
    demand_bounded,
    doubled,
    doubles,
    parameters_of,
    random_like,
    sample,
    select_rows,
    wide,
)
from attnspec.conformance.laws.gradients import gradients_match
from attnspec.reference.budget import oracle_dtype
from attnspec.spec.contract.axes import Axis, Role
from attnspec.spec.contract.documentation import operation_of
from attnspec.spec.contract.tree import Branch
from attnspec.spec.laws import masking
from attnspec.spec.laws import recurrent as law
from attnspec.spec.recurrent import GRU, LSTM, RNN, GRUCell, GRUParameters, LSTMCell, LSTMParameters, RNNCell

SATURATED = 1024.0
"""A bias at which sigmoids are 0 or 1 in every dtype."""


def _with_saturated_gates(subject: Subject, arguments: Arguments, biases: Mapping[int, float]) -> Arguments:
    """A copy with these ``biases``, by ``id`` of the array, and clipped weights and inputs."""
    changes = {}
    for leaf, x in arguments.floats:
        bound = 0.5 if subject.operation.role(leaf) is Role.WEIGHT else 2
        changes[leaf.path] = subject.exact(np.clip(wide(x), -bound, bound))
        if id(x) in biases:
            changes[leaf.path] = subject.exact(np.full(x.shape, biases[id(x)]))
    return arguments.replaced(changes)


def _state_paths(subject: Subject) -> list[str]:
    """The paths of the previous states: one, or hidden state and cell of an LSTM."""
    sizes = subject.operation.outputs[-1].sizes
    return [leaf.path for leaf in subject.operation.leaves if leaf.batched and leaf.sizes == sizes]


@checks(law.OPEN_AND_CLOSED_GATES)
def open_and_closed_gates(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Open and close gates by large biases."""
    if subject.operation.protocol is LSTMCell:
        lstm = parameters_of(arguments, LSTMParameters)
        biases_of_lstm = {id(lstm.b_f): SATURATED, id(lstm.b_i): -SATURATED}
        return _keeps_state(subject, arguments, biases_of_lstm, "forget gate open and input gate closed")
    parameters = parameters_of(arguments, GRUParameters)
    keeping = -SATURATED if subject.semantics.gru_update == "candidate" else SATURATED
    for with_state, label in ((False, "both gates closed"), (True, "the update gate closed")):
        biases = {id(parameters.b_z): -keeping, id(parameters.b_r): SATURATED if with_state else -SATURATED}
        saturated = _with_saturated_gates(subject, arguments, biases)
        expected = _plain_network(subject, saturated, with_state=with_state)
        title = f"with {label}, unlike a plain network, the result"
        subject.demand_match(subject.call(saturated), expected, subject.budget(saturated), saturated, title)
    return _keeps_state(subject, arguments, {id(parameters.b_z): keeping}, "the update gate open")


def _keeps_state(subject: Subject, arguments: Arguments, biases: Mapping[int, float], label: str) -> bool:
    """Demand that saturated gates keep the previous state."""
    saturated, path = _with_saturated_gates(subject, arguments, biases), subject.operation.outputs[-1].path
    got = subject.results(saturated)[path]
    previous = np.broadcast_to(wide(saturated.array(_state_paths(subject)[-1])), got.shape)
    subject.demand_match(got, previous, subject.budgets(saturated)[path], saturated, f"with {label}, {path}")
    return bool(got.size)


def _plain_network(subject: Subject, arguments: Arguments, *, with_state: bool) -> Numbers:
    """The next state of a GRU whose update gate is closed."""
    p = parameters_of(arguments, GRUParameters)
    (path,) = _state_paths(subject)
    (x,) = (a for leaf, a in arguments.batched if leaf.path != path)
    exact = oracle_dtype(subject.precision.dtype)
    of_input, of_state = (v.astype(exact) @ w.astype(exact) for v, w in ((x, p.w_xh), (arguments.array(path), p.w_hh)))
    if not with_state:
        of_state = np.zeros_like(of_state)
    expected: Numbers = np.tanh(of_input + of_state + p.b_h.astype(exact))
    return expected


@checks(law.ZERO_STATE_OUTPUTS_BIAS)
def zero_state_outputs_bias(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set the state to 0: the result is the bias."""
    operation = subject.operation
    changes = {leaf.path: np.zeros_like(x) for leaf, x in arguments.floats if operation.role(leaf) is Role.STATE}
    zero_state = arguments.replaced(changes)
    (bias,) = (x for leaf, x in zero_state.floats if operation.role(leaf) is Role.WEIGHT and len(leaf.core) == 1)
    got = subject.call(zero_state)
    expected = np.broadcast_to(wide(bias), got.shape)
    subject.demand_match(got, expected, subject.budget(zero_state), zero_state, "of a state of 0, the result")
    return bool(got.size)


CELLS: Mapping[object, object] = {RNN: RNNCell, GRU: GRUCell, LSTM: LSTMCell}
"""The cell that a network computes at every step."""


def _time(subject: Subject) -> str:
    return subject.operation.sizes_of(Axis.TIME)[0]


def _step_count(subject: Subject, arguments: Arguments) -> int:
    return arguments.size(_time(subject))


def _input_path(subject: Subject) -> str:
    return subject.operation.along(_time(subject))[0].path


def _lengths(subject: Subject) -> str | None:
    """The path of the lengths; None for a backend without them."""
    return next(iter(subject.operation.lengths), None)


def _whole_sequences(arguments: Arguments) -> Arguments:
    """A copy without lengths, whose sequences have all steps."""
    return arguments.replaced(dict.fromkeys(arguments.operation.lengths))


def _finals(subject: Subject) -> dict[str, str]:
    """The paths of initial states, by the paths of the final states."""
    operation = subject.operation
    # The state of ``teacher_forced_decode`` is the query of its attention; networks have no queries.
    states = operation.queries or [leaf for leaf in operation.leaves if operation.role(leaf) is Role.STATE]
    final = [leaf.path for leaf in operation.outputs if _time(subject) not in leaf.sizes]
    return dict(zip(final, (leaf.path for leaf in states), strict=True))


def _step_results(subject: Subject) -> list[str]:
    return [leaf.path for leaf in subject.operation.outputs if _time(subject) in leaf.sizes]


def _budget(subject: Subject, arguments: Arguments, path: str, part: Any = ...) -> Numbers:
    budget: Numbers = subject.budgets(arguments)[path][part]
    return budget


@checks(law.FIRST_STEP_IS_CELL)
def first_step_is_cell(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare a sequence of one step with the backend's own cell."""
    cell = operation_of(CELLS[subject.operation.protocol])
    assert cell is not None
    other = subject.for_operation(cell)
    if other is None or other.choices != subject.choices or not _step_count(subject, arguments):
        return False
    path = _input_path(subject)
    first = _whole_sequences(arguments.along(_time(subject), keep(1)))
    values = {key: first[key][..., 0, :] if key == path else first.values_by_name[key] for key in first.values_by_name}
    # Arguments of the network and of the cell have the same order; the network also has lengths, which come last.
    cell_call = Arguments(cell, dict(zip(cell.call.names, values.values(), strict=False)))
    expected, budgets = (list(doubles(other.results(cell_call)).values()), list(other.budgets(cell_call).values()))
    got, own = subject.results(first), subject.budgets(first)
    for final, x, budget in zip(_finals(subject), expected, budgets, strict=True):
        subject.demand_match(got[final], x, own[final] + budget, first, f"after one step, unlike the cell, the {final}")
    return bool(expected[0].size)


@checks(law.RESUMES_FROM_STATE, governs=law.resumable)
def resumes_from_state(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Cut a sequence that starts at state 0; resume from the state at the cut.

    16-bit dtypes are skipped, since they round that state.
    """
    steps, size = _step_count(subject, arguments), _time(subject)
    if steps < 2 or subject.dtype in NARROW or 0 in arguments.batch:
        return False
    states = _finals(subject).values()
    arguments = arguments.replaced({path: np.zeros_like(arguments.array(path)) for path in states})
    cut = int(rng.integers(1, steps))
    first_results = subject.results(arguments.along(size, keep(cut)))
    later_inputs = arguments.along(size, take(np.arange(cut, steps)))
    changes = {initial: first_results[final] for final, initial in _finals(subject).items()}
    for path in subject.operation.lengths:
        if arguments[path] is not None:
            changes[path] = np.asarray(np.maximum(arguments[path] - cut, 0))
    resumed = later_inputs.replaced(changes)
    expected, budgets = (
        select_rows(x, size, np.arange(cut, steps), subject, arguments)
        for x in (doubles(subject.results(arguments)), subject.budgets(arguments))
    )
    subject.all_match(subject.results(resumed), expected, doubled(budgets), resumed, f"continued after {cut} steps,")
    return True


def _poison(
    subject: Subject, arguments: Arguments, of_lengths: str, rng: np.random.Generator
) -> tuple[Arguments, Arguments, Numbers]:
    """Arguments with lengths, a copy with NaN and infinities as padding, the padding's mask."""
    steps, batch, path = _step_count(subject, arguments), arguments.batch, _input_path(subject)
    lengths = np.asarray(rng.integers(0, steps + 1, batch))
    lengths.reshape(-1)[:1] = steps - 1
    x = arguments.array(path)
    inputs = np.array(np.broadcast_to(x, (*batch, *x.shape[-2:])))
    padding = np.arange(steps) >= lengths[..., None]
    with_lengths = arguments.replaced({of_lengths: lengths, path: inputs})
    poison = rng.choice([np.nan, np.inf, -np.inf], inputs.shape)
    poison_array = subject.exact(np.where(padding[..., None], poison, wide(inputs)))
    return with_lengths, with_lengths.replaced({path: poison_array}), padding


@checks(law.PADDING_IGNORED)
def padding_ignored(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Store NaN and infinities behind the lengths."""
    of_lengths = _lengths(subject)
    if of_lengths is None or not _step_count(subject, arguments):
        return False
    with_lengths, poisoned, is_padding = _poison(subject, arguments, of_lengths, rng)
    before, after = subject.results(with_lengths), subject.results(poisoned)
    for path, x in after.items():
        title = f"with NaN or infinities after the lengths, the {path}"
        subject.demand_equal(x, before[path], partial(_budget, subject, with_lengths, path), poisoned, title)
    for path in _step_results(subject):
        holds = not after[path][is_padding].any()
        subject.demand(holds, f"after the lengths, the {path} are not 0", poisoned, got=after[path])
    return True


@checks(masking.MASKED_GETS_NO_GRADIENT, once=True, leading_dtype_only=True, governs=law.over_sequences)
def padding_gradient(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare gradients with NaN and infinities behind the lengths."""
    of_lengths, batches = _lengths(subject), [(2,), (3, 2)][: subject.limits.max_batch_dims]
    if of_lengths is None:
        return False
    for batch in batches:
        padded, poisoned, is_padding = _poison(subject, sample(subject, rng, batch), of_lengths, rng)
        cotangents = subject.cotangents(padded, rng)
        gradients = subject.vjp(poisoned, cotangents)
        expected = subject.gradients(padded, cotangents)
        gradients_match(subject, gradients, expected, poisoned, "with NaN or infinities after the lengths,")
        g = gradients[_input_path(subject)]
        subject.demand(not g[is_padding].any(), "after the lengths, the inputs' gradient is not 0", poisoned, got=g)
    return bool(batches)


@checks(law.RESUMES_FROM_STATE, governs=law.over_sequences)
def no_steps(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Cut all steps off; pass lengths of 0."""
    cut = arguments.along(_time(subject), keep(0))
    empty_calls = {"without a step": cut} if subject.limits.length_from(0) == 0 else {}
    of_lengths = _lengths(subject)
    if of_lengths is not None and _step_count(subject, arguments):
        empty_calls["with a length of 0"] = arguments.replaced({of_lengths: np.zeros(arguments.batch, np.int64)})
    for prefix, empty in empty_calls.items():
        got = subject.results(empty)
        for final, initial in _finals(subject).items():
            expected, title = np.broadcast_to(empty.array(initial), got[final].shape), f"{prefix}, the {final}"
            subject.demand_equal(got[final], expected, partial(_budget, subject, empty, final), empty, title)
    return bool(empty_calls)


@checks(law.BOUNDED_STATE)
def bounded_state(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check the magnitudes of all states, the cell included."""
    operation, in_steps = subject.operation, subject.operation.protocol in CELLS
    steps = _step_count(subject, arguments) if in_steps else 1
    ends = [leaf.path for leaf in operation.outputs]
    final_to_initial = _finals(subject) if in_steps else dict(zip(ends, _state_paths(subject), strict=True))
    (hidden, initial_hidden), *cells = final_to_initial.items()
    includes_state = in_steps or operation.protocol is GRUCell
    before = np.abs(wide(arguments.array(initial_hidden)))
    bound = np.maximum(before, 1) if includes_state else np.ones_like(before)
    demand_bounded(subject, arguments, hidden, bound, f"the {hidden}")
    for path in _step_results(subject) if in_steps else ():
        demand_bounded(subject, arguments, path, bound[..., None, :], f"one of the {path}")
    for final, initial in cells:
        largest = np.abs(wide(arguments.array(initial))) + steps
        demand_bounded(subject, arguments, final, largest, f"the {final}")
    return bool(subject.call(arguments).size)


@checks(law.REVERSAL_SWAPS_HALVES)
def reversal_swaps_halves(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Reverse inputs within their lengths; exchange parameters and states of the directions."""
    steps, path = _step_count(subject, arguments), _input_path(subject)
    of_lengths = _lengths(subject)
    lengths = None if of_lengths is None else arguments[of_lengths]
    ends = np.asarray(steps if lengths is None else np.broadcast_to(lengths, arguments.batch))[..., None]
    order = np.where(np.arange(steps) < ends, ends - 1 - np.arange(steps), np.arange(steps))

    def reversed_rows(x: Numbers) -> Numbers:
        places = np.broadcast_to(order, (*np.broadcast_shapes(x.shape[:-2], order.shape[:-1]), steps))
        return np.take_along_axis(np.broadcast_to(x, (*places.shape, x.shape[-1])), places[..., None], -2)

    values = dict(arguments.values_by_name)
    for name, node in zip(subject.operation.call.names, subject.operation.call.nodes, strict=True):
        if isinstance(node, Branch):  # a pair: the parameters or the states of both directions
            values[name] = tuple(reversed(values[name]))
    values[path] = reversed_rows(values[path])
    mirrored = Arguments(subject.operation, values)

    def swapped_back(arrays: Results) -> Results:
        (states,), finals = _step_results(subject), list(_finals(subject))
        half = len(finals) // 2
        forward, backward = np.split(reversed_rows(arrays[states]), 2, axis=-1)
        exchanged = zip(finals, finals[half:] + finals[:half], strict=True)
        return {states: np.concatenate([backward, forward], -1), **{final: arrays[other] for final, other in exchanged}}

    expected, budgets = swapped_back(doubles(subject.results(arguments))), swapped_back(subject.budgets(arguments))
    subject.all_match(subject.results(mirrored), expected, doubled(budgets), mirrored, "of reversed sequences,")
    return bool(steps)


@checks(law.HALVES_SEE_ONE_DIRECTION)
def halves_see_one_direction(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Change the inputs after a step; then those up to it."""
    steps = _step_count(subject, arguments)
    if steps < 2:
        return False
    cut = int(rng.integers(1, steps))
    later = np.arange(steps) >= cut
    (path,) = _step_results(subject)
    before = subject.results(arguments)[path]
    width = before.shape[-1] // 2
    for replaced, half, half_name in ((later, slice(width), "first"), (~later, slice(width, None), "second")):
        changed = with_other_rows(arguments, _time(subject), replaced, lambda x: random_like(x, rng, subject))
        kept = (..., np.flatnonzero(~replaced), half)
        title = f"with other inputs on the side it does not see, the {half_name} half of the {path}"
        got = subject.results(changed)[path]
        subject.demand_equal(got[kept], before[kept], partial(_budget, subject, arguments, path, kept), changed, title)
    return True


@checks(law.CONTEXT_OF_EARLIER_STATES)
def context_of_earlier_states(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check the first two contexts, and the magnitude of every context."""
    whole = _whole_sequences(arguments)
    results, budgets = subject.results(whole), subject.budgets(whole)
    contexts, states = (results[path] for path in _step_results(subject))
    of_contexts, of_states = (budgets[path] for path in _step_results(subject))
    first = contexts[..., :1, :]
    subject.demand_match(first, np.zeros(first.shape), np.zeros(first.shape), whole, "the first context")
    if _step_count(subject, whole) < 2:
        return bool(first.size)
    budget = of_contexts[..., 1, :] + of_states[..., 0, :]
    subject.demand_match(contexts[..., 1, :], wide(states[..., 0, :]), budget, whole, "the second context")
    largest = np.maximum.accumulate(np.abs(wide(states)) + of_states, axis=-2)[..., :-1, :]
    excess = np.abs(wide(contexts[..., 1:, :])) - of_contexts[..., 1:, :]
    subject.demand(bool((excess <= largest).all()), "a context is larger than every earlier state", whole, got=contexts)
    return bool(contexts.size)
