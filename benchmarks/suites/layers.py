"""Suite of our modules for layers, against those of ``torch.nn``."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnspec.backends.pytorch import nn
from benchmarks import exact
from benchmarks.case import FORWARD, OURS, PASSES, WITH_BACKWARD, Call, Case, Subject, forward, forward_backward
from benchmarks.suites.multihead import heads
from benchmarks.suites.settings import Inputs, Settings, suffix

BATCH, HEADS, WIDTH = 4, 8, 256


@dataclass(frozen=True)
class Layer:
    """Our module, its ``torch.nn`` equivalent, and the formula of both on our module's weights."""

    ours: Any
    theirs: torch.nn.Module
    call: Callable[[Tensor], Tensor]
    """Result of the equivalent."""
    rearrange: Callable[[Sequence[Tensor]], Sequence[Tensor]]
    """Convert gradients of the equivalent's parameters to the order and shapes of our module's."""
    formula: Callable[..., Tensor]
    """Formula of the input and our module's weights, in order."""
    work: Callable[[int], float]
    """Floating-point operations of one forward pass over n positions."""
    width: int = WIDTH


def cases(settings: Settings) -> Iterator[Case]:
    """Cases of n positions for every layer."""
    for n in settings.chosen((64, 256, 1024), (64,)):
        for name, make in LAYERS.items():
            for mode in (FORWARD, WITH_BACKWARD):
                yield case(settings, n, name, make(settings.device), mode)


def attention(device: str) -> Layer:
    """Multi-head self-attention."""
    torch.manual_seed(0)
    ours = nn.MultiHeadAttention(WIDTH, HEADS, device=device)
    theirs = ours.to_torch()
    alone = Alone(ours)

    def rearrange(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        return [*gradients[0].view(3, HEADS, WIDTH // HEADS, WIDTH), gradients[1]]

    return Layer(
        alone, theirs, lambda x: theirs(x, x, x, need_weights=False)[0], rearrange, attended,
        lambda n: 8.0 * BATCH * n * WIDTH**2 + 4.0 * BATCH * n * n * WIDTH,
    )  # fmt: skip


class Alone(torch.nn.Module):
    """Self-attention module with a single input."""

    def __init__(self, attention: nn.MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        """Return the attention of x to itself."""
        return self.attention(x, x, x)


def encoder_layer(device: str, width: int = WIDTH, dtype: torch.dtype = torch.float32) -> Layer:
    """Encoder layer of a transformer, whose hidden layer is four times as wide."""
    torch.manual_seed(0)
    hidden = 4 * width
    ours = nn.TransformerEncoderLayer(width, HEADS, hidden, device=device, dtype=dtype)
    theirs = ours.to_torch()
    for bias in (theirs.self_attn.in_proj_bias, theirs.self_attn.out_proj.bias):
        bias.requires_grad_(False)

    def rearrange(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        joined, w_o, w_1, b_1, w_2, b_2, *norms = gradients
        return [*joined.view(3, HEADS, width // HEADS, width), w_o, *norms[:2], w_1, b_1, w_2, b_2, *norms[2:]]

    return Layer(
        ours, theirs, lambda x: theirs(x), rearrange, encoded,
        lambda n: BATCH * n * (8.0 * width**2 + 4.0 * width * hidden) + 4.0 * BATCH * n * n * width,
        width,
    )  # fmt: skip


def lstm(device: str) -> Layer:
    """LSTM over n steps that returns its states."""
    torch.manual_seed(0)
    ours = nn.LSTM(WIDTH, WIDTH, device=device)
    theirs = ours.to_torch()
    theirs.bias_hh_l0.requires_grad_(False)

    def rearrange(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        of_input, of_state, bias = (gradient.chunk(4) for gradient in gradients)
        in_ours = (0, 1, 3, 2)  # PyTorch has the candidate before the output gate, ours after it
        return [part for i in in_ours for part in (of_input[i].mT, of_state[i].mT, bias[i])]

    return Layer(
        First(ours), theirs, lambda x: theirs(x)[0], rearrange, lstm_states, lambda n: 16.0 * BATCH * n * WIDTH**2
    )


class First(torch.nn.Module):
    """Module that returns the first result of another one."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """Return the first result."""
        first: Tensor = self.module(x)[0]
        return first


LAYERS = {"multi-head attention": attention, "encoder layer": encoder_layer, "LSTM": lstm}


def attended(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor) -> Tensor:
    """Multi-head self-attention by its formula."""
    query, key, value = (heads(x, w) for w in (w_q, w_k, w_v))
    pooled = torch.softmax(query @ key.mT * w_q.shape[1] ** -0.5, -1) @ value
    return F.linear(pooled.transpose(1, 2).flatten(-2), w_o)


def encoded(x: Tensor, *weights: Tensor) -> Tensor:
    """Encoder layer by its formula."""
    gain, bias, w_1, b_1, w_2, b_2, last_gain, last_bias = weights[4:]
    y = F.layer_norm(x + attended(x, *weights[:4]), gain.shape, gain, bias)
    return F.layer_norm(y + F.linear(F.linear(y, w_1, b_1).relu(), w_2, b_2), last_gain.shape, last_gain, last_bias)


def lstm_states(x: Tensor, *weights: Tensor) -> Tensor:
    """States of an LSTM by its formula; weights of i, f, o, then the candidate's."""
    h = c = x.new_zeros(len(x), len(weights[1]))
    states = []
    for step in x.unbind(1):
        i, f, o, candidate = (step @ w_x + h @ w_h + b for w_x, w_h, b in zip(*[iter(weights)] * 3, strict=True))
        c = f.sigmoid() * c + i.sigmoid() * candidate.tanh()
        h = o.sigmoid() * c.tanh()
        states.append(h)
    return torch.stack(states, 1)


def case(settings: Settings, n: int, name: str, layer: Layer, mode: str) -> Case:
    """Case of one layer at one size."""
    draw = Inputs(settings.device)
    weights = [p.detach() for p in layer.ours.parameters()]
    width, precision = layer.width, weights[0].dtype
    x, rows = draw.normal(BATCH, n, width, dtype=precision), draw.rows(n)

    def make_layer_call(call: Callable[[Tensor], Tensor], module: torch.nn.Module, rearrange: Any) -> Call:
        if mode == FORWARD:
            return forward(call, (x,))
        trained = [p for p in module.parameters() if p.requires_grad]
        return forward_backward(call, (x,), trained, rearrange)

    def formula(dtype: torch.dtype) -> Sequence[Tensor]:
        def rows_of(row_indices: Tensor, x: Tensor, *weights: Tensor) -> Tensor:
            return layer.formula(x, *weights)[:, row_indices]

        inputs = (x, *weights)
        return exact.expected(rows_of, inputs, rows, batched=1, dtype=dtype, backward=mode == WITH_BACKWARD, chunk=n)

    return Case(
        "layers", name + suffix(precision), mode, sizes={"B": BATCH, "n": n, "d": width}, size=n,
        work=layer.work(n) * PASSES[mode], unit="FLOP", ceiling="matmul",
        subjects=[
            Subject("torch.nn", lambda: make_layer_call(layer.call, layer.theirs, layer.rearrange)),
            Subject(OURS, lambda: make_layer_call(layer.ours, layer.ours, lambda gradients: gradients)),
        ],
        formula=formula, comparable=lambda results: exact.comparable(results, rows, batched=1),
        baseline="torch.nn", shared=len(weights), precision=precision,
    )  # fmt: skip
