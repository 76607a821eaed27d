"""Modules of stacked transformer encoder and decoder layers."""

from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self

from torch import Tensor, nn

from attnspec.backends.pytorch.nn.conversion import check_kind, check_same, refuse
from attnspec.backends.pytorch.nn.records import Record, check_sizes, records, reset, untyped
from attnspec.backends.pytorch.nn.transformer.layers import (
    Layer,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
    norm_option,
)
from attnspec.backends.pytorch.nn.transformer.sublayers import LayerNorm
from attnspec.backends.pytorch.transformer import decoder_stack, encoder_stack
from attnspec.spec import DecoderLayerParameters, EncoderLayerParameters


class Stack(nn.Module, Generic[Record]):
    """Base of stacks; all layers share ``norm_first``.

    A normalization follows the last layer only where ``from_torch`` found one.
    """

    layer: ClassVar[Any]
    """Class of the layers."""

    norm: LayerNorm | None

    def __init__(self, layer: Layer[Record], num_layers: int) -> None:
        super().__init__()
        self.norm = None
        check_sizes(type(self).__name__, least=0, num_layers=num_layers)
        self.norm_first = layer.norm_first
        self.layers = nn.ModuleList([deepcopy(layer) for _ in range(num_layers)])

    @classmethod
    def from_record(cls, layers: tuple[Record, ...], *, norm_first: bool = False) -> Self:
        """Return a stack with a copy of the weights of every layer."""
        stack = cls.__new__(cls)
        nn.Module.__init__(stack)
        stack.norm = None
        stack.norm_first = norm_first
        stack.layers = nn.ModuleList([cls.layer.from_record(x, norm_first=norm_first) for x in layers])
        return stack

    def record(self) -> tuple[Record, ...]:
        """Return the weights of every layer.

        ``ValueError`` if layers differ in ``norm_first``, and for a stack that no operation computes: with a
        normalization after the last layer, or layers without a record.
        """
        if self.norm is not None:
            expected = "expected no normalization after the last layer"
            raise ValueError(f"{type(self).__name__}.record: {expected}; got {self.norm}: call the module")
        for i, layer in enumerate(untyped(self.layers)):
            if layer.norm_first != self.norm_first:
                expected = f"expected {self.norm_first} like norm_first of the stack"
                raise ValueError(f"{type(self).__name__}: layers[{i}].norm_first: {expected}; got {layer.norm_first}")
        return records(self.layers)

    def reset_parameters(self) -> None:
        """Draw new weights for every layer."""
        reset(self.layers)

    def extra_repr(self) -> str:
        """Show ``norm_first``."""
        return f"norm_first={self.norm_first}"

    @classmethod
    def from_torch_layers(cls, module: nn.TransformerEncoder | nn.TransformerDecoder) -> Self:
        """Return a stack with a copy of PyTorch's weights, in the same mode."""
        caller = f"{cls.__name__}.from_torch"
        layers = [cls.layer.from_torch(layer) for layer in module.layers]
        for i, layer in enumerate(layers):
            name, shared = f"layers[{i}].norm_first", "all layers share that of layers[0]"
            check_same(caller, name, layers[0].norm_first, layer.norm_first, shared)
        norm_first = any(layer.norm_first for layer in layers)
        stack = cls.from_record((), norm_first=norm_first)
        stack.layers.extend(layers)
        last: Any = module.norm
        stack.norm = None if last is None else LayerNorm.from_torch(last)
        return stack.train(module.training)

    def is_plain(self) -> bool:
        """Return True if the stack computes its operation.

        Then no layer has settings beyond its record, and no normalization follows the last.
        """
        return self.norm is None and not any(layer.beyond_record for layer in untyped(self.layers))

    def apply_layers(self, x: Tensor, *arguments: Tensor, **masks: Tensor | None) -> Tensor:
        """Return the output of the layers one after another, normalized."""
        for layer in untyped(self.layers):
            x = layer(x, *arguments, **masks)
        return x if self.norm is None else self.norm(x)

    def as_torch(self, kind: Any, **options: Any) -> Any:
        """Return a PyTorch stack of class ``kind`` with a copy of layers and mode."""
        if not self.layers:
            expected = "at least 1, since torch.nn makes a stack from a layer"
            refuse(f"{type(self).__name__}.to_torch", "num_layers", expected, 0)
        layers = [layer.to_torch() for layer in untyped(self.layers)]
        # num_layers = 0: PyTorch would fill the stack with copies of layers[0]
        stack = kind(layers[0], 0, **options)
        stack.layers, stack.num_layers = nn.ModuleList(layers), len(layers)
        stack.norm = None if self.norm is None else self.norm.to_torch()
        return stack.train(self.training)


