"""Helpers of several modules of checks: samples, selected rows, budgets, demands."""

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, along, keep, take
from attnspec.conformance.inputs.attendance import aligning_lengths, attendable, with_first_keys
from attnspec.conformance.inputs.attendance import live_rows as live
from attnspec.conformance.inputs.attendance import with_feature_axes as add_feature_axes
from attnspec.conformance.inputs.dtypes import SMALLEST_NORMAL
from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.inputs.heads import with_divided_heads
from attnspec.conformance.judging.foreign_calls import Raised
from attnspec.conformance.judging.left_out import raises_without_keys
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.judging.violation import OutsideDeclaration, Reason, Violation
from attnspec.reference.budget import WIDTH, Judged
from attnspec.spec.contract.axes import Axis, Role
from attnspec.spec.contract.tree import Kind, Leaf, flatten, without_indices

R = TypeVar("R")


def live_rows(subject: Subject, arguments: Arguments) -> Numbers:
    """Mask of the rows with an attendable key, broadcastable against the result."""
    return with_feature_axes(subject, live(arguments, semantics=subject.semantics))


def with_feature_axes(subject: Subject, rows: Numbers) -> Numbers:
    """Numbers per query (or per batch element), with axes to broadcast against the result."""
    return add_feature_axes(rows, subject.operation.leading, subject.operation.query_size)


def attendable_keys(subject: Subject, arguments: Arguments) -> Numbers:
    """The full mask of attendable keys, under the backend's causal alignment."""
    return attendable(arguments, semantics=subject.semantics)


def key_heads(subject: Subject, heads: int, heads_k: int) -> Numbers:
    """The key head that each query head reads."""
    indices = np.arange(heads)
    return indices % heads_k if subject.semantics.head_groups == "interleaved" else indices // (heads // heads_k)


def aligned_top_left(subject: Subject, arguments: Arguments) -> bool:
    """Return whether the backend's causal flag aligns query i with key i."""
    if aligning_lengths(arguments, subject.semantics) is not None:
        return False
    return not subject.semantics.bottom_right or arguments.queries == arguments.keys_count


def in_full_batches(arguments: Arguments) -> Arguments:
    """The arguments with broadcast batches repeated in full; unchanged if there are none."""
    repeated_arrays = {}
    for leaf, x in arguments.batched:
        repeated = np.broadcast_to(x, (*arguments.batch, *x.shape[x.ndim - len(leaf.core) :]))
        if repeated.shape != x.shape:
            repeated_arrays[leaf.path] = np.ascontiguousarray(repeated)
    return arguments.replaced(repeated_arrays) if repeated_arrays else arguments


def causal_sizes(subject: Subject) -> tuple[str, str]:
    """The sizes of the rows of causal results and of the positions they depend on."""
    return subject.operation.causal[0], subject.operation.causal[-1]


def parameters_of(arguments: Arguments, kind: type[R]) -> R:
    """The only argument of this class of parameters."""
    (parameters,) = (x for x in arguments.values_by_name.values() if isinstance(x, kind))
    return parameters


def filled_with(arguments: Arguments, changes: list[tuple[Numbers, float]]) -> Arguments:
    """A copy in which these arrays are filled with numbers."""
    return with_arrays(arguments, [(x, np.full_like(x, number)) for x, number in changes])


def with_arrays(arguments: Arguments, changes: list[tuple[Numbers, Numbers]]) -> Arguments:
    """A copy in which these arrays are replaced."""
    paths = {id(x): path for path, x in flatten(arguments.values_by_name).items()}
    return arguments.replaced({paths[id(old)]: new for old, new in changes})


def without_layers(arguments: Arguments) -> Arguments:
    """A copy without counted items, such as the layers of a stack."""
    for count in arguments.operation.counts:
        arguments = arguments.along(count, keep(0))
    return arguments


def select_rows(results: Results, size: str, order: Any, subject: Subject, arguments: Arguments) -> Results:
    """The arrays of a result, with the rows ``order`` along axes of this size."""
    change = take(order)
    return {
        leaf.path: along(results[leaf.path], leaf, size, arguments.binding, change)
        if size in leaf.sizes
        else results[leaf.path]
        for leaf in subject.operation.outputs
    }


def doubles(results: Results) -> Results:
    """All arrays of a result in double precision."""
    return {path: wide(x) for path, x in results.items()}


def doubled(budgets: Results) -> Results:
    """The budget of the difference of two results that have the same budget."""
    return {path: 2 * x for path, x in budgets.items()}


