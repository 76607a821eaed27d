"""Collectives of ``torch.distributed`` with gradients, for tensors whose rows are sharded.

Tensors for one rank are sent together, flattened. PyTorch's own differentiable collectives expect shards of one size,
and some are private.
"""

import hashlib
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from attnspec.backends.pytorch.distributed.shards import Shards, joined, rows
from attnspec.backends.pytorch.runtime.accumulation import upcast

T = TypeVar("T")
Group = dist.ProcessGroup | None

REFUSED = -1
"""Digest of a call whose arguments a rank refuses."""


def agree(operation: str, group: Group, device: torch.device, check: Callable[[], tuple[T, object]]) -> T:
    """Return the result of ``check``; raise on every rank unless all ranks make the same call.

    ``check`` raises for wrong arguments of this rank, and returns its result and a description of the call. Without
    this, ranks that differ would wait for each other, or compute a wrong result.
    """
    result, refusal, digest = None, None, REFUSED
    try:
        result, description = check()
        digest = int.from_bytes(hashlib.sha256(repr(description).encode()).digest()[:7], "little")
    except (ValueError, TypeError) as error:
        refusal = error
    sent = torch.tensor([digest], device=device)
    received = [torch.empty_like(sent) for _ in range(dist.get_world_size(group))]
    dist.all_gather(received, sent, group=group)
    if refusal is not None:
        raise refusal
    digests = torch.cat(received).tolist()
    if refusing := [rank for rank, x in enumerate(digests) if x == REFUSED]:
        raise ValueError(f"{operation}: expected valid arguments on every rank; got an error on rank {refusing[0]}")
    if len({*digests}) > 1:
        other = next(rank for rank, x in enumerate(digests) if x != digests[0])
        raise ValueError(
            f"{operation}: expected the same call on every rank; got another on rank {other} than on rank 0. Compare "
            "method, shards, options, shapes, dtypes, and which tensors need gradients"
        )
    assert result is not None
    return result


class _Gather(torch.autograd.Function):
    """Numbers of every rank, widened; the gradient of a number is the sum of all ranks' gradients.

    Ranks' numbers are padded to the largest count, since gloo gathers only equal sizes. Gradients are sent and added
    widened.
    """

    @staticmethod
    def forward(ctx: Any, group: Group, sizes: list[int], x: Tensor) -> tuple[Tensor, ...]:
        ctx.group, ctx.sizes, ctx.dtype = group, sizes, x.dtype
        most = max(sizes)
        padded = x if len(x) == most else torch.cat((x, x.new_zeros(most - len(x))))
        received = x.new_empty(len(sizes), most)
        dist.all_gather([*received], padded, group=group)
        return tuple(upcast(part[:size]) for part, size in zip(received, sizes, strict=True))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, Tensor]:
        own, ranks = ctx.sizes[dist.get_rank(ctx.group)], len(ctx.sizes)
        received = gradients[0].new_empty(ranks * own)
        dist.all_to_all_single(received, torch.cat(gradients), [own] * ranks, ctx.sizes, group=ctx.group)
        return None, None, received.view(ranks, own).sum(0).to(ctx.dtype)


def gather(group: Group, shards: Shards, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors with all rows, in the order of their positions, by one all-gather."""
    shapes = [[(*x.shape[:-2], rows(shard), x.shape[-1]) for x in tensors] for shard in shards]
    flat = torch.cat([x.flatten() for x in tensors])
    parts = _Gather.apply(group, [sum(map(prod, each)) for each in shapes], flat)  # type: ignore[no-untyped-call]
    parts = [_unflattened(part, each) for part, each in zip(parts, shapes, strict=True)]
    return [in_order(of_ranks, shards) for of_ranks in zip(*parts, strict=True)]


class _Exchange(torch.autograd.Function):
    """Numbers for each rank, exchanged for those of each rank; gradients go the other way."""

    @staticmethod
    def forward(ctx: Any, group: Group, sent: list[int], received: list[int], x: Tensor) -> Tensor:
        ctx.group, ctx.sent, ctx.received = group, sent, received
        result = x.new_empty(sum(received))
        dist.all_to_all_single(result, x, received, sent, group=group)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, Tensor]:
        result = gradient.new_empty(sum(ctx.sent))
        dist.all_to_all_single(result, gradient.contiguous(), ctx.sent, ctx.received, group=ctx.group)
        return None, None, None, result


Shape = tuple[int, ...]


def exchange(group: Group, sent: Sequence[Sequence[Tensor]], received: Sequence[Sequence[Shape]]) -> list[list[Tensor]]:
    """Send tensors to each rank; return those of each rank, of these shapes, by one all-to-all."""
    sizes = [sum(map(prod, shapes)) for shapes in received]
    flat = torch.cat([x.flatten() for tensors in sent for x in tensors])
    counts = [sum(x.numel() for x in tensors) for tensors in sent]
    parts = torch.split(_Exchange.apply(group, counts, sizes, flat), sizes)  # type: ignore[no-untyped-call]
    return [_unflattened(part, shapes) for part, shapes in zip(parts, received, strict=True)]


def _unflattened(flat: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
    return [x.view(shape) for x, shape in zip(torch.split(flat, [*map(prod, shapes)]), shapes, strict=True)]


def in_order(parts: Sequence[Tensor], shards: Shards) -> Tensor:
    """All rows in the order of their positions, from those of every rank."""
    runs = [
        x for part, shard in zip(parts, shards, strict=True) if shard for x in torch.split(part, [*map(len, shard)], -2)
    ]
    return torch.cat([runs[i] for i in _order(shards)], -2) if runs else parts[0]


def of_ranks(x: Tensor, shards: Shards) -> list[Tensor]:
    """Rows of every rank, from all rows in the order of their positions."""
    order, lengths = _order(shards), [*map(len, joined(shards))]
    runs = dict(zip(order, torch.split(x, [lengths[i] for i in order], -2), strict=True)) if order else {}
    numbers = iter(range(len(order)))
    return [torch.cat([runs[next(numbers)] for _ in shard], -2) if shard else x[..., :0, :] for shard in shards]


def _order(shards: Shards) -> list[int]:
    """Numbers of the runs of all ranks, by position."""
    runs = joined(shards)
    return sorted(range(len(runs)), key=lambda i: (runs[i].start, runs[i].stop))


def rotate(group: Group, tensors: Sequence[Tensor], rows: int) -> Callable[[], list[Tensor]]:
    """Start to send tensors to the next rank; return the wait for those of the last, with ``rows`` rows."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    sent = [x.contiguous() for x in tensors]
    received = [x.new_empty(*x.shape[:-2], rows, x.shape[-1]) for x in tensors]
    operations = [
        *(dist.P2POp(dist.isend, x, group=group, group_peer=(rank + 1) % ranks) for x in sent if x.numel()),
        *(dist.P2POp(dist.irecv, x, group=group, group_peer=(rank - 1) % ranks) for x in received if x.numel()),
    ]
    works = dist.batch_isend_irecv(operations) if operations else []

    def wait() -> list[Tensor]:
        for work in works:
            work.wait()
        sent.clear()  # until here, the tensors had to stay alive
        return received

    return wait
