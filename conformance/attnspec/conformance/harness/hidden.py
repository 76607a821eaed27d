"""What inputs hide: defects that many implementations have had, with which these would be judged right."""

from collections.abc import Callable, Mapping

import numpy as np

from attnspec.conformance.harness.together import Ensemble, accusation, zeros
from attnspec.conformance.inputs.arguments import Arguments, Numbers, take
from attnspec.conformance.inputs.attendance import spelled_out
from attnspec.conformance.inputs.dtypes import numpy_dtype
from attnspec.conformance.judging.violation import Violation
from attnspec.conformance.laws.ensembles import exact, rescaled

Defect = Callable[[Arguments], Arguments | None]
"""The arguments of which a formula gives what the defect gives; None where it has no effect."""


def _without_keys(some: Callable[[int], range]) -> Defect:
    def change(given: Arguments) -> Arguments | None:
        count = given.keys_count or 0
        kept = some(count)
        return given.along(given.operation.asked or "", take(kept)) if 0 < len(kept) < count else None

    return change


def padded(given: Arguments) -> Arguments:
    """A key of zeros behind the others, with a value of zeros, which every query attends to."""
    given = spelled_out(given, bottom_right=False) if given.causal else given

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
    """A mask that begins or ends a key too late."""
    if given.mask is None or given.mask.shape[-1] < 2:
        return None
    later = np.zeros_like(given.mask)
    later[..., 1:] = given.mask[..., :-1]
    return given.with_mask(given.mask | later)


DEFECTS: Mapping[str, Defect] = {
    "keys that are not read": lambda given: rescaled(given, 0.0),
    "a scale that is 5 % off": lambda given: rescaled(given, 1.05),
    "a scale that is 1 % off": lambda given: rescaled(given, 1.01),
    "a key of zeros, behind the others, that is attended to": padded,
    "the first key left out": _without_keys(lambda count: range(1, count)),
    "the last key left out": _without_keys(lambda count: range(count - 1)),
    "the keys behind the last whole tile of 64 left out": _without_keys(lambda count: range(count - count % 64)),
    "the keys behind the last whole tile of 128 left out": _without_keys(lambda count: range(count - count % 128)),
    "a mask that is ignored": _unmasked,
    "a mask that ends one key too late": _one_key_more,
}
"""Defects of attention in words; of many an implementation, most of them to be found in docs/rediscovery.md."""


def hidden(ensemble: Ensemble) -> tuple[str, ...]:
    """The defects, in words, with which a result would be judged right on these inputs."""
    operation = ensemble.subject.operation
    if not ensemble.asked or operation.asked is None or operation.attends_to_itself:
        return ()
    return tuple(words for words, change in DEFECTS.items() if _hides(ensemble, change))


def _hides(ensemble: Ensemble, change: Defect) -> bool:
    """Whether the judge would miss a defect that concerns the inputs, in the formula's numbers rounded to the dtype."""
    subject = ensemble.subject
    changed = [change(subject.aligned(part.arguments)) for part in ensemble.parts]
    given = [arguments for arguments in changed if arguments is not None]
    if len(given) < len(changed):
        return False
    found = [exact(subject, arguments).astype(numpy_dtype(subject.dtype)) for arguments in given]
    try:
        for x, part in zip(found, ensemble.parts, strict=True):
            oracle = subject.oracle(part.arguments)
            subject.matches(x, oracle.value, oracle.budget, part.arguments)
    except Violation:
        return False
    return not accusation(ensemble, ensemble.stacked(found))
