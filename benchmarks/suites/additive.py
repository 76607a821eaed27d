"""Suite of additive attention, end to end: projections, scores, softmax, weighted sum of values."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attnspec.backends import pytorch
from benchmarks import exact, multiply_adds
from benchmarks.case import FORWARD, OURS, WITH_BACKWARD, Case, Subject, compiled, make_call
from benchmarks.suites import flexible, keras_layers
from benchmarks.suites.settings import Inputs, Settings

BATCH, HIDDEN, FEATURES = 4, 64, 64
MAX_INTERMEDIATE_BYTES = 6 * 2**30
"""Largest size of the (B, n, m, h) intermediates with which eager attention is measured."""


def eager(query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    """softmax(w_vᵀ tanh(W_q q + W_k k)) v, computed as written."""
    hidden = torch.tanh((query @ w_q.mT).unsqueeze(-2) + (key @ w_k.mT).unsqueeze(-3))
    return torch.softmax(hidden @ w_v, -1) @ value


def ours(query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    """Additive attention of the backend."""
    return pytorch.additive_attention(query, key, value, w_q, w_k, w_v)


def cases(settings: Settings) -> Iterator[Case]:
    """Cases with n = m, forward and with backward."""
    for n in settings.chosen((128, 256, 512, 1024, 2048, 4096), (64,)):
        for mode in (FORWARD, WITH_BACKWARD):
            yield case(settings, n, mode)


def case(settings: Settings, n: int, mode: str) -> Case:
    """Case of one size."""
    draw = Inputs(settings.device)
    query, key, value = (draw.normal(BATCH, n, FEATURES) for _ in range(3))
    w_q, w_k = (draw.normal(HIDDEN, FEATURES, scale=FEATURES**-0.5) for _ in range(2))
    inputs = (query, key, value, w_q, w_k, draw.normal(HIDDEN))
    rows = draw.rows(n)
    # bytes of the sums and their tanh; with backward also of the gradients of both
    needed = BATCH * n * n * HIDDEN * 4 * (2 if mode == FORWARD else 4)
    too_large = f"its intermediates would take {needed / 2**30:.0f} GiB" if needed > MAX_INTERMEDIATE_BYTES else ""

    def formula(dtype: torch.dtype) -> Sequence[Tensor]:
        def rows_of(row_indices: Tensor, query: Tensor, *others: Tensor) -> Tensor:
            return eager(query[:, row_indices], *others)

        return exact.expected(rows_of, inputs, rows, batched=3, dtype=dtype, backward=mode == WITH_BACKWARD)

    ceiling, least = multiply_adds.limiting(settings.device, HIDDEN, FEATURES)
    # terms count twice with backward, whose kernels compute every tanh again
    return Case(
        "additive", "additive attention", mode,
        sizes={"B": BATCH, "n": n, "m": n, "h": HIDDEN, "d": FEATURES}, size=n,
        work=BATCH * n * n * HIDDEN * (1.0 if mode == FORWARD else 2.0), unit="terms", ceiling=ceiling,
        subjects=[
            Subject("eager", lambda: make_call(mode, eager, inputs), too_large),
            Subject("torch.compile", lambda: make_call(mode, compiled(eager), inputs), too_large, compiles=True),
            Subject(OURS, lambda: make_call(mode, ours, inputs), compiles=True),
            keras_layers.additive(mode, inputs, too_large),
            Subject(flexible.NAME, lambda: make_call(mode, eager, inputs), flexible.NO_DOT_PRODUCT),
        ],
        formula=formula, comparable=lambda results: exact.comparable(results, rows, batched=3), memory=True, shared=3,
        per_unit=least, gains=True,
    )  # fmt: skip
