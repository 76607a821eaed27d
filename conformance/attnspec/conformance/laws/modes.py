"""Checks that results are the same in every mode, such as inference.

A backend names its modes, each with a context in which calls are made. Modes of a 16-bit dtype only, such as PyTorch's
autocast, cast to 16 bits and may store scores in them; budgets allow for that. Options of ``@checks``: see ``Check``.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import mask_shape, with_explicit_mask
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.inputs.layouts import VIEW_ERRORS
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.foreign_calls import Raised, call_safely
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws.common import sample
from attnspec.conformance.laws.gradient_calls import TILE, accepted_masks, accepts_causal, restrict
from attnspec.spec.contract.precision import Precision
from attnspec.spec.laws import training as law

Modes = Mapping[str, Callable[[], AbstractContextManager[Any]]]

Calls = list[tuple[str, Arguments]]
"""Prefixes of messages, and calls that differ in batched arrays, masks and causal flag."""


class _ExpectedCall(NamedTuple):
    """A call with its prefix in messages, its expected results and budgets."""

    prefix: str
    arguments: Arguments
    expected: Results
    budgets: Results


@checks(law.SAME_IN_EVERY_MODE, once=True)
def same_in_every_mode(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Call in every mode of the backend, rewriting the same memory between calls.

    The calls are unmasked, masked, causal, both, and of one query with more keys than a tile. Short profiles try the
    leading dtype; at the first 16-bit dtype they try modes that wider dtypes lack. One call is made in another thread,
    where settings of the main thread may be missing.
    """
    contexts = modes_of(subject)
    if not contexts:
        calls = _expected_calls(subject, [("", _small_call(subject, rng))]) if _every_dtype(subject) else []
        return _in_thread(subject, calls)
    lists = [_short_calls(subject, rng), _decoding_calls(subject, rng)]
    storing = in_16_bits(subject)
    # Calls with expected results, for modes that store in 16 bits (True) and for all others (False).
    groups: dict[bool, list[list[_ExpectedCall]]] = {}
    for mode, context in contexts.items():
        stores = mode in storing
        if stores not in groups:
            judging = _StoringSubject(subject) if stores else subject
            short, long = (_expected_calls(judging, x) for x in lists)
            # The run's example is the last resort: it may be all zeros or empty, and so show no differences.
            groups[stores] = [group for group in (short or _expected_calls(judging, [("", arguments)]), long) if group]
        for group in groups[stores]:
            memory: dict[str, Any] = {}
            for call in group:
                inputs = _rewritten_arrays(subject, call.arguments, memory)
                got = within(subject, call.arguments, inputs, f"in mode {mode}", context)
                subject.all_match(got, call.expected, call.budgets, call.arguments, f"in mode {mode}{call.prefix},")
        if stores and "float32" in subject.limits.dtypes_for(subject.operation.name):
            _compare_cast(subject, groups[stores], mode, context)
    if _every_dtype(subject):
        _in_thread(subject, next(filter(None, groups.get(False, [])), []))
    return any(groups.values())


def _every_dtype(subject: Subject) -> bool:
    """Return whether the dtype is the leading one or the profile is long."""
    return subject.is_leading_dtype or subject.effort.slow


def _in_thread(subject: Subject, calls: list[_ExpectedCall]) -> bool:
    """Make the first of these calls in another thread; False without calls."""
    for call in calls[:1]:
        place = "in a thread that is not the main one"
        got = within(subject, call.arguments, subject.converted(call.arguments), place, nullcontext, threaded=True)
        subject.all_match(got, call.expected, call.budgets, call.arguments, f"{place},")
    return bool(calls)


