"""Suite of vision operations, channels last, against ``torch.nn`` with channels first and last."""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attnspec.backends import pytorch
from attnspec.spec import AttentionGateParameters, PatchEmbeddingParameters
from benchmarks.case import FORWARD, WITH_BACKWARD, Case
from benchmarks.suites.named_rivals import Function, Rival, case
from benchmarks.suites.settings import Inputs, Settings

BATCH, WIDTH, PATCH, CHANNELS = 2, 64, 8, 3
FIRST, LAST, LINEAR = "torch.nn, channels first", "torch.nn, channels last", "torch.nn, linear layers"


def cases(settings: Settings) -> Iterator[Case]:
    """Cases with images of n × n pixels."""
    makes = {"patch embedding": embedding, "attention gate": gate, "interpolation": interpolation}
    for n in settings.chosen((16, 32, 64), (16,)):
        for name, make in makes.items():
            for mode in (FORWARD, WITH_BACKWARD):
                sizes = {"B": BATCH, "n": n, "d": WIDTH}
                yield case("vision", name, mode, sizes, n, make(Inputs(settings.device), n))


def _unchanged(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
    return gradients


def _leaves(*tensors: Tensor) -> list[Tensor]:
    return [x.detach().contiguous().requires_grad_() for x in tensors]


def embedding(draw: Inputs, n: int) -> Function:
    """Patch embedding with class token and positions, against a convolution and a linear layer."""
    image, patches = draw.normal(BATCH, n, n, CHANNELS), (n // PATCH) ** 2
    w = draw.normal(WIDTH, PATCH, PATCH, CHANNELS, scale=(PATCH**2 * CHANNELS) ** -0.5)
    weights = (w, draw.normal(WIDTH), draw.normal(1 + patches, WIDTH))
    of_convolution, of_linear = _leaves(w.permute(0, 3, 1, 2), *weights[1:]), _leaves(w.flatten(1), *weights[1:])

    def joined(projected: Tensor, token: Tensor, positions: Tensor) -> Tensor:
        return torch.cat((token.expand(BATCH, 1, WIDTH), projected), 1) + positions

    def cut(image: Tensor) -> Tensor:
        grid = image.view(BATCH, n // PATCH, PATCH, n // PATCH, PATCH, CHANNELS)
        return grid.transpose(2, 3).reshape(BATCH, patches, -1)

    def convolved(image: Tensor) -> Tensor:
        w, *others = of_convolution
        return joined(F.conv2d(image.permute(0, 3, 1, 2), w, stride=PATCH).flatten(2).mT, *others)

    def linear(image: Tensor) -> Tensor:
        w, *others = of_linear
        return joined(F.linear(cut(image), w), *others)

    def back(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        return [gradients[0].permute(0, 2, 3, 1), *gradients[1:]]

    def reshaped(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        return [gradients[0].view_as(w), *gradients[1:]]

    return Function(
        lambda image, *w: pytorch.patch_embedding(image, PatchEmbeddingParameters(*w)),
        lambda image, w, *others: joined(cut(image) @ w.flatten(1).mT, *others), (image,), weights,
        {LAST: Rival(convolved, of_convolution, back), LINEAR: Rival(linear, of_linear, reshaped)},
        2.0 * BATCH * patches * WIDTH * PATCH**2 * CHANNELS,
    )  # fmt: skip


def _resized(x: Tensor, n: int) -> Tensor:
    """Resize features (B, rows, columns, d) to n × n, with channels last in memory."""
    return F.interpolate(x.permute(0, 3, 1, 2), (n, n), mode="bilinear").permute(0, 2, 3, 1)


def gate(draw: Inputs, n: int) -> Function:
    """Attention gate, against linear layers and 1 × 1 convolutions with channels first in memory."""
    x, signal = draw.normal(BATCH, n, n, WIDTH), draw.normal(BATCH, n // 2, n // 2, 2 * WIDTH)
    shapes = ((WIDTH, WIDTH), (WIDTH, 2 * WIDTH), (WIDTH,), (WIDTH,))
    weights = [*(draw.normal(*shape, scale=WIDTH**-0.5) for shape in shapes), draw.normal(1)[0]]

    def ours(x: Tensor, signal: Tensor, *w: Tensor) -> Tensor:
        return pytorch.attention_gate(x.unsqueeze(1), signal.unsqueeze(1), AttentionGateParameters(*w))[0].squeeze(1)

    def linear(x: Tensor, signal: Tensor, *w: Tensor) -> Tensor:
        w_x, w_g, b_g, psi, b_psi = w
        hidden = F.relu(F.linear(x, w_x) + _resized(F.linear(signal, w_g, b_g), n))
        return torch.sigmoid(F.linear(hidden, psi[None], b_psi[None])) * x

    def convolved(x: Tensor, signal: Tensor, *w: Tensor) -> Tensor:
        (w_x, w_g, psi), (b_g, b_psi) = (part[..., None, None] for part in (w[0], w[1], w[3][None])), (w[2], w[4])
        features, coarse = (y.permute(0, 3, 1, 2).contiguous() for y in (x, signal))
        resized = F.interpolate(F.conv2d(coarse, w_g, b_g), (n, n), mode="bilinear")
        coefficients = torch.sigmoid(F.conv2d(F.relu(F.conv2d(features, w_x) + resized), psi, b_psi[None]))
        return (coefficients * features).permute(0, 2, 3, 1)

    return Function(
        ours, linear, (x, signal), weights, {LINEAR: _rival(linear, weights), FIRST: _rival(convolved, weights)},
        2.0 * BATCH * n**2 * WIDTH * (WIDTH + WIDTH / 2),
    )  # fmt: skip


def _rival(compute: Callable[..., Tensor], weights: Sequence[Tensor]) -> Rival:
    leaves = _leaves(*weights)
    return Rival(lambda *data: compute(*data, *leaves), leaves, _unchanged)


def interpolation(draw: Inputs, n: int) -> Function:
    """Bilinear interpolation to twice the size, with channels last in memory for all."""
    x = draw.normal(BATCH, n // 2, n // 2, WIDTH)
    return Function(
        lambda x: pytorch.interpolate(x.unsqueeze(1), 1, n, n).squeeze(1), lambda x: _resized(x, n), (x,), (),
        {LAST: Rival(lambda x: _resized(x, n), (), _unchanged)}, 8.0 * BATCH * n**2 * WIDTH,
    )  # fmt: skip
