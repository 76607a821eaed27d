"""Common defects that inputs hide: results with such a defect would be judged right."""

from collections.abc import Callable, Mapping

import numpy as np

from attnspec.conformance.harness.filters import accusation, concerning
from attnspec.conformance.harness.parts import Part, at_rows, spelled
from attnspec.conformance.harness.scores import rescaled, without
from attnspec.conformance.harness.together import Ensemble, zeros
from attnspec.conformance.inputs.arguments import Arguments, Numbers, take
from attnspec.conformance.inputs.dtypes import numpy_dtype
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Violation
from attnspec.conformance.laws.ensembles import exact
from attnspec.spec.contract.axes import Part as Option
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Kind

Defect = Callable[[Arguments], Arguments | None]
"""Return arguments for which the formula gives the defect's result; None if the defect has no effect."""


def _without_keys(some: Callable[[int], range]) -> Defect:
    def change(given: Arguments) -> Arguments | None:
        count = given.keys_count or 0
        kept = some(count)
        return given.along(given.operation.asked or "", take(kept)) if 0 < len(kept) < count else None

    return change


def padded(given: Arguments) -> Arguments:
    """Append a key of zeros with a value of zeros, which every query attends to."""

    def append(x: Numbers, axis: int) -> Numbers:
        return np.concatenate([x, zeros(x, axis)], axis)

    longer = given.along(given.operation.asked or "", append)
    if given.mask is None or longer.mask is None or longer.mask.shape == given.mask.shape:
        return longer
    mask = longer.mask.copy()
    mask[..., -1] = True
    return longer.with_mask(mask)


def _unmasked(given: Arguments) -> Arguments | None:
    return None if given.mask is None else given.without_masks()


def _one_key_more(given: Arguments) -> Arguments | None:
    """Widen a mask by one key."""
    if given.mask is None or given.mask.shape[-1] < 2:
        return None
    later = np.zeros_like(given.mask)
    later[..., 1:] = given.mask[..., :-1]
    return given.with_mask(given.mask | later)


def _without(part: Option) -> Defect:
    def change(given: Arguments) -> Arguments | None:
        path = given.operation.part(part)
        return without(given, part) if path and given[path] is not None else None

    return change


def _unlimited(given: Arguments) -> Arguments | None:
    path = _lengths(given.operation)
    return given.replaced({path: None}) if path and given[path] is not None else None


def _longer(by: int) -> Defect:
    def change(given: Arguments) -> Arguments | None:
        path = _lengths(given.operation)
        if not path or given[path] is None:
            return None
        lengths = given.array(path)
        changed = np.clip(lengths.astype(np.int64) + by, 0, given.keys_count or 0)
        return None if np.array_equal(changed, lengths) else given.replaced({path: changed})

    return change


def _lengths(operation: Operation) -> str:
    """Return the path of the key lengths, if they are an option."""
    leaf = operation.hides(operation.asked)
    return leaf.path if leaf is not None and leaf.kind is Kind.INT and leaf.path in operation.defaults else ""


def _windowed(wider: Callable[[int | None], int | None]) -> Defect:
    def change(given: Arguments) -> Arguments | None:
        path = given.operation.window
        sides = given[path] if path is not None else None
        return None if path is None or sides is None else given.replaced({path: tuple(map(wider, sides))})

    return change


OPTIONS: Mapping[str, Defect] = {
    "a mask that is ignored": _unmasked,
    "a mask that ends one key too late": _one_key_more,
    "a window that is ignored": _windowed(lambda side: None),
    "a window that is one key wider on either side": _windowed(lambda side: None if side is None else side + 1),
    "lengths that are ignored": _unlimited,
    "lengths that are one key too long": _longer(1),
    "lengths that are one key too short": _longer(-1),
    "a cap that is left out": _without(Option.CAP),
    "a bias that is left out": _without(Option.BIAS),
    "slopes that are left out": _without(Option.SLOPES),
    "sinks that are left out": _without(Option.SINK),
}
"""Defects in the treatment of an option."""

DEFECTS: Mapping[str, Defect] = {
    "keys that are not read": lambda given: rescaled(given, 0.0),
    "a scale that is 5 % off": lambda given: rescaled(given, 1.05),
    "a scale that is 1 % off": lambda given: rescaled(given, 1.01),
    "a key of zeros, behind the others, that is attended to": padded,
    "the first key left out": _without_keys(lambda count: range(1, count)),
    "the last key left out": _without_keys(lambda count: range(count - 1)),
    "the keys behind the last whole tile of 64 left out": _without_keys(lambda count: range(count - count % 64)),
    "the keys behind the last whole tile of 128 left out": _without_keys(lambda count: range(count - count % 128)),
    **OPTIONS,
}
"""Defects of attention by description, found in many implementations; `nox -s rediscovery` lists most of them."""


def tried(operation: Operation) -> bool:
    """Return whether defects are tried on an operation; not if results have an entry for every key."""
    asked = operation.asked
    pools = asked is not None and not any(asked in leaf.sizes for leaf in operation.outputs)
    return pools and concerning(operation) and not operation.attends_to_itself


def hidden(ensemble: Ensemble) -> tuple[str, ...]:
    """Return descriptions of the defects that these inputs hide, or a note that no defect is tried."""
    operation = ensemble.subject.operation
    if not tried(operation):
        return (f"any known defect, for none is tried on {operation.name}",) if operation.float_result else ()
    return tuple(words for words in DEFECTS if _hides(ensemble, words))


def _hides(ensemble: Ensemble, words: str) -> bool:
    """Return whether the judge misses a defect's results, computed by the formula and rounded to the dtype."""
    subject = ensemble.subject
    changed = [_with_defect(subject, part, words) for part in ensemble.parts]
    given = [arguments for arguments in changed if arguments is not None]
    if not given:
        return False
    found = [
        exact(subject, part.arguments if arguments is None else arguments).astype(numpy_dtype(subject.dtype))
        for arguments, part in zip(changed, ensemble.parts, strict=True)
    ]
    try:
        for x, part in zip(found, ensemble.parts, strict=True):
            oracle = subject.oracle(part.arguments)
            subject.matches(x, oracle.value, oracle.budget, part.arguments)
    except Violation:
        return False
    return not accusation(ensemble, ensemble.stacked(found))


def _with_defect(subject: Subject, part: Part, words: str) -> Arguments | None:
    """Return a part's arguments for which the formula gives the defect's result; None without effect."""
    if words not in OPTIONS:
        return DEFECTS[words](spelled(subject, part.arguments))
    changed = OPTIONS[words](part.arguments if part.uncut is None else part.uncut)
    if changed is None or part.uncut is None:
        return changed
    return spelled(subject, changed) if part.rows is None else at_rows(subject, changed, part.rows)
