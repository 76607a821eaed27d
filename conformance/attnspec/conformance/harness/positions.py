"""Rows by themselves, which keep their positions: what depends on these stands in the mask and the bias."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, take
from attnspec.conformance.inputs.attendance import bounds
from attnspec.conformance.judging.rows import rows_to_judge
from attnspec.conformance.judging.subject import Subject
from attnspec.reference.budget import oracle_dtype
from attnspec.spec.contract.axes import Part
from attnspec.spec.contract.tree import Kind


def independent_rows(subject: Subject, given: Arguments, most: int, rng: np.random.Generator) -> Numbers | None:
    """The rows to judge; None for all, because there are few or because each depends on other queries."""
    slopes = subject.operation.part(Part.SLOPES)
    return rows_to_judge(subject, given.replaced({slopes: None}) if slopes else given, most, rng)


def at_rows(subject: Subject, given: Arguments, rows: Numbers) -> Arguments:
    """The arguments of these rows alone, each with the keys and the distances that it has among all."""
    operation = subject.operation
    chosen = given.plain().along(operation.asking or "", take(rows))
    if operation.mask is None:
        return chosen
    behind = _behind(subject, given, rows)
    near = _near(given, behind)
    if near is not None:
        chosen = chosen.with_mask(near if chosen.mask is None else chosen.mask & near)
    return _sloping(subject, given, chosen, behind)


def spelled(subject: Subject, given: Arguments) -> Arguments:
    """All rows with their positions spelled out, so that keys can be taken away or added."""
    operation = given.operation
    positional = [*bounds(operation), *filter(None, [operation.part(Part.SLOPES)])]
    if operation.attends_to_itself or all(given[path] is operation.defaults[path] for path in positional):
        return given
    return at_rows(subject, given, np.arange(given.queries or 0))


def _behind(subject: Subject, given: Arguments, rows: Numbers) -> Numbers:
    """How far every key is behind the place on the diagonal of every row, (rows, m)."""
    count = given.keys_count or 0
    aligned = subject.semantics.bottom_right and not subject.operation.attends_to_itself
    places = rows + (count - (given.queries or 0) if aligned else 0)
    return np.asarray(np.arange(count) - places[:, None])


def _near(given: Arguments, behind: Numbers) -> Numbers | None:
    """The keys that the causal flag, the window and the lengths allow, (*batch, rows, m); None for all."""
    operation = given.operation
    left, right = (given[operation.window] if operation.window else None) or (None, None)
    hides = operation.hides(operation.asked)
    lengths = given[hides.path] if hides is not None and hides.kind is Kind.INT else None
    asked = [
        behind <= 0 if given.causal else None,
        None if left is None else behind >= -left,
        None if right is None else behind <= right,
        None if lengths is None else np.arange(behind.shape[-1]) < lengths[..., None, None],
    ]
    found: Numbers | None = None
    for allowed in asked:
        if allowed is not None:
            found = np.asarray(allowed if found is None else found & allowed)
    return None if found is None else np.broadcast_to(found, (*found.shape[:-2], *behind.shape))


def _sloping(subject: Subject, given: Arguments, chosen: Arguments, behind: Numbers) -> Arguments:
    """The same with the slopes of the whole call in the bias of the chosen rows."""
    slopes, bias = (subject.operation.part(part) for part in (Part.SLOPES, Part.BIAS))
    if not slopes or given[slopes] is None:
        return chosen
    wide = oracle_dtype(subject.precision.dtype)
    falling = -given.array(slopes).astype(wide)[:, None, None] * np.abs(behind)
    more = falling if chosen[bias] is None else chosen.array(bias).astype(wide) + falling
    # Slopes of 0 stay, for the rounding that the subtraction of the others may make.
    return chosen.replaced({bias: more, slopes: np.zeros_like(given.array(slopes))})
