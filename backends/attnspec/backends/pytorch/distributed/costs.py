"""Bytes and collectives of a rank, and simulated times of all ranks, by method."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from attnspec.backends.pytorch.distributed.methods import METHODS
from attnspec.backends.pytorch.distributed.shards import Shards, divided_heads, joined, lengths

DIGEST = 8
"""Bytes by which a rank tells every other rank that it makes the same call."""


class Cost(NamedTuple):
    """Bytes sent by one rank, and its number of collectives, one after another."""

    sent: int
    steps: int


def communication(
    method: str, rank: int, query_shards: Shards, key_shards: Shards, *, heads: int, heads_k: int, d: int, d_v: int,
    batch: int = 1, itemsize: int = 4,
) -> tuple[Cost, Cost]:  # fmt: skip
    """Costs of the forward and the backward pass of one rank; a number of ``itemsize`` bytes, gradients at least 4.

    For additive attention, ``d`` is the number of hidden units, and there is one head. ``ValueError`` for another
    method, a rank that has no shards, shards of different numbers of ranks, and heads that the heads of keys do not
    divide.
    """
    ranks, wide = len(key_shards), max(itemsize, 4)
    if method not in METHODS:
        raise ValueError(f"communication: method: expected one of {', '.join(METHODS)}; got {method!r}")
    if rank not in range(ranks):
        raise ValueError(f"communication: rank: expected 0 to {ranks - 1}; got {rank}")
    if len(query_shards) != ranks:
        raise ValueError(f"communication: query_shards: expected {ranks} shards, as of keys; got {len(query_shards)}")
    if heads_k < 1 or heads % heads_k:
        raise ValueError(f"communication: heads: expected a multiple of heads_k = {heads_k}; got {heads}")
    keys, queries = lengths(key_shards), lengths(query_shards)
    key_row = batch * heads_k * (d + d_v)
    agreement = Cost(DIGEST * (ranks - 1), 1)
    if method == "ring":
        visited = [keys[(rank - step) % ranks] for step in range(ranks)]
        sent, returned = sum(visited[:-1]) * key_row, sum(visited) * key_row if ranks > 1 else 0
        forward = Cost(sent * itemsize, ranks - 1)
        backward = Cost(sent * itemsize + returned * wide, 2 * ranks - 1 if ranks > 1 else 0)
    elif method == "all-gather":
        forward = Cost((ranks - 1) * max(keys) * key_row * itemsize, 1)
        backward = Cost((sum(keys) - keys[rank]) * key_row * wide, 1)
    else:
        heads_here, group = divided_heads(heads_k, ranks)[rank], heads // heads_k
        own = heads_here.stop - heads_here.start
        elsewhere, n, m = heads_k - own, queries[rank], keys[rank]
        n_others, m_others = sum(queries) - n, sum(keys) - m
        here, there = own * (n_others * group * d + m_others * (d + d_v)), elsewhere * (n * group * d + m * (d + d_v))
        output_here, output_there = own * n_others * group * (d_v + 1), elsewhere * n * group * (d_v + 1)
        forward = Cost(batch * (there + output_here) * itemsize, 3)
        backward = Cost(batch * (here + output_there) * itemsize, 3)
    return Cost(forward.sent + agreement.sent, forward.steps + agreement.steps), backward


def forward_seconds(
    method: str, query_shards: Shards, key_shards: Shards, *, flops: float, bandwidth: float, heads: int, heads_k: int,
    d: int, d_v: int, causal: bool = False, batch: int = 1, itemsize: int = 4,
) -> float:  # fmt: skip
    """Seconds of a simulated forward pass, until the last rank ends.

    Every rank computes ``flops`` floating-point operations and sends ``bandwidth`` bytes per second. In a ring it
    computes while it sends; otherwise it waits for its data. Masked pairs, messages' latencies and softmax are free.
    """
    sizes = {"heads": heads, "heads_k": heads_k, "d": d, "d_v": d_v, "batch": batch, "itemsize": itemsize}
    ranks, keys = len(key_shards), torch.tensor(lengths(key_shards))
    computing = pairs(query_shards, key_shards, causal) * (2.0 * batch * heads * (d + d_v) / flops)
    if method != "ring":
        calls = [communication(method, rank, query_shards, key_shards, **sizes)[0] for rank in range(ranks)]
        waiting = torch.tensor([cost.sent / bandwidth for cost in calls])
        if method == "all-gather":
            return float((waiting + computing.sum(1)).max())
        shares = [(some.stop - some.start) / heads_k for some in divided_heads(heads_k, ranks)]
        return float((waiting + computing.sum() * torch.tensor(shares)).max())
    sending, rank = keys * (batch * heads_k * (d + d_v) * itemsize / bandwidth), torch.arange(ranks)
    start = torch.zeros(ranks)
    for step in range(ranks):
        block = (rank - step) % ranks
        computed = start + computing[rank, block]
        sent = torch.maximum(start, start.roll(-1)) + sending[block]  # when the next rank has begun this step, too
        start = torch.maximum(computed, torch.maximum(sent, sent.roll(1)))
    return float(computed.max())


@lru_cache(4)
def pairs(query_shards: Shards, key_shards: Shards, causal: bool) -> Tensor:
    """Number of pairs of every rank's queries with the keys of every rank (ranks, ranks)."""

    def number(bounds: Tensor, starts: Tensor) -> Tensor:  # of pairs of queries before the bounds and keys from starts
        queries = (bounds[:, None] - starts).clamp(min=0)
        return queries * (queries + 1) / 2

    ranks, of, to = len(key_shards), joined(query_shards), joined(key_shards)
    first, last = (torch.tensor(x, dtype=torch.float64) for x in ([i.start for i in of], [i.stop for i in of]))
    start, stop = (torch.tensor(x, dtype=torch.float64) for x in ([j.start for j in to], [j.stop for j in to]))
    if causal:
        counts = number(last, start) - number(first, start) - number(last, stop) + number(first, stop)
    else:
        counts = (last - first)[:, None] * (stop - start)
    owners = [torch.tensor([r for r, shard in enumerate(x) for _ in shard]).long() for x in (query_shards, key_shards)]
    of_queries = counts.new_zeros(ranks, len(to)).index_add(0, owners[0], counts)
    return counts.new_zeros(ranks, ranks).index_add(1, owners[1], of_queries)
