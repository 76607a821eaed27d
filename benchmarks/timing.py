"""Times: the subjects take turns, round by round, so that whatever else the machine does hits all of them."""

import functools
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST = 4e-3
"""Seconds that one sample takes at least; quick calls are repeated within it."""

FLUSH_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Times:
    """Seconds of one call: of the first, and the median and quartiles of those that were sampled."""

    first: float
    samples: Sequence[float]

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The lower and the upper quartile."""
        if len(self.samples) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return low, high


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    firsts: Mapping[str, float],
    *,
    rounds: int,
    seconds: float,
    device: str = "cpu",
) -> dict[str, Times]:
    """Samples of all calls in turns, until there are ``rounds`` of each, or 3 and ``seconds`` have passed.

    The order is drawn anew in every round, since a call finds the caches as the one before left them. ``firsts`` holds
    how long the first call of each took, compilation and all. A first round only warms up.
    """
    order, rng = list(calls), random.Random(0)
    sample = _on_cuda if device.startswith("cuda") else _on_cpu
    repeats = {name: max(1, round(LEAST / max(sample(call, 1), 1e-7))) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    start = time.monotonic()
    for done in range(rounds):
        if done >= 3 and time.monotonic() - start > seconds:
            break
        rng.shuffle(order)
        for name in order:
            samples[name].append(sample(calls[name], repeats[name]))
    return {name: Times(firsts[name], taken) for name, taken in samples.items()}


def timed(call: Callable[[], object], device: str = "cpu") -> float:
    """Seconds of a single call."""
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _on_cpu(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def _on_cuda(call: Callable[[], object], repeats: int) -> float:
    """The median of calls, each between two events and with the second-level cache emptied before the first."""
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
