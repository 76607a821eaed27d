"""Checks of the law of modes, such as inference and modes without gradients."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import mask_shape, spelled_out
from attnspec.conformance.inputs.dtypes import NARROW
from attnspec.conformance.inputs.layouts import CANNOT
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.foreign_calls import Raised, call_safely
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws.common import sample
from attnspec.conformance.laws.lessons import TILE, causal_in, masks_of, restricted
from attnspec.spec.contract.precision import Precision
from attnspec.spec.laws import training as law

Modes = Mapping[str, Callable[[], AbstractContextManager[Any]]]

Calls = list[tuple[str, Arguments]]
"""Calls that differ in batched arrays, masks and the causal flag, with descriptions."""


class _Judged(NamedTuple):
    """A call with its description, its expected results and their budgets."""

    words: str
    arguments: Arguments
    expected: Results
    budgets: Results


@checks(law.MODES, once=True)
def modes(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Call in every mode that the backend names, rewriting the same memory between calls.

    The calls are unmasked, masked, causal, both, and of one query with more keys than a tile. Short profiles try the
    leading dtype, and the first 16-bit dtype in modes that wider dtypes lack. One call is made by another thread, where
    settings of the main thread may be missing.
    """
    named = modes_of(subject)
    if not named:
        return _at_every_dtype(subject) and _in_thread(subject, _judged(subject, [("", _plain(subject, rng))]))
    calls = [_short(subject, rng), _decoding(subject, rng)]
    storing = in_16_bits(subject)
    groups: dict[bool, list[list[_Judged]]] = {}
    for mode, context in named.items():
        stores = mode in storing
        if stores not in groups:
            # Examples of the run may be zeros, or have no rows, and would not show differences between modes.
            judging = _Storing(subject) if stores else subject
            short, long = (_judged(judging, x) for x in calls)
            groups[stores] = [found for found in (short or _judged(judging, [("", arguments)]), long) if found]
        for found in groups[stores]:
            kept: dict[str, Any] = {}
            for call in found:
                inputs = _rewritten(subject, call.arguments, kept)
                got = within(subject, call.arguments, inputs, f"in mode {mode}", context)
                subject.all_match(got, call.expected, call.budgets, call.arguments, f"in mode {mode}{call.words},")
        if stores and "float32" in subject.limits.dtypes_for(subject.operation.name):
            _cast(subject, groups[stores], mode, context)
    if _at_every_dtype(subject):
        _in_thread(subject, next(filter(None, groups.get(False, [])), []))
    return any(groups.values())


def _at_every_dtype(subject: Subject) -> bool:
    """Return whether the dtype is the leading one, or there is time for all."""
    return subject.leading or subject.effort.slow


def _in_thread(subject: Subject, calls: list[_Judged]) -> bool:
    """Make the first of these calls in another thread; False if there is none."""
    for call in calls[:1]:
        where = "in a thread that is not the main one"
        got = within(subject, call.arguments, subject.converted(call.arguments), where, nullcontext, threaded=True)
        subject.all_match(got, call.expected, call.budgets, call.arguments, f"{where},")
    return bool(calls)


def _cast(
    subject: Subject, groups: list[list[_Judged]], mode: str, context: Callable[[], AbstractContextManager[Any]]
) -> None:
    """Call with the same numbers in float32, which the mode casts to its 16 bits.

    A backend may refuse that: PyTorch's LSTM does, on processors that do not multiply bfloat16.
    """
    for call in (found[-1] for found in groups):
        wider = call.arguments.replaced({leaf.path: _single(x) for leaf, x in call.arguments.floats})
        inputs = subject.converted(wider)
        try:
            got = within(subject, call.arguments, inputs, f"in mode {mode}", context)
        except Violation as violation:
            if violation.reason is Reason.RAISED:
                continue
            raise
        what = f"in mode {mode} with inputs in float32{call.words},"
        subject.all_match(got, call.expected, call.budgets, call.arguments, what)


def _single(x: Numbers) -> Numbers:
    return x.astype(np.float32)


