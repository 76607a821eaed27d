"""Modules of recurrent networks over sequences, with layers in one direction or both."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, Self

import torch
from torch import Tensor, nn

from attnspec.backends.pytorch.nn.conversion import check, check_kind, check_no_dropout
from attnspec.backends.pytorch.nn.initialization import Device
from attnspec.backends.pytorch.nn.records import Module, Record, check_sizes, check_tensor, records, reset, untyped
from attnspec.backends.pytorch.nn.recurrent.cells import GRUCell, LSTMCell, RNNCell, refuse_gru
from attnspec.backends.pytorch.recurrent import (
    bidirectional_gru,
    bidirectional_lstm,
    bidirectional_rnn,
    stacked_gru,
    stacked_lstm,
    stacked_rnn,
)
from attnspec.spec import GRUParameters, LSTMParameters, RNNParameters, ShapeError


class Network(nn.Module, Generic[Record]):
    """Base of networks; ``layers`` holds cells layer by layer, in each the forward cell first."""

    cell: ClassVar[Any]
    """Class of the cells."""
    bidirectional: bool

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, bidirectional: bool = False,
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_sizes(type(self).__name__, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        self.bidirectional = bidirectional
        directions = 2 if bidirectional else 1
        inputs = [input_size] * directions + [directions * hidden_size] * (directions * (num_layers - 1))
        self.layers = nn.ModuleList([self.cell(d, hidden_size, device=device, dtype=dtype) for d in inputs])

    @classmethod
    def from_record(cls, layers: tuple[Record, ...], *, bidirectional: bool = False) -> Self:
        """Return a network with a copy of the weights of every cell.

        ``ValueError`` without a layer, and for an odd number of cells if bidirectional.
        """
        if not layers or (bidirectional and len(layers) % 2):
            expected = "cells in pairs, the forward one first" if bidirectional else "at least one cell"
            raise ValueError(f"{cls.__name__}: layers: expected {expected}; got {len(layers)}")
        network = cls.__new__(cls)
        nn.Module.__init__(network)
        network.bidirectional = bidirectional
        network.layers = nn.ModuleList([cls.cell.from_record(x) for x in layers])
        return network

    def record(self) -> tuple[Record, ...]:
        """Return the weights of every cell."""
        return records(self.layers)

    def reset_parameters(self) -> None:
        """Draw new weights for every cell."""
        reset(self.layers)

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers) // (2 if self.bidirectional else 1)

    @property
    def sizes(self) -> tuple[int, int]:
        """Features of an input and of a state, d and h."""
        first: Any = self.layers[0]
        return first.input_size, first.hidden_size

    def extra_repr(self) -> str:
        """Show the sizes and the directions."""
        d, h = self.sizes
        return f"{d}, {h}, num_layers={self.num_layers}, bidirectional={self.bidirectional}"

    def zero_states(self, x: Tensor) -> Tensor:
        """Return states of zeros (*batch, cells, h) for inputs x (*batch, t, d)."""
        check_tensor(type(self).__name__, "x", x)
        return x.new_zeros((*x.shape[:-2], len(self.layers), self.sizes[1]))

    def run_bidirectional(
        self, operation: Callable[..., Any], x: Tensor, state: tuple[Tensor, ...], lengths: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run the layers in both directions, from the states h, or h and c."""
        for part in state:
            check_tensor(type(self).__name__, "state", part)
            if part.ndim < 2 or part.shape[-2] != len(self.layers):
                expected = f"a state for each of the {len(self.layers)} cells, (*batch, {len(self.layers)}, h)"
                raise ShapeError(type(self).__name__, "state", expected, tuple(part.shape))
        rows = list(zip(*(part.unbind(-2) for part in state), strict=True))
        cells, finals = self.record(), []
        for i in range(0, len(cells), 2):
            pair = tuple(row if len(row) > 1 else row[0] for row in rows[i : i + 2])
            x, both = operation(x, pair, cells[i : i + 2], lengths=lengths)
            finals += [last if len(state) > 1 else (last,) for last in both]
        return x, tuple(torch.stack(part, -2) for part in zip(*finals, strict=True))

    @classmethod
    def from_torch_weights(cls, module: nn.RNNBase) -> Self:
        """Return a network with a copy of PyTorch's weights, in the same mode."""
        caller = f"{cls.__name__}.from_torch"
        check(caller, "batch_first", module.batch_first, True, "the batch comes first here")
        check(caller, "proj_size", module.proj_size, 0, "the formula does not project states")
        check_no_dropout(caller, module, module.dropout if module.num_layers > 1 else 0.0)
        suffixes = _suffixes(module.num_layers, module.bidirectional)
        cells = [cls.cell.from_torch_weights(module, suffix) for suffix in suffixes]
        record = tuple(cell.record() for cell in cells)
        return cls.from_record(record, bidirectional=module.bidirectional).train(module.training)

    def as_torch(self, kind: type[Module]) -> Module:
        """Return a PyTorch network of class ``kind`` with a copy of weights and mode."""
        w = next(self.parameters())
        options = {"batch_first": True, "bidirectional": self.bidirectional, "device": w.device, "dtype": w.dtype}
        network = kind(*self.sizes, self.num_layers, **options)
        for cell, suffix in zip(untyped(self.layers), _suffixes(self.num_layers, self.bidirectional), strict=True):
            cell.copy_to_torch(network, suffix)
        return network.train(self.training)


