"""Suite of multi-head self-attention with projections, as in a transformer layer."""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnspec.backends import pytorch
from benchmarks import exact
from benchmarks.case import (
    FORWARD,
    OURS,
    PASSES,
    WITH_BACKWARD,
    Call,
    Case,
    Subject,
    compiled,
    forward,
    forward_backward,
    make_call,
)
from benchmarks.suites import keras_layers
from benchmarks.suites.settings import Inputs, Settings

BATCH, HEADS, WIDTH = 4, 8, 512


def heads(x: Tensor, w: Tensor) -> Tensor:
    """Projections (B, heads, n, p) of x (B, n, d) by w (heads, p, d)."""
    return F.linear(x, w.flatten(0, 1)).view(*x.shape[:-1], *w.shape[:2]).transpose(1, 2)


def cases(settings: Settings) -> Iterator[Case]:
    """Cases of n tokens, with and without a causal mask."""
    for n in settings.chosen((64, 256, 1024, 2048), (64,)):
        for name in ("self-attention", "causal self-attention"):
            for mode in (FORWARD, WITH_BACKWARD):
                yield case(settings, n, name, mode)


def case(settings: Settings, n: int, name: str, mode: str) -> Case:
    """Case of one size."""
    draw, causal = Inputs(settings.device), name.startswith("causal")
    x = draw.normal(BATCH, n, WIDTH)
    weights = tuple(draw.normal(HEADS, WIDTH // HEADS, WIDTH, scale=WIDTH**-0.5) for _ in range(3))
    inputs = (x, *weights, draw.normal(WIDTH, WIDTH, scale=WIDTH**-0.5))
    rows = draw.rows(n)

    def ours(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor) -> Tensor:
        return pytorch.multi_head_attention(x, x, x, w_q, w_k, w_v, w_o, causal=causal)

    def eager(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor) -> Tensor:
        query, key, value = (heads(x, w) for w in (w_q, w_k, w_v))
        pooled = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return F.linear(pooled.transpose(1, 2).flatten(-2), w_o)

    def layer() -> Call:
        module = nn.MultiheadAttention(WIDTH, HEADS, bias=False, batch_first=True, device=settings.device).eval()
        with torch.no_grad():
            module.in_proj_weight.copy_(torch.cat([w.flatten(0, 1) for w in inputs[1:4]]))
            module.out_proj.weight.copy_(inputs[4])
        future = nn.Transformer.generate_square_subsequent_mask(n, device=x.device) if causal else None

        def compute(x: Tensor) -> Tensor:
            out: Tensor = module(x, x, x, need_weights=False, attn_mask=future, is_causal=causal)[0]
            return out

        def rearrange(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
            return [*gradients[0].view(3, HEADS, WIDTH // HEADS, WIDTH), gradients[1]]

        if mode == FORWARD:
            return forward(compute, (x,))
        return forward_backward(compute, (x,), (module.in_proj_weight, module.out_proj.weight), rearrange)

    def formula(dtype: torch.dtype) -> Sequence[Tensor]:
        def rows_of(row_indices: Tensor, x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor) -> Tensor:
            query, key, value = heads(x[:, row_indices], w_q), heads(x, w_k), heads(x, w_v)
            scores = (query @ key.mT) * query.shape[-1] ** -0.5
            if causal:
                scores = scores.masked_fill(torch.arange(n, device=x.device) > row_indices[:, None], float("-inf"))
            return F.linear((torch.softmax(scores, -1) @ value).transpose(1, 2).flatten(-2), w_o)

        return exact.expected(rows_of, inputs, rows, batched=1, dtype=dtype, backward=mode == WITH_BACKWARD, chunk=1024)

    work = 8.0 * BATCH * n * WIDTH**2 + 4.0 * BATCH * n * n * WIDTH
    return Case(
        "multihead", name, mode, sizes={"B": BATCH, "heads": HEADS, "n": n, "d": WIDTH}, size=n,
        work=work * PASSES[mode], unit="FLOP", ceiling="matmul",
        subjects=[
            Subject("eager", lambda: make_call(mode, eager, inputs)),
            Subject("torch.compile", lambda: make_call(mode, compiled(eager), inputs), compiles=True),
            Subject("nn.MultiheadAttention", layer),
            keras_layers.multi_head(mode, inputs, causal),
            Subject(OURS, lambda: make_call(mode, ours, inputs)),
        ],
        formula=formula, comparable=lambda results: exact.comparable(results, rows, batched=1), shared=4,
    )  # fmt: skip
