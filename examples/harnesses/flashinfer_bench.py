"""Rule of FlashInfer-Bench for a decoding step of Llama 3.1 8B."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attnspec.conformance import judge, tolerance
from attnspec.conformance.harness.verdict import Verdict
from examples.harnesses.harness import Call, Harness, Source, attention

TOLERANCE = 1e-2


def inputs(batch: int, keys: int, heads: int = 32, heads_k: int = 8, features: int = 128) -> Call:
    """Call with normal numbers in bfloat16; the pages of each sequence are in order."""
    torch.manual_seed(0)
    query = torch.randn(batch, heads, 1, features, dtype=torch.bfloat16)
    key, value = (torch.randn(batch, heads_k, keys, features, dtype=torch.bfloat16) for _ in range(2))
    return Call(query, key, value)


def reference(call: Call) -> Tensor:
    """Formula in float32, rounded to bfloat16."""
    return attention(call.query, call.key, call.value).to(call.query.dtype)


def accepts(output: Tensor, reference: Tensor) -> bool:
    """Return whether all numbers are finite, and none exceeds both tolerances, absolute and relative."""
    if not output.isfinite().all():
        return False
    error = (output.float() - reference.float()).abs()
    relative = error / (reference.float().abs() + 1e-8)
    return not bool(((error > TOLERANCE) & (relative > TOLERANCE)).any())


def judged(output: Tensor, call: Call, precision: str | None = None) -> Verdict:
    """Return the verdict of ``judge``, for which the heads of a group become rows."""
    groups = (call.key.shape[1], -1)
    query, rows = (torch.unflatten(x.squeeze(2), 1, groups) for x in (call.query, output))
    return judge("scaled_dot_product_attention", rows, query, call.key, call.value, precision=precision)


def within(output: Tensor, call: Call, precision: str | None = None) -> bool:
    """Return whether every number is within the error that ``tolerance`` allows."""
    query = torch.unflatten(call.query.squeeze(2), 1, (call.key.shape[1], -1))
    expected, allowed = tolerance("scaled_dot_product_attention", query, call.key, call.value, precision=precision)
    return bool(((output.view_as(expected) - expected).abs() <= allowed).all())


def judged_runnable(runnable: Any) -> Any:
    """Wrap a solution of paged decoding so that wrong outputs become NaN, which the evaluators reject."""

    def run(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, pages: Tensor, scale: float, *outputs: Tensor) -> Any:
        query, key_pages, value_pages = q[:, :, None].clone(), k.transpose(1, 2).clone(), v.transpose(1, 2).clone()
        lengths = starts.diff()
        table = pad_sequence([*torch.split(pages, lengths.tolist())], batch_first=True)
        results = runnable(q, k, v, starts, pages, scale, *outputs)
        output = (outputs or results)[0]
        cache = (key_pages, value_pages, table, lengths)
        verdict = judge("paged_attention", (output[:, :, None], None), query, *cache, scale=scale)
        if not verdict:
            print(verdict)
            output.fill_(torch.nan)
        return results

    run.metadata = runnable.metadata  # type: ignore[attr-defined]
    return run


class Judged:
    """Mixin for an evaluator: ``class JudgedEvaluator(Judged, DefaultEvaluator)``."""

    @classmethod
    def check_correctness(cls, *, sol_runnable: Any, **others: Any) -> Any:
        """Check the correctness of the wrapped solution."""
        return super().check_correctness(sol_runnable=judged_runnable(sol_runnable), **others)  # type: ignore[misc]


HARNESS = Harness(
    "FlashInfer-Bench",
    Source(
        "flashinfer-ai/flashinfer-bench",
        "ecafa9c2c62007667838226068b21ca9ff1c9183",
        (
            "flashinfer_bench/bench/utils.py",
            "flashinfer_bench/bench/config.py",
            "flashinfer_bench/bench/evaluators/default.py",
            "flashinfer_trace/definitions/gqa_paged/gqa_paged_decode_h32_kv8_d128_ps1.json",
            "flashinfer_trace/workloads/gqa_paged/gqa_paged_decode_h32_kv8_d128_ps1.jsonl",
        ),
    ),
    "no number that is off by more than 1e-2 both absolutely and relatively, and all finite",
    {
        "bfloat16, 1 sequence of 547 keys, d = 128": lambda: inputs(1, 547),
        "bfloat16, 2 of 16 sequences of 1,307 keys, d = 128": lambda: inputs(2, 1307),
    },
    reference,
    accepts,
    judged,
    within,
)
