"""Vision by hand, at its edges, and against PyTorch in float64."""

from typing import Any

import numpy as np
import pytest

from attnspec.reference import (
    attention_gate,
    attention_skip,
    interpolate,
    layer_norm,
    patch_embedding,
    patchify,
    spatial_attention,
    vit_encoder,
)
from attnspec.reference.budget import judged
from attnspec.reference.budget.gradients import gradients
from attnspec.spec import (
    AttentionGateParameters,
    EncoderLayerParameters,
    FeedForwardParameters,
    LayerNormParameters,
    MultiHeadParameters,
    PatchEmbeddingParameters,
    ShapeError,
    precision,
)
from tests.budgets import assert_within_budgets

RNG = np.random.default_rng(0)


IMAGE = "(*batch, height, width, channels)"


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape)


def gate_parameters(d_x: int, d_g: int, h: int = 4, b_psi: float = 0.5) -> AttentionGateParameters[np.ndarray]:
    return AttentionGateParameters(normal(h, d_x), normal(h, d_g), normal(h), normal(h), np.array(b_psi))


# By hand --------------------------------------------------------------------------------------------------------------


def test_patches_of_four_by_six_pixels() -> None:
    image = np.arange(24.0).reshape(4, 6, 1)
    assert patchify(image, 2).tolist() == [
        *([0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]),
        *([12, 13, 18, 19], [14, 15, 20, 21], [16, 17, 22, 23]),
    ]


def test_channels_of_a_pixel_stay_together() -> None:
    image = np.arange(8.0).reshape(2, 2, 2)
    assert patchify(image, 2).tolist() == [list(range(8))]
    assert patchify(image, 1).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_an_embedding_of_two_pixels() -> None:
    parameters = PatchEmbeddingParameters(
        np.array([[[[2.0]]], [[[3.0]]]]), np.array([10.0, 20.0]), np.array([[0.5, 0.0], [0.0, 0.25], [1.0, 1.0]])
    )
    image = np.array([[[1.0], [-1.0]]])
    assert patch_embedding(image, parameters).tolist() == [[10.5, 20], [2, 3.25], [-1, -2]]


@pytest.mark.parametrize(
    ("size", "align_corners", "expected"),
    [
        (4, False, [0, 0.5, 1.5, 2]),
        (4, True, [0, 2 / 3, 4 / 3, 2]),
        (3, True, [0, 1, 2]),
        (2, True, [0, 2]),
        (1, True, [0]),
        (1, False, [1]),
        (2, False, [0, 2]),
        (6, False, [0, 0, 2 / 3, 4 / 3, 2, 2]),
    ],
)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_interpolation_of_zero_and_two(size: int, align_corners: bool, expected: list[float], axis: int) -> None:
    grid, wanted = [1, 1, 1], [1, 1, 1]
    grid[axis], wanted[axis] = 2, size
    x = np.array([0.0, 2.0]).reshape(*grid, 1)
    got = interpolate(x, *wanted, align_corners=align_corners)
    assert got.shape == (*wanted, 1)
    by_hand = np.array(expected if size != 3 else [0.0, 1.0, 2.0], float).reshape(got.shape)
    assert_within_budgets([got, by_hand], "interpolate", x, *wanted, align_corners=align_corners)


def test_a_gate_of_one_place() -> None:
    unit = np.ones((1, 1))
    parameters = AttentionGateParameters(2 * unit, unit, np.array([-1.0]), np.array([1.0]), np.array(0.0))
    x, gating = np.full((1, 1, 1, 1), 3.0), np.full((1, 1, 1, 1), -5.0)
    gated, coefficients = attention_gate(x, gating, parameters)
    assert (gated.item(), coefficients.item()) == (1.5, 0.5)  # relu(6 − 5 − 1) = 0
    skipped = attention_skip(x, gating, parameters)
    assert skipped.reshape(-1).tolist() == [1.5, -5]


def test_equal_places_are_attended_to_alike() -> None:
    features = np.arange(6.0).reshape(2, 3, 1)
    arguments = np.ones(2), features, normal(4, 2), normal(4, 1), np.zeros(4)
    by_hand = np.array([2.5]), np.full((2, 3), 1 / 6)
    assert_within_budgets([spatial_attention(*arguments), by_hand], "spatial_attention", *arguments)


# At the edges ---------------------------------------------------------------------------------------------------------


def test_without_layers_the_class_token_alone_is_represented() -> None:
    embedding = PatchEmbeddingParameters(normal(5, 2, 2, 3), normal(5), normal(7, 5))
    norm = LayerNormParameters(normal(5), normal(5))
    expected = layer_norm(embedding.class_token + embedding.positions[0], norm)
    for _ in range(2):
        got = vit_encoder(normal(3, 4, 6, 3), embedding, (), norm)
        np.testing.assert_array_equal(got, np.broadcast_to(expected, (3, 5)))


