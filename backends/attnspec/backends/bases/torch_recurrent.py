"""PyTorch's fused recurrent networks, of padded or packed sequences, for backends that use them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor

State: TypeAlias = tuple[Tensor, ...]
"""The state of a network: (h,), of an LSTM (h, c)."""


_FIELDS = {
    gates: tuple(f"{name}{gate}" for name in ("w_x", "w_h", "b_") for gate in gates) for gates in ("h", "rzh", "ifco")
}


def joined(parameters: Any, gates: str) -> tuple[Tensor, ...]:
    """The parameters of all gates as PyTorch takes them: for inputs (g·h, d), for states (g·h, h), and biases (g·h)."""
    found = [getattr(parameters, name) for name in _FIELDS[gates]]
    count = len(gates)
    if count == 1:
        w_x, w_h, b = found
        return w_x.mT, w_h.mT, b
    # side by side, and transposed afterwards: transposed parts are slow to join
    w_x, w_h = torch.cat(found[:count], -1), torch.cat(found[count : 2 * count], -1)
    return w_x.mT, w_h.mT, torch.cat(found[2 * count :])


def fused(
    operator: Callable[..., tuple[Tensor, ...]], given: tuple[Tensor, ...], states: Sequence[State],
    weights: Sequence[tuple[Tensor, ...]], directions: int,
) -> tuple[Tensor, list[State]]:  # fmt: skip
    """All layers and directions in one call, of inputs (n, t, d) or of packed inputs with their batch sizes."""
    flat = []
    for w_x, w_h, b in weights:
        flat += [w_x, w_h, b, torch.zeros_like(b)]
    several = len(states) > 1
    parts = tuple([torch.stack(part) for part in zip(*states, strict=True)]) if several else _alone(states[0])
    batch_first = () if len(given) > 1 else (True,)
    how: tuple[Any, ...] = (True, len(states) // directions, 0.0, False, directions > 1, *batch_first)
    state = parts if len(parts) > 1 else parts[0]
    with _exact(given[0]):
        hidden, *final = operator(*given, state, flat, *how)
    if not several:
        return hidden, [tuple([part.squeeze(0) for part in final])]
    return hidden, list(zip(*[part.unbind() for part in final], strict=True))


def _alone(state: State) -> State:
    """The state of one network as a layer of its own."""
    return tuple([part.unsqueeze(0) for part in state])


def _exact(x: Tensor) -> AbstractContextManager[Any]:
    """PyTorch's own kernels on CUDA where cuDNN would round the operands of products to TF32."""
    rounds = x.is_cuda and x.dtype is torch.float32 and torch.backends.cudnn.allow_tf32
    return torch.backends.cudnn.flags(enabled=False) if rounds else nullcontext()


def packed(
    operator: Callable[..., tuple[Tensor, ...]], x: Tensor, states: Sequence[State],
    weights: Sequence[tuple[Tensor, ...]], lengths: Tensor, directions: int,
) -> tuple[Tensor, list[State]]:  # fmt: skip
    """Only the steps that count, of sequences in order of their lengths."""
    ordered, order = lengths.to("cpu", torch.int64).sort(descending=True)
    some = int((ordered > 0).sum())
    order = order[:some].to(x.device)
    width = directions * states[0][0].shape[-1]
    hidden = x.new_zeros(*x.shape[:2], width)
    if not some:
        return hidden, [tuple(part.clone() for part in s) for s in states]
    chosen = [tuple(part.index_select(0, order) for part in s) for s in states]
    data, sizes, *_ = torch.nn.utils.rnn.pack_padded_sequence(
        x.index_select(0, order), ordered[:some], batch_first=True
    )
    found, final = fused(operator, (data, sizes), chosen, weights, directions)
    padded, _ = torch.nn.utils.rnn.pad_packed_sequence(
        torch.nn.utils.rnn.PackedSequence(found, sizes), batch_first=True, total_length=x.shape[1]
    )
    kept = [
        tuple(old.index_copy(0, order, new) for old, new in zip(s, f, strict=True))
        for s, f in zip(states, final, strict=True)
    ]
    return hidden.index_copy(0, order, padded), kept
