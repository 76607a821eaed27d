"""Rule of KernelBench for problem 97 of level 1, scaled dot-product attention."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnspec.conformance import judge, tolerance
from attnspec.conformance.harness.verdict import Verdict
from examples.harnesses.harness import Call, Harness, Source, raise_if_wrong

TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}
"""Absolute and relative tolerance of every number, by dtype."""


def inputs(dtype: torch.dtype, batch: int = 32, heads: int = 32, rows: int = 512, features: int = 1024) -> Call:
    """Return a call with uniform numbers in [0, 1), as KernelBench draws them; its own trials use other seeds."""
    torch.manual_seed(42)
    query, key, value = (torch.rand(batch, heads, rows, features).to(dtype) for _ in range(3))
    return Call(query, key, value)


def reference(call: Call) -> Tensor:
    """PyTorch's attention in the dtype of the inputs."""
    return scaled_dot_product_attention(call.query, call.key, call.value)


def accepts(output: Tensor, reference: Tensor) -> bool:
    """Return whether every number is within the tolerance, which is relative to ``output``."""
    tolerance = TOLERANCES[reference.dtype]
    return torch.allclose(reference, output, rtol=tolerance, atol=tolerance)


def judged(output: Tensor, call: Call, precision: str | None = None) -> Verdict:
    """Return the verdict of ``judge`` on the output."""
    return judge("scaled_dot_product_attention", output, call.query, call.key, call.value, precision=precision)


def within(output: Tensor, call: Call, precision: str | None = None) -> bool:
    """Return whether every number is within the error that ``tolerance`` allows."""
    arguments = (call.query, call.key, call.value)
    expected, allowed = tolerance("scaled_dot_product_attention", *arguments, precision=precision)
    return bool(((output - expected).abs() <= allowed).all())


class Judged(torch.nn.Module):
    """A ``ModelNew`` that raises the verdict on a wrong output, which `run_and_check_correctness` reports."""

    def __init__(self, model_new: torch.nn.Module) -> None:
        super().__init__()
        self.model_new = model_new

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Judge by copies of the inputs, since a kernel may write to them."""
        call = Call(query.clone(), key.clone(), value.clone())
        output: Tensor = self.model_new(query, key, value)
        raise_if_wrong(judged(output, call))
        return output


HARNESS = Harness(
    "KernelBench",
    Source(
        "ScalingIntelligence/KernelBench",
        "423217d9fda91e0c2d67e4a43bf62f96f6d104f1",
        ("src/kernelbench/eval.py", "KernelBench/level1/97_ScaledDotProductAttention.py"),
    ),
    "every number within 1e-4 absolute plus 1e-4 relative in float32, 1e-2 and 1e-2 in float16 and bfloat16",
    # The problem has 32 batch elements and 32 heads; these are parts of it.
    {
        "float16, 1 of 32 × 8 of 32 heads, 512 × 512, d = 1,024": lambda: inputs(torch.float16, 1, 8),
        "float32, 1 of 32 × 8 of 32 heads, 512 × 512, d = 1,024": lambda: inputs(torch.float32, 1, 8),
    },
    reference,
    accepts,
    judged,
    within,
)
