"""What the machine can do at the most, measured in the same run: rates of tanh, of memory and of matrix products."""

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

from benchmarks.results import significant
from benchmarks.timing import interleaved, timed

RATES = {"tanh": "tanh/s", "memory": "B/s", "matmul": "FLOP/s"}
"""The rates, with their units."""

LIMITS = {
    "additive": "the rate of PyTorch's tanh, one for each term and two with backward; what gets by without it exceeds "
    "100%, as attnspec does with exponentials of queries and keys alone.",
    "step": "the rate at which PyTorch's sum reads 256 MiB (1 GiB on CUDA); another kernel can read faster than that "
    "sum, and what the caches keep between calls need not be read again, so that more than 100% is possible.",
    "sdpa": "the rate of one large matrix product, for every pair of query and key; masked pairs count as work, so "
    "that who skips them exceeds 100%, and who multiplies faster than that product does so a little.",
    "multihead": "the rate of one large matrix product, for every pair of query and key; pairs that a causal mask "
    "excludes count as work, so that who skips them can exceed 100%.",
    "scorers": "the rate of one large matrix product; products of other shapes can be faster than that one, and so "
    "exceed 100%.",
}
"""What `of ceiling` is a part of in each suite, and why more than all of it is possible."""

CHAIN = 16
"""How often tanh is applied to a number between reading and writing it, where caches are slower than tanh."""


def chained(x: Tensor) -> Tensor:
    """tanh of tanh of …"""
    for _ in range(CHAIN):
        x = torch.tanh(x)
    return x


def tanh_call(cached: Tensor, *, chain: bool) -> tuple[Callable[[], object], int]:
    """A call, and how many times it computes tanh.

    On the CPU that is PyTorch's on numbers in the caches. A GPU computes tanh faster than it reads, so that there a
    chain of them is compiled into one kernel.
    """
    if chain:
        function = torch.compile(chained, dynamic=False)
        return lambda: function(cached), CHAIN * cached.numel()
    result = torch.empty_like(cached)
    return lambda: torch.tanh(cached, out=result), cached.numel()


def measured(device: str, *, rounds: int = 9, quick: bool = False) -> dict[str, float]:
    """The rates, with as many threads as PyTorch is set to use."""
    cuda = device.startswith("cuda")
    # 128 KiB for each thread, which its core's cache holds with the result
    cached = torch.randn(2**22 if cuda else 2**15 * torch.get_num_threads(), device=device)
    large = torch.ones(2**28 if cuda else 2**24 if quick else 2**26, device=device)
    side = 8192 if cuda else 512 if quick else 1024
    left, right = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    product = torch.empty_like(left)
    tanh, times_tanh = tanh_call(cached, chain=cuda and find_spec("triton") is not None)
    calls: dict[str, Callable[[], object]] = {
        "tanh": tanh,
        "memory": lambda: large.sum(),
        "matmul": lambda: torch.mm(left, right, out=product),
    }
    work = {"tanh": times_tanh, "memory": large.numel() * large.element_size(), "matmul": 2 * side**3}
    with torch.no_grad():
        firsts = {name: timed(call, device) for name, call in calls.items()}
        times = interleaved(calls, firsts, rounds=rounds, seconds=10, device=device)
    return {name: significant(work[name] / t.median) for name, t in times.items()}
