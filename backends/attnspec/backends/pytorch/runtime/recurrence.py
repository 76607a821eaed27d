"""Recurrent networks over sequences: by PyTorch's fused operators, or step by step.

Networks without a fused operator (a GRU whose reset gate comes before the product), empty sequences and batches, and
everything under transforms run step by step. One product then covers the inputs of all steps.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from attnspec.backends.bases.torch_recurrent import State, fused, joined, packed
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES, widened
from attnspec.backends.pytorch.runtime.transforms import intercepted


class Network(NamedTuple):
    """A kind of network.

    ``gates`` are the letters of its parameters, in PyTorch's order. ``products`` lists how many gates' weights (h, g·h)
    each product with the state covers, in order. ``step`` computes the next state from the inputs' terms (n, g·h) and
    the weights of each product, and a state (n, h). ``fused`` is PyTorch's operator.
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
    """Run layers of networks, each in one or two directions.

    ``parameters`` and ``initial`` states (*batch, h) are those of each layer and, within it, direction. The result is
    the states of the last layer (*batch, t, directions·h), and the final state of every layer and direction.
    """
    steps, dtype, count = x.shape[-2], x.dtype, prod(batch)
    weights = [joined(p, network.gates) for p in parameters]
    states: list[State] = list(initial)
    if dtype in HALF_DTYPES:
        x, weights = widened(x), [tuple(map(widened, w)) for w in weights]
        states = [tuple(map(widened, s)) for s in states]
    flat = _flattened(x, batch, count, 2)
    states = [tuple([_flattened(part, batch, count, 1) for part in s]) for s in states]
    counts = None if lengths is None else lengths.expand(tuple(batch)).reshape(count)
    if network.fused is None or not count or not steps or intercepted():
        hidden, final = _by_steps(network, flat, states, weights, counts, directions)
    elif counts is None or bool((counts == steps).all()):
        hidden, final = fused(network.fused, (flat,), states, weights, directions)
    else:
        hidden, final = packed(network.fused, flat, states, weights, counts, directions)
    if len(batch) != 1 or hidden.dtype is not dtype:
        hidden = hidden.to(dtype).reshape(*batch, steps, hidden.shape[-1])
        final = [tuple([part.to(dtype).reshape(*batch, part.shape[-1]) for part in s]) for s in final]
    return hidden, final


def _flattened(x: Tensor, batch: Sequence[int], count: int, core: int) -> Tensor:
    """x with one batch dimension and ``core`` others."""
    shape = x.shape[-core:]
    if len(batch) == 1 and x.shape[:-core] == (count,):
        return x
    return x.expand((*batch, *shape)).reshape(count, *shape)


def _by_steps(
    network: Network, x: Tensor, states: Sequence[State], weights: Sequence[tuple[Tensor, ...]],
    lengths: Tensor | None, directions: int,
) -> tuple[Tensor, list[State]]:  # fmt: skip
    final: list[State] = []
    counts = None if lengths is None else torch.arange(x.shape[1], device=x.device)[:, None] < lengths
    for layer in range(0, len(states), directions):
        if counts is not None:
            x = torch.where(counts.mT[..., None], x, 0.0)
        runs = [
            _one_run(network, x, states[layer + i], weights[layer + i], counts, backward=bool(i))
            for i in range(directions)
        ]
        x = torch.cat([hidden for hidden, _ in runs], -1)
        final += [last for _, last in runs]
    return x, final


def _one_run(
    network: Network, x: Tensor, state: State, weights: tuple[Tensor, ...], counts: Tensor | None, *, backward: bool
) -> tuple[Tensor, State]:
    """Hidden states (n, t, h) and final state of one layer and direction; ``counts`` is (t, n)."""
    (w_x, w_h, b), width = weights, state[0].shape[-1]
    sizes = [gates * width for gates in network.products]
    products = torch.split_with_sizes(w_h.mT, sizes, -1)
    terms = list(zip(*[part.unbind(1) for part in torch.split_with_sizes(linear(x, w_x, b), sizes, -1)], strict=True))
    hidden = []
    steps = range(x.shape[1])
    state = state if steps else tuple(part.clone() for part in state)
    for t in reversed(steps) if backward else steps:
        following = network.step(terms[t], products, state)
        if counts is None:
            state = following
            hidden.append(state[0])
        else:
            inside = counts[t][:, None]
            state = tuple(torch.where(inside, new, old) for new, old in zip(following, state, strict=True))
            hidden.append(torch.where(inside, state[0], 0.0))
    if not hidden:
        return state[0][:, None, :].expand(-1, 0, -1), state
    return torch.stack(hidden[::-1] if backward else hidden, 1), state
