"""Modules of layer normalization and the feed-forward network."""

from typing import TYPE_CHECKING, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnspec.backends.pytorch.nn.conversion import Activation, bias_of, check, check_kind, check_same, refuse
from attnspec.backends.pytorch.nn.initialization import Device, draw, linear_bound, parameter
from attnspec.backends.pytorch.nn.records import Recorded, check_sizes
from attnspec.backends.pytorch.runtime.autocast import cast, off
from attnspec.backends.pytorch.runtime.products import wide_linear
from attnspec.backends.pytorch.transformer import EPSILON, feed_forward, gelu, layer_norm
from attnspec.spec import FeedForwardParameters, LayerNormParameters


class LayerNorm(Recorded[LayerNormParameters[Tensor]]):
    """Layer normalization of the last dimension.

    Args:
        normalized_shape: features, d.
        epsilon: the number ε that is added to the variance.

    Shape: x (*batch, d), and so is the result. Weights gain (d) and bias (d).
    Initialisation: gains are 1 and biases 0, as in ``nn.LayerNorm``.
    Errors: ``ValueError`` for a size below 1, and for an ε that is not positive.
    Source: operation ``layer_norm``.

    >>> LayerNorm(4)(torch.tensor([1.0, 1.0, 3.0, 3.0])).round(decimals=3).tolist()
    [-1.0, -1.0, 1.0, 1.0]
    """

    kind = LayerNormParameters
    epsilon: float = EPSILON

    def __init__(
        self, normalized_shape: int, *, epsilon: float = EPSILON,
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_sizes("LayerNorm", normalized_shape=normalized_shape)
        self.set_epsilon(epsilon)
        self.gain = parameter(normalized_shape, device=device, dtype=dtype)
        self.bias = parameter(normalized_shape, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set gains to 1 and biases to 0."""
        nn.init.ones_(self.gain)
        nn.init.zeros_(self.bias)

    def set_epsilon(self, epsilon: float) -> None:
        """Add another number to the variance."""
        if not epsilon > 0:
            refuse("LayerNorm", "epsilon", "a positive number", epsilon)
        self.epsilon = epsilon
        self.beyond_record = "" if epsilon == EPSILON else f"epsilon={epsilon:g}"

    def extra_repr(self) -> str:
        """Show the size, and ε if it is not 10⁻⁵."""
        return f"{self.gain.shape[0]}" + (f", {self.beyond_record}" if self.beyond_record else "")

    def forward(self, x: Tensor) -> Tensor:
        """Return x, normalized."""
        return layer_norm(x, LayerNormParameters(self.gain, self.bias), epsilon=self.epsilon)

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, module: nn.LayerNorm) -> Self:
        """Return a module with a copy of PyTorch's weights and its ε; missing biases become 0.

        ``ValueError`` for an ε that is not positive, for more than one normalized dimension and for a module without
        weights.
        """
        caller = "LayerNorm.from_torch"
        check_kind(caller, module, nn.LayerNorm)
        if not module.eps > 0:
            refuse(caller, "eps", "a positive number", module.eps)
        if len(module.normalized_shape) != 1:
            refuse(caller, "normalized_shape", "one dimension", module.normalized_shape)
        check(caller, "elementwise_affine", module.elementwise_affine, True, "the formula has a gain")
        record = LayerNormParameters(module.weight, bias_of(module, module.weight))
        converted = cls.from_record(record).train(module.training)
        converted.set_epsilon(module.eps)
        return converted

    def to_torch(self) -> nn.LayerNorm:
        """Return PyTorch's module with a copy of the weights."""
        module = nn.LayerNorm(self.gain.shape[0], self.epsilon, device=self.gain.device, dtype=self.gain.dtype)
        with torch.no_grad():
            module.weight.copy_(self.gain)
            module.bias.copy_(self.bias)
        return module.train(self.training)


class FeedForward(Recorded[FeedForwardParameters[Tensor]]):
    """The feed-forward network of a layer, for each position: d features, f hidden units, d features.

    Args:
        d_model: features, d.
        dim_feedforward: hidden units, f.
        activation: "relu", "gelu" by erf, or "gelu_tanh".

    Shape: x (*batch, d), and so is the result. Weights w_1 (f, d), b_1 (f), w_2 (d, f), b_2 (d).
    Initialisation: as two ``nn.Linear``: w_1 and b_1 uniform within 1/√d, w_2 and b_2 within 1/√f.
    Errors: ``ValueError`` for sizes below 1 and for another activation.
    Source: operation ``feed_forward``.

    >>> FeedForward(16, 64)(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    kind = FeedForwardParameters
    activation: Activation = "relu"

    def __init__(
        self, d_model: int, dim_feedforward: int = 2048, *, activation: Activation = "relu",
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.set_activation(activation)
        check_sizes("FeedForward", d_model=d_model, dim_feedforward=dim_feedforward)
        self.w_1 = parameter(dim_feedforward, d_model, device=device, dtype=dtype)
        self.b_1 = parameter(dim_feedforward, device=device, dtype=dtype)
        self.w_2 = parameter(d_model, dim_feedforward, device=device, dtype=dtype)
        self.b_2 = parameter(d_model, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        draw(linear_bound(self.w_1.shape[1]), self.w_1, self.b_1)
        draw(linear_bound(self.w_2.shape[1]), self.w_2, self.b_2)

    def set_activation(self, activation: Activation) -> None:
        """Choose another activation."""
        if activation not in (known := get_args(Activation)):
            refuse("FeedForward", "activation", f"one of {', '.join(known)}", activation)
        self.activation = activation
        self.beyond_record = "" if activation == "relu" else f"activation={activation!r}"

    def extra_repr(self) -> str:
        """Show the sizes, and an activation other than ReLU."""
        sizes = f"d_model={self.w_1.shape[1]}, dim_feedforward={self.w_1.shape[0]}"
        return sizes + (f", {self.beyond_record}" if self.beyond_record else "")

    def forward(self, x: Tensor) -> Tensor:
        """The network's output for every position."""
        if self.activation == "relu":
            return feed_forward(x, self.record())
        x, w_1, b_1, w_2, b_2 = cast(x, self.w_1, self.b_1, self.w_2, self.b_2)
        with off(x):
            hidden = wide_linear(x, w_1, b_1)
            # the operation `gelu` of this backend is the one by erf
            hidden = gelu(hidden) if self.activation == "gelu" else functional.gelu(hidden, approximate="tanh")
            return wide_linear(hidden, w_2, b_2).to(x.dtype)

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, first: nn.Linear, second: nn.Linear, *, activation: Activation = "relu") -> Self:
        """Return a module with a copy of two linear layers; missing biases become 0.

        ``ValueError`` unless the second layer's inputs are the first's outputs, and the reverse.
        """
        caller = "FeedForward.from_torch"
        for layer in (first, second):
            check_kind(caller, layer, nn.Linear)
        check_same(caller, "second.in_features", first.out_features, second.in_features, "first returns as many")
        check_same(caller, "second.out_features", first.in_features, second.out_features, "first takes as many")
        weights = [(layer.weight, bias_of(layer, layer.weight[:, 0])) for layer in (first, second)]
        converted = cls.from_record(FeedForwardParameters(*weights[0], *weights[1]))
        converted.set_activation(activation)
        return converted
