"""Wrong attentions in float32, each with one step altered, and their operation counts.

`table` tries them on every harness, the fewest operations first, to find the cheapest one that a rule accepts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt

import torch
from torch import Tensor
from torch.nn.functional import pad

from examples.harnesses.harness import Call, attention


def everything(call: Call) -> bool:
    """Return True: the mistake is possible in every call."""
    return True


@dataclass(frozen=True)
class Wrong:
    """A wrong attention.

    ``work`` counts its operations as `Call.work` does; ``fits`` selects the calls in which the mistake is possible.
    """

    name: str
    output: Callable[[Call], Tensor]
    work: Callable[[Call], int]
    fits: Callable[[Call], bool] = everything


def right(call: Call, scale: float | None = None) -> Tensor:
    """Return right attention, or attention with another scale."""
    return attention(call.query, call.key, call.value, call.allowed, scale)


def zeros(call: Call) -> Tensor:
    """Output of zeros."""
    return call.query.new_zeros(*call.query.shape[:-1], call.value.shape[-1], dtype=torch.float32)


def mean(call: Call) -> Tensor:
    """Mean of the values that the mask allows; queries and keys are not used."""
    return right(replace(call, query=torch.zeros_like(call.query)))


def work_of_mean(call: Call) -> int:
    """Operations of one sum over the values."""
    return call.value.numel()


def first_half(call: Call) -> Call:
    """Return the call with the first half of the queries and, if causal, the keys that these attend to."""
    cut = call.query.shape[-2] - call.query.shape[-2] // 2  # number of queries in the second half
    keys = call.key.shape[-2] - cut * call.causal
    return replace(call, query=call.query[..., :-cut, :], key=call.key[..., :keys, :], value=call.value[..., :keys, :])


def half_mean(call: Call) -> Tensor:
    """Right attention in the first half of the rows, then the mean of the values."""
    first = first_half(call)
    return torch.cat([right(first), mean(call)[..., first.query.shape[-2] :, :]], -2)


def one_head(call: Call) -> Call:
    """Call with the first head alone."""
    return replace(call, query=call.query[:, :1], key=call.key[:, :1], value=call.value[:, :1])


def half_the_keys(call: Call) -> Tensor:
    """Attention to the first half of the keys."""
    keys = call.key.shape[-2] // 2
    allowed = None if call.allowed is None else call.allowed[:, :keys]
    return attention(call.query, call.key[..., :keys, :], call.value[..., :keys, :], allowed)


def work_of_half_the_keys(call: Call) -> int:
    """Operations of the pairs with the first half of the keys."""
    n, keys = call.query.shape[-2], call.key.shape[-2] // 2
    pairs = n * keys if call.allowed is None else int(call.allowed[:, :keys].sum())
    return pairs * per_pair(call)


def stale_row(call: Call) -> Tensor:
    """Attention whose last row repeats the row before it."""
    output = right(call)
    output[..., -1, :] = output[..., -2, :]
    return output


def shifted(call: Call) -> Tensor:
    """Causal attention in which every query attends to one more key."""
    n, m = call.query.shape[-2], call.key.shape[-2]
    return attention(call.query, call.key, call.value, torch.ones(n, m, dtype=torch.bool).tril(m - n + 1))


def dropped(call: Call) -> Tensor:
    """Attention without the last key."""
    allowed = None if call.allowed is None else call.allowed[:, :-1]
    return attention(call.query, call.key[..., :-1, :], call.value[..., :-1, :], allowed)


def padded(call: Call) -> Tensor:
    """Attention to an additional key of zeros with a value of zeros."""
    key, value = (pad(x, (0, 0, 0, 1)) for x in (call.key, call.value))
    allowed = None if call.allowed is None else pad(call.allowed, (0, 1), value=True)
    return attention(call.query, key, value, allowed)


def per_pair(call: Call) -> int:
    """Operations of one pair of query and key in all heads and batch elements."""
    return call.work // call.pairs


WRONG = (
    Wrong("zeros", zeros, lambda call: 0),
    Wrong("the mean of the values", mean, work_of_mean),
    Wrong(
        "the first head for all heads",
        lambda call: right(one_head(call)).expand(-1, call.query.shape[1], -1, -1),
        lambda call: one_head(call).work,
        lambda call: call.query.shape[1] > 1,
    ),
    Wrong(
        "the mean of the values in the second half of the rows",
        half_mean,
        lambda call: first_half(call).work + work_of_mean(call),
        lambda call: call.query.shape[-2] > 1,
    ),
    Wrong("the first half of the keys", half_the_keys, work_of_half_the_keys),
    Wrong(
        "the last row is that before it",
        stale_row,  # saves one row, which attends to all keys even if causal
        lambda call: call.work - call.key.shape[-2] * per_pair(call),
        lambda call: call.query.shape[-2] > 1,
    ),
    Wrong(
        "all keys but the last",
        dropped,  # if causal, only the last query attends to the last key
        lambda call: call.work - (1 if call.causal else call.query.shape[-2]) * per_pair(call),
    ),
    Wrong("a scale of 1/d", lambda call: right(call, 1 / call.query.shape[-1]), lambda call: call.work),
    Wrong("a scale 5 % too large", lambda call: right(call, 1.05 / sqrt(call.query.shape[-1])), lambda call: call.work),
    Wrong("a scale 1 % too large", lambda call: right(call, 1.01 / sqrt(call.query.shape[-1])), lambda call: call.work),
    Wrong("a padding key is attended to", padded, lambda call: call.work + call.query.shape[-2] * per_pair(call)),
    Wrong(
        "a causal mask shifted by one",
        shifted,
        lambda call: call.work + (call.query.shape[-2] - 1) * per_pair(call),
        lambda call: call.causal and call.query.shape[-2] > 1,
    ),
)
"""All wrong attentions; `table` sorts them by their operations in each call."""
