"""Ceilings of the machine, measured in each run: rates of arithmetic, memory and matrix products."""

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

from benchmarks import multiply_adds
from benchmarks.results import significant
from benchmarks.timing import interleaved, time_once

RATES = {"multiply-adds": "FMA/s", "tanh": "tanh/s", "memory": "B/s", "matmul": "FLOP/s"}
"""Rates and their units. Fused multiply-adds are counted per lane, and only on a CPU."""

CEILING_NOTES = {
    "additive": "the rate of fused multiply-adds. A term takes at least 8/3 of them if its tanh is made of "
    "exponentials of query and key and three units share a division, and one more for its share of the sum of values; "
    "backward takes as many again, so that no kernel can exceed 100%. On a GPU it is the rate of tanh, which a subject "
    "that avoids tanh exceeds.",
    "step": "the rate at which PyTorch's sum reads 256 MiB (1 GiB on CUDA); a kernel that reads faster than that sum, "
    "or finds part of its inputs in the caches, exceeds 100%.",
    "sdpa": "the rate of one large matrix product, for every pair of query and key; masked pairs count as work, so "
    "that a subject that skips them exceeds 100%; faster products than that one do so by a little.",
    "groups": "the rate of one large matrix product, where pairs that are excluded count as work; in steps the rate at "
    "which PyTorch's sum reads 256 MiB (1 GiB on CUDA), for keys and values of 160 MiB.",
    "sharded": "the rate of one large matrix product, where pairs that are excluded count as work.",
    "multihead": "the rate of one large matrix product, for every pair of query and key; pairs that a causal mask "
    "excludes count as work, so that a subject that skips them can exceed 100%.",
    "layers": "the rate of one large matrix product; products of other shapes can be faster, and so exceed 100%.",
    **dict.fromkeys(
        ("recurrent", "decoders", "vision"),
        "the rate of one large matrix product, which small products and other operations do not reach.",
    ),
    "never_slower": "the rate of fused multiply-adds for additive attention, as in its own suite, and that of one "
    "large matrix product for scaled dot products. Promised is 0.95 times the speed of the best rival if that takes "
    "100 µs or more; otherwise at most 20 µs more than the rival, 30 µs for additive attention.",
    "scorers": "the rate of one large matrix product; products of other shapes can be faster, and so exceed 100%.",
    "language_models": "the rate at which PyTorch's sum reads 256 MiB (1 GiB on CUDA), for inputs that are read once; "
    "inputs in the caches exceed 100%.",
}
"""Ceiling of each suite, and reasons for exceeding 100% of it."""

CHAIN_LENGTH = 16
"""Applications of tanh per number on a GPU, which reads and writes numbers more slowly than it computes tanh."""


def tanh_chain(x: Tensor) -> Tensor:
    """Apply tanh ``CHAIN_LENGTH`` times."""
    for _ in range(CHAIN_LENGTH):
        x = torch.tanh(x)
    return x


def tanh_call(cached: Tensor, *, chain: bool) -> tuple[Callable[[], object], int]:
    """Return a call that computes tanh of cached numbers, and how many it computes.

    A GPU computes tanh faster than it reads numbers, so ``chain`` compiles `CHAIN_LENGTH` of them into one kernel.
    """
    if chain:
        function = torch.compile(tanh_chain, dynamic=False)
        return lambda: function(cached), CHAIN_LENGTH * cached.numel()
    result = torch.empty_like(cached)
    return lambda: torch.tanh(cached, out=result), cached.numel()


def measure(device: str, *, rounds: int = 9, quick: bool = False) -> dict[str, float]:
    """Measure the rates in units per second, with PyTorch's current number of threads."""
    cuda = device.startswith("cuda")
    # 128 KiB per thread: with the result, they fit into a core's second-level cache
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
    if not cuda and multiply_adds.available():
        calls["multiply-adds"], work["multiply-adds"] = multiply_adds.call(64 * torch.get_num_threads())
    with torch.no_grad():
        first_calls = {name: time_once(call, device) for name, call in calls.items()}
        times = interleaved(calls, first_calls, rounds=rounds, seconds=10, device=device)
    return {name: significant(work[name] / t.median) for name, t in times.items()}
