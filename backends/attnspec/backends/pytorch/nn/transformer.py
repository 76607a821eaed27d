"""Transformers: layers of attention and feed-forward networks. No layer has dropout."""

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnspec.backends.pytorch.nn.conversion import bias_of, check, check_no_dropout, check_same, refuse
from attnspec.backends.pytorch.nn.initialization import draw, linear_bound
from attnspec.backends.pytorch.nn.multihead import MultiHeadAttention
from attnspec.backends.pytorch.nn.records import Recorded, check_sizes, each, parameter, records, reset
from attnspec.backends.pytorch.transformer import EPSILON, encoder_layer, encoder_stack, feed_forward, layer_norm
from attnspec.spec import EncoderLayerParameters, FeedForwardParameters, LayerNormParameters

__all__ = ["FeedForward", "LayerNorm", "TransformerEncoder", "TransformerEncoderLayer"]


class LayerNorm(Recorded[LayerNormParameters[Tensor]]):
    """Layer normalization of the last dimension, with ε = 10⁻⁵.

    Args:
        normalized_shape: features, d.

    Shape: x (*batch, d), and so is the result. Weights gain (d) and bias (d).
    Initialisation: gains are 1 and biases 0, as in ``nn.LayerNorm``.
    Errors: ``ValueError`` for a size below 1.
    Source: operation ``layer_norm``.

    >>> LayerNorm(4)(torch.tensor([1.0, 1.0, 3.0, 3.0])).round(decimals=3).tolist()
    [-1.0, -1.0, 1.0, 1.0]
    """

    kind = LayerNormParameters

    def __init__(
        self,
        normalized_shape: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes("LayerNorm", normalized_shape=normalized_shape)
        self.gain = parameter(normalized_shape, device=device, dtype=dtype)
        self.bias = parameter(normalized_shape, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Gains of 1 and biases of 0."""
        nn.init.ones_(self.gain)
        nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        """The size."""
        return f"{self.gain.shape[0]}"

    def forward(self, x: Tensor) -> Tensor:
        """x, normalized."""
        return layer_norm(x, self.record())

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, module: nn.LayerNorm) -> Self:
        """A module with a copy of PyTorch's weights, and biases of 0 if it has none.

        ``ValueError`` for another ε, for more than one normalized dimension and for a module without weights.
        """
        check("LayerNorm.from_torch", "eps", module.eps, EPSILON, "that is ε of the formula")
        if len(module.normalized_shape) != 1:
            refuse("LayerNorm.from_torch", "normalized_shape", "one dimension", module.normalized_shape)
        check("LayerNorm.from_torch", "elementwise_affine", module.elementwise_affine, True, "the formula has a gain")
        record = LayerNormParameters(module.weight, bias_of(module, module.weight))
        return cls.from_record(record).train(module.training)

    def to_torch(self) -> nn.LayerNorm:
        """PyTorch's module with a copy of the weights."""
        made = nn.LayerNorm(self.gain.shape[0], EPSILON, device=self.gain.device, dtype=self.gain.dtype)
        with torch.no_grad():
            made.weight.copy_(self.gain)
            made.bias.copy_(self.bias)
        return made.train(self.training)


class FeedForward(Recorded[FeedForwardParameters[Tensor]]):
    """The feed-forward network of a layer: d features, f ReLUs, d features, on every position by itself.

    Args:
        d_model: features, d.
        dim_feedforward: hidden units, f.

    Shape: x (*batch, d), and so is the result. Weights w_1 (f, d), b_1 (f), w_2 (d, f), b_2 (d).
    Initialisation: as two ``nn.Linear``: w_1 and b_1 uniform within 1/√d, w_2 and b_2 within 1/√f.
    Errors: ``ValueError`` for sizes below 1.
    Source: operation ``feed_forward``.

    >>> FeedForward(16, 64)(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    kind = FeedForwardParameters

    def __init__(
        self,
        d_model: int,
        dim_feedforward: int = 2048,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes("FeedForward", d_model=d_model, dim_feedforward=dim_feedforward)
        self.w_1 = parameter(dim_feedforward, d_model, device=device, dtype=dtype)
        self.b_1 = parameter(dim_feedforward, device=device, dtype=dtype)
        self.w_2 = parameter(d_model, dim_feedforward, device=device, dtype=dtype)
        self.b_2 = parameter(d_model, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        draw(linear_bound(self.w_1.shape[1]), self.w_1, self.b_1)
        draw(linear_bound(self.w_2.shape[1]), self.w_2, self.b_2)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"d_model={self.w_1.shape[1]}, dim_feedforward={self.w_1.shape[0]}"

    def forward(self, x: Tensor) -> Tensor:
        """The network's output for every position."""
        return feed_forward(x, self.record())

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, first: nn.Linear, second: nn.Linear) -> Self:
        """A module with a copy of the weights of two linear layers; biases of 0 where they have none."""
        weights = [(layer.weight, bias_of(layer, layer.weight[:, 0])) for layer in (first, second)]
        return cls.from_record(FeedForwardParameters(*weights[0], *weights[1]))


def _word(norm_first: bool) -> Literal["post", "pre"]:
    return "pre" if norm_first else "post"


def _check_layer(who: str, module: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, dropouts: int) -> None:
    """Refuse what the formulas of both layers do not have."""
    for number in range(dropouts):
        name = "dropout" if number == 0 else f"dropout{number}"
        check_no_dropout(who, module, getattr(module, name).p)
    activation = module.activation
    if activation not in (functional.relu, torch.relu) and not isinstance(activation, nn.ReLU):
        name = getattr(activation, "__name__", type(activation).__name__)
        refuse(who, "activation", "ReLU, since that is the formula's", name)


class TransformerEncoderLayer(Recorded[EncoderLayerParameters[Tensor]]):
    """Self-attention and a feed-forward network, each with a residual connection and a normalization.

    Args:
        d_model: features, d.
        nhead: heads, which divide ``d_model``.
        dim_feedforward: hidden units, f.
        norm_first: whether the input of each sublayer is normalized ("pre"); otherwise the sum is ("post").

    Shape: x (*batch, n, d), and so is the result. The mask is boolean, True = may attend, and broadcasts to
        (*batch, n, n). Weights are those of ``attention``, ``attention_norm``, ``feed_forward`` and
        ``feed_forward_norm``. ``from_record`` takes any sizes.
    Initialisation: that of :class:`MultiHeadAttention`, :class:`FeedForward` and :class:`LayerNorm`, as in
        ``nn.TransformerEncoderLayer``.
    Errors: ``ValueError`` for sizes below 1 and where heads do not divide ``d_model``.
    Source: operation ``encoder_layer``.

    >>> layer = TransformerEncoderLayer(16, 4, 64)
    >>> causal = torch.ones(5, 5, dtype=torch.bool).tril()
    >>> layer(torch.randn(2, 5, 16), mask=causal).shape
    torch.Size([2, 5, 16])
    """

    kind = EncoderLayerParameters
    parts: ClassVar[Mapping[str, Any]] = {
        "attention": MultiHeadAttention,
        "attention_norm": LayerNorm,
        "feed_forward": FeedForward,
        "feed_forward_norm": LayerNorm,
    }
    norm_first: bool

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        *,
        norm_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes("TransformerEncoderLayer", d_model=d_model, nhead=nhead, dim_feedforward=dim_feedforward)
        self.norm_first = norm_first
        self.attention = MultiHeadAttention(d_model, nhead, device=device, dtype=dtype)
        self.attention_norm = LayerNorm(d_model, device=device, dtype=dtype)
        self.feed_forward = FeedForward(d_model, dim_feedforward, device=device, dtype=dtype)
        self.feed_forward_norm = LayerNorm(d_model, device=device, dtype=dtype)

    @classmethod
    def from_record(cls, record: EncoderLayerParameters[Tensor], *, norm_first: bool = False) -> Self:
        """A layer with a copy of a record's weights, of any sizes that the record has."""
        layer = super().from_record(record)
        layer.norm_first = norm_first
        return layer

    def extra_repr(self) -> str:
        """Where the normalizations stand."""
        return f"norm_first={self.norm_first}"

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """The features that the layer makes of x."""
        return encoder_layer(x, self.record(), mask=mask, norm=_word(self.norm_first))

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, module: nn.TransformerEncoderLayer) -> Self:
        """A layer with a copy of PyTorch's weights, in the same mode.

        ``ValueError`` for an activation other than ReLU, another ε, dropout in training, and for what
        :meth:`MultiHeadAttention.from_torch` refuses: biases of attention that are not zero, ``batch_first=False``.
        """
        _check_layer("TransformerEncoderLayer.from_torch", module, 3)
        record = EncoderLayerParameters(
            attention=MultiHeadAttention.from_torch(module.self_attn).record(),
            attention_norm=LayerNorm.from_torch(module.norm1).record(),
            feed_forward=FeedForward.from_torch(module.linear1, module.linear2).record(),
            feed_forward_norm=LayerNorm.from_torch(module.norm2).record(),
        )
        return cls.from_record(record, norm_first=module.norm_first).train(module.training)

    def to_torch(self) -> nn.TransformerEncoderLayer:
        """PyTorch's layer with a copy of the weights, batch first, without dropout, in the same mode.

        Its attention has biases, of 0, since it has them wherever the feed-forward network does. ``ValueError`` for
        sizes that PyTorch does not have.
        """
        some, (f, d) = self.attention.w_q, self.feed_forward.w_1.shape
        made = nn.TransformerEncoderLayer(
            d, some.shape[0], f, 0.0, batch_first=True, norm_first=self.norm_first, device=some.device, dtype=some.dtype
        )
        made.self_attn = self.attention.to_torch(bias=True)
        made.norm1, made.norm2 = self.attention_norm.to_torch(), self.feed_forward_norm.to_torch()
        _load(made, self.feed_forward)
        return made.train(self.training)


