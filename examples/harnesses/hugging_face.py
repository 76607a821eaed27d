"""Rule of Hugging Face's ``kernels benchmark`` for repositories with flash attention."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnspec.conformance import judge, tolerance
from attnspec.conformance.harness.verdict import Verdict
from examples.harnesses.harness import Call, Harness, Source, raise_if_wrong


def inputs(batch: int, rows: int, heads: int, features: int, causal: bool = False) -> Call:
    """Call with normal numbers in float16."""
    torch.manual_seed(42)
    query, key, value = (torch.randn(batch, heads, rows, features, dtype=torch.float16) for _ in range(3))
    return Call(query, key, value, causal)


def reference(call: Call) -> Tensor:
    """PyTorch's MATH kernel in float16."""
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(call.query, call.key, call.value, is_causal=call.causal)


def accepts(output: Tensor, reference: Tensor) -> bool:
    """Return whether every number is within 1e-2 absolute plus PyTorch's default relative tolerance."""
    return torch.allclose(output, reference, atol=1e-2)


def judged(output: Tensor, call: Call, precision: str | None = None) -> Verdict:
    """Return the verdict of ``judge`` on the output."""
    arguments = (call.query, call.key, call.value)
    return judge("scaled_dot_product_attention", output, *arguments, causal=call.causal, precision=precision)


def within(output: Tensor, call: Call, precision: str | None = None) -> bool:
    """Return whether every number is within the error that ``tolerance`` allows."""
    arguments = (call.query, call.key, call.value)
    expected, allowed = tolerance("scaled_dot_product_attention", *arguments, causal=call.causal, precision=precision)
    return bool(((output - expected).abs() <= allowed).all())


def verify_small(benchmark: Any) -> Tensor:
    """Judge ``benchmark.out``; as a method of a `Benchmark`, it makes `kernels benchmark` fail with the verdict."""
    output: Tensor = benchmark.out
    torch.manual_seed(benchmark.seed)
    benchmark.setup_small()  # draws the inputs again, since the kernel may have written to them
    benchmark.out = output
    call = Call(*(x.transpose(1, 2) for x in (benchmark.q, benchmark.k, benchmark.v)))
    raise_if_wrong(judged(output.transpose(1, 2), call))
    return output


HARNESS = Harness(
    "Hugging Face, kernels",
    Source(
        "huggingface/kernels",
        "8ac69fc542a4306eade0759ef7c45b4f2ae57df0",
        ("kernels/src/kernels/cli/benchmark.py", "kernels/src/kernels/benchmarks/attention.py"),
    ),
    "every number within 1e-2 absolute plus 1e-5 relative",
    {
        "float16, 2 × 8 heads, 128 × 128, d = 64": lambda: inputs(2, 128, 8, 64),
        "float16, 1 of 8 × 32 heads, 1,024 × 1,024, d = 128": lambda: inputs(1, 1024, 32, 128),
        "float16, 1 of 8 × 32 heads, 1,024 × 1,024, d = 128, causal": lambda: inputs(1, 1024, 32, 128, causal=True),
    },
    reference,
    accepts,
    judged,
    within,
)
