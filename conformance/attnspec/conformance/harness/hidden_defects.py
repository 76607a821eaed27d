"""Common defects that given inputs hide, since results with the defect would be judged right.

A *part* is a piece of the judged call, some batch elements, heads and rows, that the oracle can afford. *Filters* find
an error that rows share, such as a wrong scale, although it is below the budget of every number: a *shared error*.
"""

from collections.abc import Callable, Mapping

import numpy as np

from attnspec.conformance.harness.ensemble import Ensemble, zeros
from attnspec.conformance.harness.filters import has_filters, shared_error
from attnspec.conformance.harness.parts import Part, at_rows, with_explicit_positions
from attnspec.conformance.harness.score_changes import rescaled, without
from attnspec.conformance.inputs.arguments import Arguments, Numbers, take
from attnspec.conformance.inputs.dtypes import numpy_dtype
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Violation
from attnspec.conformance.laws.ensembles import unrounded
from attnspec.spec.contract.axes import ScoreEffect
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Kind

Defect = Callable[[Arguments], Arguments | None]
"""Changes arguments so that the formula computes the defect's result from them; None if nothing would change."""


def _without_keys(kept_keys: Callable[[int], range]) -> Defect:
    def change(arguments: Arguments) -> Arguments | None:
        count = arguments.keys_count or 0
        keys = kept_keys(count)
        return arguments.along(arguments.operation.key_size or "", take(keys)) if 0 < len(keys) < count else None

    return change


def with_zero_key(arguments: Arguments) -> Arguments:
    """Append a key of zeros with a value of zeros, to which every query attends."""

    def append(x: Numbers, axis: int) -> Numbers:
        return np.concatenate([x, zeros(x, axis)], axis)

    longer = arguments.along(arguments.operation.key_size or "", append)
    if arguments.mask is None or longer.mask is None or longer.mask.shape == arguments.mask.shape:
        return longer
    mask = longer.mask.copy()
    mask[..., -1] = True
    return longer.with_mask(mask)


def _unmasked(arguments: Arguments) -> Arguments | None:
    return None if arguments.mask is None else arguments.without_masks()


def _one_key_more(arguments: Arguments) -> Arguments | None:
    """Allow in each row of a mask also the keys one position later."""
    if arguments.mask is None or arguments.mask.shape[-1] < 2:
        return None
    later = np.zeros_like(arguments.mask)
    later[..., 1:] = arguments.mask[..., :-1]
    return arguments.with_mask(arguments.mask | later)


def _without(part: ScoreEffect) -> Defect:
    def change(arguments: Arguments) -> Arguments | None:
        path = arguments.operation.part(part)
        return without(arguments, part) if path and arguments[path] is not None else None

    return change


def _unlimited(arguments: Arguments) -> Arguments | None:
    path = _lengths(arguments.operation)
    return arguments.replaced({path: None}) if path and arguments[path] is not None else None


def _longer(by: int) -> Defect:
    def change(arguments: Arguments) -> Arguments | None:
        path = _lengths(arguments.operation)
        if not path or arguments[path] is None:
            return None
        lengths = arguments.array(path)
        changed = np.clip(lengths.astype(np.int64) + by, 0, arguments.keys_count or 0)
        return None if np.array_equal(changed, lengths) else arguments.replaced({path: changed})

    return change


def _lengths(operation: Operation) -> str:
    """Return the path of the optional key lengths; empty without any."""
    leaf = operation.hiding_argument(operation.key_size)
    return leaf.path if leaf is not None and leaf.kind is Kind.INT and leaf.path in operation.defaults else ""


def _windowed(change_side: Callable[[int | None], int | None]) -> Defect:
    def change(arguments: Arguments) -> Arguments | None:
        path = arguments.operation.window
        sides = arguments[path] if path is not None else None
        return None if path is None or sides is None else arguments.replaced({path: tuple(map(change_side, sides))})

    return change


