"""Rule of BackendBench for scaled dot-product attention in its suite of PyTorch's OpInfo samples."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import make_tensor

from attnspec.conformance import judge, tolerance
from attnspec.conformance.harness.verdict import Verdict
from examples.harnesses.harness import Call, Harness, Source, raise_if_wrong

TOLERANCE = 1e-2


def inputs(batch: int = 4, heads: int = 4, rows: int = 3, keys: int = 6, features: int = 8) -> Call:
    """Call with uniform numbers in [-9, 9) in bfloat16."""
    torch.manual_seed(0)
    query = make_tensor(batch, heads, rows, features, dtype=torch.bfloat16, device="cpu")
    key, value = (make_tensor(batch, heads, keys, features, dtype=torch.bfloat16, device="cpu") for _ in range(2))
    return Call(query, key, value)


def reference(call: Call) -> Tensor:
    """PyTorch's attention in bfloat16."""
    return scaled_dot_product_attention(call.query, call.key, call.value)


def accepts(output: Tensor, reference: Tensor) -> bool:
    """Return whether every number is within the tolerance, and NaN only where the reference is."""
    try:
        torch.testing.assert_close(reference, output, equal_nan=True, atol=TOLERANCE, rtol=TOLERANCE)
    except AssertionError:
        return False
    return True


def judged(output: Tensor, call: Call, precision: str | None = None) -> Verdict:
    """Return the verdict of ``judge`` on the output."""
    return judge("scaled_dot_product_attention", output, call.query, call.key, call.value, precision=precision)


def within(output: Tensor, call: Call, precision: str | None = None) -> bool:
    """Return whether every number is within the error that ``tolerance`` allows."""
    arguments = (call.query, call.key, call.value)
    expected, allowed = tolerance("scaled_dot_product_attention", *arguments, precision=precision)
    return bool(((output - expected).abs() <= allowed).all())


def judged_operator(implementation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap an operator of a backend so that it raises the verdict; `eval_correctness` then counts it as wrong."""

    @wraps(implementation)
    def operator(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
        copies = [x.clone() for x in (query, key, value)]
        output = implementation(query, key, value, attn_mask, **options)
        if options.get("dropout_p") or options.get("enable_gqa") or options.get("scale") is not None:
            return output  # not judged: the suite draws neither groups nor scales, and dropout is random
        if attn_mask is not None and attn_mask.is_floating_point():
            raise_if_wrong(
                judge("grouped_query_attention", (output, None), *copies, bias=attn_mask.expand(*output.shape[:-1], -1))
            )
        else:
            causal = options.get("is_causal", False)
            raise_if_wrong(judge("scaled_dot_product_attention", output, *copies, mask=attn_mask, causal=causal))
        return output

    return operator


HARNESS = Harness(
    "BackendBench",
    Source(
        "meta-pytorch/BackendBench",
        "66e0dbc05a683e537830c246ea83255ff227676f",
        ("BackendBench/eval.py", "BackendBench/suite/opinfo.py", "BackendBench/scripts/main.py"),
    ),
    "every number within 1e-2 absolute plus 1e-2 relative",
    {"bfloat16, 4 × 4 heads, 3 × 6, d = 8": inputs},
    reference,
    accepts,
    judged,
    within,
)
