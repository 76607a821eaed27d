"""Modules of transformer encoder and decoder layers."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from attnspec.backends.pytorch.nn.conversion import Activation, activation_of, check_kind, check_no_dropout, check_same
from attnspec.backends.pytorch.nn.initialization import Device
from attnspec.backends.pytorch.nn.multihead import MultiHeadAttention
from attnspec.backends.pytorch.nn.records import Record, Recorded, check_sizes
from attnspec.backends.pytorch.nn.transformer.hugging_face import read, reader_of
from attnspec.backends.pytorch.nn.transformer.sublayers import FeedForward, LayerNorm
from attnspec.backends.pytorch.transformer import EPSILON, cached_decoder_step, decoder_layer, encoder_layer
from attnspec.spec import DecoderLayerParameters, EncoderLayerParameters, KeyValueCache


class Layer(Recorded[Record]):
    """Base of layers, with normalization before each sublayer ("pre") or after each residual sum ("post")."""

    attention: MultiHeadAttention
    attention_norm: LayerNorm
    feed_forward: FeedForward
    feed_forward_norm: LayerNorm
    norm_first: bool

    @classmethod
    def from_record(cls, record: Record, *, norm_first: bool = False) -> Self:
        """Return a layer with a copy of a record's weights, of any sizes."""
        layer = super().from_record(record)
        layer.norm_first = norm_first
        return layer

    @classmethod
    def from_parts(cls, *, norm_first: bool, **parts: Any) -> Self:
        """Return a layer with these submodules."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer.norm_first = norm_first
        for name, part in parts.items():
            setattr(layer, name, part)
        layer.note_settings()
        return layer

    def note_settings(self) -> None:
        """Remember the settings of submodules that the record has no place for."""
        parts = ((name, getattr(self, name).beyond_record) for name in self.parts)
        self.beyond_record = ", ".join(f"{name}: {beyond}" for name, beyond in parts if beyond)

    def residual(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], norm: LayerNorm) -> Tensor:
        """Return a sublayer's output with residual connection and normalization."""
        return x + sublayer(norm(x)) if self.norm_first else norm(x + sublayer(x))

    def extra_repr(self) -> str:
        """Show ``norm_first``."""
        return f"norm_first={self.norm_first}"

    def create_submodules(
        self, d_model: int, nhead: int, dim_feedforward: int, activation: Activation, epsilon: float,
        attention_bias: bool, **factory: Any,
    ) -> None:  # fmt: skip
        """Create the submodules that encoder and decoder layers share."""
        check_sizes(type(self).__name__, d_model=d_model, nhead=nhead, dim_feedforward=dim_feedforward)
        self.attention = MultiHeadAttention(d_model, nhead, bias=attention_bias, **factory)
        self.attention_norm = LayerNorm(d_model, epsilon=epsilon, **factory)
        self.feed_forward = FeedForward(d_model, dim_feedforward, activation=activation, **factory)
        self.feed_forward_norm = LayerNorm(d_model, epsilon=epsilon, **factory)

    def as_torch(self, kind: Any) -> Any:
        """Return a PyTorch layer of class ``kind`` with our self-attention and feed-forward weights."""
        w_q, network = self.attention.w_q, self.feed_forward
        options = {"batch_first": True, "norm_first": self.norm_first, "device": w_q.device, "dtype": w_q.dtype}
        tanh = network.activation == "gelu_tanh"
        options["activation"] = nn.GELU("tanh") if tanh else network.activation
        layer = kind(network.w_1.shape[1], w_q.shape[0], network.w_1.shape[0], 0.0, **options)
        with torch.no_grad():
            for linear, w, b in ((layer.linear1, network.w_1, network.b_1), (layer.linear2, network.w_2, network.b_2)):
                linear.weight.copy_(w)
                linear.bias.copy_(b)
        layer.self_attn = self.attention.to_torch(bias=True)
        return layer.train(self.training)


def norm_option(norm_first: bool) -> Literal["post", "pre"]:
    """Return the operations' ``norm`` argument: "pre" or "post"."""
    return "pre" if norm_first else "post"


def network_of(
    caller: str, module: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, dropouts: int
) -> FeedForward:
    """Return a layer's feed-forward network; refuse dropout in training, and unknown activations."""
    for name in ("dropout", *(f"dropout{number}" for number in range(1, dropouts + 1))):
        check_no_dropout(caller, module, getattr(module, name).p)
    activation = activation_of(caller, module.activation)
    return FeedForward.from_torch(module.linear1, module.linear2, activation=activation)


