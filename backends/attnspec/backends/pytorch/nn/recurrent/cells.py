"""Modules of recurrent cells: RNN, GRU and LSTM."""

from typing import TYPE_CHECKING, ClassVar, NoReturn, Self

import torch
from torch import Tensor, nn

from attnspec.backends.pytorch.nn.conversion import check, check_kind, refuse
from attnspec.backends.pytorch.nn.initialization import Device, draw, linear_bound, parameter
from attnspec.backends.pytorch.nn.records import Module, Record, Recorded, check_sizes, check_tensor, copied
from attnspec.backends.pytorch.recurrent import gru_cell, lstm_cell, rnn_cell
from attnspec.spec import GRUParameters, LSTMParameters, RNNParameters

__all__ = ["GRUCell", "LSTMCell", "RNNCell"]


class Gates(Recorded[Record]):
    """Base of cells with w_x (d, h), w_h (h, h), b (h) for every gate."""

    gates: ClassVar[tuple[str, ...]]
    """Letters of the gates, in PyTorch's order."""

    def __init__(
        self, input_size: int, hidden_size: int, *, device: Device = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        check_sizes(type(self).__name__, input_size=input_size, hidden_size=hidden_size)
        rows = {"w_x": (input_size,), "w_h": (hidden_size,), "b_": ()}
        for name in self._names:
            setattr(self, name, parameter(*rows[name[:-1]], hidden_size, device=device, dtype=dtype))
        self.reset_parameters()

    @property
    def input_size(self) -> int:
        """Features of an input, d."""
        return int(getattr(self, f"w_x{self.gates[0]}").shape[0])

    @property
    def hidden_size(self) -> int:
        """Features of a state, h."""
        return int(getattr(self, f"w_x{self.gates[0]}").shape[1])

    def reset_parameters(self) -> None:
        """Draw new weights."""
        draw(linear_bound(self.hidden_size), *self.parameters(recurse=False))

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"{self.input_size}, {self.hidden_size}"

    def zero_state(self, x: Tensor) -> Tensor:
        """Return a state of zeros (*batch, h) for inputs x (*batch, d)."""
        check_tensor(type(self).__name__, "x", x)
        return x.new_zeros((*x.shape[:-1], self.hidden_size))

    @classmethod
    def from_torch_weights(cls, source: nn.Module, suffix: str = "") -> Self:
        """Return a cell with a copy of one layer of PyTorch's module, such as ``weight_ih{suffix}``."""
        w_xs, w_hs = (getattr(source, f"weight_{kind}{suffix}").chunk(len(cls.gates)) for kind in ("ih", "hh"))
        if source.bias:
            biases = (getattr(source, f"bias_ih{suffix}") + getattr(source, f"bias_hh{suffix}")).chunk(len(cls.gates))
        else:
            biases = [w.new_zeros(len(w)) for w in w_hs]
        fields: dict[str, Tensor] = {}
        for gate, w_x, w_h, b in zip(cls.gates, w_xs, w_hs, biases, strict=True):
            fields |= {f"w_x{gate}": copied(w_x.mT), f"w_h{gate}": copied(w_h.mT), f"b_{gate}": b}
        return cls.from_record(cls.kind(**fields))

    def copy_to_torch(self, target: nn.Module, suffix: str = "") -> None:
        """Copy the weights into one layer of PyTorch's module; its state bias becomes 0."""
        with torch.no_grad():
            for kind, letter in (("ih", "x"), ("hh", "h")):
                joined = torch.cat([getattr(self, f"w_{letter}{gate}").mT for gate in self.gates])
                getattr(target, f"weight_{kind}{suffix}").copy_(joined)
            getattr(target, f"bias_ih{suffix}").copy_(torch.cat([getattr(self, f"b_{gate}") for gate in self.gates]))
            getattr(target, f"bias_hh{suffix}").zero_()

    def as_torch(self, kind: type[Module]) -> Module:
        """Return a PyTorch cell of class ``kind`` with a copy of weights and mode."""
        weight = next(self.parameters())
        cell = kind(self.input_size, self.hidden_size, device=weight.device, dtype=weight.dtype)
        self.copy_to_torch(cell)
        return cell.train(self.training)


def refuse_gru(caller: str) -> NoReturn:
    """Raise ``ValueError``: PyTorch's GRU applies its reset gate after the recurrent product."""
    refuse(caller, "reset gate", "a product with the state, tanh(x w_xh + (r ⊙ h) w_hh + b_h)",
           "torch.nn's, tanh(x w_xh + r ⊙ (h w_hh + b_hh) + b_xh): no weights make the two equal")  # fmt: skip


class RNNCell(Gates[RNNParameters[Tensor]]):
    """One step of a recurrent network: tanh of an affine map of input and state.

    Args:
        input_size: features of an input, d.
        hidden_size: features of a state, h.

    Shape: x (*batch, d), state (*batch, h), zeros if not given; result (*batch, h). Weights w_xh (d, h), w_hh (h, h),
        b_h (h).
    Initialisation: as ``nn.RNNCell``: all weights and biases uniform within 1/√h; the one bias is drawn like each of
        PyTorch's two.
    Errors: ``ValueError`` for sizes below 1.
    Source: operation ``rnn_cell``.

    >>> cell = RNNCell(8, 16)
    >>> cell(torch.randn(3, 8)).shape
    torch.Size([3, 16])
    """

    kind = RNNParameters
    gates = ("h",)

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        """The next state."""
        return rnn_cell(x, self.zero_state(x) if state is None else state, self.record())

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, module: nn.RNNCell) -> Self:
        """Return a cell with a copy of PyTorch's weights, its biases added; only tanh."""
        check_kind("RNNCell.from_torch", module, nn.RNNCell)
        check("RNNCell.from_torch", "nonlinearity", module.nonlinearity, "tanh", "φ of the formula is tanh")
        return cls.from_torch_weights(module).train(module.training)

    def to_torch(self) -> nn.RNNCell:
        """Return PyTorch's cell with a copy of the weights; its state bias is 0."""
        return self.as_torch(nn.RNNCell)


