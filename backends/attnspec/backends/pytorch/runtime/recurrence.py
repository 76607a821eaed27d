"""Recurrent networks over sequences: by PyTorch's fused operators, or step by step.

Networks without a fused operator (a GRU whose reset gate comes before the product), empty sequences and batches, and
everything under transforms run step by step. One product then covers the inputs of all steps. The fused operators take
lengths on the CPU: on a GPU, calls with lengths wait for the device, and run step by step while a CUDA graph captures.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnspec.backends.bases.torch_recurrent import State, join_gates, run_fused, run_packed
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES, upcast
from attnspec.backends.pytorch.runtime.products import operand, wide_linear
from attnspec.backends.pytorch.runtime.recording import needs_gradients
from attnspec.backends.pytorch.runtime.transforms import operations_intercepted, readable


class Network(NamedTuple):
    """A kind of network: RNN, GRU or LSTM.

    ``gates`` are the letters of its parameters, in PyTorch's order. A step multiplies the state by the weights of some
    gates at a time: ``products`` are the numbers g of gates in each product, (2, 1) for a GRU: r and z together, then
    the candidate, which needs r. ``step`` takes, for each product, the inputs' terms (n, g·h) and weights (h, g·h), and
    a state (n, h); it returns the next state. ``fused`` is PyTorch's operator for the whole sequence, or None.
    """

    gates: str
    products: tuple[int, ...]
    step: Callable[[tuple[Tensor, ...], tuple[Tensor, ...], State], State]
    fused: Callable[..., tuple[Tensor, ...]] | None = None


def recurrence(
    network: Network,
    x: Tensor,
    initial: Sequence[State],
    parameters: Sequence[Any],
    lengths: Tensor | None,
    batch: Sequence[int],
    *,
    directions: int = 1,
) -> tuple[Tensor, list[State]]:
    """Run a stack of layers, each in one or two directions.

    ``parameters`` and ``initial`` states (*batch, h) have an item per layer and, within it, direction. The result is
    the states of the last layer (*batch, t, directions·h), and the final state of every layer and direction.
    """
    steps, dtype, count = x.shape[-2], x.dtype, prod(batch)
    weights = [join_gates(p, network.gates) for p in parameters]
    states: list[State] = list(initial)
    allowed = not operations_intercepted() if lengths is None else readable(x)  # fused operators read lengths
    fused = network.fused if count and steps and allowed else None
    if dtype in HALF_DTYPES or any(w_x.dtype in HALF_DTYPES for w_x, _, _ in weights):
        x, states = upcast(x), [tuple(map(upcast, s)) for s in states]
        # The fused operators do not say what they round of half operands.
        once = operand if fused is None else upcast
        # Gradients of all steps are summed in float32.
        at_every_step = upcast if needs_gradients(*[w_h for _, w_h, _ in weights]) else once
        weights = [(once(w_x), at_every_step(w_h), upcast(b)) for w_x, w_h, b in weights]
    flat = _flattened(x, batch, count, 2)
    states = [tuple([_flattened(part, batch, count, 1) for part in s]) for s in states]
    counts = None if lengths is None else lengths.expand(tuple(batch)).reshape(count)
    if fused is not None and counts is not None:
        counts = counts.cpu()
    if fused is None:
        hidden, final = _run_stepwise(network, flat, states, weights, counts, directions)
    elif counts is None or bool((counts == steps).all()):
        hidden, final = run_fused(fused, (flat,), states, weights, directions)
    else:
        hidden, final = run_packed(fused, flat, states, weights, counts, directions)
    if len(batch) != 1 or hidden.dtype is not dtype:
        hidden = hidden.to(dtype).reshape(*batch, steps, hidden.shape[-1])
        final = [tuple([part.to(dtype).reshape(*batch, part.shape[-1]) for part in s]) for s in final]
    return hidden, final


def _flattened(x: Tensor, batch: Sequence[int], count: int, core: int) -> Tensor:
    """Return x with one flattened batch dimension before its last ``core`` dimensions."""
    shape = x.shape[-core:]
    if len(batch) == 1 and x.shape[:-core] == (count,):
        return x
    return x.expand((*batch, *shape)).reshape(count, *shape)


def _run_stepwise(
    network: Network, x: Tensor, states: Sequence[State], weights: Sequence[tuple[Tensor, ...]],
    lengths: Tensor | None, directions: int,
) -> tuple[Tensor, list[State]]:  # fmt: skip
    final: list[State] = []
    valid = None if lengths is None else torch.arange(x.shape[1], device=x.device)[:, None] < lengths
    for layer in range(0, len(states), directions):
        if valid is not None:
            x = torch.where(valid.mT[..., None], x, 0.0)
        runs = [
            _run_direction(network, x, states[layer + i], weights[layer + i], valid, backward=bool(i))
            for i in range(directions)
        ]
        x = torch.cat([hidden for hidden, _ in runs], -1)
        final += [last for _, last in runs]
    return x, final


def _run_direction(
    network: Network, x: Tensor, state: State, weights: tuple[Tensor, ...], valid: Tensor | None, *, backward: bool
) -> tuple[Tensor, State]:
    """Return hidden states (n, t, h) and final state; ``valid`` is False for padding."""
    (w_x, w_h, b), width = weights, state[0].shape[-1]
    sizes = [gates * width for gates in network.products]
    state_weights = torch.split_with_sizes(w_h.mT, sizes, -1)
    parts = torch.split_with_sizes(wide_linear(x, w_x, b), sizes, -1)
    terms = list(zip(*[part.unbind(1) for part in parts], strict=True))
    hidden = []
    steps = range(x.shape[1])
    state = state if steps else tuple(part.clone() for part in state)  # no result is the caller's own tensor
    for t in reversed(steps) if backward else steps:
        next_state = network.step(terms[t], state_weights, state)
        if valid is None:
            state = next_state
            hidden.append(state[0])
        else:
            valid_rows = valid[t][:, None]
            state = tuple(torch.where(valid_rows, new, old) for new, old in zip(next_state, state, strict=True))
            hidden.append(torch.where(valid_rows, state[0], 0.0))
    if not hidden:
        return state[0][:, None, :].expand(-1, 0, -1), state
    return torch.stack(hidden[::-1] if backward else hidden, 1), state