class TransformerEncoder(Stack[EncoderLayerParameters[Tensor]]):
    """Encoder layers one after another, with one mask, and no normalization after the last.

    Args:
        encoder_layer: a layer to copy; as in ``nn.TransformerEncoder``, all layers begin with the same weights.
            ``reset_parameters`` draws each layer's weights separately.
        num_layers: number of layers; with 0 the result is x.

    Shape: x (*batch, n, d), and so is the result. The mask is boolean, True = may attend, and broadcasts to
        (*batch, n, n).
    Initialisation: that of the layer.
    Errors: ``ValueError`` for fewer layers than 0.
    Source: operation ``encoder_stack``.

    >>> encoder = TransformerEncoder(TransformerEncoderLayer(16, 4, 64, norm_first=True), num_layers=2)
    >>> encoder(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    layer = TransformerEncoderLayer

    def __init__(self, encoder_layer: TransformerEncoderLayer, num_layers: int) -> None:
        super().__init__(encoder_layer, num_layers)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """The features after the last layer."""
        if not self.is_plain():
            return self.apply_layers(x, mask=mask)
        return encoder_stack(x, self.record(), mask=mask, norm=norm_option(self.norm_first))

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, module: nn.TransformerEncoder) -> Self:
        """Return an encoder with a copy of PyTorch's weights, in the same mode.

        A normalization after the last layer is taken over. ``ValueError`` for one other than ``nn.LayerNorm``, layers
        that differ in ``norm_first``, and where :meth:`TransformerEncoderLayer.from_torch` raises.
        """
        check_kind("TransformerEncoder.from_torch", module, nn.TransformerEncoder)
        return cls.from_torch_layers(module)

    def to_torch(self) -> nn.TransformerEncoder:
        """Return PyTorch's encoder with layers by their ``to_torch``; ``ValueError`` without a layer."""
        stack: nn.TransformerEncoder = self.as_torch(nn.TransformerEncoder, enable_nested_tensor=False)
        return stack


class TransformerDecoder(Stack[DecoderLayerParameters[Tensor]]):
    """Decoder layers one after another, with one memory, and no normalization after the last.

    Args:
        decoder_layer: a layer to copy; as in ``nn.TransformerDecoder``, all layers begin with the same weights.
            ``reset_parameters`` draws each layer's weights separately.
        num_layers: number of layers; with 0 the result is x.

    Shape: x (*batch, n, d), and so is the result; memory (*batch, m, d_m). Masks are boolean, True = may attend:
        ``mask`` broadcasts to (*batch, n, n), ``memory_mask`` to (*batch, n, m).
    Initialisation: that of the layer.
    Errors: ``ValueError`` for fewer layers than 0.
    Source: operation ``decoder_stack``.

    >>> decoder = TransformerDecoder(TransformerDecoderLayer(16, 4, 64), num_layers=2)
    >>> decoder(torch.randn(2, 5, 16), torch.randn(2, 7, 16)).shape
    torch.Size([2, 5, 16])
    """

    layer = TransformerDecoderLayer

    def __init__(self, decoder_layer: TransformerDecoderLayer, num_layers: int) -> None:
        super().__init__(decoder_layer, num_layers)

    def forward(
        self, x: Tensor, memory: Tensor, *, mask: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> Tensor:
        """The features after the last layer."""
        if not self.is_plain():
            return self.apply_layers(x, memory, mask=mask, memory_mask=memory_mask)
        norm = norm_option(self.norm_first)
        return decoder_stack(x, memory, self.record(), mask=mask, memory_mask=memory_mask, norm=norm)

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, module: nn.TransformerDecoder) -> Self:
        """Return a decoder with a copy of PyTorch's weights, in the same mode.

        PyTorch's decoder is causal only if called with a causal mask. All else is as in
        :meth:`TransformerEncoder.from_torch`.
        """
        check_kind("TransformerDecoder.from_torch", module, nn.TransformerDecoder)
        return cls.from_torch_layers(module)

    def to_torch(self) -> nn.TransformerDecoder:
        """Return PyTorch's decoder with layers by their ``to_torch``; ``ValueError`` without a layer."""
        stack: nn.TransformerDecoder = self.as_torch(nn.TransformerDecoder)
        return stack
