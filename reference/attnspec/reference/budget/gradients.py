"""Gradients of the reference with error budgets, by the chain rule over a recorded formula."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from attnspec.reference.budget.derivative import Traced
from attnspec.reference.budget.error_array import WIDTH
from attnspec.reference.budget.numbers import Numbers, is_real, longest_runs
from attnspec.reference.budget.ordered import Ordered
from attnspec.reference.budget.sampled import deviations
from attnspec.reference.budget.statistical import Statistical
from attnspec.reference.defining.arithmetic import arithmetic
from attnspec.spec.contract.precision import Precision
from attnspec.spec.contract.tree import flatten, map_tree


def gradients(
    formula: Callable[..., Any],
    arguments: Mapping[str, Any],
    cotangent: Any,
    precision: Precision,
    wide: Any,
    *,
    ordered: bool = False,
    sampled: bool = False,
) -> dict[str, tuple[Numbers, Numbers]]:
    """Return gradient and budget of ⟨cotangent, formula(**arguments)⟩ for every float array, by path.

    ``cotangent`` has the structure of the result, with None for arrays that do not enter the product. ``wide`` is the
    dtype to compute in. An argument that the result does not depend on has gradient 0. ``ordered`` and ``sampled`` are
    those of :func:`~attnspec.reference.budget.judged`.
    """
    follows_partial_sums = ordered or sampled
    kind = Ordered if follows_partial_sums else Statistical
    without_common = _OrderedWithoutCommon if follows_partial_sums else _WithoutCommon

    def run(kind: type[Statistical]) -> tuple[dict[str, Traced], list[Traced], dict[str, Statistical]]:
        make = partial(kind, error=0.0, precision=precision, is_input=True)
        return _backwards(formula, arguments, cotangent, wide, make)

    with np.errstate(all="ignore"):
        leaves, order, gradients_by_path = run(kind)
        # Equal rows have equal errors. A sum adds them linearly, not in quadrature.
        repeats = _most_repeated_rows([*leaves.values(), *(node for node in order if node.is_gathered)])
        softmaxes = [node for node in order if node.result.weights is not None]
        if softmaxes:
            errors = _with_common_errors(gradients_by_path, softmaxes)
            if repeats > 1:
                # Errors that the weights of a row share are counted above. No number of equal keys multiplies them.
                errors_of_rows = run(without_common)[2]
                errors = {path: np.hypot(x, repeats**0.5 * errors_of_rows[path].error) for path, x in errors.items()}
            if precision.output:
                # Kernels may store partial sums, of tiles and of heads, in the few bits of the result. Their number
                # is unknown here. Counting errors as often as a row has equal scores has covered all kernels tried.
                times = max(float(np.max(node.result.weights, initial=1.0)) for node in softmaxes)
                errors = {path: np.maximum(x, times**0.5 * gradients_by_path[path].error) for path, x in errors.items()}
        else:
            errors = {path: repeats**0.5 * g.error for path, g in gradients_by_path.items()}
        if sampled:

            def compute(make: Callable[[Numbers], Statistical]) -> dict[str, Numbers]:
                _, _, gradients_of_run = _backwards(formula, arguments, cotangent, wide, make)
                return {path: g.value for path, g in gradients_of_run.items()}

            sample_errors = deviations(compute, {path: g.value for path, g in gradients_by_path.items()}, precision)
            errors = {path: np.fmax(error, sample_errors[path]) for path, error in errors.items()}
        return {
            path: _with_budget(gradients_by_path[path].value, errors[path], precision)
            if path in gradients_by_path
            else (np.zeros(leaf.shape), np.zeros(leaf.shape))
            for path, leaf in leaves.items()
        }


class _WithoutCommon(Statistical):
    """Numbers without the errors that all attention weights of a row share."""

    common_errors = False


class _OrderedWithoutCommon(Ordered):
    """Numbers with partial sums' errors, without those that all weights of a row share."""

    common_errors = False


