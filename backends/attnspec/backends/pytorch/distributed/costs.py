"""Bytes that a rank sends and collectives that it calls, for attention by each method."""

from typing import NamedTuple

from attnspec.backends.pytorch.distributed.shards import Shards, divided_heads, rows

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
    """Costs of the forward and the backward pass of one rank; a number of ``itemsize`` bytes, gradients at least 4."""
    ranks, wide = len(key_shards), max(itemsize, 4)
    keys, queries = list(map(rows, key_shards)), list(map(rows, query_shards))
    key_row, others = batch * heads_k * (d + d_v), [r for r in range(ranks) if r != rank]
    agreement = Cost(DIGEST * (ranks - 1), 1)
    if method == "ring":
        visited = [keys[(rank - step) % ranks] for step in range(ranks)]
        sent, returned = sum(visited[:-1]) * key_row, sum(visited) * key_row if others else 0
        forward = Cost(sent * itemsize, ranks - 1)
        backward = Cost(sent * itemsize + returned * wide, 2 * ranks - 1 if others else 0)
    elif method == "all-gather":
        forward = Cost((ranks - 1) * max(keys) * key_row * itemsize, 1)
        backward = Cost(sum(keys[r] for r in others) * key_row * wide, 1)
    else:
        share = [some.stop - some.start for some in divided_heads(heads_k, ranks)]
        group, own, elsewhere = heads // heads_k, share[rank], sum(share[r] for r in others)
        n, n_others, m, m_others = (
            queries[rank],
            sum(queries[r] for r in others),
            keys[rank],
            sum(keys[r] for r in others),
        )
        here, there = own * (n_others * group * d + m_others * (d + d_v)), elsewhere * (n * group * d + m * (d + d_v))
        output_here, output_there = own * n_others * group * (d_v + 1), elsewhere * n * group * (d_v + 1)
        forward = Cost(batch * (there + output_here) * itemsize, 3)
        backward = Cost(batch * (here + output_there) * itemsize, 3)
    return Cost(forward.sent + agreement.sent, forward.steps + agreement.steps), backward
