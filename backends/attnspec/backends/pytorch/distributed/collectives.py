"""Collectives of ``torch.distributed`` with gradients, for tensors whose rows are sharded.

A tensor (…, rows, features) is sent as a matrix (rows, all other numbers), so that the shards of all ranks are
concatenated by rows. PyTorch's own differentiable collectives expect shards of one size, and some are private.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from attnspec.backends.pytorch.distributed.shards import features
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


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """Matrix (rows, numbers) of tensors with the same rows."""
    return torch.cat([x.movedim(-2, 0).flatten(1) for x in tensors], 1)


def unpack(matrix: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Tensors of a matrix, of these shapes but for their number of rows."""
    parts = torch.split(matrix, [features(shape) for shape in shapes], 1)
    return [
        part.reshape(len(matrix), *shape[:-2], shape[-1]).movedim(0, -2)
        for part, shape in zip(parts, shapes, strict=True)
    ]


class _Gather(torch.autograd.Function):
    """Rows of all ranks, widened; the gradient of a row is the sum of all ranks' gradients.

    Shards are padded to the longest, since gloo gathers only equal sizes. Gradients are sent and added widened.
    """

    @staticmethod
    def forward(ctx: Any, group: Group, sizes: list[int], x: Tensor) -> Tensor:
        ctx.group, ctx.sizes, ctx.dtype = group, sizes, x.dtype
        padded = x.new_zeros(max(sizes), x.shape[1])
        padded[: len(x)] = x
        received = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(received, padded, group=group)
        return upcast(torch.cat([part[:size] for part, size in zip(received, sizes, strict=True)]))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        own = ctx.sizes[dist.get_rank(ctx.group)]
        received = gradient.new_empty(len(ctx.sizes) * own, gradient.shape[1])
        dist.all_to_all_single(received, gradient.contiguous(), [own] * len(ctx.sizes), ctx.sizes, group=ctx.group)
        return None, None, received.view(len(ctx.sizes), own, gradient.shape[1]).sum(0).to(ctx.dtype)


def gather(group: Group, sizes: list[int], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors with the rows of all ranks, ``sizes`` of each, by one all-gather."""
    matrix = _Gather.apply(group, sizes, pack(tensors))  # type: ignore[no-untyped-call]
    return unpack(matrix, [tuple(x.shape) for x in tensors])


class _Exchange(torch.autograd.Function):
    """Numbers for each rank, exchanged for those of each rank; gradients go the other way."""

    @staticmethod
    def forward(ctx: Any, group: Group, sent: list[int], received: list[int], x: Tensor) -> Tensor:
        ctx.group, ctx.sent, ctx.received = group, sent, received
        result = x.new_empty(sum(received))
        dist.all_to_all_single(result, x.contiguous(), received, sent, group=group)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, Tensor]:
        result = gradient.new_empty(sum(ctx.sent))
        dist.all_to_all_single(result, gradient.contiguous(), ctx.sent, ctx.received, group=ctx.group)
        return None, None, None, result


def exchange(group: Group, sent: Sequence[Tensor], received: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Send a matrix to each rank; return those of each rank, of these shapes, by one all-to-all."""
    sizes = [n * m for n, m in received]
    flat = torch.cat([x.flatten() for x in sent])
    result = _Exchange.apply(group, [x.numel() for x in sent], sizes, flat)  # type: ignore[no-untyped-call]
    return [part.view(shape) for part, shape in zip(result.split(sizes), received, strict=True)]


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
