"""A call that all ranks make: its agreement, and the three ways in which queries meet the keys of other ranks."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from attnspec.backends.pytorch.distributed.blocks import Part, Problem, Tensors, attend
from attnspec.backends.pytorch.distributed.collectives import Group, agree, exchange, gather, in_order, of_ranks
from attnspec.backends.pytorch.distributed.shards import Shards, all_positions, divided_heads, length_of, rows, split

T = TypeVar("T")
Results = tuple[Tensor, Tensor]

METHODS = ("ring", "all-gather", "heads")
"""Keys go around a ring; or every rank gathers all keys; or every rank computes some heads of all rows (Ulysses)."""


class Call(NamedTuple):
    """A call of an operation with sharded queries, keys and values."""

    operation: str
    query_shards: Shards
    key_shards: Shards
    method: str
    group: Group

    def agree(self, check: Callable[..., T], rows_of_rank: Sequence[Any], *whole: Any) -> T:
        """Return check(n, m, query, key, value) of whole tensors without memory; raise on all ranks if one does.

        ``whole`` are the other arguments, of which ranks compare shapes, and values if they are no tensors.
        """
        first = next((x for x in rows_of_rank if isinstance(x, Tensor)), torch.empty(0))

        def checked() -> tuple[T, object]:
            if self.method not in METHODS:
                raise ValueError(f"{self.operation}: method: expected one of {', '.join(METHODS)}; got {self.method!r}")
            rank, ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
            n = length_of(self.query_shards, ranks, f"{self.operation}: query_shards")
            m = length_of(self.key_shards, ranks, f"{self.operation}: key_shards")
            sharded = []
            for name, x in zip(("query", "key", "value"), rows_of_rank, strict=True):
                own, length = (self.query_shards[rank], n) if name == "query" else (self.key_shards[rank], m)
                if isinstance(x, Tensor) and x.dim() > 1:
                    if x.shape[-2] != rows(own):
                        expected = f"{rows(own)} rows, as the shard of rank {rank}"
                        raise ValueError(f"{self.operation}: {name}: expected {expected}; got {x.shape[-2]}")
                    x = x.new_empty(*x.shape[:-2], length, x.shape[-1], device="meta")
                sharded.append(x)
            needed = [isinstance(x, Tensor) and x.requires_grad for x in rows_of_rank]
            shapes = [_described(x) for x in (*sharded, *whole)]
            return check(n, m, *sharded), (self[:-1], torch.is_grad_enabled(), needed, shapes)

        return agree(self.operation, self.group, first.device, checked)

    def compute(
        self, part: Part, shape: tuple[int, ...], queries: Tensors, keys: Tensors, others: Callable[[slice], Tensors],
        finish: Callable[[Results, slice], Results], most_rows: int = 2**62,
    ) -> Results:  # fmt: skip
        """Output and log Σ exp of this rank's rows, by the method.

        ``shape`` (*batch, heads, n, d_v) is that of the whole output. ``others`` are tensors without rows for some
        heads of keys, ``finish`` rounds the results of some heads. A part has at most ``most_rows`` queries.
        """
        rank, group = dist.get_rank(self.group), self.group
        if self.method == "heads":
            return self._by_heads(part, shape, queries, keys, others, finish, most_rows)
        own, shards, ring = self.query_shards[rank], self.key_shards, self.method == "ring"
        if not ring:
            keys, shards = gather(group, shards, keys), (all_positions(shards),)
        problem = Problem(part, (*shape[:-2], rows(own), shape[-1]), split(own, most_rows), shards, ring, group)
        return finish(attend(problem, queries, keys, others(slice(None))), slice(None))

    def _by_heads(
        self, part: Part, shape: tuple[int, ...], queries: Tensors, keys: Tensors, others: Callable[[slice], Tensors],
        finish: Callable[[Results, slice], Results], most_rows: int,
    ) -> Results:  # fmt: skip
        """Exchange some rows of all heads for all rows of some heads, attend, exchange back."""
        rank, heads_k = dist.get_rank(self.group), keys[0].shape[-3]
        heads = divided_heads(heads_k, dist.get_world_size(self.group))
        queries = self._to_heads(queries, heads, heads_k, self.query_shards)
        keys = self._to_heads(keys, heads, heads_k, self.key_shards)
        query_shard, key_shard = map(all_positions, (self.query_shards, self.key_shards))

        def shape_of(some: slice, n: int) -> tuple[int, ...]:
            return *shape[:-3], (some.stop - some.start) * shape[-3] // max(heads_k, 1), n, shape[-1]

        whole = shape_of(heads[rank], rows(query_shard))
        problem = Problem(part, whole, split(query_shard, most_rows), (key_shard,), False, self.group)
        results = finish(attend(problem, queries, keys, others(heads[rank])), heads[rank])
        parts = [of_ranks(x, self.query_shards) for x in (results[0], results[1].unsqueeze(-1))]
        shapes = [shape_of(some, rows(self.query_shards[rank])) for some in heads]
        received = exchange(self.group, [*zip(*parts, strict=True)], [(x, (*x[:-1], 1)) for x in shapes])
        output, logarithms = (torch.cat(xs, -3) for xs in zip(*received, strict=True))
        return output, logarithms.squeeze(-1)

    def _to_heads(self, tensors: Tensors, heads: Sequence[slice], heads_k: int, shards: Shards) -> list[Tensor]:
        """All rows of this rank's heads, from this rank's rows of all heads."""
        counts = [[(some.stop - some.start) * x.shape[-3] // max(heads_k, 1) for some in heads] for x in tensors]
        parts = [*zip(*(torch.split(x, count, -3) for x, count in zip(tensors, counts, strict=True)), strict=True)]
        own = parts[dist.get_rank(self.group)]
        shapes = [[(*x.shape[:-2], rows(shard), x.shape[-1]) for x in own] for shard in shards]
        received = exchange(self.group, parts, shapes)
        return [in_order(xs, shards) for xs in zip(*received, strict=True)]


def in_groups(heads: slice, share: int) -> slice:
    """Heads of queries that share these heads of keys."""
    return heads if heads.stop is None else slice(heads.start * share, heads.stop * share)


def on_meta(x: Any) -> Any:
    """Tensor without memory for the check of a call; other values unchanged."""
    return x.to("meta") if isinstance(x, Tensor) else x


def _described(x: Any) -> object:
    return (tuple(x.shape), str(x.dtype), x.requires_grad) if isinstance(x, Tensor) else x
