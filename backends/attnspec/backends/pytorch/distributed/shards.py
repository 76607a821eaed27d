"""Shards: the positions of a sequence that each rank holds, as runs of consecutive positions."""

from collections.abc import Iterator
from functools import lru_cache

Shard = tuple[range, ...]
"""Positions of one rank: its tensors hold the rows of the first run, then those of the second, and so on."""

Shards = tuple[Shard, ...]
"""A shard per rank. Every position belongs to exactly one; a shard may be empty."""


def contiguous(length: int, ranks: int) -> Shards:
    """One run per rank, in the order of ranks; lengths differ by at most 1."""
    return tuple((run,) if run else () for run in _divided(length, ranks))


def zigzag(length: int, ranks: int) -> Shards:
    """An early and a late run per rank: causal attention costs all ranks the same."""
    runs = _divided(length, 2 * ranks)
    return tuple(tuple(run for run in (runs[r], runs[-1 - r]) if run) for r in range(ranks))


def _divided(length: int, parts: int) -> list[range]:
    return [range(length * i // parts, length * (i + 1) // parts) for i in range(parts)]


def rows(shard: Shard) -> int:
    """Number of positions of a shard."""
    return sum(map(len, shard))


def joined(shards: Shards) -> Shard:
    """All runs, in the order of ranks."""
    return tuple(run for shard in shards for run in shard)


def all_positions(shards: Shards) -> Shard:
    """One run of all positions: the rows of a tensor gathered from all ranks."""
    return (range(rows(joined(shards))),)


def length_of(shards: Shards, ranks: int, argument: str) -> int:
    """Length of the whole sequence; ``ValueError`` unless every position belongs to one rank."""
    runs = sorted((run.start, run.stop) for run in joined(shards) if run)
    stops = [0, *(stop for _, stop in runs)]
    steps = all(run.step == 1 for run in joined(shards))
    if len(shards) != ranks or not steps or [start for start, _ in runs] != stops[:-1]:
        expected = f"{ranks} shards of runs that hold every position once"
        raise ValueError(f"{argument}: expected {expected}; got {len(shards)}: {shards}")
    return stops[-1]


def slices(shard: Shard) -> Iterator[tuple[slice, range]]:
    """Yield rows of the local tensor, and their positions, by run."""
    first = 0
    for run in shard:
        yield slice(first, first + len(run)), run
        first += len(run)


@lru_cache(8)
def lengths(shards: Shards) -> list[int]:
    """Number of positions of every rank."""
    return [*map(rows, shards)]


def split(shard: Shard, most: int) -> Shard:
    """Runs of at most ``most`` positions, in the same order."""
    return tuple(run[first : first + most] for run in shard for first in range(0, len(run), most))


@lru_cache(8)
def divided_heads(heads_k: int, ranks: int) -> list[slice]:
    """Heads of keys that each rank computes when heads are sharded; some ranks may have none."""
    return [slice(run.start, run.stop) for run in _divided(heads_k, ranks)]