def expected_or_oracle(expected: Numbers, oracle: Judged) -> Numbers:
    """The expected numbers, except where the oracle is not finite: there its own."""
    return np.where(np.isfinite(oracle.value), expected, oracle.value)


def sum_budgets(*budgets: Results) -> Results:
    """The sum of budgets, which bounds the difference of their results."""
    return {path: sum((b[path] for b in budgets), np.zeros(())) for path in budgets[0]}


def demand_permuted_results(
    subject: Subject, arguments: Arguments, rng: np.random.Generator, kind: Axis, excluded: Axis, prefix: str
) -> bool:
    """Demand that permuting inputs along axes permutes results; False without axes."""
    plain, operation = arguments.unordered(), arguments.operation
    tried = False
    for size in _sizes_of_items(operation.order_free(kind), plain.sizes):
        if operation.axis(size) & excluded:
            continue
        order = rng.permutation(plain.size(size))
        permuted = plain.along(size, take(order))
        expected = select_rows(doubles(subject.results(plain)), size, order, subject, plain)

        def budgets(size: str = size, order: Numbers = order) -> Results:
            return doubled(select_rows(subject.budgets(plain), size, order, subject, plain))

        subject.all_match(subject.results(permuted), expected, budgets, permuted, prefix)
        tried = True
    return tried


def _sizes_of_items(described: Collection[str], sizes: Collection[str]) -> list[str]:
    """The sizes of a call that are described, those of tuple items included."""
    return [size for size in sizes if without_indices(size) in described]


