"""What the machine can do at the most, measured in the same run: rates of tanh, of memory and of matrix products."""

from collections.abc import Callable

import torch

from benchmarks.timing import interleaved, timed

RATES = {"tanh": "tanh/s", "memory": "B/s", "matmul": "FLOP/s"}
"""The rates, with their units."""


def measured(device: str, *, rounds: int = 9, quick: bool = False) -> dict[str, float]:
    """The rates, with as many threads as PyTorch is set to use."""
    threads = torch.get_num_threads() if device == "cpu" else 4096
    cached = torch.randn(2**15 * threads, device=device)  # in the caches of the cores, a chunk for each thread
    result = torch.empty_like(cached)
    large = torch.ones((2**24 if quick else 2**26), device=device)
    side = 512 if quick else 1024 if device == "cpu" else 8192
    left, right = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    product = torch.empty_like(left)
    calls: dict[str, Callable[[], object]] = {
        "tanh": lambda: torch.tanh(cached, out=result),
        "memory": lambda: large.sum(),
        "matmul": lambda: torch.mm(left, right, out=product),
    }
    work = {"tanh": cached.numel(), "memory": large.numel() * large.element_size(), "matmul": 2 * side**3}
    firsts = {name: timed(call, device) for name, call in calls.items()}
    times = interleaved(calls, firsts, rounds=rounds, seconds=10, device=device)
    return {name: work[name] / t.median for name, t in times.items()}
