"""Mutants of patches, vision transformers, interpolation, gates and attention over maps.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must
detect the defect alone. ``differentiate`` computes the gradients. ``value_of(x)`` is x without its record of gradients,
so that no gradient flows through it.
"""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.tape import Tape, value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments, Gradients
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
    replaces="flatten_patches",
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
    replaces="flatten_patches",
    operations=(Patchify, PatchEmbedding, VitEncoder),
    breaks=("operation.oracle",),
    source="p1 and p2 exchanged in a rearrangement",
)
def transposed_patches(correct: Formulas, patches: Numbers) -> Numbers:
    """The pixels of every patch are read column by column, not row by row."""
    return Formulas.flatten_patches(correct, np.swapaxes(patches, -3, -2))


@mutant(
    "channels of a patch before its pixels",
    replaces="flatten_patches",
    operations=(Patchify, PatchEmbedding),
    breaks=("operation.oracle", "operation.gradient"),
    source="nn.Unfold, which has channels first",
)
def channels_first(correct: Formulas, patches: Numbers) -> Numbers:
    """Within a patch, channels come first: one channel of all pixels, then the next."""
    *batch, rows, columns, patch, _, channels = patches.shape
    return np.moveaxis(patches, -1, -3).reshape(*batch, rows * columns, patch * patch * channels)


