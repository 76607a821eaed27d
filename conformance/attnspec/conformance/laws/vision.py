"""Checks of the laws of vision."""

from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import (
    doubles,
    filled_with,
    parameters_of,
    select_rows,
    sum_budgets,
    wide,
    with_arrays,
    without_layers,
)
from attnspec.reference.transformer import layer_norm
from attnspec.spec.contract.axes import Role
from attnspec.spec.laws import vision as law
from attnspec.spec.transformer import LayerNormParameters
from attnspec.spec.vision import AttentionGateParameters, PatchEmbeddingParameters

OPEN_BIAS = 1024.0
"""A bias that opens a gate in every dtype; its negative closes it."""


def _grid_sizes(subject: Subject) -> tuple[str, ...]:
    return tuple(option.path for option in subject.operation.numbers)


def _batched_array(arguments: Arguments) -> tuple[str, Numbers]:
    ((leaf, x),) = arguments.batched
    return leaf.path, x


@checks(law.PATCHES_TILE_IMAGE)
def patches_tile_image(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Cut every patch out of the image, and compare."""
    (size,) = _grid_sizes(subject)
    patch, (_, image) = arguments[size], _batched_array(arguments)
    height, width = image.shape[-3:-1]
    corners = [(top, left) for top in range(0, height, patch) for left in range(0, width, patch)]
    cut = [image[..., top : top + patch, left : left + patch, :] for top, left in corners]
    expected = np.stack([x.reshape(*x.shape[:-3], -1) for x in cut], axis=-2)
    subject.demand_equal(subject.call(arguments), expected, lambda: subject.budget(arguments), arguments, "the patches")
    return bool(expected.size)


@checks(law.PATCH_PERMUTATION)
def patch_permutation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Reverse rows and columns of patches; reverse positions except the class token's."""
    parameters, (_, image) = parameters_of(arguments, PatchEmbeddingParameters), _batched_array(arguments)
    patch, count = parameters.w.shape[1], parameters.positions.shape[-2]
    if count < 3:
        return False
    *batch, height, width, channels = image.shape
    blocks = image.reshape(*batch, height // patch, patch, width // patch, patch, channels)
    flipped = np.flip(blocks, axis=(-5, -3)).reshape(image.shape)
    order = np.array([0, *range(count - 1, 0, -1)])
    permuted = with_arrays(arguments, [(image, flipped), (parameters.positions, parameters.positions[order])])
    expected, budget = wide(subject.call(arguments)), subject.budget(arguments)
    # ``patch_embedding`` returns a row per token, ``vit_encoder`` one vector per image.
    if subject.operation.outputs[0].core[1:]:
        expected, budget = (np.take(x, order, axis=-2) for x in (expected, budget))
    budget = budget + subject.budget(permuted)
    subject.demand_match(subject.call(permuted), expected, budget, permuted, "of patches in reverse, the result")
    return bool(expected.size)


@checks(law.CLASS_TOKEN_FIRST)
def class_token_first(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Without layers, check the first row, or the representation of the image."""
    parameters = parameters_of(arguments, PatchEmbeddingParameters)
    no_layers = without_layers(arguments)
    got, budget = subject.call(no_layers), subject.budget(no_layers)
    expected = wide(parameters.class_token) + wide(parameters.positions[0])
    if subject.operation.outputs[0].core[1:]:
        got, budget = got[..., 0, :], budget[..., 0, :]
    else:
        norm = parameters_of(no_layers, LayerNormParameters)
        expected = layer_norm(expected, LayerNormParameters(wide(norm.gain), wide(norm.bias)))
    expected = np.broadcast_to(expected, got.shape)
    subject.demand_match(got, expected, budget, no_layers, "of the class token, the result")
    return bool(got.size)


def _with_alignment(subject: Subject, arguments: Arguments, *, corners: bool) -> Arguments | None:
    """A copy with this alignment; None if the backend lacks it."""
    (option,) = (o for o in subject.operation.options if o.choices)
    if corners and not subject.has_all_features:
        return None
    return arguments.replaced({option.path: corners})


@checks(law.CORNER_ALIGNMENT)
def linear_fields(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Interpolate a linear field along every axis."""
    path, x = _batched_array(arguments)
    grid, target = x.shape[-4:-1], [arguments[size] for size in _grid_sizes(subject)]
    axes = [i for i in range(3) if grid[i] > 1 and target[i] > 1]
    aligned = _with_alignment(subject, arguments, corners=True)
    if not axes or aligned is None:
        return False

    def field(shape: tuple[int, ...], axis: int) -> Numbers:
        distances = np.arange(shape[axis - 4]) * ((grid[axis] - 1) / (shape[axis - 4] - 1))
        return np.broadcast_to(distances.reshape([-1 if i == axis else 1 for i in range(4)]), shape)

    for axis in axes:
        # The distances of the input are whole numbers, exact in every dtype.
        call = aligned.replaced({path: subject.exact(field(x.shape, axis))})
        got = subject.call(call)
        subject.demand_match(got, field(got.shape, axis), subject.budget(call), call, "of a linear field, the result")
    return bool(got.size)


@checks(law.CORNER_ALIGNMENT)
def centres(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Interpolate to twice the size along one axis, with default alignment."""
    _, x = _batched_array(arguments)
    axis = int(rng.integers(3)) - 4
    finer = _with_grid(subject, arguments, [x.shape[i] * (2 if i == axis else 1) for i in (-4, -3, -2)])
    rows = np.moveaxis(wide(x), axis, 0)
    before, after = (np.concatenate(pair) for pair in ((rows[:1], rows[:-1]), (rows[1:], rows[-1:])))
    interpolated = np.stack([before / 4 + 3 * rows / 4, 3 * rows / 4 + after / 4], axis=1)
    expected = np.moveaxis(interpolated.reshape(2 * rows.shape[0], *rows.shape[1:]), 0, axis)
    subject.demand_match(subject.call(finer), expected, subject.budget(finer), finer, "of twice as many points, result")
    return bool(expected.size)


def _with_grid(subject: Subject, arguments: Arguments, grid: Any) -> Arguments:
    """A copy with this target grid and the default alignment."""
    changed = arguments.replaced(dict(zip(_grid_sizes(subject), map(int, grid), strict=True)))
    (option,) = (o for o in subject.operation.options if o.choices)
    return changed.replaced({option.path: subject.operation.defaults[option.path]})


@checks(law.INTERPOLATION_WITHIN_RANGE)
def interpolation_within_range(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Demand results in the range of their channel, and equality on the same grid."""
    path, x = _batched_array(arguments)
    same = arguments.replaced(dict(zip(_grid_sizes(subject), x.shape[-4:-1], strict=True)))
    subject.demand_equal(subject.call(same), x, lambda: subject.budget(same), same, "on the same grid, the result")
    constant = np.array(np.broadcast_to(x[..., :1, :1, :1, :], x.shape))
    places = (-4, -3, -2)
    for current, prefix in ((arguments, ""), (arguments.replaced({path: constant}), "of a constant, ")):
        rows, got = wide(current.array(path)), wide(subject.call(current))
        if got.size:
            nearest = np.clip(got, rows.min(places, keepdims=True), rows.max(places, keepdims=True))
            title = f"{prefix}outside the range of its channel, the result"
            subject.demand_match(got, nearest, subject.budget(current), current, title)
    return bool(x.size)


@checks(law.SEPARABLE_INTERPOLATION)
def separable_interpolation(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Interpolate one axis after another: columns, rows, slices."""
    path, x = _batched_array(arguments)
    names = _grid_sizes(subject)
    got, budget = subject.call(arguments), subject.budget(arguments)
    if not got.size:
        return False
    slack = 0.0
    grid = list(x.shape[-4:-1])
    for axis in (2, 1, 0):
        grid[axis] = arguments[names[axis]]
        step = arguments.replaced({path: x, **dict(zip(names, grid, strict=True))})
        # The error of an average is at most that of the averaged numbers.
        slack += float(subject.budget(step).max())
        x = subject.call(step)
    subject.demand_match(got, wide(x), budget + slack, arguments, "unlike one axis after another, the result")
    return True


@checks(law.GATE_IN_UNIT_INTERVAL)
def gate_in_unit_interval(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check the range of the coefficients, and their product with the features."""
    gated, coefficients = (leaf.path for leaf in subject.operation.outputs)
    results, budgets = doubles(subject.results(arguments)), subject.budgets(arguments)
    alpha = results[coefficients]
    if not alpha.size:
        return False
    subject.demand_match(
        alpha,
        np.clip(alpha, 0, 1),
        budgets[coefficients],
        arguments,
        "outside 0..1, the coefficient",
    )
    x = wide(_gated_array(subject, arguments)[1])
    slack = budgets[gated] + budgets[coefficients][..., None] * np.abs(x)
    title = "unlike coefficients times features, the result"
    subject.demand_match(results[gated], alpha[..., None] * x, slack, arguments, title)
    return True


def _gated_array(subject: Subject, arguments: Arguments) -> tuple[str, Numbers]:
    """The path and the numbers of the gated array, recognised by the result's grid."""
    grid = subject.operation.outputs[0].sizes[:3]
    (leaf,) = (x for x in subject.operation.leaves if x.batched and x.sizes[:3] == grid)
    return leaf.path, arguments.array(leaf.path)


@checks(law.OPEN_AND_CLOSED_GATE)
def open_and_closed_gate(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set the weights of the gate to 0, and a large bias of either sign."""
    parameters, (_, x) = parameters_of(arguments, AttentionGateParameters), _gated_array(subject, arguments)
    sign = float(rng.choice([-1, 1]))
    saturated = filled_with(arguments, [(parameters.psi, 0), (parameters.b_psi, sign * OPEN_BIAS)])
    got, budget = (y[..., : x.shape[-1]] for y in (subject.call(saturated), subject.budget(saturated)))
    expected = np.broadcast_to(wide(x) * (sign > 0), got.shape)
    title = f"of {'an open' if sign > 0 else 'a closed'} gate, the result"
    subject.demand_match(got, expected, budget, saturated, title)
    return bool(got.size)


@checks(law.SKIP_KEEPS_SIGNAL)
def skip_keeps_signal(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Make the signal constant: it comes out unchanged."""
    path, x = _gated_array(subject, arguments)
    ((signal, signal_array),) = ((leaf.path, y) for leaf, y in arguments.batched if leaf.path != path)
    first = signal_array[..., :1, :1, :1, :]
    constant = arguments.replaced({signal: np.array(np.broadcast_to(first, signal_array.shape))})
    got, budget = (y[..., x.shape[-1] :] for y in (subject.call(constant), subject.budget(constant)))
    expected = np.broadcast_to(wide(first), got.shape)
    subject.demand_match(got, expected, budget, constant, "of a constant signal, the signal in the result")
    return bool(got.size)


def _attended_map(subject: Subject, arguments: Arguments) -> tuple[str, Numbers]:
    """The path and the numbers of the attended map, recognised by the weights' grid."""
    grid = subject.operation.outputs[1].sizes
    (leaf,) = (x for x in subject.operation.leaves if subject.operation.role(x) is Role.STATE and grid == x.sizes[:2])
    return leaf.path, arguments.array(leaf.path)


@checks(law.SPATIAL_WEIGHTS_SUM_TO_ONE)
def spatial_weights_sum_to_one(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check the least weight, the sum of weights, and the context computed from them."""
    context, weights = (leaf.path for leaf in subject.operation.outputs)
    results, budgets = doubles(subject.results(arguments)), subject.budgets(arguments)
    alpha, slack = results[weights], budgets[weights]
    if not alpha.size:
        return False
    subject.demand(bool((alpha >= 0).all()), f"a weight is {alpha.min():.9g}", arguments, got=alpha)
    sums = alpha.sum((-2, -1))
    subject.demand_match(sums, np.ones(sums.shape), slack.sum((-2, -1)), arguments, "the sum of the weights")
    x = wide(_attended_map(subject, arguments)[1])
    expected = (alpha[..., None] * x).sum((-3, -2))
    context_slack = budgets[context] + (slack[..., None] * np.abs(x)).sum((-3, -2))
    subject.demand_match(results[context], expected, context_slack, arguments, "unlike the weighted sum, the context")
    return True


@checks(law.ROTATED_MAP_ROTATES_WEIGHTS)
def rotated_map_rotates_weights(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Reverse the rows and the columns of the map."""
    path, x = _attended_map(subject, arguments)
    flipped = arguments.replaced({path: np.flip(x, axis=(-3, -2)).copy()})
    expected, budgets = doubles(subject.results(arguments)), subject.budgets(arguments)
    for size in subject.operation.outputs[1].sizes:
        order = np.arange(arguments.size(size))[::-1]
        expected = select_rows(expected, size, order, subject, arguments)
        budgets = select_rows(budgets, size, order, subject, arguments)
    subject.all_match(
        subject.results(flipped),
        expected,
        sum_budgets(budgets, subject.budgets(flipped)),
        flipped,
        "of the reversed map,",
    )
    return bool(x.size)
