"""Checks of the laws of vision."""

from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import doubles, exchanged, filled, picked, record, together, wide, without_layers
from attnspec.reference.transformer import layer_norm
from attnspec.spec.contract.axes import Role
from attnspec.spec.laws import vision as law
from attnspec.spec.transformer import LayerNormParameters
from attnspec.spec.vision import AttentionGateParameters, PatchEmbeddingParameters

OPEN = 1024.0
"""A bias that opens a gate in every dtype; its negative shuts it."""


def _grid(subject: Subject) -> tuple[str, ...]:
    """The arguments that are sizes of a grid, in order."""
    return tuple(option.path for option in subject.operation.numbers)


def _map(arguments: Arguments) -> tuple[str, Numbers]:
    """The path and the numbers of the only array that has a batch."""
    ((leaf, x),) = arguments.batched
    return leaf.path, x


# Images as sequences --------------------------------------------------------------------------------------------------


@checks(law.PATCHES)
def patches(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Compare with every patch cut out of the image by itself."""
    (size,) = _grid(subject)
    patch, (_, image) = arguments[size], _map(arguments)
    height, width = image.shape[-3:-1]
    corners = [(top, left) for top in range(0, height, patch) for left in range(0, width, patch)]
    cut = [image[..., top : top + patch, left : left + patch, :] for top, left in corners]
    expected = np.stack([x.reshape(*x.shape[:-3], -1) for x in cut], axis=-2)
    subject.same(subject.call(arguments), expected, lambda: subject.budget(arguments), arguments, "the patches")
    return bool(expected.size)


@checks(law.PATCH_ORDER)
def patch_order(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Reverse rows and columns of patches, and all positions but the class token's."""
    p, (_, image) = record(arguments, PatchEmbeddingParameters), _map(arguments)
    patch, count = p.w.shape[1], p.positions.shape[-2]
    if count < 3:
        return False
    *batch, height, width, channels = image.shape
    blocks = image.reshape(*batch, height // patch, patch, width // patch, patch, channels)
    turned = np.flip(blocks, axis=(-5, -3)).reshape(image.shape)
    order = np.array([0, *range(count - 1, 0, -1)])
    other = exchanged(arguments, [(image, turned), (p.positions, p.positions[order])])
    expected, budget = wide(subject.call(arguments)), subject.budget(arguments)
    if subject.operation.outputs[0].core[1:]:
        expected, budget = (np.take(x, order, axis=-2) for x in (expected, budget))
    subject.matches(
        subject.call(other), expected, budget + subject.budget(other), other,
        "with patches and positions exchanged, the result",
    )  # fmt: skip
    return bool(expected.size)


@checks(law.CLASS_TOKEN)
def class_token(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check the first row, or the representation, without layers."""
    p = record(arguments, PatchEmbeddingParameters)
    given = without_layers(arguments)
    got, budget = subject.call(given), subject.budget(given)
    expected = wide(p.class_token) + wide(p.positions[0])
    if subject.operation.outputs[0].core[1:]:
        got, budget = got[..., 0, :], budget[..., 0, :]
    else:
        norm = record(given, LayerNormParameters)
        expected = layer_norm(expected, LayerNormParameters(wide(norm.gain), wide(norm.bias)))
    expected = np.broadcast_to(expected, got.shape)
    subject.matches(got, expected, budget, given, "of the class token, the result")
    return bool(got.size)


# Interpolation --------------------------------------------------------------------------------------------------------


def _with_alignment(subject: Subject, arguments: Arguments, *, corners: bool) -> Arguments | None:
    """A copy with this alignment; None if the backend lacks it."""
    (option,) = (o for o in subject.operation.options if o.choices)
    if corners and not subject.has_features:
        return None
    return arguments.replaced({option.path: corners})


@checks(law.ALIGNMENT)
def linear_fields(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Interpolate the distance from the first corner along one axis of several places."""
    path, x = _map(arguments)
    grid, target = x.shape[-4:-1], [arguments[size] for size in _grid(subject)]
    axes = [i for i in range(3) if grid[i] > 1 and target[i] > 1]
    given = _with_alignment(subject, arguments, corners=True)
    if not axes or given is None:
        return False
    axis = axes[int(rng.integers(len(axes)))]

    def field(shape: tuple[int, ...], length: int) -> Numbers:
        along = np.arange(shape[axis - 4]) * (length / (shape[axis - 4] - 1))
        return np.broadcast_to(along.reshape([-1 if i == axis else 1 for i in range(4)]), shape)

    # The distances of the input are whole numbers, exact in every dtype.
    given = given.replaced({path: subject.exact(field(x.shape, grid[axis] - 1))})
    got = subject.call(given)
    subject.matches(
        got, field(got.shape, grid[axis] - 1), subject.budget(given), given, "of a linear field, the result"
    )
    return bool(got.size)


@checks(law.ALIGNMENT)
def centres(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Interpolate to twice the size along one axis, the others as they are."""
    _, x = _map(arguments)
    axis = int(rng.integers(3)) - 4
    given = _onto(subject, arguments, [x.shape[i] * (2 if i == axis else 1) for i in (-4, -3, -2)])
    rows = np.moveaxis(wide(x), axis, 0)
    before, after = (np.concatenate(pair) for pair in ((rows[:1], rows[:-1]), (rows[1:], rows[-1:])))
    both = np.stack([before / 4 + 3 * rows / 4, 3 * rows / 4 + after / 4], axis=1)
    expected = np.moveaxis(both.reshape(2 * rows.shape[0], *rows.shape[1:]), 0, axis)
    subject.matches(subject.call(given), expected, subject.budget(given), given, "of twice as many places, the result")
    return bool(expected.size)


def _onto(subject: Subject, arguments: Arguments, grid: Any) -> Arguments:
    """A copy with this grid to interpolate to, and the default alignment."""
    given = arguments.replaced(dict(zip(_grid(subject), map(int, grid), strict=True)))
    (option,) = (o for o in subject.operation.options if o.choices)
    return given.replaced({option.path: subject.operation.defaults[option.path]})


@checks(law.INTERPOLATION_HULL)
def interpolation_hull(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Demand results in the range of their channel, and no change on the same grid."""
    path, x = _map(arguments)
    same = arguments.replaced(dict(zip(_grid(subject), x.shape[-4:-1], strict=True)))
    subject.same(subject.call(same), x, lambda: subject.budget(same), same, "on the same grid, the result")
    constant = np.array(np.broadcast_to(x[..., :1, :1, :1, :], x.shape))
    places = (-4, -3, -2)
    for given, what in ((arguments, ""), (arguments.replaced({path: constant}), "of a constant, ")):
        rows, got = wide(given.array(path)), wide(subject.call(given))
        if got.size:
            nearest = np.clip(got, rows.min(places, keepdims=True), rows.max(places, keepdims=True))
            title = f"{what}cut to the range of its channel, the result"
            subject.matches(got, nearest, subject.budget(given), given, title)
    return bool(x.size)


@checks(law.SEPARABILITY)
def separability(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Interpolate columns, then rows, then slices."""
    path, x = _map(arguments)
    names = _grid(subject)
    got, budget = subject.call(arguments), subject.budget(arguments)
    if not got.size:
        return False
    slack = 0.0
    grid = list(x.shape[-4:-1])
    for axis in (2, 1, 0):
        grid[axis] = arguments[names[axis]]
        step = arguments.replaced({path: x, **dict(zip(names, grid, strict=True))})
        # An average is off by no more than what is averaged.
        slack += float(subject.budget(step).max())
        x = subject.call(step)
    subject.matches(got, wide(x), budget + slack, arguments, "against one axis after another, the result")
    return True


# Gates ----------------------------------------------------------------------------------------------------------------


@checks(law.GATE_RANGE)
def gate_range(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check the range of the coefficients, and their product with the features."""
    gated, coefficients = (leaf.path for leaf in subject.operation.outputs)
    results, budgets = doubles(subject.results(arguments)), subject.budgets(arguments)
    alpha = results[coefficients]
    if not alpha.size:
        return False
    subject.matches(alpha, np.clip(alpha, 0, 1), budgets[coefficients], arguments, "within 0..1, the coefficients")
    x = wide(_features(subject, arguments)[1])
    slack = budgets[gated] + budgets[coefficients][..., None] * np.abs(x)
    subject.matches(results[gated], alpha[..., None] * x, slack, arguments, "against its own coefficients, the result")
    return True


def _features(subject: Subject, arguments: Arguments) -> tuple[str, Numbers]:
    """The path and the numbers of the gated array, which has the result's grid."""
    grid = subject.operation.outputs[0].sizes[:3]
    (leaf,) = (x for x in subject.operation.leaves if x.batched and x.sizes[:3] == grid)
    return leaf.path, arguments.array(leaf.path)


@checks(law.SATURATED_GATE)
def saturated_gate(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set a great bias of either sign, and the weights of the gate to 0."""
    p, (_, x) = record(arguments, AttentionGateParameters), _features(subject, arguments)
    sign = float(rng.choice([-1, 1]))
    given = filled(arguments, [(p.psi, 0), (p.b_psi, sign * OPEN)])
    got, budget = (y[..., : x.shape[-1]] for y in (subject.call(given), subject.budget(given)))
    expected = np.broadcast_to(wide(x) * (sign > 0), got.shape)
    subject.matches(got, expected, budget, given, f"of a gate that is {'open' if sign > 0 else 'shut'}, the result")
    return bool(got.size)


@checks(law.SKIPPED_SIGNAL)
def skipped_signal(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Set the signal to its first place everywhere: it comes out unchanged."""
    path, x = _features(subject, arguments)
    ((signal, g),) = ((leaf.path, y) for leaf, y in arguments.batched if leaf.path != path)
    first = g[..., :1, :1, :1, :]
    given = arguments.replaced({signal: np.array(np.broadcast_to(first, g.shape))})
    got, budget = (y[..., x.shape[-1] :] for y in (subject.call(given), subject.budget(given)))
    subject.matches(got, np.broadcast_to(wide(first), got.shape), budget, given, "of a constant signal, the rest")
    return bool(got.size)


# Attention over a map -------------------------------------------------------------------------------------------------


def _attended(subject: Subject, arguments: Arguments) -> tuple[str, Numbers]:
    """The path and the numbers of the attended map, which has the weights' grid."""
    grid = subject.operation.outputs[1].sizes
    (leaf,) = (x for x in subject.operation.leaves if subject.operation.role(x) is Role.STATE and grid == x.sizes[:2])
    return leaf.path, arguments.array(leaf.path)


@checks(law.SPATIAL_WEIGHTS)
def spatial_weights(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Check the least weight, the sum of all, and the context from them."""
    context, weights = (leaf.path for leaf in subject.operation.outputs)
    results, budgets = doubles(subject.results(arguments)), subject.budgets(arguments)
    alpha, slack = results[weights], budgets[weights]
    if not alpha.size:
        return False
    subject.holds(bool((alpha >= 0).all()), f"a weight is {alpha.min():.9g}", arguments, got=alpha)
    sums = alpha.sum((-2, -1))
    subject.matches(sums, np.ones(sums.shape), slack.sum((-2, -1)), arguments, "the sum of the weights")
    x = wide(_attended(subject, arguments)[1])
    expected = (alpha[..., None] * x).sum((-3, -2))
    more = budgets[context] + (slack[..., None] * np.abs(x)).sum((-3, -2))
    subject.matches(results[context], expected, more, arguments, "against its own weights, the context")
    return True


@checks(law.PLACES)
def places(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Reverse the rows and the columns of the map."""
    path, x = _attended(subject, arguments)
    given = arguments.replaced({path: np.flip(x, axis=(-3, -2)).copy()})
    expected, budgets = doubles(subject.results(arguments)), subject.budgets(arguments)
    for size in subject.operation.outputs[1].sizes:
        order = np.arange(arguments.size(size))[::-1]
        expected = picked(expected, size, order, subject, arguments)
        budgets = picked(budgets, size, order, subject, arguments)
    subject.all_match(
        subject.results(given), expected, together(budgets, subject.budgets(given)), given, "of the map turned around,"
    )
    return bool(x.size)
