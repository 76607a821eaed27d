"""Elements that the oracle leaves open, and infinities that it demands exactly.

An element is open, that is, not compared, if rounding decides its value or a declared choice leaves it unspecified. The
logarithm of an empty sum is not open: it is −∞.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import attendable, live_rows, with_feature_axes
from attnspec.reference.budget import Judged
from attnspec.reference.budget.error_array import UNKNOWN
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.semantics import Semantics
from attnspec.spec.contract.tree import Leaf


def with_open_choices(operation: Operation, oracles: Mapping[str, Judged]) -> dict[str, Judged]:
    """The oracle, with infinite budgets where rounding decides a selection, such as a beam.

    The reference marks the results of such a selection with an unknown error. All results of that batch element are
    then open, since another beam also has another score.
    """
    core_axes = {leaf.path: tuple(range(-len(leaf.core), 0)) for leaf in operation.outputs}
    open_ = np.logical_or.reduce([(x.budget >= UNKNOWN / 2).any(axis=core_axes[path]) for path, x in oracles.items()])
    return {
        path: replace(x, budget=np.where(np.expand_dims(open_, core_axes[path]), np.inf, x.budget))
        for path, x in oracles.items()
    }


def with_exact_infinities(oracles: dict[str, Judged], semantics: Semantics) -> dict[str, Judged]:
    """The oracle, with budget 0 where the formula gives −∞ without overflow.

    This is the logarithm of an empty sum. It stays open unless rows without keys are declared ``zero``.
    """
    if semantics.fully_masked != "zero":
        return oracles
    return {path: _exact_where_infinite(x) for path, x in oracles.items()}


def _exact_where_infinite(x: Judged) -> Judged:
    if not (np.isfinite(x.peak) and np.issubdtype(x.value.dtype, np.floating)):
        return x
    exact = np.isneginf(x.value)
    return replace(x, budget=np.where(exact, 0.0, x.budget)) if exact.any() else x


def always_causal_keys(operation: Operation) -> str | None:
    """Size of the masked keys of an operation that is always causal, such as `decoder_layer`; else None."""
    keys = operation.causal[-1] if operation.causal and operation.flag is None else None
    return keys if keys in operation.masks else None


def rows_of_declared_choice(leaf: Leaf, shape: tuple[int, ...], arguments: Arguments, semantics: Semantics) -> Numbers:
    """True where a declared choice for rows or calls without keys replaces the formula."""
    operation = arguments.operation
    query_size = operation.query_size
    has_rows = query_size is None or -2 in leaf.axes(query_size)  # not ``log_sum_exp``, whose last axis is n
    if semantics.no_keys != "zero" and not all(map(arguments.size, operation.masks)):
        return np.ones(shape, bool)
    if semantics.fully_masked == "zero" or not has_rows:
        return np.zeros(shape, bool)
    live = live_rows(arguments, semantics=semantics)
    if averages_unspecified_keys(arguments, semantics):
        live = np.zeros(live.shape, bool)  # in models, later layers attend to the row
    return np.broadcast_to(with_feature_axes(~live, leaf, query_size), shape)


def averages_unspecified_keys(arguments: Arguments, semantics: Semantics) -> bool:
    """True if a row without keys averages keys that no declaration names.

    It is a row of an operation that is always causal.
    """
    keys = always_causal_keys(arguments.operation)
    return keys is not None and semantics.fully_masked == "uniform" and not attendable(arguments, keys).any(-1).all()


def with_unspecified(leaf: Leaf, result: Judged, arguments: Arguments, semantics: Semantics) -> Judged:
    """The oracle, with NaN and infinite budgets where a declared choice leaves elements unspecified."""
    open_ = rows_of_declared_choice(leaf, result.value.shape, arguments, semantics)
    if not open_.any():
        return result
    return replace(result, value=np.where(open_, np.nan, result.value), budget=np.where(open_, np.inf, result.budget))
