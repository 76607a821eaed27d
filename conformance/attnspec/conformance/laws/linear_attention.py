"""Checks of the laws of linear attention. Options of ``@checks``: see ``Check``."""

from functools import partial
from itertools import product
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, keep, take
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws.common import doubled, doubles, wide
from attnspec.spec.laws import linear_attention as law

STEPS = "t"
FORGETTING = (-1.0e4, -np.inf)
"""Decays whose exponential is 0 in every dtype."""


def _without(subject: Subject, arguments: Arguments, *paths: str) -> Arguments:
    """The call without these optional arrays."""
    return arguments.replaced(dict.fromkeys(paths))


def _with(subject: Subject, arguments: Arguments, path: str, value: Numbers) -> Arguments:
    return arguments.replaced({path: subject.exact(value)})


def _per_step(arguments: Arguments, *features: int) -> tuple[int, ...]:
    """Shape of a number, or of ``features`` numbers, per batch element, key head and step."""
    heads, steps = arguments.array("key").shape[-3:-1]
    return (*arguments.batch, heads, steps, *features)


def _results_match(subject: Subject, arguments: Arguments, expected: Results, budgets: Results, prefix: str) -> None:
    """Demand the expected results within twice the budgets, which two runs have together."""
    subject.all_match(subject.results(arguments), expected, doubled(budgets), arguments, prefix)


