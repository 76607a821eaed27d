"""Attention of a rank's queries to blocks of keys, merged by log-sum-exp; blocks may come around a ring.

A block is computed again in the backward pass: a rank never holds more than two blocks of keys of a ring.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from attnspec.backends.pytorch.distributed.collectives import Group, rotate
from attnspec.backends.pytorch.distributed.shards import Shard, Shards, rows, slices
from attnspec.backends.pytorch.kernels import merge_attention
from attnspec.backends.pytorch.runtime.accumulation import upcast

Tensors = Sequence[Tensor]
Part = Callable[[Tensors, Tensors, Tensors, range, range], tuple[Tensor, Tensor] | None]
"""Attention of a run of queries to a run of keys, with log-sum-exps; None if no query sees a key.

Arguments are tensors with rows of queries, with rows of keys, and without rows, and the positions of both runs.
"""


class Problem(NamedTuple):
    """Computation of one rank: output of ``shape`` (…, n, d_v) for ``queries``, by ``part``.

    ``keys`` are the shards of all ranks if ``ring``, else the only block.
    """

    part: Part
    shape: tuple[int, ...]
    queries: Shard
    keys: Shards
    ring: bool
    group: Group

    def pairs(self, keys: Shard) -> Iterator[tuple[slice, range, slice, range]]:
        """Rows and positions of every run of queries with every run of keys; none for empty outputs."""
        if 0 not in self.shape:
            for at, queries in slices(self.queries):
                for of, run in slices(keys):
                    yield at, queries, of, run

    def shard(self, step: int) -> Shard:
        """Shard of the keys that this rank holds at a step."""
        return self.keys[(dist.get_rank(self.group) - step) % len(self.keys)] if self.ring else self.keys[0]


def attend(problem: Problem, queries: Tensors, keys: Tensors, others: Tensors) -> tuple[Tensor, Tensor]:
    """Output and log Σ exp, widened. Gradients of ``others`` are those of this rank's part."""
    output, logarithms = _Attend.apply(  # type: ignore[no-untyped-call]
        problem, len(queries), len(keys), *queries, *keys, *others
    )
    return output, logarithms


def _cut(tensors: Tensors, at: slice) -> list[Tensor]:
    return [upcast(x[..., at, :]) for x in tensors]


class _Attend(torch.autograd.Function):
    """Merged attention. The backward pass computes each block's part again.

    With share = exp(part's logarithm − logarithm), output = Σ share · part's output, so the cotangent of a part's
    output is share · cotangent, and that of its logarithm share · (cotangent · (part's output − output) + cotangent of
    the logarithm).
    """

    @staticmethod
    def forward(ctx: Any, problem: Problem, of_queries: int, of_keys: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        queries, keys, others = _groups(tensors, of_queries, of_keys)
        output = upcast(queries[0]).new_zeros(problem.shape)
        logarithms = output.new_full(problem.shape[:-1], -torch.inf)
        wide, block = [upcast(x) for x in others], keys
        steps = len(problem.keys)
        for step in range(steps):
            shard, last = problem.shard(step), step == steps - 1
            wait = None if last else rotate(problem.group, block, rows(problem.shard(step + 1)))
            for at, positions, of, run in problem.pairs(shard):
                part = problem.part(_cut(queries, at), _cut(block, of), wide, positions, run)
                if part is not None:
                    outputs = torch.stack((output[..., at, :], part[0].expand_as(output[..., at, :])), -2)
                    sums = torch.stack((logarithms[..., at], part[1].expand_as(logarithms[..., at])), -1)
                    output[..., at, :], logarithms[..., at] = merge_attention(outputs, sums)
            block = block if wait is None else wait()
        ctx.problem, ctx.counts = problem, (of_queries, of_keys)
        ctx.save_for_backward(*tensors, output, logarithms)
        return output, logarithms

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_output: Tensor, of_logarithms: Tensor) -> tuple[Any, ...]:
        problem: Problem = ctx.problem
        *tensors, output, logarithms = ctx.saved_tensors
        queries, keys, others = _groups(tensors, *ctx.counts)
        of_queries, of_keys, of_others = ([torch.zeros_like(upcast(x)) for x in xs] for xs in (queries, keys, others))
        block, steps = keys, len(problem.keys)
        for step in range(steps):
            shard, following = problem.shard(step), rows(problem.shard(step + 1))
            wait = None if step == steps - 1 else rotate(problem.group, block, following)
            for at, positions, of, run in problem.pairs(shard):
                leaves = [*_cut(queries, at), *_cut(block, of), *map(upcast, others)]
                leaves = [x.detach().requires_grad_() for x in leaves]
                with torch.enable_grad():
                    part = problem.part(*_groups(leaves, *ctx.counts), positions, run)
                    if part is None:
                        continue
                    part = part[0].expand_as(output[..., at, :]), part[1].expand_as(logarithms[..., at])
                cotangents = _cotangents(
                    part[0].detach(), part[1].detach(), output[..., at, :], logarithms[..., at],
                    of_output[..., at, :], of_logarithms[..., at],
                )  # fmt: skip
                gradients = torch.autograd.grad(part, leaves, cotangents, allow_unused=True, materialize_grads=True)
                targets = [
                    *(x[..., at, :] for x in of_queries), *(x[..., of, :] for x in of_keys), *of_others
                ]  # fmt: skip
                for target, gradient in zip(targets, gradients, strict=True):
                    target += gradient
            if problem.ring and steps > 1:  # gradients travel with their block, and one step more: to its owner
                of_keys = rotate(problem.group, of_keys, following)()
            block = block if wait is None else wait()
        totals = zip((*of_queries, *of_keys, *of_others), tensors, strict=True)
        return None, None, None, *(total.to(x.dtype) for total, x in totals)


def _cotangents(part: Tensor, logarithm: Tensor, output: Tensor, total: Tensor, of_output: Tensor,
                of_total: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Cotangents of a part's output and logarithm; 0 where the part has no key."""
    without_keys = logarithm == -torch.inf
    share = (logarithm - total).exp()
    of_logarithm = share * ((of_output * (part - output)).sum(-1) + of_total)
    of_part = share.unsqueeze(-1) * of_output
    return of_part.masked_fill(without_keys.unsqueeze(-1), 0), of_logarithm.masked_fill(without_keys, 0)


def _groups(tensors: Sequence[Tensor], of_queries: int, of_keys: int) -> tuple[Tensors, Tensors, Tensors]:
    return tensors[:of_queries], tensors[of_queries : of_queries + of_keys], tensors[of_queries + of_keys :]
