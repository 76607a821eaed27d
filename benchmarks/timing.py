"""Timing in interleaved rounds, so that other load on the machine affects all subjects alike."""

import functools
import random
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MIN_SAMPLE_SECONDS = 4e-3
"""Smallest duration of a sample; short calls are repeated within it."""

FLUSH_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Times:
    """Seconds of the first call, and seconds per call in each sample."""

    first: float
    samples: Sequence[float]

    @property
    def median(self) -> float:
        """Median of the samples."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Lower and upper quartile of the samples."""
        if len(self.samples) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return low, high


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    first_calls: Mapping[str, float],
    *,
    rounds: int,
    seconds: float,
    device: str = "cpu",
    alone: Collection[str] = (),
) -> dict[str, Times]:
    """Sample every call once a round, until ``rounds`` or, after 3, ``seconds`` are over.

    Calls named in ``alone`` run with one thread. The order is shuffled in every round, since each call affects the
    caches of the next. ``first_calls`` are the seconds of each first call, compilation included. Before the first
    round every call runs once, to choose how often a sample repeats it.
    """
    order, rng, threads = list(calls), random.Random(0), torch.get_num_threads()
    take = _on_cuda if device.startswith("cuda") else _on_cpu

    def sample(name: str, repeats: int) -> float:
        if name not in alone:
            return take(calls[name], repeats)
        torch.set_num_threads(1)
        try:
            return take(calls[name], repeats)
        finally:
            torch.set_num_threads(threads)

    repeats = {name: max(1, round(MIN_SAMPLE_SECONDS / max(sample(name, 1), 1e-7))) for name in calls}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    start = time.monotonic()
    for finished_rounds in range(rounds):
        if finished_rounds >= 3 and time.monotonic() - start > seconds:
            break
        rng.shuffle(order)
        for name in order:
            samples[name].append(sample(name, repeats[name]))
    return {name: Times(first_calls[name], seconds_per_call) for name, seconds_per_call in samples.items()}


def time_once(call: Callable[[], object], device: str = "cpu") -> float:
    """Return the seconds of a single call."""
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _on_cpu(call: Callable[[], object], repeats: int) -> float:
    """Median seconds over calls, which is robust against interruptions of milliseconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _on_cuda(call: Callable[[], object], repeats: int) -> float:
    """Median seconds over calls, each timed between two events after flushing the second-level cache."""
    spans = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]  # type: ignore[no-untyped-call]
    for begin, end in spans:
        _flush().zero_()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(float(begin.elapsed_time(end)) / 1e3 for begin, end in spans)


@functools.cache
def _flush() -> Tensor:
    return torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
