"""Suite of causal attention whose sequence two processes of one thread share."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from multiprocessing.connection import Connection
from tempfile import mkdtemp
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor

from attnspec.backends.pytorch import distributed
from benchmarks.case import FORWARD, OURS, WITH_BACKWARD, Call, Case, Subject, make_call
from benchmarks.suites import groups
from benchmarks.suites.settings import Inputs, Settings

SUITE = "sharded"
RANKS = 2


def cases(settings: Settings) -> Iterator[Case]:
    """Cases with n = m, for every method and one process as a whole."""
    for n in settings.chosen((2048, 8192), (64,)):
        for mode in (FORWARD, WITH_BACKWARD):
            yield case(settings, n, mode)


def case(settings: Settings, n: int, mode: str) -> Case:
    """Case of one size."""
    whole, inputs = groups.case(settings, n, "causal", mode), groups.drawn(Inputs(settings.device), n)
    absent = "" if settings.device == "cpu" else "its processes compute on the CPU"
    subjects = [x for x in whole.subjects if x.name in (groups.F_SDPA, OURS)]
    sharded = [
        Subject(f"{method}, {RANKS} processes", partial(on_ranks, method, mode, inputs), absent)
        for method in distributed.METHODS
    ]
    return replace(whole, suite=SUITE, subjects=[*subjects, *sharded], baseline=OURS)


def on_ranks(method: str, mode: str, inputs: Sequence[Tensor]) -> Call:
    """Make a call that every rank computes for its rows; its results are those of the first call."""
    query, _, value = inputs
    output = query.new_empty(*query.shape[:-1], value.shape[-1])
    results = [output, *([] if mode == FORWARD else map(torch.empty_like, inputs))]
    for x in (*inputs, *results):
        x.share_memory_()  # type: ignore[no-untyped-call]

    def call() -> Sequence[Tensor]:
        _answered(method)
        return results

    _answered((method, mode, inputs, results))
    return call


def _answered(message: Any) -> None:
    """Send a message to every rank, and wait for all."""
    for end in _ranks():
        end.send(message)
    for end in _ranks():
        end.recv()


@cache
def _ranks() -> list[Connection]:
    """Start the processes; they end with this one."""
    context, place, ends = torch.multiprocessing.get_context("spawn"), f"file://{mkdtemp()}/store", []
    for rank in range(RANKS):
        end, other = context.Pipe()
        context.Process(target=_rank, args=(rank, place, other), daemon=True).start()
        ends.append(end)
    return ends


def _rank(rank: int, place: str, end: Connection) -> None:
    """Make or run calls until the process that asks for them ends."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", place, timedelta(minutes=5), RANKS, rank)
    calls: dict[str, Call] = {}
    while True:
        message = end.recv()
        if isinstance(message, str):
            calls[message]()
        else:
            method, mode, inputs, results = message
            shards = distributed.zigzag(inputs[0].shape[-2], RANKS)
            own = torch.tensor([i for run in shards[rank] for i in run])
            compute = partial(_output, query_shards=shards, method=method)
            calls[method] = make_call(mode, compute, [x[..., own, :] for x in inputs])
            for result, part in zip(results, calls[method](), strict=True):
                result[..., own, :] = part.detach()
        end.send(None)


def _output(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return distributed.grouped_query_attention(query, key, value, causal=True, **options)[0]
