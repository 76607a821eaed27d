"""Suite of recurrent functions with weights per gate, against modules with joined weights.

The work of g gates is 4·g·d² FLOP per step: two products of d × d weights, with two FLOP per multiply-add.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attnspec.backends import pytorch
from attnspec.spec import GRUParameters, LSTMParameters, RNNParameters
from benchmarks.case import FORWARD, WITH_BACKWARD, Case
from benchmarks.suites.layers import lstm_states
from benchmarks.suites.named_rivals import Function, Rival, case
from benchmarks.suites.settings import Inputs, Settings

BATCH, WIDTH = 4, 64


def cases(settings: Settings) -> Iterator[Case]:
    """Cases of n steps."""
    for n in settings.chosen((16, 64, 256), (8,)):
        for name, make in {"RNN": rnn, "LSTM": lstm, "GRU": gru}.items():
            for mode in (FORWARD, WITH_BACKWARD):
                sizes = {"B": BATCH, "n": n, "d": WIDTH}
                yield case("recurrent", name, mode, sizes, n, make(Inputs(settings.device), n))


def _weights(draw: Inputs, gates: int) -> list[Tensor]:
    scale = WIDTH**-0.5
    square = (WIDTH, WIDTH)
    return [draw.normal(*shape, scale=scale) for _ in range(gates) for shape in (square, square, (WIDTH,))]


def _joined(weights: Sequence[Tensor], order: Sequence[int]) -> list[Tensor]:
    """Join the weights of g gates as PyTorch does: (g·h, d), (g·h, h), (g·h)."""
    of_gate = [weights[3 * i : 3 * i + 3] for i in order]
    parts = zip(*of_gate, strict=True)
    return [torch.cat([w.mT if w.dim() > 1 else w for w in part]).contiguous().requires_grad_() for part in parts]


def _apart(order: Sequence[int]) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
    """Make a function that splits gradients of joined weights by gate."""

    def rearrange(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        w_x, w_h, b = (gradient.chunk(len(order)) for gradient in gradients[:3])
        places = [order.index(i) for i in range(len(order))]
        return [part for i in places for part in (w_x[i].mT, w_h[i].mT, b[i])]

    return rearrange


def _module(module: torch.nn.Module, weights: Sequence[Tensor], order: Sequence[int]) -> Rival:
    for name, w in zip(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0"), _joined(weights, order), strict=True):
        setattr(module, name, torch.nn.Parameter(w.detach()))
    second_bias: Tensor = module.bias_hh_l0  # type: ignore[assignment]
    torch.nn.init.zeros_(second_bias.requires_grad_(False))
    trained = [p for p in module.parameters() if p.requires_grad]
    return Rival(lambda x: module(x)[0], trained, _apart(order))


def lstm(draw: Inputs, n: int) -> Function:
    """LSTM that returns its states."""
    x, weights = draw.normal(BATCH, n, WIDTH), _weights(draw, 4)
    zeros = x.new_zeros(BATCH, WIDTH)
    # PyTorch has the candidate before the output gate: it joins the gates 0, 1, 3, 2 of ours.
    rival = _module(torch.nn.LSTM(WIDTH, WIDTH, batch_first=True, device=x.device), weights, (0, 1, 3, 2))
    return Function(
        lambda x, *w: pytorch.lstm(x, (zeros, zeros), LSTMParameters(*w))[0], lstm_states, (x,), weights,
        {"torch.nn": rival}, 16.0 * BATCH * n * WIDTH**2,
    )  # fmt: skip


def rnn(draw: Inputs, n: int) -> Function:
    """Recurrent network with tanh."""
    x, weights = draw.normal(BATCH, n, WIDTH), _weights(draw, 1)
    zeros = x.new_zeros(BATCH, WIDTH)

    def formula(x: Tensor, w_x: Tensor, w_h: Tensor, b: Tensor) -> Tensor:
        states = [x.new_zeros(BATCH, WIDTH)]
        for step in x.unbind(1):
            states.append((step @ w_x + states[-1] @ w_h + b).tanh())
        return torch.stack(states[1:], 1)

    rival = _module(torch.nn.RNN(WIDTH, WIDTH, batch_first=True, device=x.device), weights, (0,))
    return Function(
        lambda x, *w: pytorch.rnn(x, zeros, RNNParameters(*w))[0], formula, (x,), weights,
        {"torch.nn": rival}, 4.0 * BATCH * n * WIDTH**2,
    )  # fmt: skip


def gru(draw: Inputs, n: int) -> Function:
    """GRU with the reset before the product, against a loop: ``torch.nn`` has none."""
    x, weights = draw.normal(BATCH, n, WIDTH), _weights(draw, 3)
    zeros = x.new_zeros(BATCH, WIDTH)
    order = (0, 1, 2)
    w_x, w_h, b = joined = _joined(weights, order)

    def formula(x: Tensor, *w: Tensor) -> Tensor:
        h, states = x.new_zeros(BATCH, WIDTH), []
        for step in x.unbind(1):
            r, z = ((step @ w[i] + h @ w[i + 1] + w[i + 2]).sigmoid() for i in (0, 3))
            h = z * h + (1 - z) * (step @ w[6] + (r * h) @ w[7] + w[8]).tanh()
            states.append(h)
        return torch.stack(states, 1)

    def loop(x: Tensor) -> Tensor:
        of_gates, of_candidate = F.linear(x, w_x, b).split([2 * WIDTH, WIDTH], -1)  # type: ignore[no-untyped-call]
        w_gates, w_candidate = w_h[: 2 * WIDTH].mT, w_h[2 * WIDTH :].mT
        h, states = zeros, []
        for gates, candidate in zip(of_gates.unbind(1), of_candidate.unbind(1), strict=True):
            r, z = torch.addmm(gates, h, w_gates).sigmoid().chunk(2, -1)
            h = torch.lerp(torch.addmm(candidate, r * h, w_candidate).tanh(), h, z)
            states.append(h)
        return torch.stack(states, 1)

    return Function(
        lambda x, *w: pytorch.gru(x, zeros, GRUParameters(*w))[0], formula, (x,), weights,
        {"torch.nn.functional": Rival(loop, joined, _apart(order))}, 12.0 * BATCH * n * WIDTH**2,
    )  # fmt: skip
