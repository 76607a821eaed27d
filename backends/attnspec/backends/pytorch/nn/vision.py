"""Vision modules; images, volumes and feature maps have their channels last."""

from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from attnspec.backends.pytorch.nn.initialization import Device, draw, linear_bound, parameter
from attnspec.backends.pytorch.nn.records import Recorded, check_sizes, records, reset
from attnspec.backends.pytorch.nn.scorer import AdditiveScorer
from attnspec.backends.pytorch.nn.transformer import LayerNorm, TransformerEncoderLayer
from attnspec.backends.pytorch.vision import (
    attention_gate,
    attention_skip,
    patch_embedding,
    spatial_attention,
    vit_encoder,
)
from attnspec.spec import AttentionGateParameters, EncoderLayerParameters, LayerNormParameters, PatchEmbeddingParameters

__all__ = ["AttentionGate", "AttentionSkip", "PatchEmbedding", "SpatialAttention", "VisionTransformer"]


class PatchEmbedding(Recorded[PatchEmbeddingParameters[Tensor]]):
    """Input of a vision transformer: a class token and projected patches, plus position embeddings.

    Args:
        image_size: height and width of an image, or one number for both; multiples of ``patch_size``.
        patch_size: height and width of a patch.
        embed_dim: features of a token, d.
        in_channels: channels of the image.

    Shape: image (*batch, height, width, channels); result (*batch, 1 + patches, d). Weights are w
        (d, patch, patch, channels), class_token (d) and positions (1 + patches, d).
    Initialisation: w as ``nn.Conv2d``'s weight, uniform within 1/√(patch²·channels); the class token is 0 and positions
        are normal with standard deviation 0.02, as in torchvision's ``VisionTransformer``.
    Errors: ``ValueError`` for sizes below 1 and for image sizes that are no multiples of the patch size.
    Source: operation ``patch_embedding``.

    >>> embed = PatchEmbedding(32, 8, embed_dim=16)
    >>> embed(torch.randn(2, 32, 32, 3)).shape
    torch.Size([2, 17, 16])
    """

    kind = PatchEmbeddingParameters

    def __init__(
        self, image_size: int | tuple[int, int], patch_size: int, embed_dim: int, in_channels: int = 3, *,
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        sizes = {"height": height, "width": width, "patch_size": patch_size}
        check_sizes("PatchEmbedding", **sizes, embed_dim=embed_dim, in_channels=in_channels)
        for name, size in (("height", height), ("width", width)):
            if size % patch_size:
                expected = f"a multiple of patch_size = {patch_size}"
                raise ValueError(f"PatchEmbedding: {name}: expected {expected}; got {size}")
        patches = (height // patch_size) * (width // patch_size)
        self.w = parameter(embed_dim, patch_size, patch_size, in_channels, device=device, dtype=dtype)
        self.class_token = parameter(embed_dim, device=device, dtype=dtype)
        self.positions = parameter(1 + patches, embed_dim, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        draw(linear_bound(self.w[0].numel()), self.w)
        nn.init.zeros_(self.class_token)
        nn.init.normal_(self.positions, std=0.02)

    def extra_repr(self) -> str:
        """Show the sizes."""
        d, patch, _, channels = self.w.shape
        return f"patches={len(self.positions) - 1}, patch_size={patch}, embed_dim={d}, in_channels={channels}"

    def forward(self, image: Tensor) -> Tensor:
        """The tokens of an image."""
        return patch_embedding(image, self.record())

    if TYPE_CHECKING:
        __call__ = forward


class VisionTransformer(nn.Module):
    """A vision transformer: the class token's representation of an image, without a classifier on top.

    Args:
        image_size: height and width of an image, or one number for both; multiples of ``patch_size``.
        patch_size: height and width of a patch.
        d_model: features of a token, d.
        nhead: heads, which divide ``d_model``.
        num_layers: number of layers.
        dim_feedforward: hidden units of each feed-forward network, f; its activation is ReLU.
        in_channels: channels of the image.

    Shape: image (*batch, height, width, channels); result (*batch, d). Weights are those of ``embedding``, of every
        layer in ``layers`` and of ``final_norm``.
    Initialisation: that of :class:`PatchEmbedding`, :class:`TransformerEncoderLayer` and :class:`LayerNorm`.
    Errors: ``ValueError`` for sizes below 1, for image sizes that are no multiples of the patch size and if heads do
        not divide ``d_model``.
    Source: operation ``vit_encoder``.

    >>> model = VisionTransformer(32, 8, 16, 4, num_layers=2, dim_feedforward=64)
    >>> model(torch.randn(2, 32, 32, 3)).shape
    torch.Size([2, 16])
    """

    def __init__(
        self, image_size: int | tuple[int, int], patch_size: int, d_model: int, nhead: int, num_layers: int,
        dim_feedforward: int = 2048, in_channels: int = 3, *, device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_sizes("VisionTransformer", num_layers=num_layers)
        self.embedding = PatchEmbedding(image_size, patch_size, d_model, in_channels, device=device, dtype=dtype)
        self.layers = nn.ModuleList(
            TransformerEncoderLayer(d_model, nhead, dim_feedforward, norm_first=True, device=device, dtype=dtype)
            for _ in range(num_layers)
        )
        self.final_norm = LayerNorm(d_model, device=device, dtype=dtype)

    @classmethod
    def from_record(
        cls, embedding: PatchEmbeddingParameters[Tensor], layers: tuple[EncoderLayerParameters[Tensor], ...],
        final_norm: LayerNormParameters[Tensor],
    ) -> Self:  # fmt: skip
        """Return a model with a copy of the weights of three records, of any sizes."""
        model = cls.__new__(cls)
        nn.Module.__init__(model)
        model.embedding = PatchEmbedding.from_record(embedding)
        model.layers = nn.ModuleList(TransformerEncoderLayer.from_record(x, norm_first=True) for x in layers)
        model.final_norm = LayerNorm.from_record(final_norm)
        return model

    def reset_parameters(self) -> None:
        """Draw new weights for all submodules."""
        for part in self.children():
            reset(part)

    def forward(self, image: Tensor) -> Tensor:
        """The representation of an image."""
        return vit_encoder(image, self.embedding.record(), records(self.layers), self.final_norm.record())

    if TYPE_CHECKING:
        __call__ = forward


class Gate(Recorded[AttentionGateParameters[Tensor]]):
    """Weights of an attention gate, shared by `AttentionGate` and `AttentionSkip`."""

    kind = AttentionGateParameters

    def __init__(
        self, in_channels: int, gating_channels: int, hidden_dim: int, *,
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        sizes = {"in_channels": in_channels, "gating_channels": gating_channels, "hidden_dim": hidden_dim}
        check_sizes(type(self).__name__, **sizes)
        self.w_x = parameter(hidden_dim, in_channels, device=device, dtype=dtype)
        self.w_g = parameter(hidden_dim, gating_channels, device=device, dtype=dtype)
        self.b_g = parameter(hidden_dim, device=device, dtype=dtype)
        self.psi = parameter(hidden_dim, device=device, dtype=dtype)
        self.b_psi = parameter(device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        draw(linear_bound(self.w_x.shape[1]), self.w_x)
        draw(linear_bound(self.w_g.shape[1]), self.w_g, self.b_g)
        draw(linear_bound(len(self.psi)), self.psi, self.b_psi)

    def extra_repr(self) -> str:
        """Show the sizes."""
        (hidden, d_x), d_g = self.w_x.shape, self.w_g.shape[1]
        return f"in_channels={d_x}, gating_channels={d_g}, hidden_dim={hidden}"


class AttentionGate(Gate):
    """The gate of an attention U-Net: a coarser gating signal weights every feature vector.

    Args:
        in_channels: features of the map that is gated, d_x.
        gating_channels: features of the signal, d_g.
        hidden_dim: hidden units, h.

    Shape: x (*batch, slices, rows, columns, d_x), gating likewise on another grid with d_g; the result is a pair, the
        gated features as x and the coefficients (*batch, slices, rows, columns). Weights are w_x (h, d_x),
        w_g (h, d_g), b_g (h), psi (h) and the number b_psi.
    Initialisation: as convolutions of size 1 in ``torch.nn``: w_x uniform within 1/√d_x, w_g and b_g within 1/√d_g, psi
        and b_psi within 1/√h.
    Errors: ``ValueError`` for sizes below 1.
    Source: operation ``attention_gate``.

    >>> gate = AttentionGate(8, 16, hidden_dim=4)
    >>> gated, coefficients = gate(torch.randn(2, 1, 6, 6, 8), torch.randn(2, 1, 3, 3, 16))
    >>> gated.shape, coefficients.shape
    (torch.Size([2, 1, 6, 6, 8]), torch.Size([2, 1, 6, 6]))
    """

    def forward(self, x: Tensor, gating: Tensor) -> tuple[Tensor, Tensor]:
        """Gated features and coefficients."""
        return attention_gate(x, gating, self.record())

    if TYPE_CHECKING:
        __call__ = forward


class AttentionSkip(Gate):
    """The skip connection of an attention U-Net: gated features concatenated with the upsampled signal.

    Args:
        in_channels: features of the map that is gated, d_x.
        gating_channels: features of the signal, d_g.
        hidden_dim: hidden units, h.

    Shape: inputs and weights as in :class:`AttentionGate`; result (*batch, slices, rows, columns, d_x + d_g).
    Initialisation: that of :class:`AttentionGate`.
    Errors: ``ValueError`` for sizes below 1.
    Source: operation ``attention_skip``.

    >>> skip = AttentionSkip(8, 16, hidden_dim=4)
    >>> skip(torch.randn(2, 1, 6, 6, 8), torch.randn(2, 1, 3, 3, 16)).shape
    torch.Size([2, 1, 6, 6, 24])
    """

    def forward(self, x: Tensor, gating: Tensor) -> Tensor:
        """Return the gated features of x, then the upsampled signal."""
        return attention_skip(x, gating, self.record())

    if TYPE_CHECKING:
        __call__ = forward


class SpatialAttention(AdditiveScorer):
    """Soft attention of a caption decoder: its state attends to a whole feature map.

    Args:
        state_dim: features of the state, d_s.
        in_channels: features of the map, d_h.
        hidden_dim: hidden units of the scorer, h.

    Shape: state (*batch, d_s), features (*batch, rows, columns, d_h); the result is a pair, the context (*batch, d_h)
        and the weights (*batch, rows, columns). Weights of the scorer are w_q (h, d_s), w_k (h, d_h), w_v (h).
    Initialisation: each as ``nn.Linear``'s weight: uniform within 1/√d_s, 1/√d_h and 1/√h.
    Errors: ``ValueError`` for sizes below 1.
    Source: operation ``spatial_attention``.

    >>> attention = SpatialAttention(16, 32, hidden_dim=8)
    >>> context, weights = attention(torch.randn(3, 16), torch.randn(3, 7, 7, 32))
    >>> context.shape, weights.shape
    (torch.Size([3, 32]), torch.Size([3, 7, 7]))
    """

    named = MappingProxyType({"state_dim": "d_q", "in_channels": "d_k", "hidden_dim": "h"})

    def __init__(
        self, state_dim: int, in_channels: int, hidden_dim: int, *,
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(state_dim, in_channels, hidden_dim, device=device, dtype=dtype)

    def forward(self, state: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """The context and the weights."""
        return spatial_attention(state, features, self.w_q, self.w_k, self.w_v)

    if TYPE_CHECKING:
        __call__ = forward