def _suffixes(num_layers: int, bidirectional: bool) -> list[str]:
    """Return PyTorch's suffixes of weight names, cell by cell."""
    directions = ("", "_reverse") if bidirectional else ("",)
    return [f"_l{i}{direction}" for i in range(num_layers) for direction in directions]


class RNN(Network[RNNParameters[Tensor]]):
    """A recurrent network over sequences: tanh of an affine map of input and state.

    Args:
        input_size: features of an input, d.
        hidden_size: features of a state, h.
        num_layers: number of layers; each takes the states of the previous one as inputs.
        bidirectional: add a backward cell to every layer; its states are concatenated to the forward ones.

    Shape: x (*batch, t, d), state (*batch, cells, h), zeros if not given, with a row for every cell, the forward one
        first, layer after layer. Lengths (*batch) are integers; steps from there on are padding. The result is a pair,
        states (*batch, t, h), or 2h in both directions, and the last state of every cell (*batch, cells, h).
    Initialisation: that of :class:`RNNCell`.
    Errors: ``ValueError`` for sizes below 1.
    Source: operations ``stacked_rnn`` and ``bidirectional_rnn``.

    >>> network = RNN(8, 16, num_layers=2, bidirectional=True)
    >>> states, final = network(torch.randn(3, 5, 8), lengths=torch.tensor([5, 2, 0]))
    >>> states.shape, final.shape
    (torch.Size([3, 5, 32]), torch.Size([3, 4, 16]))
    """

    cell = RNNCell

    def forward(
        self, x: Tensor, state: Tensor | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The states after every step, and the last of every cell."""
        state = self.zero_states(x) if state is None else state
        if not self.bidirectional:
            return stacked_rnn(x, state, self.record(), lengths=lengths)
        states, (final,) = self.run_bidirectional(bidirectional_rnn, x, (state,), lengths)
        return states, final

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, module: nn.RNN) -> Self:
        """Return a network with a copy of PyTorch's weights and mode; its biases are added.

        ``ValueError`` unless it computes tanh, for ``batch_first=False`` and for dropout in training.
        """
        check_kind("RNN.from_torch", module, nn.RNN)
        check("RNN.from_torch", "nonlinearity", module.nonlinearity, "tanh", "φ of the formula is tanh")
        return cls.from_torch_weights(module)

    def to_torch(self) -> nn.RNN:
        """Return PyTorch's network with a copy of the weights, batch first; state biases are 0."""
        return self.as_torch(nn.RNN)


class GRU(Network[GRUParameters[Tensor]]):
    """A GRU over sequences, whose reset gate multiplies the state before the product with w_hh.

    ``nn.GRU`` has another formula: its reset gate multiplies the product.

    Args:
        input_size: features of an input, d.
        hidden_size: features of a state, h.
        num_layers: number of layers; each takes the states of the previous one as inputs.
        bidirectional: add a backward cell to every layer; its states are concatenated to the forward ones.

    Shape: x, state, lengths and the result are as in :class:`RNN`.
    Initialisation: that of :class:`GRUCell`.
    Errors: ``ValueError`` for sizes below 1.
    Source: operations ``stacked_gru`` and ``bidirectional_gru``.

    >>> states, final = GRU(8, 16)(torch.randn(3, 5, 8))
    >>> states.shape, final.shape
    (torch.Size([3, 5, 16]), torch.Size([3, 1, 16]))
    """

    cell = GRUCell

    def forward(
        self, x: Tensor, state: Tensor | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The states after every step, and the last of every cell."""
        state = self.zero_states(x) if state is None else state
        if not self.bidirectional:
            return stacked_gru(x, state, self.record(), lengths=lengths)
        states, (final,) = self.run_bidirectional(bidirectional_gru, x, (state,), lengths)
        return states, final

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, module: nn.GRU) -> NoReturn:
        """Raise ``ValueError``: no weights make the two formulas equal."""
        check_kind("GRU.from_torch", module, nn.GRU)
        refuse_gru("GRU.from_torch")


class LSTM(Network[LSTMParameters[Tensor]]):
    """An LSTM over sequences.

    Args:
        input_size: features of an input, d.
        hidden_size: features of a state, h.
        num_layers: number of layers; each takes the hidden states of the previous one as inputs.
        bidirectional: add a backward cell to every layer; its states are concatenated to the forward ones.

    Shape: x and lengths are as in :class:`RNN`; the state, zeros if not given, and the last one are pairs (h, c) of
        (*batch, cells, h). The result is the hidden states of the last layer, as there, and the last states.
    Initialisation: that of :class:`LSTMCell`.
    Errors: ``ValueError`` for sizes below 1.
    Source: operations ``stacked_lstm`` and ``bidirectional_lstm``.

    >>> states, (h, c) = LSTM(8, 16, num_layers=2)(torch.randn(3, 5, 8))
    >>> states.shape, h.shape, c.shape
    (torch.Size([3, 5, 16]), torch.Size([3, 2, 16]), torch.Size([3, 2, 16]))
    """

    cell = LSTMCell

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The hidden states after every step, and the last states of every cell."""
        state = (self.zero_states(x),) * 2 if state is None else state
        if not self.bidirectional:
            return stacked_lstm(x, state, self.record(), lengths=lengths)
        if not isinstance(state, tuple) or len(state) != 2:
            got = f"a tuple of {len(state)}" if isinstance(state, tuple) else type(state).__name__
            raise TypeError(f"LSTM: state: expected a tuple of 2, (h, c); got {got}")
        states, (h, c) = self.run_bidirectional(bidirectional_lstm, x, state, lengths)
        return states, (h, c)

    if TYPE_CHECKING:
        __call__ = forward

    @classmethod
    def from_torch(cls, module: nn.LSTM) -> Self:
        """Return a network with a copy of PyTorch's weights and mode; its biases are added.

        ``ValueError`` for projected states, for ``batch_first=False`` and for dropout in training.
        """
        check_kind("LSTM.from_torch", module, nn.LSTM)
        return cls.from_torch_weights(module)

    def to_torch(self) -> nn.LSTM:
        """Return PyTorch's network with a copy of the weights, batch first; state biases are 0."""
        return self.as_torch(nn.LSTM)
