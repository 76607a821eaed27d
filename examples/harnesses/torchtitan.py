"""Rule of torchtitan's parity test of attention with sinks, without the sinks."""

import torch
from torch import Tensor

from attnspec.conformance import judge, tolerance
from attnspec.conformance.harness.verdict import Verdict
from examples.harnesses.harness import Call, Harness, Source

TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
"""Absolute and relative tolerance by dtype."""


def inputs(dtype: torch.dtype, rows: int = 122, heads: int = 4, heads_k: int = 2, features: int = 64) -> Call:
    """Call with normal numbers, for one document; causal."""
    torch.manual_seed(42)
    query = torch.randn(1, heads, rows, features, dtype=dtype)
    key, value = (torch.randn(1, heads_k, rows, features, dtype=dtype) for _ in range(2))
    return Call(query, key, value, causal=True)


def reference(call: Call) -> Tensor:
    """Formula in float64."""
    groups = call.query.shape[1] // call.key.shape[1]
    key, value = (x.double().repeat_interleave(groups, 1) for x in (call.key, call.value))
    scores = call.query.double() @ key.mT / call.query.shape[-1] ** 0.5
    scores = scores if call.allowed is None else scores.masked_fill(~call.allowed, -torch.inf)
    output: Tensor = scores.softmax(-1) @ value
    return output


def accepts(output: Tensor, reference: Tensor) -> bool:
    """Return whether every number is within the dtype's tolerance, absolute plus relative."""
    tolerance = TOLERANCES[output.dtype]
    return torch.allclose(output.double(), reference, atol=tolerance, rtol=tolerance)


def judged(output: Tensor, call: Call, precision: str | None = None) -> Verdict:
    """Return the verdict of ``judge`` on the output."""
    arguments = (call.query, call.key, call.value)
    return judge("grouped_query_attention", (output, None), *arguments, causal=call.causal, precision=precision)


def within(output: Tensor, call: Call, precision: str | None = None) -> bool:
    """Return whether every number is within the error that ``tolerance`` allows."""
    arguments = (call.query, call.key, call.value)
    of_results = tolerance("grouped_query_attention", *arguments, causal=call.causal, precision=precision)
    (expected, _), (allowed, _) = of_results
    return bool(((output - expected).abs() <= allowed).all())


HARNESS = Harness(
    "torchtitan, tests",
    Source(
        "pytorch/torchtitan",
        "950332f9744e9b11a9db10bcb29fd97fcc4343fc",
        ("tests/unit_tests/gpu/test_gpt_oss_attention.py",),
    ),
    "every number within 2e-2 absolute plus 2e-2 relative in bfloat16, 2e-5 and 2e-5 in float32",
    {
        "bfloat16, 4 heads, 122 × 122, d = 64, causal": lambda: inputs(torch.bfloat16),
        "float32, 4 heads, 122 × 122, d = 64, causal": lambda: inputs(torch.float32),
    },
    reference,
    accepts,
    judged,
    within,
)