OPTIONS: Mapping[str, Defect] = {
    "a mask that is ignored": _unmasked,
    "a mask that ends one key too late": _one_key_more,
    "a window that is ignored": _windowed(lambda side: None),
    "a window that is one key wider on either side": _windowed(lambda side: None if side is None else side + 1),
    "lengths that are ignored": _unlimited,
    "lengths that are one key too long": _longer(1),
    "lengths that are one key too short": _longer(-1),
    "a cap that is left out": _without(ScoreEffect.CAP),
    "a bias that is left out": _without(ScoreEffect.BIAS),
    "slopes that are left out": _without(ScoreEffect.SLOPES),
    "sinks that are left out": _without(ScoreEffect.SINK),
}
"""Defects in the treatment of an option."""

DEFECTS: Mapping[str, Defect] = {
    "keys that are not read": lambda x: rescaled(x, 0.0),
    "a scale that is 5 % off": lambda x: rescaled(x, 1.05),
    "a scale that is 1 % off": lambda x: rescaled(x, 1.01),
    "a key of zeros, behind the others, that is attended to": with_zero_key,
    "the first key left out": _without_keys(lambda count: range(1, count)),
    "the last key left out": _without_keys(lambda count: range(count - 1)),
    "the keys behind the last whole tile of 64 left out": _without_keys(lambda count: range(count - count % 64)),
    "the keys behind the last whole tile of 128 left out": _without_keys(lambda count: range(count - count % 128)),
    **OPTIONS,
}
"""Defects of attention by description. Most were found in real implementations: see `nox -s rediscovery`."""


def has_tried_defects(operation: Operation) -> bool:
    """Return True if defects are tried on an operation: one that sums over keys and has filters.

    Self-attention is left out: its keys are also queries, so a key cannot be dropped or added alone.
    """
    key_axis = operation.key_size
    averages_or_sums_keys = key_axis is not None and not any(key_axis in leaf.sizes for leaf in operation.outputs)
    return averages_or_sums_keys and has_filters(operation) and not operation.attends_to_itself


def hidden_defects(ensemble: Ensemble, *, together: bool = True) -> tuple[str, ...]:
    """Return defects that these inputs hide, or a note that they are not examined.

    Without ``together``, errors that many rows share count as hidden.
    """
    operation = ensemble.subject.operation
    if not has_tried_defects(operation):
        return (f"not examined for {operation.name}",) if operation.float_result else ()
    return tuple(defect for defect in DEFECTS if _is_hidden(ensemble, defect, together))


def _is_hidden(ensemble: Ensemble, defect: str, together: bool) -> bool:
    """Return True if results with a defect, rounded to the dtype, are judged right."""
    subject = ensemble.subject
    changed = [_with_defect(subject, part, defect) for part in ensemble.parts]
    affected = [arguments for arguments in changed if arguments is not None]
    if not affected:
        return False
    results = [
        unrounded(subject, part.arguments if arguments is None else arguments).astype(numpy_dtype(subject.dtype))
        for arguments, part in zip(changed, ensemble.parts, strict=True)
    ]
    try:
        for x, part in zip(results, ensemble.parts, strict=True):
            oracle = subject.oracle(part.arguments)
            subject.demand_match(x, oracle.value, oracle.budget, part.arguments)
    except Violation:
        return False
    return not together or not shared_error(ensemble, ensemble.stacked(results))


def _with_defect(subject: Subject, part: Part, defect: str) -> Arguments | None:
    """Return a part's arguments changed by a defect; None if the defect has no effect."""
    if defect not in OPTIONS:
        # They drop or add keys, so causal flags and the like must be masks first: positions of keys shift.
        return DEFECTS[defect](with_explicit_positions(subject, part.arguments))
    # Sampled rows already have options such as a window in their mask; only ``all_rows`` still has the options.
    changed = OPTIONS[defect](part.arguments if part.all_rows is None else part.all_rows)
    if changed is None or part.all_rows is None:
        return changed
    return with_explicit_positions(subject, changed) if part.rows is None else at_rows(subject, changed, part.rows)
