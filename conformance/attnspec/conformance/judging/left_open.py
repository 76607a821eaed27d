"""Elements that the oracle leaves open, and infinities that it demands exactly.

Rounding decides an open element, or a declared choice leaves it open. The log of an empty sum is −∞, not open.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import before_features, live_rows
from attnspec.reference.budget import Judged
from attnspec.reference.budget.error_array import UNKNOWN
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.semantics import Semantics
from attnspec.spec.contract.tree import Leaf


def with_open_choices(operation: Operation, found: Mapping[str, Judged]) -> dict[str, Judged]:
    """The oracle, with infinite budgets for batch elements where rounding decides a selection.

    The formula marks results of such a selection by an unknown error.
    """
    behind = {leaf.path: tuple(range(-len(leaf.core), 0)) for leaf in operation.outputs}
    open_ = np.logical_or.reduce([(x.budget >= UNKNOWN / 2).any(axis=behind[path]) for path, x in found.items()])
    return {
        path: replace(x, budget=np.where(np.expand_dims(open_, behind[path]), np.inf, x.budget))
        for path, x in found.items()
    }


def with_exact_infinities(found: dict[str, Judged], semantics: Semantics) -> dict[str, Judged]:
    """The oracle, with budget 0 where the formula gives −∞ without overflow.

    That is the logarithm of an empty sum; it stays open if rows without keys are not declared ``zero``.
    """
    if semantics.fully_masked != "zero":
        return found
    return {path: _exact_where_infinite(x) for path, x in found.items()}


def _exact_where_infinite(x: Judged) -> Judged:
    if not (np.isfinite(x.peak) and np.issubdtype(x.value.dtype, np.floating)):
        return x
    exact = np.isneginf(x.value)
    return replace(x, budget=np.where(exact, 0.0, x.budget)) if exact.any() else x


def with_unspecified(leaf: Leaf, result: Judged, arguments: Arguments, semantics: Semantics) -> Judged:
    """The oracle, with NaN and infinite budgets where a declared choice leaves elements unspecified."""
    operation = arguments.operation
    asking = operation.asking
    rows = asking is None or -2 in leaf.axes(asking)
    open_: Numbers = np.zeros(result.value.shape, bool)
    if semantics.no_keys != "zero" and not all(map(arguments.size, operation.masks)):
        open_ = np.ones(result.value.shape, bool)
    elif semantics.fully_masked != "zero" and rows:
        open_ = np.broadcast_to(
            before_features(~live_rows(arguments, bottom_right=semantics.bottom_right), leaf, asking),
            result.value.shape,
        )
    if not open_.any():
        return result
    return replace(result, value=np.where(open_, np.nan, result.value), budget=np.where(open_, np.inf, result.budget))
