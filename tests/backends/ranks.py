"""Processes that are ranks of one group, and what tests let them compute."""

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import product
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from attnspec.backends.bases.torch import from_numpy, gradients, to_numpy
from attnspec.backends.pytorch import distributed
from attnspec.backends.pytorch.distributed import blocks, collectives
from attnspec.spec.contract.tree import map_tree

Outcome = tuple[str, Any]
"""``returned`` and the result of a rank, ``raised`` and its exception as text, or ``ended``."""


def run(task: Callable[..., Any], *arguments: Any, ranks: int, folder: Path, timeout: float = 120) -> list[Outcome]:
    """Outcome of ``task`` on every rank; collectives raise after ``timeout`` seconds. No process outlives the call."""
    context, processes, ends = get_context("spawn"), [], []
    place = f"file://{folder / f'store_{time.monotonic_ns()}'}"
    try:
        for rank in range(ranks):
            end, other = context.Pipe()
            process = context.Process(target=_rank, args=(rank, ranks, place, timeout, other, task, arguments))
            process.start()
            other.close()
            processes.append(process)
            ends.append(end)
        return [_outcome(end) for end in ends]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _outcome(end: Connection) -> Outcome:
    try:
        return end.recv() if end.poll(300) else ("hung", None)
    except EOFError:
        return "ended", None


