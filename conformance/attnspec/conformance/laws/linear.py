"""Checks of the laws of linear attention and of the short convolution. Options of ``@checks``: see ``Check``."""

from functools import partial
from itertools import product
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, keep, take
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.inputs.recurrences import carried, convolution, recurrence
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.common import doubled, doubles, key_heads, wide
from attnspec.spec.laws import linear as law

FORGETTING = (-1.0e4, -np.inf)
"""Decays whose exponential is 0 in every dtype."""


def _with(subject: Subject, arguments: Arguments, path: str, value: Numbers) -> Arguments:
    return arguments.replaced({path: subject.exact(value)})


def _per_step(arguments: Arguments, *features: int) -> tuple[int, ...]:
    """Shape of a number, or of ``features`` numbers, per batch element, key head and step."""
    heads, steps = arguments.array(recurrence(arguments.operation).key).shape[-3:-1]
    return (*arguments.batch, heads, steps, *features)


def _results_match(subject: Subject, arguments: Arguments, expected: Results, budgets: Results, prefix: str) -> None:
    """Demand the expected results within twice the budgets, which two runs have together."""
    subject.all_match(subject.results(arguments), expected, doubled(budgets), arguments, prefix)


@checks(law.PARTS_EQUAL_WHOLE)
def parts_equal_whole(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Cut a sequence at two random steps and after the first; 16-bit dtypes round the state and are skipped."""
    p = carried(subject.operation)
    steps = arguments.size(p.steps)
    if steps < 2 or subject.dtype in NARROW or subject.precision.inputs or subject.precision.operand:
        return False
    whole, budgets = doubles(subject.results(arguments)), subject.budgets(arguments)
    least = subject.limits.length_from(0)
    cuts = sorted({0, 1, *rng.integers(0, steps + 1, 2).tolist(), steps} if least == 0 else {0, 1, steps})
    state, outputs, part = arguments[p.state], [], arguments
    for start, stop in zip([0, *cuts], [*cuts, steps], strict=True):
        if stop - start < least:
            continue
        part = arguments.along(p.steps, take(np.arange(start, stop))).replaced({p.state: state})
        if not subject.in_domain(part):
            return False
        results = subject.results(part)
        outputs.append(wide(results[p.output]))
        state = results[p.final]
    got = {p.output: np.concatenate(outputs, axis=-2), p.final: wide(state)}
    for path, x in got.items():
        title = f"computed in parts that end at {', '.join(map(str, cuts))}, the {path}"
        subject.demand_match(x, whole[path], 2 * budgets[path], arguments, title)
    return True


@checks(law.LINEAR_RULE_IS_CAUSAL_ATTENTION)
def linear_rule_is_causal_attention(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare with the quadratic form, after a call that leaves another state behind."""
    p = recurrence(subject.operation)
    if subject.dtype == "float64" or not arguments.size(p.steps):
        return False
    started = arguments.replaced(dict.fromkeys((p.decay, p.rate, p.scale)))
    subject.results(started)
    plain = started.replaced({p.state: np.zeros_like(arguments.array(p.state))})
    query, key, value = (wide(plain.array(name)) for name in (p.query, p.key, p.value))
    own = key_heads(subject, query.shape[-3], key.shape[-3])
    scores = np.tril(query @ np.swapaxes(key[..., own, :, :], -1, -2)) / np.sqrt(query.shape[-1])
    budgets = subject.budgets(plain)
    expected = {p.output: scores @ value[..., own, :, :], p.final: np.swapaxes(key, -1, -2) @ value}
    expected = {path: np.broadcast_to(x, budgets[path].shape) for path, x in expected.items()}
    subject.all_match(subject.results(plain), expected, budgets, plain, "of the linear rule,")
    return True


@checks(law.ZERO_RATE_WRITES_NOTHING)
def zero_rate_writes_nothing(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set β to 0; then leave out the decay too."""
    p = recurrence(subject.operation)
    if not subject.limits.has(p.rate):
        return False
    idle = _with(subject, arguments, p.rate, np.zeros(_per_step(arguments)))
    still = idle.replaced({p.decay: None})
    got = subject.results(still)[p.final]
    state = np.broadcast_to(arguments.array(p.state), got.shape)
    budget = partial(_budget, subject, still, p.final)
    subject.demand_equal(got, state, budget, still, "with β = 0 and no decay, the final state")
    silent = idle.replaced({p.key: np.zeros_like(arguments.array(p.key))})
    _results_match(subject, silent, doubles(subject.results(idle)), subject.budgets(idle), "with keys of 0 for β = 0,")
    return bool(got.size)


def _budget(subject: Subject, arguments: Arguments, path: str) -> Numbers:
    return subject.budgets(arguments)[path]


@checks(law.FULL_RATE_STORES_VALUE)
def full_rate_stores_value(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Write at unit vectors with β = 1, and read with the same vectors."""
    p = recurrence(subject.operation)
    if not subject.limits.has(p.rate) or not arguments.size(p.steps):
        return False
    key, query = arguments.array(p.key), arguments.array(p.query)
    places = rng.integers(0, key.shape[-1], key.shape[-2])
    unit_rows = np.eye(key.shape[-1])[places]
    unit: dict[str, Any] = {
        p.key: subject.exact(np.broadcast_to(unit_rows, key.shape).copy()),
        p.query: subject.exact(np.broadcast_to(unit_rows, query.shape).copy()),
        p.rate: subject.exact(np.ones(_per_step(arguments))),
    }
    if subject.limits.has(p.scale):
        unit[p.scale] = 1.0
    else:
        unit[p.query] = subject.exact(np.sqrt(key.shape[-1]) * unit[p.query].astype(np.float64))
    stored = arguments.replaced(unit)
    own = key_heads(subject, query.shape[-3], key.shape[-3])
    budgets = subject.budgets(stored)
    expected = np.broadcast_to(wide(stored.array(p.value))[..., own, :, :], budgets[p.output].shape)
    got = subject.results(stored)[p.output]
    subject.demand_match(got, expected, 2 * budgets[p.output], stored, "read with the key just written, the output")
    return bool(got.size)


@checks(law.NO_DECAY_IS_UNGATED)
def no_decay_is_ungated(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare decays of 0 with none; decays per feature with one per head."""
    p = recurrence(subject.operation)
    if not subject.limits.has(p.decay) or not arguments.size(p.steps):
        return False
    ungated = arguments.replaced({p.decay: None})
    d = arguments.array(p.key).shape[-1]
    expected, budgets = doubles(subject.results(ungated)), subject.budgets(ungated)
    for features in (1, d):
        zero = _with(subject, arguments, p.decay, np.zeros(_per_step(arguments, features)))
        _results_match(subject, zero, expected, budgets, f"with {features} decays of 0 per step,")
    single = _with(subject, arguments, p.decay, -rng.random(_per_step(arguments, 1)))
    spread = np.broadcast_to(single.array(p.decay), _per_step(arguments, d)).copy()
    expected, budgets = doubles(subject.results(single)), subject.budgets(single)
    per_feature = single.replaced({p.decay: spread})
    _results_match(subject, per_feature, expected, budgets, "with the same decay for every feature,")
    return True


@checks(law.FULL_DECAY_FORGETS)
def full_decay_forgets(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Forget at one step; compare with the rest alone, which begins with an empty state."""
    p = recurrence(subject.operation)
    steps = arguments.size(p.steps)
    if not subject.limits.has(p.decay) or steps < 2:
        return False
    cut = int(rng.integers(1, steps))
    calls = [arguments] if arguments[p.rate] is None else [arguments, arguments.replaced({p.rate: None})]
    for call, forgetting in product(calls, FORGETTING):
        decay = -rng.random(_per_step(call, 1))
        decay[..., cut, :] = forgetting
        resetting = _with(subject, call, p.decay, decay)
        later_call = resetting.along(p.steps, take(np.arange(cut, steps)))
        # An empty state has nothing to forget, so that the first decay does not matter.
        harmless = later_call.array(p.decay).copy()
        harmless[..., 0, :] = 0
        later_call = later_call.replaced({p.state: np.zeros_like(arguments.array(p.state)), p.decay: harmless})
        expected, budgets = doubles(subject.results(later_call)), subject.budgets(resetting)
        got = subject.results(resetting)
        later = {p.output: got[p.output][..., cut:, :], p.final: got[p.final]}
        for path, x in later.items():
            budget = budgets[path][..., cut:, :] if path == p.output else budgets[path]
            title = f"after a decay of {forgetting:g} at step {cut}, the {path}"
            subject.demand_match(x, expected[path], 2 * budget, resetting, title)
    return True


@checks(law.DECAY_IS_EXPONENTIAL)
def decay_is_exponential(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set keys to 0; the state decays only."""
    p = recurrence(subject.operation)
    if not subject.limits.has(p.decay) or not arguments.size(p.steps):
        return False
    first = arguments.along(p.steps, keep(min(arguments.size(p.steps), 8)))
    decay = subject.exact(-rng.random(_per_step(first, first.array(p.key).shape[-1])))
    decaying = first.replaced({p.decay: decay, p.key: np.zeros_like(first.array(p.key))})
    factors = np.exp(wide(decay).sum(-2))[..., None]
    got, budget = subject.results(decaying)[p.final], subject.budgets(decaying)[p.final]
    expected = np.broadcast_to(factors * wide(first.array(p.state)), got.shape)
    subject.demand_match(got, expected, 2 * budget, decaying, "with keys of 0, the final state")
    return bool(got.size)


@checks(law.TAPS_ARE_DELAYS)
def taps_are_delays(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set the weights of one tap after another to 1."""
    p, paths = convolution(subject.operation), carried(subject.operation)
    if subject.precision.inputs or subject.precision.operand:
        return False
    rows, weight = _state_and_inputs(arguments), arguments.array(p.weight)
    steps, taps = arguments.size(paths.steps), weight.shape[-1]
    for j in range(taps):
        single = np.zeros_like(weight)
        single[..., j] = 1
        call = arguments.replaced({p.weight: single, p.bias: None})
        got = subject.results(call)[paths.output]
        title = f"with weight 1 at tap {j} of {taps}, the {paths.output}"
        subject.demand_equal(
            got, rows[..., j : j + steps, :], partial(_budget, subject, call, paths.output), call, title
        )
    return bool(steps)


@checks(law.STATE_IS_LAST_INPUTS)
def state_is_last_inputs(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Take all inputs, then one at most, which is fewer than the state may hold; then begin with zeros."""
    paths = carried(subject.operation)
    few = arguments.along(paths.steps, keep(min(arguments.size(paths.steps), subject.limits.length_from(1))))
    for call in (arguments, few, few.replaced({paths.state: np.zeros_like(arguments.array(paths.state))})):
        steps = call.size(paths.steps)
        got, rows = subject.results(call)[paths.final], _state_and_inputs(call)
        title = f"after {steps} inputs, the {paths.final}"
        subject.demand_equal(got, rows[..., steps:, :], partial(_budget, subject, call, paths.final), call, title)
    return True


def _state_and_inputs(arguments: Arguments) -> Numbers:
    """Rows of the state, then the inputs, with the batch of the call."""
    parts = [arguments.array(p) for p in (carried(arguments.operation).state, convolution(arguments.operation).x)]
    return np.concatenate([np.broadcast_to(x, (*arguments.batch, *x.shape[-2:])) for x in parts], axis=-2)