def sample(
    subject: Subject,
    rng: np.random.Generator,
    batch: tuple[int, ...] = (),
    /,
    *,
    queries: int = 4,
    keys: int = 4,
    heads: int = 4,
    features: int = 4,
    whole: bool = False,
    sizes: Mapping[str, int] | None = None,
) -> Arguments:
    """Normal inputs within the backend's limits; if ``whole``, with masks and optional arrays.

    Sizes are chosen by name or by kind: 2 layers, 4 time steps, ``features`` for every kind without a parameter. If
    heads share keys, ``heads`` counts query heads, in groups of two. If rows without keys are declared to raise, each
    row has its first key.
    """
    operation = subject.operation
    group = min(heads, 2) if operation.sizes_of(Axis.GROUP) else 1
    kinds = {Axis.HEAD: heads // group, Axis.GROUP: group, Axis.KEY: keys, Axis.QUERY: queries}
    fitted = {}
    for name in operation.sizes:
        axis = operation.axis(name)
        # Of the kinds of a size, the last counts: positions of self-attention are as many as ``queries``.
        requested = next((size for kind, size in reversed(kinds.items()) if kind in axis), None)
        fallback = 2 if axis & Axis.LAYER else 4 if axis & Axis.TIME else features
        fitted[name] = subject.allowed_size(name, fallback if requested is None else requested)
    fitted = with_divided_heads(fitted | dict(sizes or {}), operation, subject.limits)
    fits = len(batch) <= subject.limits.max_batch_dims
    absent = subject.unsupported_arrays if whole else subject.optional
    masks = {leaf.path: "random" for leaf in operation.leaves if leaf.kind is Kind.BOOL and leaf.path not in absent}
    batch, seed = batch if fits else (), int(rng.integers(2**32))
    arguments = subject.arguments(Example(fitted, batch, masks=masks if whole else {}, absent=absent, seed=seed))
    return with_first_keys(arguments) if raises_without_keys(subject.semantics, arguments) else arguments


def normal_like(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> Arguments | None:
    """Normal inputs with these shapes and mask; None for results below 8 numbers."""
    if np.prod(np.array(arguments.binding.result)) < 8:
        return None
    changes = {}
    for leaf, x in arguments.floats:
        weight = subject.operation.role(leaf) & Role.WEIGHT
        scale = 1 / np.sqrt(max(*x.shape[-1:], 1, 1)) if weight else 1.0
        changes[leaf.path] = subject.exact(scale * rng.standard_normal(x.shape))
    return arguments.replaced(changes)


def random_like(x: Numbers, rng: np.random.Generator, subject: Subject) -> Numbers:
    """Normal numbers of the same shape, exactly representable in the tested dtype."""
    return subject.exact(rng.standard_normal(x.shape))


def wide(x: Numbers) -> Numbers:
    """The array in double precision; long doubles are kept."""
    return x if x.dtype == np.longdouble else x.astype(np.float64)


def on_coarse_grid(x: Any, reach: float = 4.0, step: float = 0.25) -> Numbers:
    """Numbers rounded to a grid with exact sums in every dtype."""
    return np.clip(np.round(np.asarray(x).astype(np.float64) / step) * step, -reach, reach)


def smallest_normal(subject: Subject) -> float:
    """The smallest normal number of the tested dtype and of its operands' format."""
    p = subject.precision
    return max(SMALLEST_NORMAL[subject.dtype], p.inputs_smallest / p.inputs if p.inputs_smallest else 0.0)


def broadcast_batches(*arrays: Any, core: int) -> list[Numbers]:
    """The arrays with batches broadcast together; ``core`` counts the last dimensions to keep."""
    batch = np.broadcast_shapes(*(a.shape[: a.ndim - core] for a in arrays))
    return [np.broadcast_to(a, (*batch, *a.shape[a.ndim - core :])) for a in arrays]


def linear_in(subject: Subject, leaves: tuple[Leaf, ...]) -> str:
    """The first of these arguments in which the result is linear."""
    return next(leaf.path for leaf in leaves if leaf.path in subject.operation.linear)


def demand_additive_in(subject: Subject, arguments: Arguments, rng: np.random.Generator, path: str, title: str) -> bool:
    """Demand that the result is additive in one argument, on a grid with exact sums."""
    first = subject.exact(on_coarse_grid(arguments.array(path)))
    second = subject.exact(on_coarse_grid(2 * rng.standard_normal(first.shape)))
    both = subject.exact(first.astype(np.float64) + second.astype(np.float64))
    parts = [arguments.replaced({path: x}) for x in (first, second, both)]
    of_first, of_second, of_sum = (subject.call(p) for p in parts)
    budget = sum((subject.budget(p) for p in parts), np.zeros(()))
    subject.demand_match(of_sum, wide(of_first) + wide(of_second), budget, parts[2], f"of a sum of {path}s, {title}")
    return True


def pooled_rows(arguments: Arguments) -> Numbers:
    """The rows that are averaged."""
    return arguments.array(arguments.operation.pooled)


def has_query_axis(arguments: Arguments) -> bool:
    """Return whether the operation has a query axis, hence a result row per query."""
    return arguments.operation.query_size is not None


def average_tolerance(subject: Subject, arguments: Arguments, values: Numbers) -> float:
    """The distance by which rounding may move an average beyond its values.

    Two sums over keys are rounded, then operands, weights and result. The weights of a row share an error, ``level``.
    """
    p = subject.precision
    keys = arguments.keys_count or 0
    largest = float(np.max(np.abs(values.astype(np.float64)), initial=0.0))
    units = (2 * keys + 8) * p.accumulation + 2 * p.weights + 2 * p.operand + p.output
    units += WIDTH * subject.oracle(arguments).level + keys * p.weights_scaled
    return units * largest + 8 * (keys * p.weights_smallest * max(largest, 1.0) + p.output_smallest)


def demand_no_bias(subject: Subject, arguments: Arguments, direction: Numbers, *, rows_err_alike: bool = False) -> bool:
    """Demand that errors, summed along a direction, are within rounding.

    ε̂ = Σ w (got − o) g / Σ w g² with w = 1/σ² has the standard error se = (Σ g²/σ²)^−½ if errors are independent, as
    for normal inputs. With ``rows_err_alike`` the errors within a row are taken as equal, except for the rounding of
    the result, because all columns share the errors of their weights. The limit is 12 se, plus 4 unit roundoffs of the
    accumulation for an error that all elements share. Returns whether anything was judged. The filter is not used if
    the class rounds inputs, or computed operands of an operation with weight matrices: then all rows share the error of
    a key.
    """
    operation = subject.operation
    has_weight_matrices = any(operation.role(x) == Role.WEIGHT and len(x.core) > 1 for x in operation.leaves)
    if subject.precision.inputs or (subject.precision.operand and has_weight_matrices):
        return False
    oracle = subject.oracle(arguments)
    got = wide(subject.call(arguments))
    sigma = oracle.sigma
    largest = float(np.max(np.abs(oracle.value), initial=0.0))
    with np.errstate(all="ignore"):
        usable = (oracle.budget <= subject.widest_judged * largest) & (oracle.budget > 0)
        usable &= np.isfinite(got) & np.isfinite(direction)
        scaled = np.where(usable, direction / np.where(usable, sigma, 1.0), 0.0).astype(np.float64)
        information = float((scaled**2).sum())
        if information == 0.0:
            return False
        error = np.where(usable, (got - oracle.value) / np.where(usable, sigma, 1.0), 0.0).astype(np.float64)
    estimate = float((error * scaled).sum()) / information
    limit = 12 * _deviation(subject, oracle, scaled, rows_err_alike) / information + 4 * subject.precision.accumulation
    subject.ratio = max(subject.ratio, abs(estimate) / limit)
    subject.demand(
        abs(estimate) <= limit,
        f"a relative error of {estimate:.3g} shows over all elements together; rounding explains at most {limit:.3g}",
        arguments,
        expected=np.float64(0.0),
        got=np.float64(estimate),
        budget=np.float64(limit),
    )
    return True


def _deviation(subject: Subject, oracle: Judged, scaled: Numbers, rows_err_alike: bool) -> float:
    """√Var[Σ w e g]: independent errors add in quadrature, equal ones linearly."""
    if not rows_err_alike:
        return float(np.sqrt((scaled**2).sum()))
    sigma = oracle.sigma
    with np.errstate(all="ignore"):
        # 0.6 units are the standard deviation of one rounding, as in ``budget.statistical``.
        rounding = 0.6 * subject.precision.output * np.abs(oracle.value).astype(np.float64) / sigma
        rounding = np.where(scaled != 0, np.minimum(rounding, 1.0), 0.0)
    independent, common = scaled * rounding, np.abs(scaled) * np.sqrt(1 - rounding**2)
    return float(np.sqrt((independent**2).sum() + (common.sum(-1) ** 2).sum()))


def demand_joined_in_order(subject: Subject, arguments: Arguments) -> bool:
    """Demand that the result joins the arguments' features in order, bit for bit."""
    got = subject.call(arguments)
    parts = [np.broadcast_to(x, (*got.shape[:-1], x.shape[-1])) for _, x in arguments.floats]
    expected = np.concatenate(parts, axis=-1)
    subject.demand_equal(got, expected, lambda: subject.budget(arguments), arguments, "unlike its parts, the result")
    return bool(got.size)


def demand_bounded(subject: Subject, arguments: Arguments, path: str, bound: Numbers | float, title: str) -> None:
    """Demand that elements of a result exceed a bound by at most their budget."""
    got, budget = wide(subject.results(arguments)[path]), subject.budgets(arguments)[path]
    slack = np.where(np.isfinite(budget), budget, 0)
    subject.demand(
        bool((np.abs(got) <= bound + slack).all()),
        f"{title} has magnitude {np.abs(got).max(initial=0.0):.9g}",
        arguments,
        expected=np.clip(got, -bound, bound),
        got=got,
    )


def demand_odd_in(subject: Subject, arguments: Arguments, paths: Collection[str]) -> bool:
    """Demand that negating these arguments negates the result."""
    negated = arguments.replaced({path: -arguments.array(path) for path in paths})
    expected, budget = -wide(subject.call(arguments)), subject.budget(arguments)
    subject.demand_match(subject.call(negated), expected, 2 * budget, negated, "of negated vectors, the result")
    return bool(expected.size)


def bits_equal(results: Results, expected: Results) -> bool:
    """Return whether all arrays have the same numbers, NaN included."""
    return all(np.array_equal(results[path], x, equal_nan=x.dtype.kind not in "biu") for path, x in expected.items())


def demand_refusal(
    subject: Subject, arguments: Arguments, path: str, most: int, rng: np.random.Generator, name: str, least: int = 0
) -> bool:
    """Demand an exception for the integers ``least`` − 1 and ``most`` + 1.

    Left out if rejection is declared unchecked: a kernel that checked integers would wait for its device.
    """
    if subject.semantics.rejection == "unchecked":
        raise OutsideDeclaration("semantics rejection = unchecked")
    integers = arguments[path]
    if integers is None or not integers.size:
        return False
    place = int(rng.integers(integers.size))
    for wrong in (least - 1, most + 1):
        outside: Numbers = integers.copy()
        outside.reshape(-1)[place] = wrong
        broken = arguments.replaced({path: outside})
        result = subject.result_or_raised(subject.converted(broken))
        if not isinstance(result, Raised):
            subject.observed["rejection"] = "unchecked"
            raise Violation(
                f"{name} outside {least}..{most} was accepted; expected an exception",
                reason=Reason.ACCEPTED,
                arguments=broken,
                got=next(iter(result.values())),
            )
    return True