def test_a_result_on_the_same_grid_is_memory_of_its_own() -> None:
    x = normal(2, 3, 4, 5)
    got = interpolate(x, 2, 3, 4)
    assert np.array_equal(got, x)
    got[...] = 0
    assert x.all()


@pytest.mark.parametrize("bias", [-1000.0, 1000.0])
def test_a_saturated_gate_is_open_or_shut(bias: float) -> None:
    x = normal(2, 2, 3, 5)
    gated, coefficients = attention_gate(x, normal(1, 1, 2, 3), gate_parameters(5, 3, b_psi=bias))
    assert (coefficients == (bias > 0)).all()
    assert np.array_equal(gated, x * (bias > 0))


def test_nan_reaches_its_neighbours_only() -> None:
    x = np.zeros((1, 1, 5, 1))
    x[0, 0, 2] = np.nan
    got = interpolate(x, 1, 1, 10)[0, 0, :, 0]
    assert np.isnan(got).tolist() == [i in (3, 4, 5, 6) for i in range(10)]


@pytest.mark.parametrize(
    ("shape", "patch", "message"),
    [
        ((5, 6, 3), 2, f"image: expected {IMAGE} with height a multiple of patch = 2; got (5, 6, 3)"),
        ((4, 6, 3), 4, f"image: expected {IMAGE} with width a multiple of patch = 4; got (4, 6, 3)"),
        ((0, 6, 3), 2, "image: expected rows of at least 1; got (0, 6, 3)"),
        ((4, 6, 3), 0, "patch: expected patch of at least 1; got 0"),
        ((4, 6), 2, f"image: expected {IMAGE}, rank 3 or more; got (4, 6)"),
    ],
)
def test_an_image_that_does_not_consist_of_patches_is_refused(shape: tuple[int, ...], patch: int, message: str) -> None:
    with pytest.raises(ShapeError) as raised:
        patchify(np.zeros(shape), patch)
    assert str(raised.value) == f"patchify: {message}"


def test_an_image_with_more_patches_than_positions_is_refused() -> None:
    parameters = PatchEmbeddingParameters(normal(5, 2, 2, 3), normal(5), normal(7, 5))
    with pytest.raises(ShapeError) as raised:
        patch_embedding(normal(4, 8, 3), parameters)
    wanted = "parameters.positions: expected (1+rows*columns, d) with 1+rows*columns = 9; got (7, 5)"
    assert str(raised.value) == f"patch_embedding: {wanted}"


# Budgets --------------------------------------------------------------------------------------------------------------


def test_a_position_that_is_an_integer_may_be_rounded_down() -> None:
    """Position 2 computed as 2 − ε takes ε of the place before."""
    x = np.zeros((1, 1, 5, 1), np.float32)
    x[0, 0, 1] = 1e30
    arguments = {"x": x, "slices": 1, "rows": 1, "columns": 15}
    oracle = judged(interpolate, arguments, precision("ieee32"))
    share = 2.0**-23  # of positions near 2
    assert oracle.value[0, 0, 7, 0] == 0
    assert oracle.budget[0, 0, 7, 0] > share * 1e30
    assert oracle.budget[0, 0, 7, 0] < 64 * share * 1e30


def test_positions_are_not_rounded_to_half_precision() -> None:
    x = np.zeros((1, 1, 16, 1), np.float32)
    x[0, 0, 8:] = 1
    arguments = {"x": x, "slices": 1, "rows": 1, "columns": 32}
    oracle = judged(interpolate, arguments, precision("mixed-bfloat16"))
    assert oracle.budget[0, 0, 15, 0] < 2.0**-5


def test_gradients_of_long_doubles_take_positions_in_long_doubles() -> None:
    """The gradient of ⟨1, y⟩ is how often each place is taken; in doubles a third would be off by 10⁻¹⁷."""
    if np.finfo(np.longdouble).nmant < 63:
        pytest.skip("np.longdouble has no more bits than float64 here")
    arguments = {"x": normal(1, 1, 4, 1), "slices": 1, "rows": 1, "columns": 7, "align_corners": True}
    gradients_by_path = gradients(interpolate, arguments, np.ones((1, 1, 7, 1)), precision("ieee64"), np.longdouble)
    value, budget = gradients_by_path["x"]
    assert value.dtype == np.longdouble
    assert abs(value[0, 0, :, 0] - np.array([1.5, 2, 2, 1.5])).max() < 8 * np.finfo(np.longdouble).eps
    assert (budget > 0).all()


# Against PyTorch ------------------------------------------------------------------------------------------------------

