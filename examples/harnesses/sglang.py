"""Rule of sglang's test kit for attention backends, after the projection of the output."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from attnspec.conformance import judge, tolerance
from attnspec.conformance.harness.verdict import Verdict
from examples.harnesses.harness import Call, Harness, Source, attention, raise_if_wrong

TOLERANCE = 3e-2
BOTTOM_RIGHT = {"causal_alignment": "bottom-right"}


def weights(outputs: int, features: int) -> Tensor:
    """Weights of PyTorch's linear layer, in float16."""
    return torch.nn.Linear(features, outputs, bias=False).weight.detach().half()


def inputs(rows: int, prefix: int, heads: int = 4, heads_k: int = 4, features: int = 16, hidden: int = 64) -> Call:
    """Causal call with projections of normal hidden states in float16, for one request."""
    torch.manual_seed(2026)
    states = torch.randn(1, prefix + rows, hidden).half()
    query, key, value = (
        torch.unflatten(linear(states, weights(h * features, hidden)), -1, (h, features)).transpose(1, 2)
        for h in (heads, heads_k, heads_k)
    )
    return Call(query[:, :, prefix:], key, value, causal=True)


def projected(output: Tensor, w_o: Tensor) -> Tensor:
    """Projection of the concatenated heads, (batch, n, hidden)."""
    return linear(output.transpose(1, 2).flatten(-2), w_o)


def reference(call: Call) -> tuple[Tensor, Tensor]:
    """Return the projection of the formula in float32, rounded, and the weights of the projection."""
    w_o = weights(64, call.query.shape[1] * call.value.shape[-1])
    return projected(attention(call.query, call.key, call.value, call.allowed).to(call.query.dtype), w_o), w_o


def accepts(output: Tensor, reference: tuple[Tensor, Tensor]) -> bool:
    """Return whether every projected number is within the tolerance, absolute plus relative."""
    expected, w_o = reference
    return torch.allclose(projected(output, w_o), expected, atol=TOLERANCE, rtol=TOLERANCE)


def judged(output: Tensor, call: Call, precision: str | None = None) -> Verdict:
    """Return the verdict of ``judge`` on the output, which is not projected."""
    arguments = (call.query, call.key, call.value)
    return judge(
        "grouped_query_attention",
        (output, None),
        *arguments,
        causal=call.causal,
        semantics=BOTTOM_RIGHT,
        precision=precision,
    )


def within(output: Tensor, call: Call, precision: str | None = None) -> bool:
    """Return whether every number is within the error that ``tolerance`` allows."""
    arguments = (call.query, call.key, call.value)
    of_results = tolerance(
        "grouped_query_attention", *arguments, causal=call.causal, semantics=BOTTOM_RIGHT, precision=precision
    )
    (expected, _), (allowed, _) = of_results
    return bool(((output - expected).abs() <= allowed).all())


def judge_requests(fixture: Any) -> Any:
    """Make a kit's fixture raise the verdict on a request whose attention is wrong; return the hook's handle."""
    attn = fixture.actual_module.attn
    passed: list[Any] = []

    def copy(attn: Any, arguments: Any) -> None:
        passed[:] = [x.clone() for x in arguments[:3]]  # a kernel may write to them

    def judge_each(attn: Any, arguments: Any, output: Tensor) -> None:
        parts = [x.view(len(x), -1, attn.head_dim).split(fixture.case.input_lens) for x in (*passed, output)]
        for prefix, query, key, value, rows in zip(fixture.prefix_hidden, *parts, strict=True):
            _, *cached = fixture.reference_module.project_qkv(prefix)
            key, value = (torch.cat((x.view(-1, *y.shape[1:]), y)) for x, y in zip(cached, (key, value), strict=True))
            query, key, value, rows = (x.transpose(0, 1)[None] for x in (query, key, value, rows))
            raise_if_wrong(judged(rows, Call(query, key, value, causal=True)))

    attn.register_forward_pre_hook(copy)
    return attn.register_forward_hook(judge_each)


HARNESS = Harness(
    "sglang, test kit",
    Source(
        "sgl-project/sglang",
        "0178dc983c588a4b3adb9889a8d47adcd365580f",
        ("python/sglang/test/kits/attention_unittest/attention_methods/dense_attention.py",),
    ),
    "every number within 3e-2 absolute plus 3e-2 relative, after the projection of the output",
    {
        "float16, 4 heads, 16 × 16, d = 16, causal": lambda: inputs(16, 0),
        "float16, 4 heads, 8 × 16 and one head of keys, d = 16, causal": lambda: inputs(8, 8, heads_k=1),
        "float16, 4 heads, 1 × 8, d = 16": lambda: inputs(1, 7),
    },
    reference,
    accepts,
    judged,
    within,
)
