"""A call that all ranks make: its agreement, and the three ways in which queries meet the keys of other ranks."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from attnspec.backends.pytorch.distributed.blocks import Part, Problem, Tensors, attend
from attnspec.backends.pytorch.distributed.collectives import Group, agree, exchange, gather, pack, unpack
from attnspec.backends.pytorch.distributed.shards import Shards, divided_heads, features, joined, length_of, rows, split

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
        own, lengths = self.query_shards[rank], [rows(shard) for shard in self.key_shards]
        if self.method == "heads":
            return self._by_heads(part, shape, queries, keys, others, finish, most_rows)
        shape = (*shape[:-2], rows(own), shape[-1])
        shards, ring = self.key_shards, self.method == "ring"
        if not ring:
            keys, shards = gather(group, lengths, keys), (joined(shards),)
        problem = Problem(part, shape, split(own, most_rows), shards, ring, group)
        return finish(attend(problem, queries, keys, others(slice(None))), slice(None))

    def _by_heads(
        self, part: Part, shape: tuple[int, ...], queries: Tensors, keys: Tensors, others: Callable[[slice], Tensors],
        finish: Callable[[Results, slice], Results], most_rows: int,
    ) -> Results:  # fmt: skip
        """Exchange some rows of all heads for all rows of some heads, attend, exchange back."""
        rank, ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        heads_k = keys[0].shape[-3]
        heads, lengths = divided_heads(heads_k, ranks), [rows(shard) for shard in self.query_shards]
        queries = self._to_heads(queries, heads, heads_k, self.query_shards)
        keys = self._to_heads(keys, heads, heads_k, self.key_shards)
        query_shard, blocks = split(joined(self.query_shards), most_rows), (joined(self.key_shards),)

        def shape_of(some: slice, n: int) -> tuple[int, ...]:
            return *shape[:-3], (some.stop - some.start) * shape[-3] // max(heads_k, 1), n, shape[-1]

        problem = Problem(part, shape_of(heads[rank], sum(lengths)), query_shard, blocks, False, self.group)
        output, logarithms = finish(attend(problem, queries, keys, others(heads[rank])), heads[rank])
        matrix = pack([output, logarithms.unsqueeze(-1)])
        shapes = [(x, (*x[:-1], 1)) for x in (shape_of(some, lengths[rank]) for some in heads)]
        sizes = [(lengths[rank], features(x) + features(y)) for x, y in shapes]
        received = exchange(self.group, torch.split(matrix, lengths), sizes)
        outputs, sums = zip(*(unpack(x, both) for x, both in zip(received, shapes, strict=True)), strict=True)
        return torch.cat(outputs, -3), torch.cat(sums, -3).squeeze(-1)

    def _to_heads(self, tensors: Tensors, heads: Sequence[slice], heads_k: int, shards: Shards) -> list[Tensor]:
        """All rows of this rank's heads, from this rank's rows of all heads."""
        parts = [[x[..., in_groups(some, x.shape[-3] // max(heads_k, 1)), :, :] for x in tensors] for some in heads]
        shapes = [tuple(x.shape) for x in parts[dist.get_rank(self.group)]]
        width = sum(map(features, shapes))
        received = exchange(self.group, [pack(part) for part in parts], [(rows(shard), width) for shard in shards])
        return unpack(torch.cat(received), shapes)


def in_groups(heads: slice, share: int) -> slice:
    """Heads of queries that share these heads of keys."""
    return heads if heads.stop is None else slice(heads.start * share, heads.stop * share)


def on_meta(x: Any) -> Any:
    """Tensor without memory for the check of a call; other values unchanged."""
    return x.to("meta") if isinstance(x, Tensor) else x


def _described(x: Any) -> object:
    return (tuple(x.shape), str(x.dtype), x.requires_grad) if isinstance(x, Tensor) else x