class _Storing(Subject):
    """The subject in a mode that casts to 16 bits, and so stores rounded scores."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject.backend, subject.contract, subject.operation, subject.dtype, subject.device)
        self.sampled, self.default_dtype = subject.sampled, subject.default_dtype

    @property
    def precision(self) -> Precision:
        """The declared class, with the rounding of stored scores."""
        declared = super().precision
        return replace(declared, stored=max(declared.stored, declared.output))


def modes_of(subject: Subject) -> Modes:
    """The modes to try at this dtype."""
    if getattr(subject.backend, "modes", None) is None:
        return {}
    named = _named(subject, _dtype(subject))
    if _at_every_dtype(subject):
        return named
    return {mode: named[mode] for mode in in_16_bits(subject)} if subject.dtype == _first_narrow(subject) else {}


def in_16_bits(subject: Subject) -> list[str]:
    """The modes that the backend has at this dtype but not at 32 bits."""
    dtype = _dtype(subject)
    wider = _named(subject, "float32" if dtype in NARROW else dtype)
    return [mode for mode in _named(subject, dtype) if mode not in wider]


def _named(subject: Subject, dtype: str) -> Modes:
    """The modes that the backend names for a dtype; only a mapping is valid."""
    found = subject.backend.modes(dtype, device=subject.device)
    if not isinstance(found, Mapping):
        raise Violation(
            f"modes: expected a mapping from names to contexts; got {type(found).__name__}", reason=Reason.TYPE
        )
    return found


def _dtype(subject: Subject) -> str:
    return subject.dtype if subject.operation.floats else subject.default_dtype


def _first_narrow(subject: Subject) -> str | None:
    """The 16-bit dtype at which short profiles try modes that wider dtypes lack."""
    return next((d for d in subject.contract.limits.dtypes_for(subject.operation.name) if d in NARROW), None)


def _short(subject: Subject, rng: np.random.Generator) -> Calls:
    """Two unmasked calls, then a masked, a causal, and a masked causal one."""

    def made() -> Arguments:
        return _plain(subject, rng)

    plain = made()
    calls: Calls = [("", plain)]
    if not plain.batched:
        return calls
    calls.append((", with other numbers in the same memory", _with_batch_of(plain, made())))
    masked, causal = bool(masks_of(subject)), causal_in(subject)
    if masked:
        calls.append((", under a mask", restricted(subject, _with_batch_of(plain, made()), rng, causal=False)))
    if causal:
        calls.append((", where it is causal", _with_batch_of(plain, made()).under_causal()))
    if masked and causal:
        calls.append((", where it is masked and causal", restricted(subject, _with_batch_of(plain, made()), rng)))
    return calls


def _decoding(subject: Subject, rng: np.random.Generator) -> Calls:
    """Calls of one query and more keys than a tile, unmasked and masked."""
    operation = subject.operation
    if operation.asked is None or operation.attends_to_itself or (operation.counts and not subject.effort.slow):
        return []
    given, other = (_sample(subject, rng, queries=1, keys=TILE + 2) for _ in range(2))
    count = given.size(operation.asked)
    if count <= TILE or not given.batched:
        return []
    words = f", with {count} keys"
    calls = [(words, given)]
    if masks_of(subject):
        masked = restricted(subject, _with_batch_of(given, other), rng, causal=False)
        calls.append((f"{words} under a mask", masked))
    return calls


def _plain(subject: Subject, rng: np.random.Generator) -> Arguments:
    return _sample(subject, rng, queries=3, keys=5)


def _sample(subject: Subject, rng: np.random.Generator, *, queries: int, keys: int) -> Arguments:
    return sample(subject, rng, (2,)[: subject.limits.max_batch_dims], queries=queries, keys=keys)


def _with_batch_of(given: Arguments, other: Arguments) -> Arguments:
    """The weights of one call with the batched arrays of another of its sizes."""
    return given.replaced({leaf.path: other.array(leaf.path) for leaf, _ in given.batched})


def _judged(subject: Subject, calls: Calls) -> list[_Judged]:
    """The calls with expected results, from one oracle call on all of them stacked.

    Masks replace causal flags there. Empty if the calls are refused, or close to overflow.
    """
    if not calls:
        return []
    _, first = calls[0]
    stacked = first.replaced({})
    if len(calls) > 1:
        spelled = [_spelled(subject, given) for _, given in calls]
        batches = {leaf.path: np.stack([x[leaf.path] for x in spelled]) for leaf, _ in first.batched}
        stacked = first.replaced(batches)
        for keys, leaf in subject.operation.masks.items():
            masks = [np.ones(mask_shape(x, keys), bool) if x[leaf.path] is None else x[leaf.path] for x in spelled]
            stacked = stacked.with_mask(np.stack(masks), keys)
    oracles, budgets = subject.oracles(stacked), subject.budgets(stacked)
    # Results decide, since bounds on intermediates of deep models are infinite even for small numbers.
    if subject.refuses(first) or any(
        np.abs(x.value).max(initial=0) > subject.precision.largest / 16 for x in oracles.values()
    ):
        return []
    found = []
    for i, (words, given) in enumerate(calls):
        place = i if len(calls) > 1 else ...
        at = {x.path: place if x.batched else ... for x in subject.operation.outputs}
        expected = {path: x.value[at[path]] for path, x in oracles.items()}
        found.append(_Judged(words, given, expected, {path: x[at[path]] for path, x in budgets.items()}))
    return found


def _spelled(subject: Subject, given: Arguments) -> Arguments:
    """The call, with the causal flag moved into the mask."""
    spells = subject.operation.flag is not None
    return spelled_out(given, bottom_right=subject.semantics.bottom_right) if spells else given


def _rewritten(subject: Subject, given: Arguments, kept: dict[str, Any]) -> dict[str, Any]:
    """Backend arrays of the arguments, in the memory of the previous call if writable."""

    def at(path: str) -> Any:
        moved = subject.convert(given[path])
        if not isinstance(given[path], np.ndarray):
            return moved
        if path in kept:
            try:
                kept[path][...] = moved
            except (RuntimeError, *CANNOT):
                return moved
        return kept.setdefault(path, moved)

    return given.passed_as(at)


def within(
    subject: Subject,
    given: Arguments,
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
            return cast(Results, subject.unfolded(subject.invoke(inputs, threaded=threaded)))

    got = call_safely(call)
    if isinstance(got, Raised):
        raise Violation(f"{where}: raised {got.message}", reason=Reason.RAISED, arguments=given)
    return subject.shaped(cast(Results, got), given)