def _with_common_errors(gradients: Mapping[str, Statistical], softmaxes: Sequence[Traced]) -> dict[str, Numbers]:
    """Errors of gradients with those that the weights of a row share.

    These add linearly over keys and equal rows: a common factor of a row's weights multiplies all that is summed over
    its keys.
    """
    equal_rows = _most_repeated_rows(softmaxes)
    common = max(float(np.max(x.result.common, initial=0.0)) for x in softmaxes) ** 0.5
    return {
        path: np.hypot(equal_rows**0.5 * g.error, common * np.abs(g.value).astype(np.float64))
        for path, g in gradients.items()
    }


def _backwards(
    formula: Callable[..., Any],
    arguments: Mapping[str, Any],
    cotangent: Any,
    wide: Any,
    make: Callable[[Numbers], Statistical],
) -> tuple[dict[str, Traced], list[Traced], dict[str, Statistical]]:
    """Return float arguments by path, all arrays in order, and gradients. Arguments without effect have none."""

    def exact(x: Numbers) -> Statistical:
        return make(x.astype(wide))

    with arithmetic(lambda numbers: exact(numbers)._counted(numbers.astype(wide))):
        leaves = {path: Traced(exact(x)) for path, x in flatten(dict(arguments)).items() if is_real(x)}
        result = formula(**map_tree(dict(arguments), lambda path, x: leaves.get(path, x)))
        weights = flatten(cotangent)
        traced = [(path, x) for path, x in flatten(result).items() if isinstance(x, Traced)]
        weighted = [(x, exact(weights[path])) for path, x in traced if weights[path] is not None]
        order = _in_order([x for x, _ in weighted])
        collected = _backpropagate(order, weighted)
    return leaves, order, {path: collected[id(leaf)] for path, leaf in leaves.items() if id(leaf) in collected}


def _in_order(results: Sequence[Traced]) -> list[Traced]:
    """List all arrays of a computation in topological order: each after its operands."""
    order: list[Traced] = []
    seen: set[int] = set()
    stack: list[tuple[Traced, bool]] = [(result, False) for result in results]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((p, False) for p in node.parents)
    return order


def _backpropagate(order: list[Traced], weighted: Sequence[tuple[Traced, Statistical]]) -> dict[int, Statistical]:
    """Return the gradients of all arrays, by ``id``, from the cotangents of the results."""
    collected: dict[int, Statistical] = {}

    def collect(node: Traced, part: Statistical) -> None:
        known = collected.get(id(node))
        collected[id(node)] = part if known is None else known + part

    for result, cotangent in weighted:
        collect(result, cotangent)
    for node in reversed(order):
        g = collected.get(id(node))
        if g is None or node.backward is None:
            continue
        for parent, part in zip(node.parents, node.backward(g), strict=True):
            if part is not None:
                collect(parent, part)
    return collected


def _most_repeated_rows(arrays: Sequence[Traced]) -> float:
    return max((_repeated_rows(x.value) for x in arrays), default=1.0)


def _repeated_rows(x: Numbers) -> float:
    """Largest number of equal rows of a matrix, or of equal elements of a vector."""
    if x.size == 0 or x.ndim == 0:
        return 1.0
    rows = x.reshape(-1, *x.shape[-2:]).astype(np.float64) if x.ndim > 1 else x.reshape(1, -1, 1).astype(np.float64)
    # Rows are compared by one sum each, weighted by square roots: different rows hardly ever have equal sums.
    row_keys = np.sort(rows @ np.sqrt(np.arange(2.0, rows.shape[-1] + 2)), axis=-1)
    return float(longest_runs(row_keys).max())


def _with_budget(value: Numbers, error: Numbers, precision: Precision) -> tuple[Numbers, Numbers]:
    """Return a gradient and its budget, from its error before it is stored."""
    magnitude = np.abs(value).astype(np.float64)
    sigma = np.sqrt(error**2 + (0.6 * precision.output * magnitude) ** 2) + precision.output_smallest
    return value, WIDTH * sigma
