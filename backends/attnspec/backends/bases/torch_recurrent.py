"""Calls of PyTorch's fused recurrent networks, on padded or packed sequences."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor

State: TypeAlias = tuple[Tensor, ...]
"""The state of a network: (h,), of an LSTM (h, c)."""

_GATE_FIELDS = {
    gates: tuple(f"{name}{gate}" for name in ("w_x", "w_h", "b_") for gate in gates) for gates in ("h", "rzh", "ifco")
}


def join_gates(parameters: Any, gates: str) -> tuple[Tensor, ...]:
    """Join the parameters of g gates as PyTorch does: (g·h, d), (g·h, h), (g·h)."""
    weights = [getattr(parameters, name) for name in _GATE_FIELDS[gates]]
    count = len(gates)
    if count == 1:
        w_x, w_h, b = weights
        return w_x.mT, w_h.mT, b
    # concatenate first, then transpose: concatenating transposed tensors is slow
    w_x, w_h = torch.cat(weights[:count], -1), torch.cat(weights[count : 2 * count], -1)
    return w_x.mT, w_h.mT, torch.cat(weights[2 * count :])


def run_fused(
    operator: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor, ...], states: Sequence[State],
    weights: Sequence[tuple[Tensor, ...]], directions: int,
) -> tuple[Tensor, list[State]]:  # fmt: skip
    """Run all layers in one call; ``inputs`` are (n, t, d) or (data, batch sizes)."""
    flat = []
    for w_x, w_h, b in weights:
        flat += [w_x, w_h, b, torch.zeros_like(b)]
    stacked = len(states) > 1
    parts = tuple([torch.stack(x) for x in zip(*states, strict=True)] if stacked else [x[None] for x in states[0]])
    batch_first = () if len(inputs) > 1 else (True,)
    options: tuple[Any, ...] = (True, len(states) // directions, 0.0, False, directions > 1, *batch_first)
    state = parts if len(parts) > 1 else parts[0]
    with _without_tf32(inputs[0]):
        hidden, *final = operator(*inputs, state, flat, *options)
    if not stacked:
        return hidden, [tuple([part.squeeze(0) for part in final])]
    return hidden, list(zip(*[part.unbind() for part in final], strict=True))


def _without_tf32(x: Tensor) -> AbstractContextManager[Any]:
    """Context that disables cuDNN if it would round the operands of products to TF32."""
    rounds = x.is_cuda and x.dtype is torch.float32 and torch.backends.cudnn.allow_tf32
    return torch.backends.cudnn.flags(enabled=False) if rounds else nullcontext()


def run_packed(
    operator: Callable[..., tuple[Tensor, ...]], x: Tensor, states: Sequence[State],
    weights: Sequence[tuple[Tensor, ...]], lengths: Tensor, directions: int,
) -> tuple[Tensor, list[State]]:  # fmt: skip
    """Run sequences of different lengths without their padding; states of padding are 0."""
    ordered, order = lengths.to("cpu", torch.int64).sort(descending=True)
    nonempty = int((ordered > 0).sum())
    order = order[:nonempty].to(x.device)
    width = directions * states[0][0].shape[-1]
    hidden = x.new_zeros(*x.shape[:2], width)
    if not nonempty:
        return hidden, [tuple(part.clone() for part in s) for s in states]
    chosen = [tuple(part.index_select(0, order) for part in s) for s in states]
    data, sizes, *_ = torch.nn.utils.rnn.pack_padded_sequence(
        x.index_select(0, order), ordered[:nonempty], batch_first=True
    )
    data_out, final = run_fused(operator, (data, sizes), chosen, weights, directions)
    padded, _ = torch.nn.utils.rnn.pad_packed_sequence(
        torch.nn.utils.rnn.PackedSequence(data_out, sizes), batch_first=True, total_length=x.shape[1]
    )
    result = [
        tuple(old.index_copy(0, order, new) for old, new in zip(s, f, strict=True))
        for s, f in zip(states, final, strict=True)
    ]
    return hidden.index_copy(0, order, padded), result