class GRUCell(Gates[GRUParameters[Tensor]]):
    """One step of a GRU whose reset gate multiplies the state before w_hh does.

    ``nn.GRUCell`` has another formula: its reset gate multiplies the product.

    Args:
        input_size: features of an input, d.
        hidden_size: features of a state, h.

    Shape: x (*batch, d), state (*batch, h), zeros if not given; result (*batch, h). Of both gates r and z and of the
        candidate h there are weights w_x (d, h), w_h (h, h) and b (h).
    Initialisation: as ``nn.GRUCell``: all weights and biases uniform within 1/√h; the one bias is drawn like each of
        PyTorch's two.
    Errors: ``ValueError`` for sizes below 1.
    Source: operation ``gru_cell``.

    >>> cell = GRUCell(8, 16)
    >>> cell(torch.randn(3, 8)).shape
    torch.Size([3, 16])
    """

    kind = GRUParameters
    gates = ("r", "z", "h")

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        """The next state."""
        return gru_cell(x, self.zero_state(x) if state is None else state, self.record())

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, module: nn.GRUCell) -> NoReturn:
        """Raise ``ValueError``: no weights make the two formulas equal."""
        check_kind("GRUCell.from_torch", module, nn.GRUCell)
        refuse_gru("GRUCell.from_torch")


class LSTMCell(Gates[LSTMParameters[Tensor]]):
    """One step of an LSTM.

    Args:
        input_size: features of an input, d.
        hidden_size: features of a state, h.

    Shape: x (*batch, d), state a pair (h, c) of (*batch, h), zeros if not given; the result is such a pair. Of every
        gate i, f, o and of the candidate c there are weights w_x (d, h), w_h (h, h) and b (h).
    Initialisation: as ``nn.LSTMCell``: all weights and biases uniform within 1/√h; the one bias is drawn like each of
        PyTorch's two.
    Errors: ``ValueError`` for sizes below 1.
    Source: operation ``lstm_cell``.

    >>> cell = LSTMCell(8, 16)
    >>> h, c = cell(torch.randn(3, 8))
    >>> h.shape, c.shape
    (torch.Size([3, 16]), torch.Size([3, 16]))
    """

    kind = LSTMParameters
    gates = ("i", "f", "c", "o")

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The next hidden state and cell."""
        return lstm_cell(x, (self.zero_state(x),) * 2 if state is None else state, self.record())

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, module: nn.LSTMCell) -> Self:
        """Return a cell with a copy of PyTorch's weights, its two biases added."""
        check_kind("LSTMCell.from_torch", module, nn.LSTMCell)
        return cls.from_torch_weights(module).train(module.training)

    def to_torch(self) -> nn.LSTMCell:
        """Return PyTorch's cell with a copy of the weights; its state bias is 0."""
        return self.as_torch(nn.LSTMCell)
