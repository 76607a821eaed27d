"""Mutants of patches, vision transformers, interpolation, gates and attention over maps."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.tape import Tape, value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.contract.operation import Operation
from attnspec.spec.transformer import LayerNormParameters
from attnspec.spec.vision import (
    AttentionGate,
    AttentionGateParameters,
    AttentionSkip,
    Interpolate,
    PatchEmbedding,
    Patchify,
    SpatialAttention,
    VitEncoder,
)

# Images as sequences --------------------------------------------------------------------------------------------------


@mutant(
    "patches column by column",
    replaces="in_order",
    operations=(Patchify, PatchEmbedding),
    breaks=("operation.oracle", "operation.gradient"),
    source="order='F'",
)
def by_columns(correct: Formulas, patches: Numbers) -> Numbers:
    """Patches are ordered column by column, not row by row."""
    turned = np.swapaxes(patches, -5, -4)
    *batch, columns, rows, patch, _, channels = turned.shape
    return turned.reshape(*batch, rows * columns, patch * patch * channels)


@mutant(
    "pixels of a patch column by column",
    replaces="in_order",
    operations=(Patchify, PatchEmbedding, VitEncoder),
    breaks=("operation.oracle",),
    source="p1 and p2 exchanged in a rearrangement",
)
def transposed_patches(correct: Formulas, patches: Numbers) -> Numbers:
    """The pixels of every patch are transposed."""
    return Formulas.in_order(correct, np.swapaxes(patches, -3, -2))


@mutant(
    "channels of a patch one after another",
    replaces="in_order",
    operations=(Patchify, PatchEmbedding),
    breaks=("operation.oracle", "operation.gradient"),
    source="nn.Unfold, which has channels first",
)
def channels_first(correct: Formulas, patches: Numbers) -> Numbers:
    """Within a patch, channels come before pixels: the first channel of all pixels, then the next."""
    *batch, rows, columns, patch, _, channels = patches.shape
    return np.moveaxis(patches, -1, -3).reshape(*batch, rows * columns, patch * patch * channels)


@mutant(
    "stripes for patches",
    replaces="cut",
    operations=(Patchify,),
    breaks=("vision.patches", "operation.oracle"),
    source="a reshape without the transpose in between",
)
def stripes(correct: Formulas, image: Numbers, patch: int) -> Numbers:
    """A patch holds consecutive pixels in memory order, stripes in place of squares."""
    *batch, height, width, channels = image.shape
    return image.reshape(*batch, height // patch, width // patch, patch, patch, channels)


@mutant(
    "height for width",
    replaces="cut",
    operations=(Patchify, PatchEmbedding),
    breaks=("operation.oracle", "vision.patches"),
    source="PIL's size is (width, height)",
)
def sides_exchanged(correct: Formulas, image: Numbers, patch: int) -> Numbers:
    """Height and width of the image are exchanged."""
    *batch, height, width, channels = image.shape
    found = Formulas.cut(correct, image.reshape(*batch, width, height, channels), patch)
    return found.reshape(*batch, height // patch, width // patch, patch, patch, channels)


@mutant(
    "gradient of the image by transposed patches",
    replaces="in_order",
    operations=(Patchify, VitEncoder),
    breaks=("operation.gradient",),
    source="a fold that does not undo the unfold",
)
def transposed_gradient(correct: Formulas, patches: Numbers) -> Numbers:
    """The gradient of every patch is transposed."""
    if not isinstance(patches, Tape):
        return Formulas.in_order(correct, patches)
    return Formulas.in_order(correct, Tape(patches.value, [patches], lambda g: [np.swapaxes(g, -3, -2)]))


@mutant(
    "class token at the end",
    replaces="with_token",
    operations=(PatchEmbedding, VitEncoder),
    breaks=("vision.class-token", "operation.oracle"),
    source="appended where it is prepended",
)
def token_last(correct: Formulas, token: Numbers, projected: Numbers) -> Numbers:
    """The class token follows the patches in place of preceding them."""
    return np.roll(Formulas.with_token(correct, token, projected), -1, axis=-2)


@mutant(
    "class token without a position",
    replaces="placed",
    operations=(PatchEmbedding, VitEncoder),
    breaks=("vision.class-token", "operation.gradient"),
    source="positions added to the patches before the token is joined",
)
def unplaced_token(correct: Formulas, token: Numbers, projected: Numbers, positions: Numbers) -> Numbers:
    """No position is added to the class token."""
    return correct.with_token(token, projected + positions[1:])


@mutant(
    "positions one too early",
    replaces="placed",
    operations=(PatchEmbedding,),
    breaks=("operation.oracle",),
    source="a table without a row for the class token",
)
def early_positions(correct: Formulas, token: Numbers, projected: Numbers, positions: Numbers) -> Numbers:
    """Positions start at the first patch: it gets that of the class token, which gets none."""
    return correct.with_token(token, projected + positions[:-1])


@mutant(
    "positions by place in the image",
    replaces="placed",
    operations=(PatchEmbedding, VitEncoder),
    breaks=("vision.patch-order",),
    source="positional information that leaks in twice",
)
def positions_twice(correct: Formulas, token: Numbers, projected: Numbers, positions: Numbers) -> Numbers:
    """Later patches are scaled up, by up to 1/8."""
    count = projected.shape[-2]
    ramp = (1 + np.arange(count) / (8 * count)).astype(projected.dtype)
    return Formulas.placed(correct, token, projected * ramp[:, None], positions)


@mutant(
    "class token of the first image only",
    replaces="with_token",
    operations=(PatchEmbedding, VitEncoder),
    breaks=("operation.batch-invariance", "vision.class-token"),
    source="a token that is written to one element of a batch",
)
def token_once(correct: Formulas, token: Numbers, projected: Numbers) -> Numbers:
    """The class token is 0 for all images of a batch but the first."""
    given = np.zeros(projected.shape[:-2], projected.dtype)
    given.reshape(-1)[:1] = 1
    return Formulas.with_token(correct, token * given[..., None, None], projected)


@mutant(
    "gradient of the class token from one image",
    replaces="with_token",
    operations=(PatchEmbedding, VitEncoder),
    breaks=("operation.gradient",),
    source="a gradient that is not summed over the batch",
)
def token_gradient_once(correct: Formulas, token: Numbers, projected: Numbers) -> Numbers:
    """The gradient of the class token is the mean over the images, not their sum."""
    if not isinstance(token, Tape):
        return Formulas.with_token(correct, token, projected)
    images = max(int(np.prod(projected.shape[:-2])), 1)
    return Formulas.with_token(correct, Tape(token.value, [token], lambda g: [g / g.dtype.type(images)]), projected)


@mutant(
    "mean of the patches for the class token",
    replaces="representation",
    operations=(VitEncoder,),
    breaks=("vision.class-token", "operation.oracle"),
    source="global average pooling, as another kind of vision transformer has it",
)
def pooled_patches(correct: Formulas, encoded: Numbers, final_norm: LayerNormParameters[Numbers]) -> Numbers:
    """The mean of the patches is returned in place of the class token."""
    return correct.layer_norm(np.mean(encoded[..., 1:, :], axis=-2), final_norm)


@mutant(
    "no final normalization",
    replaces="representation",
    operations=(VitEncoder,),
    breaks=("vision.class-token", "operation.gradient"),
    source="a pre-norm encoder without its last norm",
)
def not_normalized(correct: Formulas, encoded: Numbers, final_norm: LayerNormParameters[Numbers]) -> Numbers:
    """The class token is returned without the final layer norm."""
    return encoded[..., 0, :] + 0 * final_norm.gain


@mutant(
    "post-norm layers in a vision transformer",
    replaces="image_norm",
    operations=(VitEncoder,),
    breaks=("operation.oracle",),
    source="the default of the encoder layer",
)
def post_norm(correct: Formulas) -> str:
    """The layers are post-norm in place of pre-norm."""
    return "post"


# Interpolation --------------------------------------------------------------------------------------------------------


@mutant(
    "corners always aligned",
    replaces="on_grid",
    operations=(Interpolate,),
    breaks=("vision.alignment", "operation.oracle"),
    source="the default of PyTorch before 0.4",
)
def always_aligned(correct: Formulas, x: Numbers, grid: tuple[int, int, int], align_corners: bool) -> Numbers:
    """Corners are aligned even without align_corners."""
    return Formulas.on_grid(correct, x, grid, True)


@mutant(
    "corners never aligned",
    replaces="on_grid",
    operations=(Interpolate,),
    breaks=("vision.alignment", "operation.option-effect"),
    source="an option that is passed on to nobody",
)
def never_aligned(correct: Formulas, x: Numbers, grid: tuple[int, int, int], align_corners: bool) -> Numbers:
    """The option align_corners is ignored."""
    return Formulas.on_grid(correct, x, grid, False)


@mutant(
    "half a pixel off",
    replaces="source_positions",
    operations=(Interpolate, AttentionGate),
    breaks=("operation.oracle", "vision.alignment"),
    source="tensorflow/tensorflow#6720: resize without half-pixel centers",
)
def asymmetric(correct: Formulas, size: int, a: int, align_corners: bool) -> Numbers:
    """Points are at the corners of pixels, not at their centres."""
    i = np.arange(size)
    return Formulas.source_positions(correct, size, a, True) if align_corners else i * a / size


@mutant(
    "nearest neighbour for linear interpolation",
    replaces="share",
    operations=(Interpolate, AttentionGate, AttentionSkip),
    breaks=("operation.oracle",),
    source="the default mode of torch.nn.Upsample",
)
def nearest(correct: Formulas, distance: Numbers) -> Numbers:
    """The nearest neighbour is taken in place of linear interpolation."""
    return np.rint(distance)


@mutant(
    "cubic weights for linear ones",
    replaces="share",
    operations=(Interpolate,),
    breaks=("vision.alignment",),
    source="a smooth step",
)
def smooth_step(correct: Formulas, distance: Numbers) -> Numbers:
    """The weight λ of the upper neighbour becomes 3λ² − 2λ³."""
    return distance * distance * (3 - 2 * distance)


@mutant(
    "weights of eight bits",
    replaces="share",
    operations=(Interpolate,),
    breaks=("vision.alignment", "operation.oracle"),
    source="CUDA C++ Programming Guide, Linear Filtering: a fraction in 9-bit fixed point, 8 bits of it fractional",
)
def coarse_weights(correct: Formulas, distance: Numbers) -> Numbers:
    """Interpolation weights are rounded to multiples of 1/256."""
    return np.rint(distance * 256) / distance.dtype.type(256)


@mutant(
    "extrapolation at the border",
    replaces="within",
    operations=(Interpolate, AttentionSkip),
    breaks=("operation.oracle", "vision.interpolation-hull", "vision.alignment"),
    source="source positions that are not clamped",
)
def extrapolated(correct: Formulas, t: Numbers, last: int) -> Numbers:
    """Coordinates below 0 are extrapolated from the first two points, not clamped."""
    return np.minimum(t, last)


@mutant(
    "zeros beyond the border",
    replaces="along_rows",
    operations=(Interpolate,),
    breaks=("vision.interpolation-hull",),
    source="padding_mode='zeros' of grid_sample",
)
def dark_border(correct: Formulas, x: Numbers, size: int, align_corners: bool) -> Numbers:
    """The last point of an axis is halved, as if mixed with 0."""
    found = Formulas.along_rows(correct, x, size, align_corners)
    fading = np.ones(size, found.dtype)
    fading[-1:] = 0.5
    return found * fading[:, None]


@mutant(
    "an axis mixed with the next",
    replaces="on_grid",
    operations=(Interpolate,),
    breaks=("vision.separability",),
    source="a kernel of eight corners, of which one is read at the wrong place",
)
def mixed_axes(correct: Formulas, x: Numbers, grid: tuple[int, int, int], align_corners: bool) -> Numbers:
    """If two axes change their size together, the columns of the result are reversed."""
    changing = sum(given != wanted for given, wanted in zip(x.shape[-4:-1], grid, strict=True))
    found = Formulas.on_grid(correct, x, grid, align_corners)
    return np.flip(found, axis=-2) if changing > 1 else found


@mutant(
    "rows interpolated as columns",
    replaces="on_grid",
    operations=(Interpolate, AttentionGate),
    breaks=("operation.oracle",),
    source="size given as (width, height)",
)
def exchanged_axes(correct: Formulas, x: Numbers, grid: tuple[int, int, int], align_corners: bool) -> Numbers:
    """Rows are interpolated to the number of columns, and columns to that of rows."""
    slices, rows, columns = grid
    found = Formulas.on_grid(correct, x, (slices, columns, rows), align_corners)
    return found.reshape(*found.shape[:-3], rows, columns, found.shape[-1])


@mutant(
    "gradient of the nearest neighbour",
    replaces="mixed",
    operations=(Interpolate, AttentionSkip),
    breaks=("operation.gradient",),
    source="a backward pass of another mode",
)
def nearest_gradient(correct: Formulas, lower: Numbers, upper: Numbers, share: Numbers) -> Numbers:
    """The gradient goes to the nearest neighbour only."""
    if not isinstance(lower, Tape):
        return Formulas.mixed(correct, lower, upper, share)
    value = Formulas.mixed(correct, lower.value, upper.value, share)
    return Tape(value, [lower, upper], lambda g: [g * (1 - np.rint(share)), g * np.rint(share)])


# Gates ----------------------------------------------------------------------------------------------------------------


@mutant(
    "the signal gated in place of the features",
    replaces="skipped",
    operations=(AttentionSkip,),
    breaks=("vision.saturated-gate", "vision.skipped-signal"),
    source="x and g exchanged",
)
def gated_signal(correct: Formulas, x: Numbers, coefficients: Numbers, signal: Numbers) -> Numbers:
    """The gate multiplies the signal in place of the features."""
    return correct.beside(x, correct.gated(signal, coefficients))


@mutant(
    "the signal before the features",
    replaces="skipped",
    operations=(AttentionSkip,),
    breaks=("vision.skipped-signal", "operation.oracle"),
    source="torch.cat([up, skip])",
)
def signal_first(correct: Formulas, x: Numbers, coefficients: Numbers, signal: Numbers) -> Numbers:
    """[g; x] is returned in place of [x; g]: the signal before the features."""
    return correct.beside(signal, correct.gated(x, coefficients))


@mutant(
    "coefficients that sum to 1",
    replaces="coefficient",
    operations=(AttentionGate, AttentionSkip),
    breaks=("vision.saturated-gate", "operation.oracle"),
    source="softmax for the logistic function, which Oktay 2018 finds too sparse",
)
def normalized_coefficients(correct: Formulas, x: Numbers) -> Numbers:
    """Coefficients are a softmax over the columns in place of a logistic function."""
    return correct.normalized(x)


@mutant(
    "tanh for the logistic function",
    replaces="coefficient",
    operations=(AttentionGate,),
    breaks=("vision.gate-range", "vision.saturated-gate"),
    source="another squashing function",
)
def signed_coefficients(correct: Formulas, x: Numbers) -> Numbers:
    """Coefficients are a tanh in place of a logistic function, thus in [−1, 1]."""
    return np.tanh(x)


@mutant(
    "gate the wrong way round",
    replaces="coefficient",
    operations=(AttentionGate, AttentionSkip),
    breaks=("vision.saturated-gate", "operation.gradient"),
    source="1 − α",
)
def inverted_gate(correct: Formulas, x: Numbers) -> Numbers:
    """Coefficients α are replaced by 1 − α."""
    return Formulas.coefficient(correct, -x)


@mutant(
    "residual gate",
    replaces="gated",
    operations=(AttentionGate,),
    breaks=("vision.gate-range", "vision.saturated-gate"),
    source="residual attention: (1 + α) x",
)
def residual_gate(correct: Formulas, x: Numbers, coefficients: Numbers) -> Numbers:
    """The gate returns (1 + α) x in place of α x."""
    return x + Formulas.gated(correct, x, coefficients)


@mutant(
    "gate without its hidden bias",
    replaces="coefficients",
    operations=(AttentionGate, AttentionSkip),
    breaks=("operation.oracle", "operation.gradient"),
    source="bias=False in both convolutions",
)
def no_hidden_bias(correct: Formulas, x: Numbers, gating: Numbers, p: AttentionGateParameters[Numbers]) -> Numbers:
    """The hidden bias b_g is left out."""
    without = AttentionGateParameters(p.w_x, p.w_g, p.b_g * p.b_g.dtype.type(0), p.psi, p.b_psi)
    return Formulas.coefficients(correct, x, gating, without)


@mutant(
    "gate without ReLU",
    replaces="rectified",
    operations=(AttentionGate, AttentionSkip),
    breaks=("operation.oracle", "operation.gradient"),
    source="an activation that is forgotten",
)
def linear_gate(correct: Formulas, x: Numbers) -> Numbers:
    """The ReLU before the logistic function is left out."""
    return x


@mutant(
    "coefficients taken for constants",
    replaces="gated",
    operations=(AttentionGate, AttentionSkip),
    breaks=("operation.gradient",),
    source="a gate that is detached",
)
def detached_gate(correct: Formulas, x: Numbers, coefficients: Numbers) -> Numbers:
    """No gradient flows through the gate."""
    return Formulas.gated(correct, x, value_of(coefficients))


# Attention over a map -------------------------------------------------------------------------------------------------


@mutant(
    "softmax over the columns of each row",
    replaces="over_places",
    operations=(SpatialAttention,),
    breaks=("vision.spatial-weights", "operation.oracle"),
    source="dim=-1 on a map",
)
def by_rows(correct: Formulas, scores: Numbers, rows: int, columns: int) -> Numbers:
    """The softmax runs over each row of the map: the weights of every row sum to 1."""
    in_rows = correct.normalized(scores.reshape(*scores.shape[:-1], rows, columns))
    return in_rows.reshape(*scores.shape)


@mutant(
    "map of weights column by column",
    replaces="as_map",
    operations=(SpatialAttention,),
    breaks=("vision.spatial-weights", "operation.oracle"),
    source="a map that is unflattened as (width, height)",
)
def turned_map(correct: Formulas, weights: Numbers, rows: int, columns: int) -> Numbers:
    """The map of weights is read column by column, not row by row."""
    turned = Formulas.as_map(correct, weights, columns, rows)
    return np.swapaxes(turned, -1, -2)


@mutant(
    "the first place attended to most",
    replaces="over_places",
    operations=(SpatialAttention,),
    breaks=("vision.places", "operation.oracle"),
    source="a bias by place that is left in",
)
def biased_places(correct: Formulas, scores: Numbers, rows: int, columns: int) -> Numbers:
    """i/(number of points) is subtracted from the score of point i: earlier points get more weight."""
    return correct.normalized(scores - (np.arange(rows * columns) / (rows * columns)).astype(scores.dtype))


@mutant(
    "sigmoid weights of places",
    replaces="over_places",
    operations=(SpatialAttention,),
    breaks=("vision.spatial-weights", "operation.gradient"),
    source="the gate's function in place of the softmax",
)
def independent_weights(correct: Formulas, scores: Numbers, rows: int, columns: int) -> Numbers:
    """Weights of points are a logistic function of their scores in place of a softmax."""
    return correct.coefficient(scores)


@mutant(
    "gradient of the map of weights left out",
    replaces="as_map",
    operations=(SpatialAttention,),
    breaks=("operation.gradient",),
    source="weights that are returned detached, for pictures",
)
def detached_map(correct: Formulas, weights: Numbers, rows: int, columns: int) -> Numbers:
    """No gradient flows through the returned map of weights."""
    return Formulas.as_map(correct, value_of(weights), rows, columns)


@mutant(
    "gradient of the state forgets the sum over places",
    replaces="differentiated",
    operations=(SpatialAttention,),
    breaks=("operation.gradient",),
    source="a kernel that writes where it should add",
)
def state_of_one_place(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """The gradient of the state is halved."""
    found = Library.differentiated(correct, operation, arguments, cotangent)
    path = next(leaf.path for leaf in operation.leaves if leaf.batched)
    return {**found, path: found[path] / 2}
