"""Vision in PyTorch: every way to compute a call gives the same result."""

from typing import Any

import pytest
import torch
from torch import Tensor

import attnspec.backends.pytorch as backend
from attnspec.backends.pytorch import vision
from attnspec.spec import AttentionGateParameters, PatchEmbeddingParameters, ShapeError
from attnspec.spec.contract.tree import flatten
from tests.budgets import assert_gradients_within_budgets, assert_slopes_within_budgets, assert_within_budgets

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by PyTorch's own forward mode
torch.set_num_threads(1)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    seed = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype).requires_grad_()


def embedding(d: int, patch: int, channels: int, patches: int) -> PatchEmbeddingParameters[Tensor]:
    return PatchEmbeddingParameters(normal(d, patch, patch, channels), normal(d), normal(1 + patches, d))


@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (0,)])
@pytest.mark.parametrize(("patch", "channels", "d"), [(1, 1, 1), (2, 3, 4), (4, 1, 8), (7, 2, 3), (16, 3, 5)])
def test_patches_are_convolved_or_multiplied(
    patch: int, channels: int, d: int, batch: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    p, image = embedding(d, patch, channels, 6), normal(*batch, 2 * patch, 3 * patch, channels)
    multiplied = backend.patch_embedding(image, p)
    monkeypatch.setattr(vision, "CONVOLUTION_WORK", 0)
    monkeypatch.setattr(vision, "CONVOLUTION_WORK_WITH_GRADIENTS", 0)
    assert vision._convolution_is_faster(image, p.w)
    convolved = backend.patch_embedding(image, p)
    assert_within_budgets([multiplied, convolved], "patch_embedding", image, p)
    cotangent = torch.randn(convolved.shape, generator=torch.Generator().manual_seed(0))
    leaves = image, p.w, p.class_token, p.positions
    gradients = [torch.autograd.grad(result, leaves, cotangent) for result in (multiplied, convolved)]
    assert_gradients_within_budgets(gradients, cotangent, "patch_embedding", image, p)
    flipped = image.detach().flip(-2).mT.contiguous().mT
    results = [backend.patch_embedding(x, p) for x in (flipped, flipped.contiguous())]
    assert_within_budgets(results, "patch_embedding", flipped, p)


def test_large_patches_are_convolved() -> None:
    large, small = torch.ones(8, 64, 64, 4), torch.ones(1, 8, 8, 1)
    w = torch.ones(512, 16, 16, 4, requires_grad=True)
    assert vision._convolution_is_faster(large, w)
    assert not vision._convolution_is_faster(small, w)
    assert not vision._convolution_is_faster(large.double(), w)
    assert not vision._convolution_is_faster(large, torch.ones(512, 32, 32, 4, requires_grad=True))
    with torch.no_grad():
        assert vision._convolution_is_faster(large, torch.ones(128, 32, 32, 4))
    assert not vision._convolution_is_faster(large.to("meta"), w)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 5, 2), (2, 2, 3, 5, 1), (2, 1, 2, 3, 5, 4)])
@pytest.mark.parametrize(
    "grid", [(4, 6, 10), (2, 3, 5), (4, 3, 5), (2, 6, 5), (2, 3, 7), (4, 3, 10), (1, 1, 1), (5, 2, 5), (2, 4, 9)]
)
def test_axes_are_interpolated_as_far_as_they_change(
    grid: tuple[int, int, int], shape: tuple[int, ...], align_corners: bool
) -> None:
    x = normal(*shape, dtype=torch.float64).detach()
    for inputs in (x, x.transpose(-2, -3).contiguous().transpose(-2, -3)):
        got = backend.interpolate(inputs, *grid, align_corners=align_corners)
        assert_within_budgets(got, "interpolate", x, *grid, align_corners=align_corners)
        assert got.is_contiguous()
        assert got.data_ptr() != inputs.data_ptr()


def test_patches_are_memory_of_their_own() -> None:
    for shape, patch in (((4, 6, 3), 1), ((6, 2, 3), 2), ((2, 2, 3), 2), ((4, 4, 1), 2)):
        image = torch.ones(shape)
        backend.patchify(image, patch).zero_()
        assert image.all()


def gate() -> AttentionGateParameters[Tensor]:
    return AttentionGateParameters(normal(4, 5), normal(4, 6), normal(4), normal(4), normal())


def calls() -> dict[str, tuple[str, dict[str, Any]]]:
    """The argument that has a batch of 3, and all arguments, by operation."""
    gated = {"x": normal(4, 3, 2, 5), "gating": normal(3, 2, 2, 1, 6), "parameters": gate()}
    scorer = {"w_q": normal(7, 2), "w_k": normal(7, 6), "w_v": normal(7)}
    return {
        "patchify": ("image", {"image": normal(3, 4, 6, 3), "patch": 2}),
        "patch_embedding": ("image", {"image": normal(3, 4, 6, 3), "parameters": embedding(5, 2, 3, 6)}),
        "interpolate": ("x", {"x": normal(3, 2, 3, 5, 4), "slices": 4, "rows": 3, "columns": 7}),
        "attention_gate": ("gating", gated),
        "attention_skip": ("gating", gated),
        "spatial_attention": ("features", {"state": normal(2), "features": normal(3, 2, 4, 6), **scorer}),
    }


@pytest.mark.parametrize("name", calls())
def test_vmap_and_jvp_match_single_calls_and_gradients(name: str) -> None:
    batched, inputs = calls()[name]
    batch = inputs[batched]

    def compute(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(flatten(getattr(backend, name)(**{**inputs, batched: x})).values())

    def first(x: Tensor) -> Tensor:
        return compute(x)[0]

    each = tuple(torch.stack(parts) for parts in zip(*map(compute, batch), strict=True))
    assert_within_budgets([torch.vmap(compute)(batch), each], name, **inputs)
    along = torch.func.jvp(first, (batch,), (torch.ones_like(batch),))[1]
    weights = torch.ones_like(along)
    (gradient,) = torch.autograd.grad(first(batch), batch, weights)
    cotangent = (weights, None) if len(each) > 1 else weights
    slopes = [(along * weights).sum(), gradient.sum()]
    assert_slopes_within_budgets(slopes, {batched: torch.ones_like(batch)}, cotangent, name, **inputs)


def test_a_flag_that_is_none_and_a_patch_that_does_not_divide() -> None:
    with pytest.raises(TypeError, match=r"^interpolate: align_corners: expected True or False; got 'yes'$"):
        backend.interpolate(torch.ones(1, 1, 2, 1), 1, 1, 4, align_corners="yes")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"^patchify: image: expected .* with height a multiple of patch = 2; got"):
        backend.patchify(torch.ones(3, 4, 1), 2)