def _compare_cast(
    subject: Subject, groups: list[list[_ExpectedCall]], mode: str, context: Callable[[], AbstractContextManager[Any]]
) -> None:
    """Call with inputs in float32, which the mode casts to 16 bits.

    A backend may raise: PyTorch's LSTM does, on processors without bfloat16 multiplication.
    """
    for call in (calls[-1] for calls in groups):
        wider = call.arguments.replaced({leaf.path: _as_float32(x) for leaf, x in call.arguments.floats})
        inputs = subject.converted(wider)
        try:
            got = within(subject, call.arguments, inputs, f"in mode {mode}", context)
        except Violation as violation:
            if violation.reason is Reason.RAISED:
                continue
            raise
        prefix = f"in mode {mode} with inputs in float32{call.prefix},"
        subject.all_match(got, call.expected, call.budgets, call.arguments, prefix)


def _as_float32(x: Numbers) -> Numbers:
    return x.astype(np.float32)


class _StoringSubject(Subject):
    """The subject in a mode that casts to 16 bits and rounds stored scores."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject.backend, subject.contract, subject.operation, subject.dtype, subject.device)
        self.sampled, self.default_dtype = subject.sampled, subject.default_dtype

    @property
    def precision(self) -> Precision:
        """The declared class, with stored scores rounded like results."""
        declared = super().precision
        return replace(declared, stored=max(declared.stored, declared.output))


def modes_of(subject: Subject) -> Modes:
    """The modes to try at this dtype."""
    if getattr(subject.backend, "modes", None) is None:
        return {}
    contexts = _contexts_for(subject, _dtype_of_modes(subject))
    if _every_dtype(subject):
        return contexts
    return {mode: contexts[mode] for mode in in_16_bits(subject)} if subject.dtype == _first_narrow(subject) else {}


def in_16_bits(subject: Subject) -> list[str]:
    """The modes that the backend has at this 16-bit dtype but not in float32."""
    dtype = _dtype_of_modes(subject)
    wider = _contexts_for(subject, "float32" if dtype in NARROW else dtype)
    return [mode for mode in _contexts_for(subject, dtype) if mode not in wider]


def _contexts_for(subject: Subject, dtype: str) -> Modes:
    """The backend's modes for a dtype, by name; a violation unless it is a mapping."""
    contexts = subject.backend.modes(dtype, device=subject.device)
    if not isinstance(contexts, Mapping):
        kind = type(contexts).__name__
        raise Violation(f"modes: expected a mapping from names to contexts; got {kind}", reason=Reason.TYPE)
    return contexts


def _dtype_of_modes(subject: Subject) -> str:
    return subject.dtype if subject.operation.floats else subject.default_dtype


def _first_narrow(subject: Subject) -> str | None:
    return next((d for d in subject.contract.limits.dtypes_for(subject.operation.name) if d in NARROW), None)


def _short_calls(subject: Subject, rng: np.random.Generator) -> Calls:
    """Two unmasked calls, then masked, causal, and masked causal calls."""

    def draw() -> Arguments:
        return _small_call(subject, rng)

    first = draw()
    calls: Calls = [("", first)]
    if not first.batched:
        return calls
    calls.append((", with other numbers in the same memory", _with_batch_of(first, draw())))
    masked, causal = bool(accepted_masks(subject)), accepts_causal(subject)
    if masked:
        calls.append((" under a mask", restrict(subject, _with_batch_of(first, draw()), rng, causal=False)))
    if causal:
        calls.append((" under a causal mask", _with_batch_of(first, draw()).under_causal()))
    if masked and causal:
        calls.append((" under both masks", restrict(subject, _with_batch_of(first, draw()), rng)))
    return calls


def _decoding_calls(subject: Subject, rng: np.random.Generator) -> Calls:
    """Calls with one query and more keys than a tile, unmasked and masked; models in long profiles only."""
    operation = subject.operation
    if operation.key_size is None or operation.attends_to_itself or (operation.counts and not subject.effort.slow):
        return []
    first, other = (_sample(subject, rng, queries=1, keys=TILE + 2) for _ in range(2))
    count = first.size(operation.key_size)
    if count <= TILE or not first.batched:
        return []
    prefix = f", with {count} keys"
    calls = [(prefix, first)]
    if accepted_masks(subject):
        masked = restrict(subject, _with_batch_of(first, other), rng, causal=False)
        calls.append((f"{prefix} under a mask", masked))
    return calls