def _rank(rank: int, ranks: int, place: str, timeout: float, end: Connection, task: Any, arguments: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", place, timedelta(seconds=timeout), ranks, rank)
    try:
        outcome = "returned", task(*arguments)
    except Exception as error:  # noqa: BLE001 - the test compares whatever was raised
        outcome = "raised", f"{type(error).__name__}: {error}"
    end.send(outcome)
    end.poll(None)  # until the test ends: other ranks wait for messages of this one, and do not notice its end


Case = tuple[str, dict[str, Any], tuple[Any, ...]]
"""Operation, arguments and cotangents of a whole call, as NumPy arrays."""
Divide = Callable[[int, int], distributed.Shards]


def uneven(length: int, ranks: int) -> distributed.Shards:
    """No rows for rank 0; most for the last rank, in two runs, the later one first."""
    most = length - length // 4
    others = distributed.contiguous(length - most, max(ranks - 2, 1))
    runs = [tuple(range(most + run.start, most + run.stop) for run in shard) for shard in others[: ranks - 2]]
    last = (range(most // 2, most if runs else length), range(most // 2))
    return ((), *runs, last) if ranks > 1 else (last,)


def backwards(length: int, ranks: int) -> distributed.Shards:
    """The ring in the other order: rank 0 has the last rows."""
    return distributed.contiguous(length, ranks)[::-1]


def positions(shard: distributed.Shard) -> torch.Tensor:
    return torch.tensor([i for run in shard for i in run], dtype=torch.int64)


def rows(case: Case, method: str, divide: Divide, rank: int, ranks: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors of a rank, and the options that say what is sharded."""
    query, key = case[1]["query"], case[1]["key"]
    query_shards, key_shards = divide(query.shape[-2], ranks), divide(key.shape[-2], ranks)
    arguments = {path: from_numpy(x, device="cpu") if isinstance(x, np.ndarray) else x for path, x in case[1].items()}
    for name, shards in (("query", query_shards), ("key", key_shards), ("value", key_shards)):
        arguments[name] = arguments[name][..., positions(shards[rank]), :]
    return arguments, {"method": method, "query_shards": query_shards, "key_shards": key_shards}


def computed(
    cases: list[Case], methods: list[str], divisions: list[Divide], group: Any = None
) -> list[tuple[Any, dict[str, Any]]]:
    """Results and gradients of this rank's rows, for every case, method and division."""
    rank, ranks, results = dist.get_rank(group), dist.get_world_size(group), []
    for case, method, divide in product(cases, methods, divisions):
        arguments, sharded = rows(case, method, divide, rank, ranks)
        function = partial(getattr(distributed, case[0]), **sharded, group=group)
        own, whole = positions(sharded["query_shards"][rank]), [from_numpy(x, device="cpu") for x in case[2]]
        weights = [x.index_select(axis, own) for x, axis in zip(whole, (-2, -1), strict=False)]
        of = gradients(function, arguments, weights[0] if len(weights) == 1 else tuple(weights))
        with torch.no_grad():
            results.append(_numpy((function(**arguments), of)))
    return results


def computed_in_a_group(cases: list[Case], methods: list[str], divisions: list[Divide]) -> Any:
    """Results and gradients of two ranks of three, whose ranks in their group are others."""
    group = dist.new_group([1, 2])
    return computed(cases, methods, divisions, group) if dist.get_rank() else None


def _numpy(x: Any) -> Any:
    return map_tree(x, lambda _, part: to_numpy(part))


def counted(case: Case, methods: list[str], divisions: list[Divide]) -> list[list[tuple[int, int]]]:
    """Bytes and collectives of this rank, forward and backward, for each call."""
    rank, ranks, counts = dist.get_rank(), dist.get_world_size(), [0, 0]

    def counting(name: str, sent: Callable[..., int]) -> None:
        collective = getattr(dist, name)

        def called(*arguments: Any, **options: Any) -> Any:
            counts[0] += sent(*arguments)
            counts[1] += 1
            return collective(*arguments, **options)

        setattr(dist, name, called)

    counting("all_gather", lambda received, x: (ranks - 1) * x.nbytes)
    counting("all_to_all_single", lambda received, x, of, to: (len(x) - to[rank]) * x[:1].nbytes)
    counting("batch_isend_irecv", lambda ops: sum(op.tensor.nbytes for op in ops if op.op is dist.isend))
    costs = []
    for method, divide in product(methods, divisions):
        arguments, sharded = rows(case, method, divide, rank, ranks)
        leaves = [arguments[name].requires_grad_() for name in ("query", "key", "value")]
        counts[:] = 0, 0
        output, _ = getattr(distributed, case[0])(**arguments, **sharded)
        forward = counts[0], counts[1]
        torch.autograd.grad(output.sum(), leaves)
        costs.append([forward, (counts[0] - forward[0], counts[1] - forward[1])])
    return costs


def dying(case: Case, method: str, how: str) -> tuple[float, str]:
    """Seconds until this rank raises, and its message; the last rank dies or never calls."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    arguments, sharded = rows(case, method, distributed.contiguous, rank, ranks)
    if rank == ranks - 1:

        def killed(*_: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

        if how == "absent":
            return 0.0, ""
        if how == "killed in the forward pass":
            setattr(blocks.Problem, "pairs", killed)  # noqa: B010 - mypy refuses the assignment
        else:
            setattr(blocks, "_cotangents", killed)  # noqa: B010 - likewise
    start = time.monotonic()
    try:
        for name in ("query", "key", "value"):
            arguments[name].requires_grad_()
        results = getattr(distributed, case[0])(**arguments, **sharded)
        results[0].sum().backward()
    except RuntimeError as error:
        return time.monotonic() - start, str(error)
    return time.monotonic() - start, ""


def differing(case: Case, change: str) -> None:
    """Call with arguments that are wrong, or differ from the others', on the last rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    arguments, sharded = rows(case, "ring", distributed.contiguous, rank, ranks)
    if rank == ranks - 1:
        changes: dict[str, Any] = {
            "rows": {"key": arguments["key"][..., 1:, :]},
            "causal": {"causal": True},
            "features": {"value": arguments["value"][..., :1]},
            "gradients": {"key": arguments["key"].requires_grad_()},
        }
        arguments |= changes[change]
    getattr(distributed, case[0])(**arguments, **sharded)


def with_stale_keys(case: Case) -> list[tuple[Any, dict[str, Any]]]:
    """Results and gradients of a ring whose backward pass reads the same keys."""
    rotate, calls = collectives.rotate, []

    def stale(group: Any, tensors: Any, count: int) -> Any:
        wait = rotate(group, tensors, count)
        calls.append(wait)
        # with two ranks: keys of the forward pass, keys of the backward pass, and twice gradients
        return (lambda: (wait(), tensors)[1]) if len(calls) == 2 else wait

    setattr(blocks, "rotate", stale)  # noqa: B010 - likewise
    return computed([case], ["ring"], [distributed.contiguous])
