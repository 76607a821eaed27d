"""Rule of GPU MODE's reference kernels for a decoding step of latent attention."""

from typing import Any

import torch
from torch import Tensor

from attnspec.conformance import judge, tolerance
from attnspec.conformance.harness.verdict import Verdict
from examples.harnesses.harness import Call, Harness, Source, attention

TOLERANCE = 0.1
MISSES = 0.05
"""Share of the numbers that may exceed the tolerance."""


def inputs(batch: int, keys: int, heads: int = 16, features: int = 576, values: int = 512) -> Call:
    """Call with normal numbers in bfloat16; the values are the first features of the keys."""
    torch.manual_seed(4220)
    query = torch.randn(batch, heads, 1, features, dtype=torch.bfloat16)
    key = torch.randn(batch, 1, keys, features, dtype=torch.bfloat16)
    return Call(query, key, key[..., :values])


def quantized(x: Tensor) -> Tensor:
    """Round to float8 e4m3, scaled so that the largest number is the format's largest."""
    largest = torch.finfo(torch.float8_e4m3fn).max
    scale = x.abs().max().clamp(min=1e-12) / largest
    return (x / scale).clamp(-largest, largest).to(torch.float8_e4m3fn).float() * scale.float()


def reference(call: Call) -> Tensor:
    """Attention of queries and keys in 8 bits, with nothing else rounded before the output."""
    key = quantized(call.key)
    return attention(quantized(call.query), key, key[..., : call.value.shape[-1]]).to(call.query.dtype)


def accepts(output: Tensor, reference: Tensor) -> bool:
    """Return whether at most ``MISSES`` of the numbers exceed the tolerance."""
    close = torch.isclose(output, reference, rtol=TOLERANCE, atol=TOLERANCE)
    return float((~close).sum() / close.numel()) <= MISSES


def judged(output: Tensor, call: Call, precision: str | None = None) -> Verdict:
    """Return the verdict of ``judge``. All heads share one array of keys, so they are passed as rows of queries."""
    query, rows = call.query.squeeze(2), output.squeeze(2)
    key, value = call.key.squeeze(1), call.value.squeeze(1)
    return judge("scaled_dot_product_attention", rows, query, key, value, precision=precision)


def within(output: Tensor, call: Call, precision: str | None = None) -> bool:
    """Return whether every number is within the error that ``tolerance`` allows."""
    query, key, value = call.query.squeeze(2), call.key.squeeze(1), call.value.squeeze(1)
    expected, allowed = tolerance("scaled_dot_product_attention", query, key, value, precision=precision)
    return bool(((output.squeeze(2) - expected).abs() <= allowed).all())


def check_implementation(data: Any, output: Tensor) -> tuple[bool, str]:
    """Function of this name in the problem's ``reference.py``: a verdict, and its text."""
    query, caches, _, _, config = data
    batch, values = config["batch_size"], config["v_head_dim"]
    query, output = (x.view(batch, -1, *x.shape[1:]).transpose(1, 2) for x in (query, output))
    key = caches["bf16"].view(batch, -1, *caches["bf16"].shape[1:]).transpose(1, 2)
    verdict = judged(output, Call(query, key, key[..., :values]))
    return bool(verdict), str(verdict)


def generate_test_case(*, seed: int, **sizes: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, float, float]]:
    """Inputs and expected output for pygpubench, which takes one absolute tolerance for all numbers.

    Each seed checks the numbers whose tolerance is in one interval [2ᵏ, 2ᵏ⁺¹). The other expected numbers are NaN,
    where pygpubench accepts anything. Arrays are on PyTorch's default device, which must be a GPU.
    """
    torch.manual_seed(seed)
    query, key = torch.randn(sizes["heads"], sizes["features"]), torch.randn(sizes["keys"], sizes["features"])
    arguments = [x.bfloat16() for x in (query, key, key)]
    exact, allowed = tolerance("scaled_dot_product_attention", *arguments)
    expected = exact.bfloat16()
    allowed = allowed + (expected - exact).abs()  # pygpubench compares with the rounded output
    intervals = allowed.log2().floor()
    levels = intervals.unique()
    checked = intervals == levels[seed % len(levels)]
    expected = expected.masked_fill(~checked, torch.nan)
    return (torch.empty_like(expected), *arguments), (expected, 0.0, float(allowed[checked].max()))


HARNESS = Harness(
    "GPU MODE, reference-kernels",
    Source(
        "gpu-mode/reference-kernels",
        "f83cb92a534cc67fa98d7e9813e7f8238abdb4e0",
        (
            "problems/amd_202602/utils.py",
            "problems/amd_202602/mixed-mla/reference.py",
            "problems/amd_202602/mixed-mla/task.yml",
        ),
    ),
    "at least 95 % of the numbers within 0.1 absolute plus 0.1 relative",
    # The second is a part of a setting of the task with 64 sequences.
    {
        "bfloat16, 4 sequences of 1,024 keys, d = 576": lambda: inputs(4, 1024),
        "bfloat16, 4 of 64 sequences of 8,192 keys, d = 576": lambda: inputs(4, 8192),
    },
    reference,
    accepts,
    judged,
    within,
)