def _small_call(subject: Subject, rng: np.random.Generator) -> Arguments:
    return _sample(subject, rng, queries=3, keys=5)


def _sample(subject: Subject, rng: np.random.Generator, *, queries: int, keys: int) -> Arguments:
    return sample(subject, rng, (2,)[: subject.limits.max_batch_dims], queries=queries, keys=keys)


def _with_batch_of(arguments: Arguments, other: Arguments) -> Arguments:
    """A copy with the batched arrays of another call, which has the same sizes."""
    return arguments.replaced({leaf.path: other.array(leaf.path) for leaf, _ in arguments.batched})


def _expected_calls(subject: Subject, calls: Calls) -> list[_ExpectedCall]:
    """The calls with expected results, from one oracle call for all of them stacked.

    In that call masks replace causal flags. Empty if the backend refuses the calls or results are close to overflow.
    """
    if not calls:
        return []
    _, first = calls[0]
    stacked = first.replaced({})
    if len(calls) > 1:
        spelled = [_with_explicit_mask(subject, arguments) for _, arguments in calls]
        batches = {leaf.path: np.stack([x[leaf.path] for x in spelled]) for leaf, _ in first.batched}
        stacked = first.replaced(batches)
        for keys, leaf in subject.operation.masks.items():
            masks = [np.ones(mask_shape(x, keys), bool) if x[leaf.path] is None else x[leaf.path] for x in spelled]
            stacked = stacked.with_mask(np.stack(masks), keys)
    oracles, budgets = subject.oracles(stacked), subject.budgets(stacked)
    # Only results are compared with the maximum: bounds on intermediates of deep models may be infinite.
    most = subject.precision.largest / 16
    if subject.refuses(first) or any(np.abs(x.value).max(initial=0) > most for x in oracles.values()):
        return []
    result = []
    for i, (prefix, arguments) in enumerate(calls):
        index = i if len(calls) > 1 else ...
        at = {x.path: index if x.batched else ... for x in subject.operation.outputs}
        expected = {path: x.value[at[path]] for path, x in oracles.items()}
        result.append(_ExpectedCall(prefix, arguments, expected, {path: x[at[path]] for path, x in budgets.items()}))
    return result


def _with_explicit_mask(subject: Subject, arguments: Arguments) -> Arguments:
    """The call with the causal flag expressed by the mask."""
    has_flag = subject.operation.flag is not None
    return with_explicit_mask(arguments, semantics=subject.semantics) if has_flag else arguments


def _rewritten_arrays(subject: Subject, arguments: Arguments, memory: dict[str, Any]) -> dict[str, Any]:
    """Backend arrays of the arguments, written into those of the previous call if possible."""

    def backend_array(path: str) -> Any:
        array = subject.convert(arguments[path])
        if not isinstance(arguments[path], np.ndarray):
            return array
        if path in memory:
            try:
                memory[path][...] = array
            except (RuntimeError, *VIEW_ERRORS):
                return array
        return memory.setdefault(path, array)

    return arguments.passed_as(backend_array)


def within(
    subject: Subject,
    arguments: Arguments,
    inputs: Mapping[str, Any],
    where: str,
    context: Callable[[], AbstractContextManager[Any]],
    *,
    threaded: bool = False,
) -> Results:
    """The result of a call within a context; an exception is a violation.

    ``where`` names the context in messages. With ``threaded`` the call is made in a new thread.
    """

    def call() -> Results:
        with context():
            return cast(Results, subject.numpy_arrays(subject.invoke(inputs, threaded=threaded)))

    got = subject.noted(call_safely(call), f"{where}: raised", arguments)
    if isinstance(got, Raised):
        raise Violation(f"{where}: raised {got.message}", reason=Reason.RAISED, arguments=arguments)
    return subject.demand_shapes(cast(Results, got), arguments)
