"""Suite of one decoding step of additive attention with projected keys, bound by memory reads."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attnspec.backends.pytorch import additive
from benchmarks.case import FORWARD, OURS, Call, Case, Subject, compiled, forward
from benchmarks.suites import flexible, keras_layers
from benchmarks.suites.settings import Inputs, Settings

BATCH, HIDDEN = 64, 512


def cases(settings: Settings) -> Iterator[Case]:
    """Cases with m keys and values of 512 or 64 features."""
    for m in settings.chosen((128, 256, 512, 1024), (64,)):
        for width in (512, 64):
            yield case(settings, m, width)


def case(settings: Settings, m: int, width: int) -> Case:
    """Case of one size."""
    draw = Inputs(settings.device)
    query, keys, value = draw.normal(BATCH, HIDDEN), draw.normal(BATCH, m, HIDDEN), draw.normal(BATCH, m, width)
    w_q, w_v = draw.normal(HIDDEN, HIDDEN, scale=HIDDEN**-0.5), draw.normal(HIDDEN, scale=HIDDEN**-0.5)

    inputs = (query, keys, value, w_q, w_v)

    def attended(query: Tensor, keys: Tensor, value: Tensor, w_q: Tensor, w_v: Tensor) -> Tensor:
        scores = torch.tanh((query @ w_q.mT).unsqueeze(-2) + keys) @ w_v
        return (torch.softmax(scores, -1).unsqueeze(-2) @ value).squeeze(-2)

    def eager(query: Tensor) -> Tensor:
        return attended(query, *inputs[1:])

    def ours() -> Call:
        cache = additive.prepare_keys(keys, w_v, value)
        return forward(lambda query: additive.step(cache, query @ w_q.mT), (query,))

    def formula(dtype: torch.dtype) -> Sequence[Tensor]:
        return (attended(*(x.to(dtype) for x in inputs)),)

    return Case(
        "step", f"decoding step, d_v={width}", FORWARD,
        sizes={"B": BATCH, "m": m, "h": HIDDEN, "d_v": width}, size=m,
        work=4.0 * BATCH * m * (HIDDEN + width), unit="B", ceiling="memory",
        subjects=[
            Subject("eager", lambda: forward(eager, (query,))),
            Subject("torch.compile", lambda: forward(compiled(eager), (query,)), compiles=True),
            Subject(OURS, ours),
            Subject("keras", ours, keras_layers.absent() or "its layers project keys anew in every call"),
            Subject(flexible.NAME, ours, flexible.NO_DOT_PRODUCT),
        ],
        formula=formula, comparable=lambda results: results,
    )  # fmt: skip