class TransformerEncoderLayer(Layer[EncoderLayerParameters[Tensor]]):
    """Self-attention and a feed-forward network, each with a residual connection and a normalization.

    Args:
        d_model: features, d.
        nhead: heads, which divide ``d_model``.
        dim_feedforward: hidden units, f.
        norm_first: whether the input of each sublayer is normalized ("pre"); otherwise the sum is ("post").
        activation, epsilon, attention_bias: those of :class:`FeedForward`, :class:`LayerNorm` and
            :class:`MultiHeadAttention`; the operation has only their defaults.

    Shape: x (*batch, n, d), and so is the result. The mask is boolean, True = may attend, and broadcasts to
        (*batch, n, n). Weights are those of ``attention``, ``attention_norm``, ``feed_forward`` and
        ``feed_forward_norm``. ``from_record`` takes any sizes.
    Initialisation: that of :class:`MultiHeadAttention`, :class:`FeedForward` and :class:`LayerNorm`, as in
        ``nn.TransformerEncoderLayer``.
    Errors: ``ValueError`` for sizes below 1 and if heads do not divide ``d_model``.
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

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, *, norm_first: bool = False,
        activation: Activation = "relu", epsilon: float = EPSILON, attention_bias: bool = False,
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.norm_first = norm_first
        settings = d_model, nhead, dim_feedforward, activation, epsilon, attention_bias
        self.create_submodules(*settings, device=device, dtype=dtype)
        self.note_settings()

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Return the layer's output for x."""
        if self.beyond_record:
            x = self.residual(x, lambda y: self.attention(y, y, y, mask=mask), self.attention_norm)
            return self.residual(x, self.feed_forward, self.feed_forward_norm)
        return encoder_layer(x, self.record(), mask=mask, norm=norm_option(self.norm_first))

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, module: nn.Module) -> Self:
        """Return a layer with a copy of PyTorch's weights, in the same mode.

        The layer may also be a ``BertLayer``, ``GPT2Block`` or ``ViTLayer`` of Hugging Face transformers. Like
        PyTorch's, that of GPT-2 is causal only if called with a causal mask. GELU, biases of attention and another ε
        than 10⁻⁵ are taken over. The operation ``encoder_layer`` has none of them, so such a layer computes its parts
        one after another, and has no record. ``ValueError`` for other activations, dropout in training, other scales
        than 1/√d, and where :meth:`MultiHeadAttention.from_torch` raises, as for ``batch_first=False``.
        """
        if reader := reader_of(module):
            return cls.from_parts(**read(module, reader)).train(module.training)
        layer = check_kind("TransformerEncoderLayer.from_torch", module, nn.TransformerEncoderLayer)
        network = network_of("TransformerEncoderLayer.from_torch", layer, 2)
        parts = {
            "attention": MultiHeadAttention.from_torch(layer.self_attn),
            "attention_norm": LayerNorm.from_torch(layer.norm1),
            "feed_forward": network,
            "feed_forward_norm": LayerNorm.from_torch(layer.norm2),
        }
        return cls.from_parts(**parts, norm_first=layer.norm_first).train(layer.training)

    def to_torch(self) -> nn.TransformerEncoderLayer:
        """Return PyTorch's layer with a copy of weights and mode, batch first, without dropout.

        Without biases of attention its own are 0, because PyTorch's ``bias`` also covers the feed-forward network.
        ``ValueError`` for sizes that PyTorch does not have.
        """
        layer: nn.TransformerEncoderLayer = self.as_torch(nn.TransformerEncoderLayer)
        layer.norm1, layer.norm2 = self.attention_norm.to_torch(), self.feed_forward_norm.to_torch()
        return layer