def _load(made: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, network: FeedForward) -> None:
    """Copy the weights of a feed-forward network to a layer of PyTorch's."""
    with torch.no_grad():
        for layer, w, b in (
            (made.linear1, network.w_1, network.b_1),
            (made.linear2, network.w_2, network.b_2),
        ):
            layer.weight.copy_(w)
            layer.bias.copy_(b)


class TransformerEncoder(nn.Module):
    """Encoder layers one after another, with the same mask in each and no normalization after the last.

    Args:
        encoder_layer: the first layer; all are copies of it and, as in ``nn.TransformerEncoder``, begin with the same
            numbers. ``reset_parameters`` draws those of each layer by itself.
        num_layers: how many layers there are; without any the result is x.

    Shape: x (*batch, n, d), and so is the result. The mask is boolean, True = may attend, and broadcasts to
        (*batch, n, n).
    Initialisation: that of the layer.
    Errors: ``ValueError`` for fewer layers than 0.
    Source: operation ``encoder_stack``.

    >>> encoder = TransformerEncoder(TransformerEncoderLayer(16, 4, 64, norm_first=True), num_layers=2)
    >>> encoder(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, encoder_layer: TransformerEncoderLayer, num_layers: int) -> None:
        super().__init__()
        if num_layers < 0:
            raise ValueError(f"TransformerEncoder: num_layers: expected at least 0; got {num_layers}")
        self.norm_first = encoder_layer.norm_first
        self.layers = nn.ModuleList([deepcopy(encoder_layer) for _ in range(num_layers)])

    @classmethod
    def from_record(cls, layers: tuple[EncoderLayerParameters[Tensor], ...], *, norm_first: bool = False) -> Self:
        """An encoder with a copy of the weights of every layer."""
        encoder = cls.__new__(cls)
        nn.Module.__init__(encoder)
        encoder.norm_first = norm_first
        encoder.layers = nn.ModuleList([TransformerEncoderLayer.from_record(x, norm_first=norm_first) for x in layers])
        return encoder

    def record(self) -> tuple[EncoderLayerParameters[Tensor], ...]:
        """The weights of every layer."""
        return records(self.layers)

    def reset_parameters(self) -> None:
        """Draw the weights of every layer anew."""
        reset(self.layers)

    def extra_repr(self) -> str:
        """Where the normalizations stand."""
        return f"norm_first={self.norm_first}"

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """The features after the last layer."""
        return encoder_stack(x, self.record(), mask=mask, norm=_word(self.norm_first))

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, module: nn.TransformerEncoder) -> Self:
        """An encoder with a copy of PyTorch's weights, in the same mode.

        ``ValueError`` for a normalization after the last layer, layers that differ in ``norm_first``, and for what
        :meth:`TransformerEncoderLayer.from_torch` refuses.
        """
        who = "TransformerEncoder.from_torch"
        if module.norm is not None:
            refuse(who, "norm", "None, since nothing follows the last layer", type(module.norm).__name__)
        layers = [TransformerEncoderLayer.from_torch(layer) for layer in module.layers]
        for layer in layers:
            check_same(who, "norm_first", layers[0].norm_first, layer.norm_first, "all layers have one")
        record, norm_first = tuple(layer.record() for layer in layers), any(layer.norm_first for layer in layers)
        return cls.from_record(record, norm_first=norm_first).train(module.training)

    def to_torch(self) -> nn.TransformerEncoder:
        """PyTorch's encoder with a copy of the weights; its layers are those of ``to_torch``. It needs a layer."""
        if not self.layers:
            refuse("TransformerEncoder.to_torch", "num_layers", "at least 1, since torch.nn copies a layer", 0)
        layers = [layer.to_torch() for layer in each(self.layers)]
        made = nn.TransformerEncoder(layers[0], 0, enable_nested_tensor=False)
        made.layers, made.num_layers = nn.ModuleList(layers), len(layers)
        return made.train(self.training)