@checks(law.PARTS_EQUAL_WHOLE)
def parts_equal_whole(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Cut a sequence at two random steps and after the first; 16-bit dtypes round the state and are skipped."""
    steps = arguments.size(STEPS)
    if steps < 2 or subject.dtype in NARROW or subject.precision.inputs or subject.precision.operand:
        return False
    whole, budgets = doubles(subject.results(arguments)), subject.budgets(arguments)
    least = subject.limits.length_from(0)
    cuts = sorted({0, 1, *rng.integers(0, steps + 1, 2).tolist(), steps} if least == 0 else {0, 1, steps})
    state, outputs, part = arguments["state"], [], arguments
    for start, stop in zip([0, *cuts], [*cuts, steps], strict=True):
        if stop - start < least:
            continue
        part = arguments.along(STEPS, take(np.arange(start, stop))).replaced({"state": state})
        if not subject.in_domain(part):
            return False
        results = subject.results(part)
        outputs.append(wide(results["output"]))
        state = results["final"]
    got = {"output": np.concatenate(outputs, axis=-2), "final": wide(state)}
    for path, x in got.items():
        title = f"computed in parts that end at {', '.join(map(str, cuts))}, the {path}"
        subject.demand_match(x, whole[path], 2 * budgets[path], arguments, title)
    return True


@checks(law.LINEAR_RULE_IS_CAUSAL_ATTENTION)
def linear_rule_is_causal_attention(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare with the quadratic form, in double precision, after a call that leaves another state behind."""
    if subject.dtype == "float64" or not arguments.size(STEPS):
        return False
    started = _without(subject, arguments, "decay", "beta").replaced({"scale": None})
    subject.results(started)
    plain = started.replaced({"state": np.zeros_like(arguments.array("state"))})
    query, key, value = (wide(plain.array(name)) for name in ("query", "key", "value"))
    group = query.shape[-3] // key.shape[-3]
    heads = np.arange(query.shape[-3])
    own = heads % key.shape[-3] if subject.semantics.head_groups == "interleaved" else heads // group
    scores = np.tril(query @ np.swapaxes(key[..., own, :, :], -1, -2)) / np.sqrt(query.shape[-1])
    budgets = subject.budgets(plain)
    expected = {"output": scores @ value[..., own, :, :], "final": np.swapaxes(key, -1, -2) @ value}
    expected = {path: np.broadcast_to(x, budgets[path].shape) for path, x in expected.items()}
    subject.all_match(subject.results(plain), expected, budgets, plain, "of the linear rule,")
    return True


@checks(law.ZERO_RATE_WRITES_NOTHING)
def zero_rate_writes_nothing(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set β to 0; then leave out the decay too."""
    if not subject.limits.has("beta"):
        return False
    idle = _with(subject, arguments, "beta", np.zeros(_per_step(arguments)))
    still = idle.replaced({"decay": None})
    got = subject.results(still)["final"]
    state = np.broadcast_to(arguments.array("state"), got.shape)
    budget = partial(_budget, subject, still, "final")
    subject.demand_equal(got, state, budget, still, "with β = 0 and no decay, the final state")
    silent = idle.replaced({"key": np.zeros_like(arguments.array("key"))})
    _results_match(subject, silent, doubles(subject.results(idle)), subject.budgets(idle), "with keys of 0 for β = 0,")
    return bool(got.size)


def _budget(subject: Subject, arguments: Arguments, path: str) -> Numbers:
    return subject.budgets(arguments)[path]


@checks(law.FULL_RATE_STORES_VALUE)
def full_rate_stores_value(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Write at unit vectors with β = 1, and read with the same vectors."""
    if not subject.limits.has("beta") or not arguments.size(STEPS):
        return False
    key, query = arguments.array("key"), arguments.array("query")
    places = rng.integers(0, key.shape[-1], key.shape[-2])
    unit_rows = np.eye(key.shape[-1])[places]
    unit: dict[str, Any] = {
        "key": subject.exact(np.broadcast_to(unit_rows, key.shape).copy()),
        "query": subject.exact(np.broadcast_to(unit_rows, query.shape).copy()),
        "beta": subject.exact(np.ones(_per_step(arguments))),
    }
    if subject.limits.has("scale"):
        unit["scale"] = 1.0
    else:
        unit["query"] = subject.exact(np.sqrt(key.shape[-1]) * unit["query"].astype(np.float64))
    stored = arguments.replaced(unit)
    heads = np.arange(query.shape[-3])
    group = query.shape[-3] // key.shape[-3]
    own = heads % key.shape[-3] if subject.semantics.head_groups == "interleaved" else heads // group
    budgets = subject.budgets(stored)
    expected = np.broadcast_to(wide(stored.array("value"))[..., own, :, :], budgets["output"].shape)
    got = subject.results(stored)["output"]
    subject.demand_match(got, expected, 2 * budgets["output"], stored, "read with the key just written, the output")
    return bool(got.size)


@checks(law.NO_DECAY_IS_UNGATED)
def no_decay_is_ungated(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare decays of 0 with none; decays per feature with one per head."""
    if not subject.limits.has("decay") or not arguments.size(STEPS):
        return False
    ungated = _without(subject, arguments, "decay")
    d = arguments.array("key").shape[-1]
    expected, budgets = doubles(subject.results(ungated)), subject.budgets(ungated)
    for features in (1, d):
        zero = _with(subject, arguments, "decay", np.zeros(_per_step(arguments, features)))
        _results_match(subject, zero, expected, budgets, f"with {features} decays of 0 per step,")
    single = _with(subject, arguments, "decay", -rng.random(_per_step(arguments, 1)))
    spread = np.broadcast_to(single.array("decay"), _per_step(arguments, d)).copy()
    expected, budgets = doubles(subject.results(single)), subject.budgets(single)
    per_feature = single.replaced({"decay": spread})
    _results_match(subject, per_feature, expected, budgets, "with the same decay for every feature,")
    return True


@checks(law.FULL_DECAY_FORGETS)
def full_decay_forgets(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Forget at one step; compare with the rest alone, which begins with an empty state."""
    steps = arguments.size(STEPS)
    if not subject.limits.has("decay") or steps < 2:
        return False
    cut = int(rng.integers(1, steps))
    calls = [arguments] if arguments["beta"] is None else [arguments, arguments.replaced({"beta": None})]
    for call, forgetting in product(calls, FORGETTING):
        decay = -rng.random(_per_step(call, 1))
        decay[..., cut, :] = forgetting
        resetting = _with(subject, call, "decay", decay)
        rest = resetting.along(STEPS, take(np.arange(cut, steps)))
        # An empty state has nothing to forget, so the first decay of the rest does not matter.
        harmless = np.where(np.arange(steps - cut)[:, None] > 0, rest.array("decay"), rest.array("decay").dtype.type(0))
        rest = rest.replaced({"state": np.zeros_like(arguments.array("state")), "decay": harmless})
        expected, budgets = doubles(subject.results(rest)), subject.budgets(resetting)
        got = subject.results(resetting)
        later = {"output": got["output"][..., cut:, :], "final": got["final"]}
        for path, x in later.items():
            budget = budgets[path][..., cut:, :] if path == "output" else budgets[path]
            title = f"after a decay of {forgetting:g} at step {cut}, the {path}"
            subject.demand_match(x, expected[path], 2 * budget, resetting, title)
    return True


@checks(law.DECAY_IS_EXPONENTIAL)
def decay_is_exponential(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set keys to 0; the state decays only."""
    if not subject.limits.has("decay") or not arguments.size(STEPS):
        return False
    first = arguments.along(STEPS, keep(min(arguments.size(STEPS), 8)))
    decay = subject.exact(-rng.random(_per_step(first, first.array("key").shape[-1])))
    decaying = first.replaced({"decay": decay, "key": np.zeros_like(first.array("key"))})
    factors = np.exp(wide(decay).sum(-2))[..., None]
    got, budget = subject.results(decaying)["final"], subject.budgets(decaying)["final"]
    expected = np.broadcast_to(factors * wide(first.array("state")), got.shape)
    subject.demand_match(got, expected, 2 * budget, decaying, "with keys of 0, the final state")
    return bool(got.size)
