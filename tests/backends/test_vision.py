"""Vision in PyTorch: every way that a call can take gives the same."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import attnspec.backends.pytorch as backend
from attnspec.backends.pytorch import vision
from attnspec.reference import interpolate
from attnspec.spec import AttentionGateParameters, PatchEmbeddingParameters, ShapeError

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by PyTorch's own forward mode
torch.set_num_threads(1)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    seed = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype).requires_grad_()


def embedding(d: int, patch: int, channels: int, patches: int) -> PatchEmbeddingParameters[Tensor]:
    return PatchEmbeddingParameters(normal(d, patch, patch, channels), normal(d), normal(1 + patches, d))


def with_gradients(result: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(0)).to(result.dtype)
    return result, *torch.autograd.grad(result, leaves, weights, retain_graph=True)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (0,)])
@pytest.mark.parametrize(("patch", "channels", "d"), [(1, 1, 1), (2, 3, 4), (4, 1, 8), (7, 2, 3), (16, 3, 5)])
def test_patches_are_convolved_or_multiplied(
    patch: int, channels: int, d: int, batch: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    p, image = embedding(d, patch, channels, 6), normal(*batch, 2 * patch, 3 * patch, channels)
    leaves = image, p.w, p.class_token, p.positions
    multiplied = with_gradients(backend.patch_embedding(image, p), *leaves)
    monkeypatch.setattr(vision, "CONVOLVED", 0)
    monkeypatch.setattr(vision, "CONVOLVED_BACK", 0)
    assert vision._convolves(image, p.w)
    convolved = with_gradients(backend.patch_embedding(image, p), *leaves)
    for one, other in zip(multiplied, convolved, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    flipped = image.detach().flip(-2).mT.contiguous().mT
    torch.testing.assert_close(
        backend.patch_embedding(flipped, p), backend.patch_embedding(flipped.contiguous(), p), rtol=1e-4, atol=1e-4
    )


def test_what_is_convolved() -> None:
    large, small = torch.ones(8, 64, 64, 4), torch.ones(1, 8, 8, 1)
    w = torch.ones(512, 16, 16, 4, requires_grad=True)
    assert vision._convolves(large, w)
    assert not vision._convolves(small, w)
    assert not vision._convolves(large.double(), w)
    assert not vision._convolves(large, torch.ones(512, 32, 32, 4, requires_grad=True))
    with torch.no_grad():
        assert vision._convolves(large, torch.ones(128, 32, 32, 4))
    assert not vision._convolves(large.to("meta"), w)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 5, 2), (2, 2, 3, 5, 1), (2, 1, 2, 3, 5, 4)])
@pytest.mark.parametrize(
    "grid", [(4, 6, 10), (2, 3, 5), (4, 3, 5), (2, 6, 5), (2, 3, 7), (4, 3, 10), (1, 1, 1), (5, 2, 5), (2, 4, 9)]
)
def test_axes_are_interpolated_as_far_as_they_change(
    grid: tuple[int, int, int], shape: tuple[int, ...], align_corners: bool
) -> None:
    x = normal(*shape, dtype=torch.float64).detach()
    expected = interpolate(x.numpy(), *grid, align_corners=align_corners)
    for given in (x, x.transpose(-2, -3).contiguous().transpose(-2, -3)):
        got = backend.interpolate(given, *grid, align_corners=align_corners)
        np.testing.assert_allclose(got.numpy(), expected, rtol=2.0**-46, atol=2.0**-46)
        assert got.is_contiguous()
        assert got.data_ptr() != given.data_ptr()


def test_patches_are_memory_of_their_own() -> None:
    for shape, patch in (((4, 6, 3), 1), ((6, 2, 3), 2), ((2, 2, 3), 2), ((4, 4, 1), 2)):
        image = torch.ones(shape)
        backend.patchify(image, patch).zero_()
        assert image.all()


def gate() -> AttentionGateParameters[Tensor]:
    return AttentionGateParameters(normal(4, 5), normal(4, 6), normal(4), normal(4), normal())


def calls() -> dict[str, Any]:
    p, g, x = embedding(5, 2, 3, 6), gate(), normal(4, 3, 2, 5)
    scorer = normal(7, 2), normal(7, 6), normal(7)
    state = normal(2)
    return {
        "patchify": (lambda image: backend.patchify(image, 2), normal(3, 4, 6, 3)),
        "patch_embedding": (lambda image: backend.patch_embedding(image, p), normal(3, 4, 6, 3)),
        "interpolate": (lambda x: backend.interpolate(x, 4, 3, 7), normal(3, 2, 3, 5, 4)),
        "attention_gate": (lambda s: backend.attention_gate(x, s, g)[0], normal(3, 2, 2, 1, 6)),
        "attention_skip": (lambda s: backend.attention_skip(x, s, g), normal(3, 2, 2, 1, 6)),
        "spatial_attention": (
            lambda f: backend.spatial_attention(state, f, *scorer)[0],
            normal(3, 2, 4, 6),
        ),
    }


@pytest.mark.parametrize("name", calls())
def test_transforms(name: str) -> None:
    compute, batch = calls()[name]
    torch.testing.assert_close(torch.vmap(compute)(batch), torch.stack([compute(x) for x in batch]))
    along = torch.func.jvp(compute, (batch,), (torch.ones_like(batch),))[1]
    weights = torch.ones_like(along)
    (gradient,) = torch.autograd.grad(compute(batch), batch, weights)
    torch.testing.assert_close((along * weights).sum(), gradient.sum(), rtol=1e-4, atol=1e-4)


def test_a_flag_that_is_none_and_a_patch_that_does_not_divide() -> None:
    with pytest.raises(TypeError, match=r"^interpolate: align_corners: expected True or False; got 'yes'$"):
        backend.interpolate(torch.ones(1, 1, 2, 1), 1, 1, 4, align_corners="yes")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"^patchify: image: expected .* with height a multiple of patch = 2; got"):
        backend.patchify(torch.ones(3, 4, 1), 2)
