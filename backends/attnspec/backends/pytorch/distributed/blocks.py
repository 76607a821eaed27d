"""Attention of a rank's queries to blocks of keys, merged by log-sum-exp; blocks may come around a ring.

A block from another rank is computed again in the backward pass: a rank never holds more than two blocks of keys.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from attnspec.backends.pytorch.distributed.collectives import Group, rotate
from attnspec.backends.pytorch.distributed.shards import Shard, Shards, rows, slices
from attnspec.backends.pytorch.runtime.accumulation import upcast

Tensors = Sequence[Tensor]
Attend = Callable[[Tensors, Tensors, Tensors, range, range], tuple[Tensor, Tensor] | None]
"""Attention of a run of queries to a run of keys, with log-sum-exps; None if no query sees a key.

Arguments are tensors with rows of queries, with rows of keys, and without rows, and the positions of both runs.
"""


class Part(NamedTuple):
    """Attention of a run of queries to a run of keys.

    ``cut`` returns the runs of keys that some query sees, as ``attend`` computes them best. With ``keeps``, ``attend``
    does not store all pairs for its gradients, so that those of keys at hand are kept for the backward pass.
    """

    attend: Attend
    cut: Callable[[range, range], Sequence[range]]
    keeps: bool


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
                    for cut in self.part.cut(queries, run):
                        first = of.start - run.start
                        yield at, queries, slice(first + cut.start, first + cut.stop), cut

    def keeps(self, step: int) -> bool:
        """Return whether the backward pass reads results of the forward pass: only for blocks in memory anyway."""
        return self.part.keeps and step == 0

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
    """Merged attention. The backward pass computes parts again, except those of the first block if they are kept.

    With share = exp(part's logarithm − logarithm), output = Σ share · part's output, so the cotangent of a part's
    output is share · cotangent, and that of its logarithm share · (cotangent · (part's output − output) + cotangent of
    the logarithm).
    """

    @staticmethod
    def forward(ctx: Any, problem: Problem, of_queries: int, of_keys: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.problem, ctx.counts, ctx.kept = problem, (of_queries, of_keys), []
        queries, keys, others = _groups(tensors, of_queries, of_keys)
        output = upcast(queries[0]).new_zeros(problem.shape)
        logarithms = output.new_full(problem.shape[:-1], -torch.inf)
        block, steps = keys, len(problem.keys)
        for step in range(steps):
            wait = None
            if step < steps - 1:
                wait = rotate(problem.group, block, rows(problem.shard(step + 1)))
            keeps = problem.keeps(step) and any(ctx.needs_input_grad)
            for at, positions, of, run in problem.pairs(problem.shard(step)):
                leaves, part = _part(ctx, _cut(queries, at), _cut(block, of), others, positions, run, keeps)
                if part is not None:
                    _merge(output[..., at, :], logarithms[..., at], part[0].detach(), part[1].detach())
                if keeps:
                    ctx.kept.append((leaves, part))
            block = block if wait is None else wait()
        ctx.save_for_backward(*tensors, output, logarithms)
        return output, logarithms

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_output: Tensor, of_logarithms: Tensor) -> tuple[Any, ...]:
        problem: Problem = ctx.problem
        *tensors, output, logarithms = ctx.saved_tensors
        queries, keys, others = _groups(tensors, *ctx.counts)
        of_queries, of_keys, of_others = ([torch.zeros_like(upcast(x)) for x in xs] for xs in (queries, keys, others))
        block, steps, kept = keys, len(problem.keys), iter(ctx.kept)
        for step in range(steps):
            shard, following = problem.shard(step), rows(problem.shard(step + 1))
            wait = None if step == steps - 1 else rotate(problem.group, block, following)
            for at, positions, of, run in problem.pairs(shard):
                if problem.keeps(step):
                    leaves, part = next(kept)
                else:
                    leaves, part = _part(ctx, _cut(queries, at), _cut(block, of), others, positions, run, True)
                if part is None:
                    continue
                cotangents = _cotangents(
                    part[0].detach(), part[1].detach(), output[..., at, :], logarithms[..., at],
                    of_output[..., at, :], of_logarithms[..., at],
                )  # fmt: skip
                gradients = torch.autograd.grad(
                    part, leaves, cotangents, problem.keeps(step), allow_unused=True, materialize_grads=True
                )  # kept parts may be differentiated again
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


def _part(
    ctx: Any, queries: Tensors, keys: Tensors, others: Tensors, i: range, j: range, tracked: bool
) -> tuple[Tensors, tuple[Tensor, Tensor] | None]:
    """Widened inputs of a part, and its results, recorded by autograd if ``tracked``."""
    leaves = [x.detach().requires_grad_(tracked) for x in (*queries, *keys, *map(upcast, others))]
    with torch.set_grad_enabled(tracked):
        results = ctx.problem.part.attend(*_groups(leaves, *ctx.counts), i, j)
        if results is None:
            return leaves, None
        shape = *ctx.problem.shape[:-2], len(i), ctx.problem.shape[-1]
        return leaves, (results[0].expand(shape), results[1].expand(shape[:-1]))


def _merge(output: Tensor, logarithms: Tensor, part: Tensor, part_logarithms: Tensor) -> None:
    """Add a part to the results in place."""
    total = torch.logaddexp(logarithms, part_logarithms)
    output.mul_(_share(logarithms, total)).addcmul_(part, _share(part_logarithms, total))
    logarithms.copy_(total)


def _share(logarithms: Tensor, total: Tensor) -> Tensor:
    """Weights of a part's rows in the sum of all parts; 0 where the part has no key."""
    return (logarithms - total).exp().masked_fill(logarithms == -torch.inf, 0).unsqueeze(-1)


def _cotangents(part: Tensor, logarithms: Tensor, output: Tensor, total: Tensor, of_output: Tensor,
                of_total: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Cotangents of a part's output and logarithms; 0 where the part has no key."""
    of_part = _share(logarithms, total) * of_output
    of_logarithms = (of_part * (part - output)).sum(-1) + _share(logarithms, total).squeeze(-1) * of_total
    without_keys = logarithms == -torch.inf
    return of_part.masked_fill(without_keys.unsqueeze(-1), 0), of_logarithms.masked_fill(without_keys, 0)


def _groups(tensors: Sequence[Tensor], of_queries: int, of_keys: int) -> tuple[Tensors, Tensors, Tensors]:
    return tensors[:of_queries], tensors[of_queries : of_queries + of_keys], tensors[of_queries + of_keys :]