@mutant(
    "stripes in place of patches",
    replaces="cut_patches",
    operations=(Patchify,),
    breaks=("vision.patches-tile-image", "operation.oracle"),
    source="a reshape without the transpose in between",
)
def stripes_for_patches(correct: Formulas, image: Numbers, patch: int) -> Numbers:
    """A patch holds consecutive pixels in memory order, stripes in place of squares."""
    *batch, height, width, channels = image.shape
    return image.reshape(*batch, height // patch, width // patch, patch, patch, channels)


@mutant(
    "height and width exchanged",
    replaces="cut_patches",
    operations=(Patchify, PatchEmbedding),
    breaks=("operation.oracle", "vision.patches-tile-image"),
    source="PIL's size is (width, height)",
)
def sides_exchanged(correct: Formulas, image: Numbers, patch: int) -> Numbers:
    """The memory of the image is read with height and width exchanged."""
    *batch, height, width, channels = image.shape
    patches = Formulas.cut_patches(correct, image.reshape(*batch, width, height, channels), patch)
    return patches.reshape(*batch, height // patch, width // patch, patch, patch, channels)


@mutant(
    "gradient of every patch transposed",
    replaces="flatten_patches",
    operations=(Patchify, VitEncoder),
    breaks=("operation.gradient",),
    source="a fold that does not undo the unfold",
)
def transposed_gradient(correct: Formulas, patches: Numbers) -> Numbers:
    """The gradient of every patch has rows and columns exchanged."""
    if not isinstance(patches, Tape):
        return Formulas.flatten_patches(correct, patches)
    return Formulas.flatten_patches(correct, Tape(patches.value, [patches], lambda g: [np.swapaxes(g, -3, -2)]))


@mutant(
    "class token at the end",
    replaces="prepend_token",
    operations=(PatchEmbedding, VitEncoder),
    breaks=("vision.class-token-first", "operation.oracle"),
    source="appended where it is prepended",
)
def token_last(correct: Formulas, token: Numbers, projected: Numbers) -> Numbers:
    """The class token follows the patches in place of preceding them."""
    return np.roll(Formulas.prepend_token(correct, token, projected), -1, axis=-2)


@mutant(
    "class token without a position",
    replaces="place_tokens",
    operations=(PatchEmbedding, VitEncoder),
    breaks=("vision.class-token-first", "operation.gradient"),
    source="positions added to the patches before the token is joined",
)
def unplaced_token(correct: Formulas, token: Numbers, projected: Numbers, positions: Numbers) -> Numbers:
    """No position is added to the class token."""
    return correct.prepend_token(token, projected + positions[1:])


@mutant(
    "positions start at the first patch",
    replaces="place_tokens",
    operations=(PatchEmbedding,),
    breaks=("operation.oracle",),
    source="a table without a row for the class token",
)
def early_positions(correct: Formulas, token: Numbers, projected: Numbers, positions: Numbers) -> Numbers:
    """Every patch gets the position of its predecessor, the class token none."""
    return correct.prepend_token(token, projected + positions[:-1])


@mutant(
    "later patches scaled up",
    replaces="place_tokens",
    operations=(PatchEmbedding, VitEncoder),
    breaks=("vision.patch-permutation",),
    source="positional information that leaks in twice",
)
def positions_twice(correct: Formulas, token: Numbers, projected: Numbers, positions: Numbers) -> Numbers:
    """Patch i of n is multiplied by 1 + i/(8n)."""
    count = projected.shape[-2]
    ramp = (1 + np.arange(count) / (8 * count)).astype(projected.dtype)
    return Formulas.place_tokens(correct, token, projected * ramp[:, None], positions)


@mutant(
    "class token 0 except in the first image",
    replaces="prepend_token",
    operations=(PatchEmbedding, VitEncoder),
    breaks=("operation.batch-invariance", "vision.class-token-first"),
    source="a token that is written to one element of a batch",
)
def token_once(correct: Formulas, token: Numbers, projected: Numbers) -> Numbers:
    """The class token is 0 for all images of a batch but the first."""
    is_first = np.zeros(projected.shape[:-2], projected.dtype)
    is_first.reshape(-1)[:1] = 1
    return Formulas.prepend_token(correct, token * is_first[..., None, None], projected)


@mutant(
    "gradient of the class token averaged over images",
    replaces="prepend_token",
    operations=(PatchEmbedding, VitEncoder),
    breaks=("operation.gradient",),
    source="a gradient that is not summed over the batch",
)
def token_gradient_once(correct: Formulas, token: Numbers, projected: Numbers) -> Numbers:
    """The gradient of the class token is the mean over the images, not their sum."""
    if not isinstance(token, Tape):
        return Formulas.prepend_token(correct, token, projected)
    images = max(int(np.prod(projected.shape[:-2])), 1)
    return Formulas.prepend_token(correct, Tape(token.value, [token], lambda g: [g / g.dtype.type(images)]), projected)


@mutant(
    "mean of the patches in place of the class token",
    replaces="representation",
    operations=(VitEncoder,),
    breaks=("vision.class-token-first", "operation.oracle"),
    source="global average pooling, as in other vision transformers",
)
def pooled_patches(correct: Formulas, encoded: Numbers, final_norm: LayerNormParameters[Numbers]) -> Numbers:
    """The mean of the patches is returned in place of the class token."""
    return correct.layer_norm(np.mean(encoded[..., 1:, :], axis=-2), final_norm)


@mutant(
    "no final normalization",
    replaces="representation",
    operations=(VitEncoder,),
    breaks=("vision.class-token-first", "operation.gradient"),
    source="a pre-norm encoder without its last norm",
)
def not_normalized(correct: Formulas, encoded: Numbers, final_norm: LayerNormParameters[Numbers]) -> Numbers:
    """The class token is returned without the final layer norm."""
    return encoded[..., 0, :] + 0 * final_norm.gain


@mutant(
    "post-norm layers in a vision transformer",
    replaces="encoder_norm",
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
    replaces="resize",
    operations=(Interpolate,),
    breaks=("vision.corner-alignment", "operation.oracle"),
    source="the default of PyTorch before 0.4",
)
def always_aligned(correct: Formulas, x: Numbers, grid: tuple[int, int, int], align_corners: bool) -> Numbers:
    """Corners are aligned even without align_corners."""
    return Formulas.resize(correct, x, grid, True)


@mutant(
    "corners never aligned",
    replaces="resize",
    operations=(Interpolate,),
    breaks=("vision.corner-alignment", "operation.options-have-effect"),
    source="an option that is never passed on",
)
def never_aligned(correct: Formulas, x: Numbers, grid: tuple[int, int, int], align_corners: bool) -> Numbers:
    """The option align_corners is ignored."""
    return Formulas.resize(correct, x, grid, False)


@mutant(
    "interpolation from corners of pixels, not centres",
    replaces="source_positions",
    operations=(Interpolate, AttentionGate),
    breaks=("operation.oracle", "vision.corner-alignment"),
    source="tensorflow/tensorflow#6720: resize without half-pixel centers",
)
def corners_of_pixels(correct: Formulas, size: int, a: int, align_corners: bool) -> Numbers:
    """Without align_corners, point i is read at i·a/size, not at (i + ½)·a/size − ½."""
    i = np.arange(size)
    return Formulas.source_positions(correct, size, a, True) if align_corners else i * a / size


@mutant(
    "nearest neighbour in place of linear interpolation",
    replaces="upper_weight",
    operations=(Interpolate, AttentionGate, AttentionSkip),
    breaks=("operation.oracle",),
    source="the default mode of torch.nn.Upsample",
)
def nearest_neighbour(correct: Formulas, distance: Numbers) -> Numbers:
    """The nearest neighbour is taken in place of linear interpolation."""
    return np.rint(distance)


@mutant(
    "cubic weights in place of linear ones",
    replaces="upper_weight",
    operations=(Interpolate,),
    breaks=("vision.corner-alignment",),
    source="a smooth step",
)
def smooth_step(correct: Formulas, distance: Numbers) -> Numbers:
    """The weight λ of the upper neighbour becomes 3λ² − 2λ³."""
    return distance * distance * (3 - 2 * distance)


@mutant(
    "interpolation weights of eight bits",
    replaces="upper_weight",
    operations=(Interpolate,),
    breaks=("vision.corner-alignment", "operation.oracle"),
    source="CUDA C++ Programming Guide, Linear Filtering: a fraction in 9-bit fixed point, 8 bits of it fractional",
)
def coarse_weights(correct: Formulas, distance: Numbers) -> Numbers:
    """Interpolation weights are rounded to multiples of 1/256."""
    return np.rint(distance * 256) / distance.dtype.type(256)


@mutant(
    "extrapolation below coordinate 0",
    replaces="clip_coordinates",
    operations=(Interpolate, AttentionSkip),
    breaks=("operation.oracle", "vision.interpolation-within-range", "vision.corner-alignment"),
    source="source positions that are not clamped",
)
def extrapolated_border(correct: Formulas, t: Numbers, last: int) -> Numbers:
    """Coordinates below 0 are extrapolated from the first two points, not clamped."""
    return np.minimum(t, last)


@mutant(
    "last point of an axis halved",
    replaces="resize_rows",
    operations=(Interpolate,),
    breaks=("vision.interpolation-within-range",),
    source="padding_mode='zeros' of grid_sample",
)
def dark_border(correct: Formulas, x: Numbers, size: int, align_corners: bool) -> Numbers:
    """The last point of an axis is halved, as if mixed with 0."""
    resized = Formulas.resize_rows(correct, x, size, align_corners)
    fading = np.ones(size, resized.dtype)
    fading[-1:] = 0.5
    return resized * fading[:, None]


@mutant(
    "columns reversed if two axes change their size",
    replaces="resize",
    operations=(Interpolate,),
    breaks=("vision.separable-interpolation",),
    source="a kernel of eight corners that reads one at the wrong place",
)
def mixed_axes(correct: Formulas, x: Numbers, grid: tuple[int, int, int], align_corners: bool) -> Numbers:
    """If two or more axes change their size, the columns of the result are reversed."""
    changing = sum(old != new for old, new in zip(x.shape[-4:-1], grid, strict=True))
    resized = Formulas.resize(correct, x, grid, align_corners)
    return np.flip(resized, axis=-2) if changing > 1 else resized


@mutant(
    "rows and columns of the target size exchanged",
    replaces="resize",
    operations=(Interpolate, AttentionGate),
    breaks=("operation.oracle",),
    source="size given as (width, height)",
)
def exchanged_axes(correct: Formulas, x: Numbers, grid: tuple[int, int, int], align_corners: bool) -> Numbers:
    """Rows are interpolated to the number of columns, and columns to that of rows."""
    slices, rows, columns = grid
    resized = Formulas.resize(correct, x, (slices, columns, rows), align_corners)
    return resized.reshape(*resized.shape[:-3], rows, columns, resized.shape[-1])


@mutant(
    "gradient to the nearest neighbour only",
    replaces="mix_neighbours",
    operations=(Interpolate, AttentionSkip),
    breaks=("operation.gradient",),
    source="a backward pass of another mode",
)
def nearest_gradient(correct: Formulas, lower: Numbers, upper: Numbers, share: Numbers) -> Numbers:
    """The gradient goes to the nearest neighbour only."""
    if not isinstance(lower, Tape):
        return Formulas.mix_neighbours(correct, lower, upper, share)
    value = Formulas.mix_neighbours(correct, lower.value, upper.value, share)
    return Tape(value, [lower, upper], lambda g: [g * (1 - np.rint(share)), g * np.rint(share)])


# Gates ----------------------------------------------------------------------------------------------------------------


@mutant(
    "the signal gated in place of the features",
    replaces="join_skip",
    operations=(AttentionSkip,),
    breaks=("vision.open-and-closed-gate", "vision.skip-keeps-signal"),
    source="x and g exchanged",
)
def gated_signal(correct: Formulas, x: Numbers, coefficients: Numbers, signal: Numbers) -> Numbers:
    """The gate multiplies the signal in place of the features."""
    return correct.join_features(x, correct.apply_gate(signal, coefficients))


@mutant(
    "the signal before the features",
    replaces="join_skip",
    operations=(AttentionSkip,),
    breaks=("vision.skip-keeps-signal", "operation.oracle"),
    source="torch.cat([up, skip])",
)
def signal_first(correct: Formulas, x: Numbers, coefficients: Numbers, signal: Numbers) -> Numbers:
    """[g; x] is returned in place of [x; g]: the signal before the features."""
    return correct.join_features(signal, correct.apply_gate(x, coefficients))


@mutant(
    "softmax in place of the gate's logistic function",
    replaces="gate_activation",
    operations=(AttentionGate, AttentionSkip),
    breaks=("vision.open-and-closed-gate", "operation.oracle"),
    source="softmax for the logistic function, which Oktay 2018 finds too sparse",
)
def normalized_coefficients(correct: Formulas, x: Numbers) -> Numbers:
    """Coefficients are a softmax over the columns in place of a logistic function."""
    return correct.normalized(x)


@mutant(
    "tanh in place of the gate's logistic function",
    replaces="gate_activation",
    operations=(AttentionGate,),
    breaks=("vision.gate-in-unit-interval", "vision.open-and-closed-gate"),
    source="another squashing function",
)
def signed_coefficients(correct: Formulas, x: Numbers) -> Numbers:
    """Coefficients are a tanh in place of a logistic function, thus in [−1, 1]."""
    return np.tanh(x)


@mutant(
    "gate coefficients 1 − α",
    replaces="gate_activation",
    operations=(AttentionGate, AttentionSkip),
    breaks=("vision.open-and-closed-gate", "operation.gradient"),
    source="1 − α",
)
def inverted_gate(correct: Formulas, x: Numbers) -> Numbers:
    """Coefficients α are replaced by 1 − α."""
    return Formulas.gate_activation(correct, -x)


@mutant(
    "gate returns (1 + α) x",
    replaces="apply_gate",
    operations=(AttentionGate,),
    breaks=("vision.gate-in-unit-interval", "vision.open-and-closed-gate"),
    source="residual attention: (1 + α) x",
)
def residual_gate(correct: Formulas, x: Numbers, coefficients: Numbers) -> Numbers:
    """The gate returns (1 + α) x in place of α x."""
    return x + Formulas.apply_gate(correct, x, coefficients)


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
    replaces="relu",
    operations=(AttentionGate, AttentionSkip),
    breaks=("operation.oracle", "operation.gradient"),
    source="an activation that is forgotten",
)
def linear_gate(correct: Formulas, x: Numbers) -> Numbers:
    """The ReLU before the logistic function is left out."""
    return x


@mutant(
    "no gradient through the gate",
    replaces="apply_gate",
    operations=(AttentionGate, AttentionSkip),
    breaks=("operation.gradient",),
    source="a gate that is detached",
)
def detached_gate(correct: Formulas, x: Numbers, coefficients: Numbers) -> Numbers:
    """No gradient flows through the gate."""
    return Formulas.apply_gate(correct, x, value_of(coefficients))


# Attention over a map -------------------------------------------------------------------------------------------------


@mutant(
    "softmax over the columns of each row",
    replaces="normalize_map",
    operations=(SpatialAttention,),
    breaks=("vision.spatial-weights-sum-to-one", "operation.oracle"),
    source="dim=-1 on a map",
)
def by_rows(correct: Formulas, scores: Numbers, rows: int, columns: int) -> Numbers:
    """The softmax runs over each row of the map, not over the whole map."""
    in_rows = correct.normalized(scores.reshape(*scores.shape[:-1], rows, columns))
    return in_rows.reshape(*scores.shape)


@mutant(
    "map of weights filled column by column",
    replaces="reshape_map",
    operations=(SpatialAttention,),
    breaks=("vision.spatial-weights-sum-to-one", "operation.oracle"),
    source="a map that is unflattened as (width, height)",
)
def turned_map(correct: Formulas, weights: Numbers, rows: int, columns: int) -> Numbers:
    """The map of weights is read column by column, not row by row."""
    turned = Formulas.reshape_map(correct, weights, columns, rows)
    return np.swapaxes(turned, -1, -2)


@mutant(
    "earlier points get more weight",
    replaces="normalize_map",
    operations=(SpatialAttention,),
    breaks=("vision.rotated-map-rotates-weights", "operation.oracle"),
    source="a bias by place that is left in",
)
def biased_places(correct: Formulas, scores: Numbers, rows: int, columns: int) -> Numbers:
    """i/n is subtracted from the score of point i of n."""
    return correct.normalized(scores - (np.arange(rows * columns) / (rows * columns)).astype(scores.dtype))


@mutant(
    "logistic weights of points",
    replaces="normalize_map",
    operations=(SpatialAttention,),
    breaks=("vision.spatial-weights-sum-to-one", "operation.gradient"),
    source="the gate's function in place of the softmax",
)
def independent_weights(correct: Formulas, scores: Numbers, rows: int, columns: int) -> Numbers:
    """Weights of points are a logistic function of their scores in place of a softmax."""
    return correct.gate_activation(scores)


@mutant(
    "no gradient through the map of weights",
    replaces="reshape_map",
    operations=(SpatialAttention,),
    breaks=("operation.gradient",),
    source="weights that are returned detached, for pictures",
)
def detached_map(correct: Formulas, weights: Numbers, rows: int, columns: int) -> Numbers:
    """No gradient flows through the returned map of weights."""
    return Formulas.reshape_map(correct, value_of(weights), rows, columns)


@mutant(
    "gradient of the state halved",
    replaces="differentiate",
    operations=(SpatialAttention,),
    breaks=("operation.gradient",),
    source="a kernel that writes where it should add",
)
def state_of_one_place(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of the state is halved."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    path = next(leaf.path for leaf in operation.leaves if leaf.batched)
    return {**gradients, path: gradients[path] / 2}