class TransformerDecoderLayer(Layer[DecoderLayerParameters[Tensor]]):
    """Causal self-attention, attention to a memory and a feed-forward network.

    Each has a residual connection and a normalization. Unlike ``nn.TransformerDecoderLayer`` the layer is causal
    without a mask: position i attends to no later one.

    Args:
        d_model: features, d.
        nhead: heads of each attention, which divide ``d_model``.
        dim_feedforward: hidden units, f.
        memory_dim: features of the memory, d_m; ``d_model`` unless given.
        norm_first: whether the input of each sublayer is normalized ("pre"); otherwise the sum is ("post").
        activation, epsilon, attention_bias: those of :class:`FeedForward`, :class:`LayerNorm` and
            :class:`MultiHeadAttention`; the operation has only their defaults.

    Shape: x (*batch, n, d), and so is the result; memory (*batch, m, d_m). Masks are boolean, True = may attend:
        ``mask`` broadcasts to (*batch, n, n), ``memory_mask`` to (*batch, n, m). Weights are those of ``attention``,
        ``cross_attention``, ``feed_forward`` and of their normalizations. ``from_record`` takes any sizes.
    Initialisation: that of :class:`MultiHeadAttention`, :class:`FeedForward` and :class:`LayerNorm`, as in
        ``nn.TransformerDecoderLayer``.
    Errors: ``ValueError`` for sizes below 1 and if heads do not divide ``d_model``.
    Source: operations ``decoder_layer`` and ``cached_decoder_step``.

    >>> layer = TransformerDecoderLayer(16, 4, 64)
    >>> x, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    >>> layer(x, memory).shape
    torch.Size([2, 5, 16])
    >>> y, cache = layer.step(x[:, 0], layer.empty_cache(2), memory)
    >>> y, cache = layer.step(x[:, 1], cache, memory)
    >>> y.shape, cache.key.shape
    (torch.Size([2, 16]), torch.Size([2, 4, 2, 4]))
    """

    kind = DecoderLayerParameters
    parts: ClassVar[Mapping[str, Any]] = {
        **TransformerEncoderLayer.parts,
        "cross_attention": MultiHeadAttention,
        "cross_attention_norm": LayerNorm,
    }
    cross_attention: MultiHeadAttention
    cross_attention_norm: LayerNorm

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, *, memory_dim: int | None = None,
        norm_first: bool = False,
        activation: Activation = "relu", epsilon: float = EPSILON, attention_bias: bool = False,
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.norm_first = norm_first
        settings = d_model, nhead, dim_feedforward, activation, epsilon, attention_bias
        self.create_submodules(*settings, device=device, dtype=dtype)
        self.cross_attention = MultiHeadAttention(
            d_model, nhead, kdim=memory_dim, vdim=memory_dim, bias=attention_bias, device=device, dtype=dtype
        )
        self.cross_attention_norm = LayerNorm(d_model, epsilon=epsilon, device=device, dtype=dtype)
        self.note_settings()

    def forward(
        self, x: Tensor, memory: Tensor, *, mask: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> Tensor:
        """Return the layer's output for x and the memory."""
        if self.beyond_record:
            x = self.residual(x, lambda y: self.attention(y, y, y, mask=mask, causal=True), self.attention_norm)
            look_up = partial(self.cross_attention, key=memory, value=memory, mask=memory_mask)
            x = self.residual(x, look_up, self.cross_attention_norm)
            return self.residual(x, self.feed_forward, self.feed_forward_norm)
        norm = norm_option(self.norm_first)
        return decoder_layer(x, memory, self.record(), mask=mask, memory_mask=memory_mask, norm=norm)

    if TYPE_CHECKING:
        __call__ = forward

    def empty_cache(self, *batch: int) -> KeyValueCache[Tensor]:
        """Return a cache without positions, for the first ``step``."""
        key, value = (w.new_empty(*batch, w.shape[0], 0, w.shape[1]) for w in (self.attention.w_q, self.attention.w_v))
        return KeyValueCache(key.detach(), value.detach())

    def step(
        self, x: Tensor, cache: KeyValueCache[Tensor], memory: Tensor, *, mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> tuple[Tensor, KeyValueCache[Tensor]]:  # fmt: skip
        """Return the output for the next position x (*batch, d), and the longer cache.

        Masks broadcast to (*batch, cached) and (*batch, m). ``ValueError`` for a layer without a record
        (:meth:`from_torch`). Source: operation ``cached_decoder_step``.
        """
        norm = norm_option(self.norm_first)
        return cached_decoder_step(x, cache, memory, self.record(), mask=mask, memory_mask=memory_mask, norm=norm)

    @classmethod
    def from_torch(cls, module: nn.TransformerDecoderLayer) -> Self:
        """Return a layer with a copy of PyTorch's weights, in the same mode.

        PyTorch's layer is causal only if called with a causal mask. ``ValueError`` where
        :meth:`TransformerEncoderLayer.from_torch` raises.
        """
        check_kind("TransformerDecoderLayer.from_torch", module, nn.TransformerDecoderLayer)
        network = network_of("TransformerDecoderLayer.from_torch", module, 3)
        parts = {
            "attention": MultiHeadAttention.from_torch(module.self_attn),
            "attention_norm": LayerNorm.from_torch(module.norm1),
            "cross_attention": MultiHeadAttention.from_torch(module.multihead_attn),
            "cross_attention_norm": LayerNorm.from_torch(module.norm2),
            "feed_forward": network,
            "feed_forward_norm": LayerNorm.from_torch(module.norm3),
        }
        return cls.from_parts(**parts, norm_first=module.norm_first).train(module.training)

    def to_torch(self) -> nn.TransformerDecoderLayer:
        """Return PyTorch's layer with a copy of weights and mode, batch first, without dropout.

        It is causal only if called with a causal mask. Without biases of attention its own are 0. ``ValueError`` for
        sizes that PyTorch does not have, such as a memory whose number of features is not ``d_model``.
        """
        d_model, memory_dim = self.cross_attention.w_q.shape[-1], self.cross_attention.w_k.shape[-1]
        reason = "torch.nn has one d_model for inputs and memory"
        check_same("TransformerDecoderLayer.to_torch", "d_m", d_model, memory_dim, reason)
        layer: nn.TransformerDecoderLayer = self.as_torch(nn.TransformerDecoderLayer)
        layer.multihead_attn = self.cross_attention.to_torch(bias=True)
        layer.norm1, layer.norm2 = self.attention_norm.to_torch(), self.cross_attention_norm.to_torch()
        layer.norm3 = self.feed_forward_norm.to_torch()
        return layer
