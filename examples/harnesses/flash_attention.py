"""Rule of flash-attention's tests ``test_flash_attn_output`` and ``test_flash_attn_causal``."""

from math import sqrt

import torch
from torch import Tensor

from attnspec.conformance import judge, tolerance
from attnspec.conformance.harness.verdict import Verdict
from examples.harnesses.harness import Call, Harness, Source, attention

ERROR_FACTOR = 2
CAUSAL_TOLERANCE = 1e-5
"""Absolute tolerance that the rule adds for causal calls."""

BOTTOM_RIGHT = {"causal_alignment": "bottom-right"}


def inputs(
    dtype: torch.dtype, rows: int, keys: int, batch: int = 4, heads: int = 6, features: int = 64, causal: bool = False
) -> Call:
    """Return a call with normal numbers; if causal, the last query attends to all keys."""
    torch.manual_seed(0)
    query = torch.randn(batch, heads, rows, features, dtype=dtype)
    key, value = (torch.randn(batch, heads, keys, features, dtype=dtype) for _ in range(2))
    return Call(query, key, value, causal)


def reference(call: Call) -> tuple[Tensor, float]:
    """Return the formula in float32, and the largest error that the rule allows (`HARNESS.rule`)."""
    exact = attention(call.query, call.key, call.value, call.allowed).to(call.query.dtype)
    scores = call.query @ (call.key / sqrt(call.key.shape[-1])).mT
    if call.allowed is not None:
        scores = scores.masked_fill(~call.allowed, -torch.inf)
    error = float((scores.softmax(-1) @ call.value - exact).abs().max())
    return exact, ERROR_FACTOR * error + (CAUSAL_TOLERANCE if call.causal else 0)


def accepts(output: Tensor, reference: tuple[Tensor, float]) -> bool:
    """Return whether the largest error is allowed."""
    exact, allowed = reference
    return float((output - exact).abs().max()) <= allowed


def judged(output: Tensor, call: Call, precision: str | None = None) -> Verdict:
    """Return the verdict of ``judge`` on the output."""
    return judge(
        "scaled_dot_product_attention",
        output,
        *(call.query, call.key, call.value),
        causal=call.causal,
        semantics=BOTTOM_RIGHT,
        precision=precision,
    )


def within(output: Tensor, call: Call, precision: str | None = None) -> bool:
    """Return whether every number is within the error that ``tolerance`` allows."""
    arguments = (call.query, call.key, call.value)
    expected, allowed = tolerance(
        "scaled_dot_product_attention", *arguments, causal=call.causal, semantics=BOTTOM_RIGHT, precision=precision
    )
    return bool(((output - expected).abs() <= allowed).all())


HARNESS = Harness(
    "flash-attention, tests",
    Source("Dao-AILab/flash-attention", "0251105a2fb19d2957484b7f023cd8c115286ced", ("tests/test_flash_attn.py",)),
    "the largest error at most twice that of the formula in the half dtype, plus 1e-5 where it is causal",
    {
        "float16, 4 × 6 heads, 1,024 × 1,024, d = 64": lambda: inputs(torch.float16, 1024, 1024),
        "bfloat16, 1 of 4 × 6 heads, 2,048 × 2,048, d = 128": lambda: inputs(
            torch.bfloat16, 2048, 2048, batch=1, features=128
        ),
        "bfloat16, 1 of 8 × 9 heads, 1,023 × 1,024, d = 128, causal": lambda: inputs(
            torch.bfloat16, 1023, 1024, batch=1, heads=9, features=128, causal=True
        ),
    },
    reference,
    accepts,
    judged,
    within,
)