torch = pytest.importorskip("torch", reason="the optional dependency torch is not installed")


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("mode", "dimensions"), [("linear", 1), ("bilinear", 2), ("trilinear", 3)])
@pytest.mark.parametrize("sizes", [(7, 9, 4), (2, 3, 5), (3, 1, 2), (1, 1, 1), (6, 8, 10)])
def test_interpolation_is_that_of_pytorch(
    sizes: tuple[int, ...], mode: str, dimensions: int, align_corners: bool
) -> None:
    grid, wanted = ((1,) * (3 - dimensions) + s[3 - dimensions :] for s in ((3, 4, 5), sizes))
    x = normal(2, *grid, 3)
    got = interpolate(x, *wanted, align_corners=align_corners)
    channels_first = torch.from_numpy(x).movedim(-1, 1).reshape(2, 3, *grid[3 - dimensions :])
    theirs = torch.nn.functional.interpolate(
        channels_first, wanted[3 - dimensions :], mode=mode, align_corners=align_corners
    )
    results = [got, theirs.reshape(2, 3, *wanted).movedim(1, -1)]
    assert_within_budgets(results, "interpolate", x, *wanted, align_corners=align_corners)


def as_module(module: Any, *weights: np.ndarray) -> Any:
    for parameter, weight in zip(module.parameters(), weights, strict=True):
        parameter.data = torch.from_numpy(np.ascontiguousarray(weight)).reshape(parameter.shape)
    return module


def test_patch_embedding_is_a_convolution() -> None:
    parameters = PatchEmbeddingParameters(normal(5, 2, 2, 3), normal(5), normal(7, 5))
    image = normal(4, 4, 6, 3)
    kernel = parameters.w.transpose(0, 3, 1, 2)
    convolution = as_module(torch.nn.Conv2d(3, 5, 2, stride=2, bias=False, dtype=torch.float64), kernel)
    with torch.no_grad():
        projected = convolution(torch.from_numpy(image).movedim(-1, 1)).flatten(2).mT.numpy()
    token = np.broadcast_to(parameters.class_token, (4, 1, 5))
    expected = np.concatenate([token, projected], axis=1) + parameters.positions
    assert_within_budgets([patch_embedding(image, parameters), expected], "patch_embedding", image, parameters)


def test_the_vision_transformer_is_that_of_pytorch() -> None:
    d, heads, f = 8, 2, 5
    layers, theirs = [], []
    for _ in range(2):
        layer = torch.nn.TransformerEncoderLayer(
            d, heads, f, dropout=0.0, batch_first=True, norm_first=True, dtype=torch.float64
        )
        w_q, w_k, w_v, w_o = normal(heads, 4, d), normal(heads, 4, d), normal(heads, 4, d), normal(d, d) / 2
        first, second = FeedForwardParameters(normal(f, d), normal(f), normal(d, f), normal(d)), normal(4, d)
        joined = np.concatenate([w.reshape(d, d) for w in (w_q, w_k, w_v)])
        as_module(layer, joined, np.zeros(3 * d), w_o, np.zeros(d), *vars(first).values(), *second)
        norms = [LayerNormParameters(*second[:2]), LayerNormParameters(*second[2:])]
        layers.append(EncoderLayerParameters(MultiHeadParameters(w_q, w_k, w_v, w_o), norms[0], first, norms[1]))
        theirs.append(layer)
    embedding = PatchEmbeddingParameters(normal(d, 2, 2, 3), normal(d), normal(7, d))
    final = LayerNormParameters(normal(d), normal(d))
    image = normal(3, 4, 6, 3)
    arguments = image, embedding, tuple(layers), final
    with torch.no_grad():
        x = torch.from_numpy(patch_embedding(image, embedding))
        for layer in theirs:
            x = layer(x)
        weights = torch.from_numpy(final.gain), torch.from_numpy(final.bias)
        expected = torch.nn.functional.layer_norm(x[:, 0], (d,), *weights).numpy()
    assert_within_budgets([vit_encoder(*arguments), expected], "vit_encoder", *arguments)


def test_the_attention_gate_is_that_of_pytorch() -> None:
    """As Attention U-Nets are written: convolutions of one voxel, the signal projected before it is interpolated."""
    p = gate_parameters(5, 6)
    x, gating = normal(2, 4, 6, 3, 5), normal(2, 2, 3, 2, 6)
    of_x = as_module(torch.nn.Conv3d(5, 4, 1, bias=False, dtype=torch.float64), p.w_x)
    of_signal = as_module(torch.nn.Conv3d(6, 4, 1, dtype=torch.float64), p.w_g, p.b_g)
    to_one = as_module(torch.nn.Conv3d(4, 1, 1, dtype=torch.float64), p.psi, p.b_psi)
    with torch.no_grad():
        first, signal = (torch.from_numpy(v).movedim(-1, 1) for v in (x, gating))
        up = torch.nn.functional.interpolate(of_signal(signal), first.shape[2:], mode="trilinear")
        alpha = to_one((of_x(first) + up).relu()).sigmoid()
        upsampled = torch.nn.functional.interpolate(signal, first.shape[2:], mode="trilinear")
        joined = torch.cat([alpha * first, upsampled], 1).movedim(1, -1).numpy()
    theirs = joined[..., :5], alpha[:, 0]
    assert_within_budgets([attention_gate(x, gating, p), theirs], "attention_gate", x, gating, p)
    assert_within_budgets([attention_skip(x, gating, p), joined], "attention_skip", x, gating, p)
