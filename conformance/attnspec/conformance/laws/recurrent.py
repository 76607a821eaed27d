"""Checks of the laws of recurrent cells and sequences."""

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
    bounded,
    doubles,
    picked,
    random_like,
    record,
    sample,
    twice,
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
"""A bias at which a sigmoid is 0 or 1 in every dtype."""


def _saturated(subject: Subject, arguments: Arguments, biases: Mapping[int, float]) -> Arguments:
    """Saturate gates by ``biases`` (by ``id`` of the array); weights and inputs are clipped."""
    changes = {}
    for leaf, x in arguments.floats:
        bound = 0.5 if subject.operation.role(leaf) is Role.WEIGHT else 2
        changes[leaf.path] = subject.exact(np.clip(wide(x), -bound, bound))
        if id(x) in biases:
            changes[leaf.path] = subject.exact(np.full(x.shape, biases[id(x)]))
    return arguments.replaced(changes)


def _cell_states(subject: Subject) -> list[str]:
    """The paths of the previous state; of an LSTM, hidden state and cell."""
    sizes = subject.operation.outputs[-1].sizes
    return [leaf.path for leaf in subject.operation.leaves if leaf.batched and leaf.sizes == sizes]


@checks(law.GATES)
def gates(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Open and close gates by their biases."""
    if subject.operation.protocol is LSTMCell:
        of_lstm = record(arguments, LSTMParameters)
        kept = {id(of_lstm.b_f): SATURATED, id(of_lstm.b_i): -SATURATED}
        return _keeps(subject, arguments, kept, "forget gate open and input gate closed")
    p = record(arguments, GRUParameters)
    for opened, what in ((False, "both gates closed"), (True, "the update gate closed")):
        biases = {id(p.b_z): -SATURATED, id(p.b_r): SATURATED if opened else -SATURATED}
        given = _saturated(subject, arguments, biases)
        expected = _plain_network(subject, given, with_state=opened)
        title = f"with {what}, as of a plain network, the result"
        subject.matches(subject.call(given), expected, subject.budget(given), given, title)
    return _keeps(subject, arguments, {id(p.b_z): SATURATED}, "the update gate open")


def _keeps(subject: Subject, arguments: Arguments, biases: Mapping[int, float], what: str) -> bool:
    """Demand that the last result equals the previous state."""
    given, path = _saturated(subject, arguments, biases), subject.operation.outputs[-1].path
    got = subject.results(given)[path]
    kept = np.broadcast_to(wide(given.array(_cell_states(subject)[-1])), got.shape)
    subject.matches(got, kept, subject.budgets(given)[path], given, f"with {what}, {path}")
    return bool(got.size)


def _plain_network(subject: Subject, given: Arguments, *, with_state: bool) -> Numbers:
    """The next state of a GRU with its update gate closed, with or without state."""
    p = record(given, GRUParameters)
    (path,) = _cell_states(subject)
    (x,) = (a for leaf, a in given.batched if leaf.path != path)
    exact = oracle_dtype(subject.precision.dtype)
    of_input, of_state = (v.astype(exact) @ w.astype(exact) for v, w in ((x, p.w_xh), (given.array(path), p.w_hh)))
    if not with_state:
        of_state = np.zeros_like(of_state)
    expected: Numbers = np.tanh(of_input + of_state + p.b_h.astype(exact))
    return expected


@checks(law.OUTPUT_BIAS)
def output_bias(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set the state to 0: the result is the bias."""
    operation = subject.operation
    changes = {leaf.path: np.zeros_like(x) for leaf, x in arguments.floats if operation.role(leaf) is Role.STATE}
    given = arguments.replaced(changes)
    (bias,) = (x for leaf, x in given.floats if operation.role(leaf) is Role.WEIGHT and len(leaf.core) == 1)
    got = subject.call(given)
    expected = np.broadcast_to(wide(bias), got.shape)
    subject.matches(got, expected, subject.budget(given), given, "of a state of 0, the result")
    return bool(got.size)


# Sequences ------------------------------------------------------------------------------------------------------------

CELLS: Mapping[object, object] = {RNN: RNNCell, GRU: GRUCell, LSTM: LSTMCell}
"""The cell that a network computes at every step."""


def _time(subject: Subject) -> str:
    """The size that counts steps."""
    return subject.operation.sizes_of(Axis.TIME)[0]


def _steps(subject: Subject, arguments: Arguments) -> int:
    return arguments.size(_time(subject))


def _inputs(subject: Subject) -> str:
    """The path of the inputs, which have a row for every step."""
    return subject.operation.along(_time(subject))[0].path


def _lengths(subject: Subject) -> str:
    return next(iter(subject.operation.lengths))


def _finals(subject: Subject) -> dict[str, str]:
    """The paths of the final state's parts, each with that of the initial one."""
    operation = subject.operation
    states = operation.queries or [leaf for leaf in operation.leaves if operation.role(leaf) is Role.STATE]
    final = [leaf.path for leaf in operation.outputs if _time(subject) not in leaf.sizes]
    return dict(zip(final, (leaf.path for leaf in states), strict=True))


def _shown(subject: Subject) -> list[str]:
    """The results with a row for every step."""
    return [leaf.path for leaf in subject.operation.outputs if _time(subject) in leaf.sizes]


def _budget(subject: Subject, arguments: Arguments, path: str, part: Any = ...) -> Numbers:
    """The budget of an array of the result, or of part of it."""
    budget: Numbers = subject.budgets(arguments)[path][part]
    return budget


@checks(law.FIRST_STEP)
def first_step(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare a sequence of one step with the backend's own cell."""
    cell = operation_of(CELLS[subject.operation.protocol])
    assert cell is not None
    other = subject.beside(cell)
    if other is None or other.choices != subject.choices or not _steps(subject, arguments):
        return False
    path = _inputs(subject)
    one = arguments.along(_time(subject), keep(1)).replaced({_lengths(subject): None})
    values = {name: one[name][..., 0, :] if name == path else one.values_by_name[name] for name in one.values_by_name}
    alone = Arguments(cell, dict(zip(cell.call.names, values.values(), strict=False)))
    expected, budgets = list(doubles(other.results(alone)).values()), list(other.budgets(alone).values())
    got, own = subject.results(one), subject.budgets(one)
    for final, x, budget in zip(_finals(subject), expected, budgets, strict=True):
        subject.matches(got[final], x, own[final] + budget, one, f"after one step, against the cell, the {final}")
    return bool(expected[0].size)


@checks(law.CONTINUATION, governs=law.in_two_parts)
def continuation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Cut a sequence that starts at state 0, and continue from the state there.

    Half dtypes would round that state.
    """
    steps, size = _steps(subject, arguments), _time(subject)
    if steps < 2 or subject.dtype in NARROW or 0 in arguments.batch:
        return False
    states = _finals(subject).values()
    arguments = arguments.replaced({path: np.zeros_like(arguments.array(path)) for path in states})
    cut = int(rng.integers(1, steps))
    beginning = subject.results(arguments.along(size, keep(cut)))
    rest = arguments.along(size, take(np.arange(cut, steps)))
    changes = {initial: beginning[final] for final, initial in _finals(subject).items()}
    for path in subject.operation.lengths:
        if arguments[path] is not None:
            changes[path] = np.asarray(np.maximum(arguments[path] - cut, 0))
    later = rest.replaced(changes)
    expected, budgets = (
        picked(x, size, np.arange(cut, steps), subject, arguments)
        for x in (doubles(subject.results(arguments)), subject.budgets(arguments))
    )
    subject.all_match(subject.results(later), expected, twice(budgets), later, f"continued after {cut} steps,")
    return True


def _padded(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> tuple[Arguments, Arguments, Numbers]:
    """Arguments with lengths, a copy with non-finite padding, and the mask of padding."""
    steps, batch, path = _steps(subject, arguments), arguments.batch, _inputs(subject)
    lengths = np.asarray(rng.integers(0, steps + 1, batch))
    lengths.reshape(-1)[:1] = steps - 1
    x = arguments.array(path)
    whole = np.array(np.broadcast_to(x, (*batch, *x.shape[-2:])))
    padding = np.arange(steps) >= lengths[..., None]
    given = arguments.replaced({_lengths(subject): lengths, path: whole})
    poison = rng.choice([np.nan, np.inf, -np.inf], whole.shape)
    spoilt = subject.exact(np.where(padding[..., None], poison, wide(whole)))
    return given, given.replaced({path: spoilt}), padding


@checks(law.PADDING)
def padding(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Store NaN and infinities behind the lengths."""
    if not _steps(subject, arguments):
        return False
    given, spoilt, behind = _padded(subject, arguments, rng)
    before, after = subject.results(given), subject.results(spoilt)
    for path, x in after.items():
        what = f"with NaN or infinities behind the lengths, the {path}"
        subject.same(x, before[path], partial(_budget, subject, given, path), spoilt, what)
    for path in _shown(subject):
        holds = not after[path][behind].any()
        subject.holds(holds, f"behind the lengths, the {path} are not 0", spoilt, got=after[path])
    return True


@checks(masking.GRADIENTS, once=True, at_leading=True, governs=law.over_sequences)
def padding_gradient(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare gradients with NaN and infinities behind the lengths."""
    batches = [(2,), (3, 2)][: subject.limits.max_batch_dims]
    for batch in batches:
        given, spoilt, behind = _padded(subject, sample(subject, rng, batch), rng)
        cotangents = subject.cotangents(given, rng)
        found = subject.vjp(spoilt, cotangents)
        expected = subject.gradients(given, cotangents)
        gradients_match(subject, found, expected, spoilt, "with NaN or infinities behind the lengths,")
        g = found[_inputs(subject)]
        subject.holds(not g[behind].any(), "behind the lengths, the gradient of inputs is not 0", spoilt, got=g)
    return bool(batches)


@checks(law.CONTINUATION, governs=law.over_sequences)
def no_steps(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Cut all steps off, and pass lengths of 0."""
    cut = arguments.along(_time(subject), keep(0))
    ways = {"without a step": cut} if subject.limits.length_from(0) == 0 else {}
    if _steps(subject, arguments):
        none = np.zeros(arguments.batch, np.int64)
        ways["with a length of 0"] = arguments.replaced({_lengths(subject): none})
    for what, given in ways.items():
        got = subject.results(given)
        for final, initial in _finals(subject).items():
            expected = np.broadcast_to(given.array(initial), got[final].shape)
            subject.same(got[final], expected, partial(_budget, subject, given, final), given, f"{what}, the {final}")
    return bool(ways)


@checks(law.BOUNDS)
def bounds(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check the magnitudes of all states, and of the cell."""
    operation, in_steps = subject.operation, subject.operation.protocol in CELLS
    steps = _steps(subject, arguments) if in_steps else 1
    ends = [leaf.path for leaf in operation.outputs]
    pairs = _finals(subject) if in_steps else dict(zip(ends, _cell_states(subject), strict=True))
    (hidden, of_hidden), *cells = pairs.items()
    kept = in_steps or operation.protocol is GRUCell
    before = np.abs(wide(arguments.array(of_hidden)))
    bound = np.maximum(before, 1) if kept else np.ones_like(before)
    bounded(subject, arguments, hidden, bound, f"the {hidden}")
    for path in _shown(subject) if in_steps else ():
        bounded(subject, arguments, path, bound[..., None, :], f"one of the {path}")
    for final, initial in cells:
        most = np.abs(wide(arguments.array(initial))) + steps
        bounded(subject, arguments, final, most, f"the {final}")
    return bool(subject.call(arguments).size)


@checks(law.REVERSAL)
def reversal(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Reverse inputs within lengths, and exchange parameters and states of both directions."""
    steps, path = _steps(subject, arguments), _inputs(subject)
    lengths = arguments[_lengths(subject)]
    ends = np.asarray(steps if lengths is None else np.broadcast_to(lengths, arguments.batch))[..., None]
    order = np.where(np.arange(steps) < ends, ends - 1 - np.arange(steps), np.arange(steps))

    def turned(x: Numbers) -> Numbers:
        places = np.broadcast_to(order, (*np.broadcast_shapes(x.shape[:-2], order.shape[:-1]), steps))
        return np.take_along_axis(np.broadcast_to(x, (*places.shape, x.shape[-1])), places[..., None], -2)

    values = dict(arguments.values_by_name)
    for name, node in zip(subject.operation.call.names, subject.operation.call.nodes, strict=True):
        if isinstance(node, Branch):
            values[name] = tuple(reversed(values[name]))
    values[path] = turned(values[path])
    mirrored = Arguments(subject.operation, values)

    def back(found: Results) -> Results:
        (states,), finals = _shown(subject), list(_finals(subject))
        half = len(finals) // 2
        forward, backward = np.split(turned(found[states]), 2, axis=-1)
        exchanged = zip(finals, finals[half:] + finals[:half], strict=True)
        return {states: np.concatenate([backward, forward], -1), **{one: found[other] for one, other in exchanged}}

    expected, budgets = back(doubles(subject.results(arguments))), back(subject.budgets(arguments))
    subject.all_match(subject.results(mirrored), expected, twice(budgets), mirrored, "of reversed sequences,")
    return bool(steps)


@checks(law.HALVES)
def halves(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Change the inputs after a step, and those up to it."""
    steps = _steps(subject, arguments)
    if steps < 2:
        return False
    cut = int(rng.integers(1, steps))
    later = np.arange(steps) >= cut
    (path,) = _shown(subject)
    before = subject.results(arguments)[path]
    width = before.shape[-1] // 2
    for chosen, half, what in ((later, slice(width), "first"), (~later, slice(width, None), "second")):
        changed = with_other_rows(arguments, _time(subject), chosen, lambda x: random_like(x, rng, subject))
        kept = (..., np.flatnonzero(~chosen), half)
        message = f"with other inputs that it has not seen, the {what} half of the {path}"
        got = subject.results(changed)[path]
        subject.same(got[kept], before[kept], partial(_budget, subject, arguments, path, kept), changed, message)
    return True


@checks(law.FIRST_CONTEXT)
def first_context(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check the first two contexts, and the magnitudes of all."""
    given = arguments.replaced({_lengths(subject): None})
    results, budgets = subject.results(given), subject.budgets(given)
    contexts, states = (results[path] for path in _shown(subject))
    of_contexts, of_states = (budgets[path] for path in _shown(subject))
    first = contexts[..., :1, :]
    subject.matches(first, np.zeros(first.shape), np.zeros(first.shape), given, "the first context")
    if _steps(subject, given) < 2:
        return bool(first.size)
    budget = of_contexts[..., 1, :] + of_states[..., 0, :]
    subject.matches(contexts[..., 1, :], wide(states[..., 0, :]), budget, given, "the second context")
    reach = np.maximum.accumulate(np.abs(wide(states)) + of_states, axis=-2)[..., :-1, :]
    late = np.abs(wide(contexts[..., 1:, :])) - of_contexts[..., 1:, :]
    subject.holds(bool((late <= reach).all()), "a context exceeds the states before it", given, got=contexts)
    return bool(contexts.size)
