"""Expected results under the declared choices for NaN, infinities, and rows without keys."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from attnspec.conformance.harness.parts import Part
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.rows_without_keys import with_even_weights


class Expected(NamedTuple):
    """Expected array: numbers, budgets, and where NaN is required (None: nowhere)."""

    value: Numbers
    budget: Numbers
    nan: Numbers | None = None


def expected(subject: Subject, part: Part) -> dict[str, Expected]:
    """Return the expected results by path, including the effects of NaN and infinite arguments.

    Rows that attend to no key follow the declared ``fully_masked``. Attended NaN makes its row NaN, unless
    ``attendable_nan`` is declared otherwise, or ``nan_queries`` for NaN in queries. Effects of infinities are left
    open. So are those of masked NaN or infinities where ``masked_nonfinite`` is ``propagates``.
    """
    given = part.arguments
    found = {path: Expected(x.value, x.budget) for path, x in subject.oracles(given).items()}
    if subject.semantics.fully_masked != "zero" and given.keys_count and given.operation.mask is not None:
        found = _without_keys(subject, given, found)
    floats = [x for _, x in given.floats]
    if all(np.isfinite(x).all() for x in floats):
        return found
    if not any(np.isinf(x).any() for x in floats) and _propagates(subject, given):
        exact = subject.unrounded(given)
        found = {path: x._replace(nan=np.isnan(exact[path])) for path, x in found.items()}
    if subject.semantics.masked_nonfinite == "propagates" and given.operation.masks:
        reached = subject.unrounded(given.plain().without_masks())
        found = {path: _left_open(x, ~np.isfinite(reached[path])) for path, x in found.items()}
    return found


def _propagates(subject: Subject, given: Arguments) -> bool:
    """Return whether the declared choices let all NaN of these arguments make their rows NaN."""
    asks = subject.semantics.nan_queries == "hidden" and any(
        np.isnan(given.array(leaf.path)).any() for leaf in subject.operation.queries
    )
    return subject.semantics.attendable_nan == "propagates" and not asks


def _without_keys(subject: Subject, given: Arguments, found: Mapping[str, Expected]) -> dict[str, Expected]:
    """Set declared results of rows without attendable keys: NaN, or those of equal weights."""
    open_ = {path: np.isnan(x.value) for path, x in found.items()}
    if not any(rows.any() for rows in open_.values()) or subject.semantics.fully_masked not in ("nan", "uniform"):
        return dict(found)  # declared to raise, or by way, which is left open
    if subject.semantics.fully_masked == "nan":
        return {path: x._replace(nan=open_[path]) for path, x in found.items()}
    equal = subject.oracles(with_even_weights(given.plain()))
    return {
        path: Expected(
            np.where(open_[path], equal[path].value, x.value), np.where(open_[path], equal[path].budget, x.budget)
        )
        for path, x in found.items()
    }


def _left_open(x: Expected, where: Numbers) -> Expected:
    nan = None if x.nan is None else x.nan & ~where
    return Expected(np.where(where, np.nan, x.value), np.where(where, np.inf, x.budget), nan)
